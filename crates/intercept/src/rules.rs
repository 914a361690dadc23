//! The rules that direct routed connections to a transparent listener.
//!
//! They belong to the proxy: one nftables table, two routing rules per family, one routing table.
//! The nftables table has an owner, an `nft` process that reads commands from a pipe of this
//! process: when the proxy ends, in whatever way, the kernel removes the table, and connections
//! pass unsplit. The routing rules have no effect without the mark that the table sets. They are
//! removed at the end, or replaced at the next start if the proxy was killed. One kernel setting is
//! changed at times, and restored: see `SETTING`. No other table, rule or route is changed.
//!
//! A new connection passes the chain `intercept`, where the policy's rules let some bypass, then
//! `guard`, which heeds the forward chains of other programs, then `split`. From there `open` hands
//! it to the proxy, unless its chain `admit` decides otherwise, which heeds other programs' input
//! chains (see `guard`). `open` is empty while the proxy is full or ending. Connections for a
//! carrier pass the chain `carry` before `guard` (see `carried`). If other programs use conntrack,
//! `zone` makes it distinguish the two legs of a connection. With an `experiment`,
//! `open` lets a share of what it would hand to the proxy pass unsplit. `quic` has what becomes of
//! UDP port 443.
//!
//! `table` has the text of the nftables table, `conditions` that of rules' conditions, `owner` the
//! process that owns the table, `installed` changes and restores it while the proxy runs, `watch`
//! notices that it was changed, `foreign` reads other programs' rules.

mod carried;
mod conditions;
mod experiment;
mod family;
mod foreign;
mod guard;
mod installed;
pub(crate) mod nfnetlink;
mod nft;
mod owner;
mod quic;
mod table;
mod watch;
mod zone;

pub use carried::Carried;
pub(crate) use experiment::{ANSWER, CAPTURED, LOG_GROUP, random_keys};
pub use experiment::{Experiment, ExperimentShare, Group};
pub(crate) use foreign::{Firewall, Hook, input_knows_mark};
pub use guard::ForwardPolicy;
pub use installed::{Counted, Installed, RulesHandover, RulesLost};

use crate::{
    kernel_setting::KernelSetting,
    policy::{Action, Rule},
    routes::Delivery,
};
use conditions::conditions;
use family::Family;
use std::{fmt, io, net::SocketAddr, path::PathBuf};

/// The name of the nftables table, in the family `inet`.
const TABLE: &str = "tandem";
/// The firewall mark of packets that are delivered to this host ("TD").
pub const MARK: u32 = 0x5444;
/// The routing rules that deliver marked packets.
const DELIVERY: Delivery = Delivery { mark: MARK, table: 0x5444, preference: 0x5444 };
/// Early demux: the kernel looks up the socket of a packet before it routes the packet, which makes
/// split connections much cheaper. But the kernel drops a packet that is to be forwarded and has a
/// socket. The remains of an ended leg (TIME_WAIT) match packets of a later connection with the
/// same addresses and ports; if that one passes unsplit, it stalls for a minute. So early demux is
/// switched off while connections pass unsplit that would have been split a moment before.
const SETTING: KernelSetting = KernelSetting { name: "net.ipv4.tcp_early_demux", value: "0" };

/// The firewall and routing rules of a transparent listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The listener's address. An unspecified IPv6 address stands for both families.
    pub listener: SocketAddr,
    /// The rules that decide which connections are split.
    pub policy: Vec<Rule>,
    /// Whether other programs' forward chains decide which connections may be split.
    pub forward_policy: ForwardPolicy,
    /// Which share of the connections passes unsplit to be compared with split ones. `None`: none.
    pub experiment: Option<Experiment>,
    /// What the carrier can carry at present. `None`: there is no carrier.
    pub carried: Option<Carried>,
}

/// Why the rules could not be installed or changed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// nft cannot be run.
    #[error("cannot run nft: {0}; install it (Debian package nftables)")]
    RunNft(io::Error),
    /// nft or the kernel refused the commands.
    #[error("cannot install the nftables rules: {said}; {cure}")]
    Refused {
        /// The error message of nft.
        said: String,
        /// The cure.
        cure: &'static str,
    },
    /// The kernel refused a routing rule or route.
    #[error("cannot install the routing rules: {why}; {cure}")]
    Routing {
        /// The kernel's reason.
        why: io::Error,
        /// The cure.
        cure: &'static str,
    },
    /// Another process has a table of this name in the network namespace.
    #[error(
        "cannot intercept connections: another process owns the nftables table inet {TABLE} in this network namespace; stop that proxy first"
    )]
    TableInUse,
    /// This kernel has no owners of tables, and the socket that shows instead that a proxy runs
    /// cannot be created.
    #[error(
        "cannot intercept connections: on this kernel the proxy needs a socket in {}, which cannot be created: {why}; let this user \
         write there (in a container with a read-only root: a tmpfs at /run)",
        at.display()
    )]
    NoSocket {
        /// The directory of the socket.
        at: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// The kernel does not return the table's counters.
    #[error("cannot read the counters of the nftables table inet {TABLE}: {0}; see `tandem doctor`")]
    ReadCounters(io::Error),
    /// The kernel does not return the rules of other programs.
    #[error("cannot read the firewall rules of other programs: {0}; see `tandem doctor`")]
    ReadFirewall(io::Error),
    /// The socket that shows that a proxy runs could not be created, on a kernel without owners.
    #[error("cannot claim the nftables table inet {TABLE}: {0}; see that /proc is mounted and that this user may write to /run")]
    Claim(io::Error),
    /// The process that owns the table has ended, or does not answer.
    #[error("cannot change the nftables table inet {TABLE}: the nft process that owns it failed: {why}")]
    OwnerLost {
        /// The reason.
        why: String,
    },
}

impl Rules {
    fn families(&self) -> &'static [Family] {
        match self.listener {
            SocketAddr::V4(_) => &[Family::V4],
            SocketAddr::V6(at) if at.ip().is_unspecified() => &[Family::V4, Family::V6],
            SocketAddr::V6(_) => &[Family::V6],
        }
    }

    /// The nftables commands, one per line, for a host without other programs' forward and input
    /// chains.
    pub fn nft(&self) -> Vec<String> {
        [vec![format!("add table inet {TABLE} {{ flags owner; }}")], self.contents(&Firewall::default())].concat()
    }

    /// Lets nft and the kernel check the table's contents, without changing anything.
    ///
    /// # Errors
    /// nft cannot be run, or it or the kernel refuses the contents.
    pub fn try_out(&self) -> Result<(), RulesError> {
        // Under another name: the table of a running proxy accepts commands only from its owner.
        let (table, trial) = (format!(" inet {TABLE} "), format!(" inet {TABLE}-check "));
        let contents: Vec<String> =
            self.contents(&Firewall::read().unwrap_or_default()).iter().map(|line| line.replacen(&table, &trial, 1)).collect();
        let script = format!("add table{trial}\n{}\n", contents.join("\n"));
        let (fine, said) = nft::run_with(&["-c", "-f", "-"], &script)?;
        if fine { Ok(()) } else { Err(RulesError::Refused { cure: nft::cure(&said), said }) }
    }

    /// Whether some connections are split only after the forward chains of other programs have
    /// accepted one of their kind (see `guard`).
    pub fn heeds_forward_chains(&self) -> bool {
        let is_split = |rule: &Rule| matches!(rule.action, Action::Split | Action::Carry);
        // After a rule without conditions, later rules and the default have no effect.
        let last = self.policy.iter().position(|rule| conditions(rule) == [""]);
        let deciding = &self.policy[..last.map_or(self.policy.len(), |last| last + 1)];
        let unnamed = deciding.iter().any(|rule| is_split(rule) && !rule.names_clients());
        self.forward_policy == ForwardPolicy::Heed && (unnamed || last.is_none())
    }

    /// The routing rules that deliver marked packets to this host, as `ip` commands for people to
    /// read.
    pub fn ip(&self) -> Vec<String> {
        self.families()
            .iter()
            .flat_map(|family| {
                let (flag, Delivery { mark, table, preference }) = (family.flag(), DELIVERY);
                [
                    format!("ip {flag} rule add iif lo fwmark {mark:#x} lookup main pref {}", preference - 1),
                    format!("ip {flag} rule add fwmark {mark:#x} lookup {table} pref {preference}"),
                    format!("ip {flag} route replace local default dev lo table {table}"),
                ]
            })
            .collect()
    }

    /// The forwarding settings that routed connections need, as `name=value`. The operator sets
    /// them.
    fn sysctls(&self) -> Vec<&'static str> {
        let setting = |family: &Family| match family {
            Family::V4 => "net.ipv4.ip_forward=1",
            Family::V6 => "net.ipv6.conf.all.forwarding=1",
        };
        self.families().iter().map(setting).collect()
    }

    /// The setting that the proxy itself changes at times, as `name=value`.
    pub fn own_sysctl(&self) -> String {
        format!("{}={}", SETTING.name, SETTING.value)
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for setting in self.sysctls() {
            writeln!(f, "# needed, and left to you: sysctl -w {setting}")?;
        }
        writeln!(f, "# set while connections pass unsplit for want of room or by a new rule: sysctl -w {}", self.own_sysctl())?;
        for line in self.ip() {
            writeln!(f, "{line}")?;
        }
        for line in self.nft() {
            // Quoted for a shell.
            writeln!(f, "nft '{line}'")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::QuicAction;

    fn rules(listener: &str, policy: Vec<Rule>) -> String {
        Rules { listener: listener.parse().unwrap(), policy, forward_policy: ForwardPolicy::Heed, experiment: None, carried: None }
            .to_string()
    }

    #[test]
    fn an_unspecified_ipv6_address_stands_for_both_families() {
        let both = rules("[::]:5000", vec![]);
        assert!(both.contains("tproxy ip to :5000") && both.contains("tproxy ip6 to :5000"), "{both}");
        assert!(both.contains("ip -6 route replace local default dev lo"), "{both}");
        let one = rules("192.0.2.1:5000", vec![]);
        assert!(one.contains("tproxy ip to 192.0.2.1:5000") && !one.contains("tproxy ip6") && !one.contains("ip -6"), "{one}");
    }

    #[test]
    fn quic_is_named_by_the_first_rule_that_matches() {
        let rule = |to: &str, quic| Rule { to: vec![to.parse().unwrap()], ports: vec!["443".parse().unwrap()], quic, ..Rule::default() };
        let policy = vec![rule("192.0.2.0/24", None), rule("2001:db8::/32", Some(QuicAction::Reject)), rule("10.0.0.0/8", None)];
        let all = rules("[::]:5000", policy);
        let lines: Vec<&str> = all.lines().filter_map(|line| line.strip_prefix("nft 'add rule inet tandem quic ")).collect();
        let wanted =
            ["ip daddr { 192.0.2.0/24 } udp dport { 443 } accept'", "ip6 daddr { 2001:db8::/32 } udp dport { 443 } goto quic_reject'"];
        assert_eq!(lines[4..], wanted);
        assert!(all.contains("reject with icmpx"), "{all}");
        // Kernels without `reject` in prerouting can do everything else.
        let all = rules("[::]:5000", vec![rule("10.0.0.0/8", Some(QuicAction::Count)), Rule::default()]);
        assert!(all.contains("udp dport { 443 } goto quic_count") && !all.contains("icmpx"), "{all}");
        assert!(!rules("[::]:5000", vec![Rule::default()]).contains("tandem quic ip"));
    }

    #[test]
    fn what_a_carrier_cannot_carry_passes_unsplit() {
        let rule = |to: &str, action| Rule { to: vec![to.parse().unwrap()], action, ..Rule::default() };
        let policy = vec![rule("192.0.2.0/24", Action::Split), rule("198.51.100.0/24", Action::Carry)];
        let lines = |carried| {
            let listener = "[::]:5000".parse().unwrap();
            let rules = Rules { listener, policy: policy.clone(), forward_policy: ForwardPolicy::Ignore, experiment: None, carried };
            let of = |chain: &str| {
                let begin = format!("add rule inet tandem {chain} ");
                rules.nft().iter().filter_map(|line| line.strip_prefix(&begin).map(str::to_owned)).collect::<Vec<_>>()
            };
            [of("intercept"), of("carry")]
        };
        let asked = ["ip daddr { 198.51.100.0/24 } jump carry", "ip daddr { 198.51.100.0/24 } goto guard", "jump carry", "goto guard"];
        let [intercept, carry] = lines(Some(Carried::ALL));
        assert!(intercept.ends_with(&asked.map(str::to_owned)) && carry.is_empty(), "{intercept:?} {carry:?}");
        let carry = |carried| lines(Some(carried))[1].join("; ");
        assert_eq!(carry(Carried { reached: false, ..Carried::ALL }), "counter name unsplit goto direct");
        let without_v6 = "meta nfproto ipv6 ip6 daddr 2000::/3 counter name unsplit goto direct";
        assert_eq!(carry(Carried { ipv6: false, ..Carried::ALL }), without_v6);
        // Without a carrier there is nothing to ask.
        assert!(!lines(None)[0].iter().any(|line| line.contains("carry")));
    }

    #[test]
    fn an_experiment_chooses_after_all_other_rules_and_measures_both_groups() {
        let experiment = Some(Experiment { share: "1 in 50".parse().unwrap(), keys: [0xabc, 1, 2, 3] });
        let rules = |experiment| {
            let listener = "[::]:5000".parse().unwrap();
            Rules { experiment, listener, policy: vec![], forward_policy: ForwardPolicy::Heed, carried: None }
        };
        let lines = rules(experiment).nft();
        let of = |start: &str| lines.iter().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {lines:#?}"));
        let chosen = of(
            "add rule inet tandem open meta nfproto ipv4 meta l4proto 6 jhash ip saddr . ip daddr . tcp sport . tcp dport mod 50 seed 0x00000abc <= 1 jump choose",
        );
        assert!(
            of("add rule inet tandem open jump admit") < chosen
                && chosen < of("add rule inet tandem open meta nfproto ipv4 meta l4proto 6 update @handshakes4")
        );
        for family in ["ip saddr", "ip6 saddr"] {
            let logged = |chain: &str| {
                lines.iter().any(|line| line.contains(&format!(" {chain} ")) && line.contains(family) && line.contains("log "))
            };
            assert!(["choose", "measure", "measured"].into_iter().all(logged), "{lines:#?}");
        }
        assert!(rules(None).nft().iter().all(|line| !line.contains("jhash") && !line.contains("log ")));
    }

    #[test]
    fn a_rule_becomes_one_line_per_family_that_it_can_match() {
        let rule = Rule {
            from: vec!["10.1.0.0/16".parse().unwrap(), "10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            to: vec!["192.0.2.1".parse().unwrap()],
            ports: vec!["8000-8999".parse().unwrap(), "443".parse().unwrap(), "8500-9000".parse().unwrap()],
            inward: vec!["eth*".parse().unwrap()],
            action: Action::Bypass,
            ..Rule::default()
        };
        let wanted = "ip saddr { 10.0.0.0/8 } ip daddr { 192.0.2.1/32 } iifname { \"eth*\" } tcp dport { 443, 8000-9000 } ";
        assert_eq!(conditions(&rule), [wanted]);
        let all = rules("[::]:5000", vec![rule, Rule::default()]);
        assert!(all.contains(&format!("intercept {wanted}counter name bypassed goto direct'\n")), "{all}");
        assert_eq!(conditions(&Rule::default()), [""]);
        let refuse = Rule { to: vec!["10.0.0.0/8".parse().unwrap()], action: Action::Refuse, ..Rule::default() };
        let all = rules("[::]:5000", vec![refuse]);
        assert!(all.contains("intercept ip daddr { 10.0.0.0/8 } reject with tcp reset'\n"), "{all}");
    }
}
