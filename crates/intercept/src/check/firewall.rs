//! How other programs' firewall rules on this host affect connections that should be split.

use super::{Trial, TrialResult};
use crate::rules::{Firewall, Hook, MARK, Rules, input_knows_mark};

/// Checks the firewall of the calling thread's network namespace, for a proxy with these rules. The
/// list is empty if the firewall cannot be read, which needs CAP_NET_ADMIN.
pub fn try_firewall(rules: &Rules) -> Vec<Trial> {
    let Ok(firewall) = Firewall::read() else { return Vec::new() };
    // If it cannot be read, assume that the input chain has no rule for the mark.
    let knows_mark = input_knows_mark().unwrap_or(false);
    vec![
        Trial::new("pass", "the forward chain", forward(firewall.named(Hook::Forward), rules)),
        Trial::new("pass", "the input chain", input(firewall.named(Hook::Input), knows_mark)),
    ]
}

fn forward(chains: Option<String>, rules: &Rules) -> TrialResult {
    match chains {
        None => TrialResult::works("it lets everything pass, so that every connection can be split"),
        Some(chains) if !rules.heeds_forward_chains() => {
            TrialResult::works(format!("{chains} is not heeded (forward_policy = \"ignore\")"))
        }
        Some(chains) => TrialResult::doubtful(
            format!(
                "{chains} may stop forwarded connections. Unless a rule names its client, the first connection from a client to a \
                 port of a server passes unsplit; later ones are split if the chain has accepted the first"
            ),
            "to split the first one too, name the clients in a rule (`in` or `from`), or set forward_policy = \"ignore\": then that \
             chain does not apply to split connections",
        ),
    }
}

fn input(chains: Option<String>, knows_mark: bool) -> TrialResult {
    match chains {
        None => TrialResult::works("it lets everything pass"),
        Some(_) if knows_mark => TrialResult::works(format!("it has a rule for the mark {MARK:#x}")),
        Some(chains) => TrialResult::doubtful(
            format!(
                "{chains} may stop connections that are to be split: if it drops their SYNs, they begin one second late and unsplit; \
                 if it rejects them, some connections fail"
            ),
            format!(
                "add a rule that accepts packets with the mark {MARK:#x}, which only the proxy's rules set (nft: meta mark {MARK:#x} accept; \
                 iptables: -m mark --mark {MARK:#x} -j ACCEPT)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, ForwardPolicy, Rule};

    #[test]
    fn a_forward_chain_is_doubtful_only_where_it_is_heeded() {
        let rules = |policy: Vec<Rule>, forward_policy| {
            let listener = "[::]:5000".parse().unwrap();
            Rules { listener, policy, forward_policy, experiment: None, carried: None }
        };
        let said = |policy, word| forward(Some("the chain forward".into()), &rules(policy, word));
        let named = Rule { inward: vec!["near".parse().unwrap()], ..Rule::default() };
        let rest = Rule { action: Action::Bypass, ..Rule::default() };
        let works = |result: TrialResult| matches!(result, TrialResult::Works(_));
        assert!(!works(said(vec![], ForwardPolicy::Heed)));
        assert!(!works(said(vec![named.clone()], ForwardPolicy::Heed)), "connections of other clients depend on the chain");
        assert!(works(said(vec![named, rest.clone()], ForwardPolicy::Heed)));
        assert!(!works(said(vec![Rule::default(), rest], ForwardPolicy::Heed)));
        assert!(works(said(vec![], ForwardPolicy::Ignore)));
        assert!(works(forward(None, &rules(vec![], ForwardPolicy::Heed))));
    }

    #[test]
    fn an_input_chain_with_a_rule_for_the_mark_works() {
        assert!(matches!(input(Some("the chain input".into()), true), TrialResult::Works(_)));
        let TrialResult::Doubtful { cure, .. } = input(Some("the chain input".into()), false) else { panic!("it may stop them") };
        assert!(cure.contains("meta mark 0x5444 accept"));
    }
}
