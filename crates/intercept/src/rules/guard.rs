//! The rules that heed other programs' forward and input chains.
//!
//! A split connection passes the host's input chain, not its forward chain. So that the operator's
//! forward chain decides all the same, a SYN is split only when the chain has let a connection of
//! its kind pass: same interface, client, server and port. The first of a kind passes unsplit, and
//! a chain behind all others at the forward hook, which sees only what they have let pass, notes
//! the SYN in the set `asked`, and its kind in the set `allowed` when an ACK of the client follows:
//! the source of a lone SYN may be forged.
//!
//! Where an input chain may stop what is handed to the proxy, a chain behind all others at the
//! input hook notes the kind of each SYN that it sees (interface, client, port) in the set
//! `arrived`. The kind of a SYN is added to the set `handed` as it is handed over when none has
//! arrived lately, and deleted at the input hook. A kind that is still there when its next SYN
//! comes was stopped between the hooks, unless the first may still be there (the set `fresh`). Its
//! connections then pass unsplit (the set `stopped`): for a short time, since one packet may be
//! lost by chance, and for longer when the next one is stopped too (the set `stopped_before`).
//!
//! Elements that a rule deletes stay in the kernel's hash table until it collects them, once a
//! second, and it refuses a key of which it has 16: `handed` must not change with every SYN.

use super::{
    TABLE,
    family::Family,
    foreign::{Firewall, Hook},
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{fmt, str::FromStr, time::Duration};

/// Whether the forward chains of other programs decide what may be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ForwardPolicy {
    /// They do: a connection is split only after they have let one of its kind pass, from the same
    /// client through the same interface to the same port of the same server. Rules that name clients
    /// or their interfaces (`from`, `in`) are exempt
    #[default]
    Heed,
    /// They do not: the proxy's own rules decide at once
    Ignore,
}

impl FromStr for ForwardPolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "heed" => Ok(ForwardPolicy::Heed),
            "ignore" => Ok(ForwardPolicy::Ignore),
            _ => Err(format!("cannot read the forward policy {text:?}: expected heed or ignore")),
        }
    }
}

impl fmt::Display for ForwardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == ForwardPolicy::Heed { "heed" } else { "ignore" })
    }
}

/// How long an entry of `allowed` is valid. Changes of the firewall are noticed at once; this
/// bounds what cannot be noticed: rules that depend on time, rates or counts, and the tables of the
/// older iptables.
const ALLOWED: Duration = Duration::from_secs(600);
/// Upper bound on the time between the last SYN of a handshake and its ACK.
const ASKED: Duration = Duration::from_secs(8);
/// A SYN that was added less than this ago may still be between the hooks; one that was lost is
/// sent again after a second. Those that come while one is there do not extend the time, so that a
/// busy kind that is stopped is noticed.
const FRESH: Duration = Duration::from_millis(500);
/// After an arrival the input chains are taken to let the kind pass for so long. A change of the
/// firewall is noticed at once; this is for limits on rates.
const ARRIVED: Duration = Duration::from_secs(2);
/// How long connections of a kind pass unsplit when an input chain has stopped one SYN, and when it
/// has stopped the next too.
const STOPPED_ONCE: Duration = Duration::from_secs(10);
const STOPPED: Duration = Duration::from_secs(300);
/// What the sets hold at most, of each family. Where they are full, connections pass unsplit.
const SIZE: u32 = 1 << 18;
/// Behind all other chains.
const LAST: i32 = i32::MAX - 1;
/// The hooks' chains, by what they do with SYNs.
const LATE: [(Hook, &str, &str, &str); 2] = [(Hook::Forward, "forward", "passed", "ask"), (Hook::Input, "input", "arrived", "arrive")];
/// Chains that other chains lead to.
const CHAINS: [&str; 7] = ["guard", "admit", "stop", "recall", "ask", "allow", "arrive"];
/// The sets.
const SETS: [&str; 7] = ["asked", "allowed", "arrived", "handed", "fresh", "stopped", "stopped_before"];

/// Sets, counters and chains that are always there, commands of nft.
pub(super) fn declarations() -> Vec<String> {
    let mut lines = Vec::new();
    for counter in ["not_yet_allowed", "stopped", "stopped_again"] {
        lines.push(format!("add counter inet {TABLE} {counter}"));
    }
    for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
        let connection = format!("ifname . {kind} . inet_service . {kind} . inet_service");
        let forwarded = format!("ifname . {kind} . {kind} . inet_service");
        let handed = format!("ifname . {kind} . inet_service");
        for (set, key, time) in [
            ("asked", &connection, ASKED),
            ("allowed", &forwarded, ALLOWED),
            ("arrived", &handed, ARRIVED),
            ("handed", &handed, STOPPED),
            ("fresh", &handed, FRESH),
            ("stopped", &handed, STOPPED_ONCE),
            ("stopped_before", &handed, STOPPED),
        ] {
            let (n, time) = (family.number(), time.as_millis());
            lines.push(format!("add set inet {TABLE} {set}{n} {{ type {key}; flags dynamic,timeout; timeout {time}ms; size {SIZE}; }}"));
        }
    }
    lines.extend(CHAINS.map(|chain| format!("add chain inet {TABLE} {chain}")));
    lines
}

/// What the chains hold where `firewall` is other programs' rules.
pub(super) fn rules(firewall: &Firewall) -> Vec<String> {
    let mut lines = Vec::new();
    for (hook, at, late, then) in LATE {
        if [Family::V4, Family::V6].into_iter().any(|family| firewall.filters(hook, family)) {
            lines.push(format!("add chain inet {TABLE} {late} {{ type filter hook {at} priority {LAST}; policy accept; }}"));
            lines.push(format!("add rule inet {TABLE} {late} tcp flags & (syn | ack) == syn goto {then}"));
            if hook == Hook::Forward {
                // Without data: what a bulk transfer sends needs no look at the set.
                let acknowledges = "tcp flags & (syn | fin | rst | ack) == ack meta length <= 120";
                lines.push(format!("add rule inet {TABLE} {late} {acknowledges} goto allow"));
            }
        }
    }
    let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
    if firewall.tracks() || firewall.has_zone() {
        // Conntrack still has an entry of the same addresses and ports from an unsplit connection
        // that never ended. Its source NAT would apply to packets delivered to the listener.
        rule("admit", "ct status snat goto direct".into());
    }
    for family in [Family::V4, Family::V6] {
        let (n, forwarded, handed) = (family.number(), forwarded(family), handed(family));
        // With the interface: another interface's packets of the same addresses are no answer.
        let (connection, tracked) = (format!("iifname . {}", family.from_client()), firewall.tracks());
        if firewall.filters(Hook::Forward, family) {
            rule("guard", format!("{forwarded} @allowed{n} goto split"));
            rule("guard", format!("meta nfproto ipv{n} counter name not_yet_allowed goto direct"));
            if firewall.translates(family) {
                // A DNATed SYN was accepted under its original destination: that says nothing about
                // connections directly to the translated address.
                rule("ask", format!("meta nfproto ipv{n} ct status dnat accept"));
            }
            rule("ask", format!("update @asked{n} {{ {connection} }}"));
            // Where there is conntrack, it knows whether the ACK completes the handshake. Not
            // `update`: the forward chain is asked again even when the kind is never idle.
            let is_complete = if tracked { "ct status assured " } else { "" };
            rule("allow", format!("{is_complete}{connection} @asked{n} add @allowed{n} {{ {forwarded} }}"));
        }
        if firewall.filters(Hook::Input, family) {
            if tracked {
                // Input chains commonly drop it.
                rule("admit", format!("meta nfproto ipv{n} ct state invalid goto direct"));
            }
            rule("admit", format!("{handed} @arrived{n} return"));
            rule("admit", format!("{handed} @stopped{n} counter name stopped goto direct"));
            rule("admit", format!("{handed} @handed{n} {handed} != @fresh{n} goto stop"));
            rule("admit", format!("{handed} @handed{n} return"));
            // In this order, lest another processor see the one without the other.
            rule("admit", format!("update @fresh{n} {{ {handed} }} add @handed{n} {{ {handed} }} return"));
            // A set is full, or cannot grow as fast as kinds come: whether the SYN is stopped could
            // not be noticed.
            rule("admit", format!("meta nfproto ipv{n} counter name unsplit goto direct"));
            // Not handed over after all.
            rule("recall", format!("delete @handed{n} {{ {handed} }}"));
            let long = STOPPED.as_secs();
            let again = format!("counter name stopped_again add @stopped{n} {{ {handed} timeout {long}s }}");
            rule("stop", format!("{handed} @stopped_before{n} {again}"));
            rule(
                "stop",
                format!("add @stopped{n} {{ {handed} }} update @stopped_before{n} {{ {handed} }} delete @handed{n} {{ {handed} }}"),
            );
            // Last, since a full set ends a rule.
            let arrived = format!("update @arrived{n} {{ {handed} }}");
            rule("arrive", format!("delete @handed{n} {{ {handed} }} delete @stopped_before{n} {{ {handed} }} {arrived}"));
        }
    }
    rule("stop", "counter name stopped goto direct".into());
    rule("guard", "goto split".into());
    lines
}

/// The commands that put the rules for `now` in the place of those for `before`, and forget what
/// was noted. They change something in any case, as `TableWatch` needs it.
pub(super) fn replace(before: &Firewall, now: &Firewall) -> Vec<String> {
    let mut lines: Vec<String> = CHAINS.iter().map(|chain| format!("flush chain inet {TABLE} {chain}")).collect();
    for (hook, _, late, _) in LATE {
        if [Family::V4, Family::V6].into_iter().any(|family| before.filters(hook, family)) {
            lines.extend([format!("flush chain inet {TABLE} {late}"), format!("delete chain inet {TABLE} {late}")]);
        }
    }
    for set in SETS {
        lines.extend(['4', '6'].map(|n| format!("flush set inet {TABLE} {set}{n}")));
    }
    lines.extend(rules(now));
    lines
}

/// What tells kinds of connections apart at the forward hook …
fn forwarded(family: Family) -> String {
    let ip = family.ip();
    format!("iifname . {ip} saddr . {ip} daddr . tcp dport")
}

/// … and at the input hook. Without the server: input chains rarely distinguish servers.
fn handed(family: Family) -> String {
    format!("iifname . {} saddr . tcp dport", family.ip())
}
