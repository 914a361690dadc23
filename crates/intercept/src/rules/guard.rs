//! The rules that heed other programs' forward and input chains.
//!
//! **Forward chains.** A split connection passes the host's input chain, not its forward chain. So
//! that the operator's forward chain still decides, a connection is split only after the chain has
//! accepted one of its kind: same interface, client, server and port. The first of a kind passes
//! unsplit. A chain of ours after all others at the forward hook sees only what they have accepted.
//! It adds the SYN to the set `asked`, and the kind to the set `allowed` when an ACK of the client
//! follows: the source address of a SYN alone may be forged.
//!
//! **Input chains.** If an input chain may stop what is handed to the proxy, a chain of ours after
//! all others at the input hook adds the kind of each SYN that arrives (interface, client, port) to
//! the set `arrived`. When a SYN is handed over and its kind has not arrived recently, the kind is
//! added to the set `handed`, and deleted at the input hook. If it is still in `handed` when the
//! next SYN of its kind comes, the first SYN was stopped between the hooks, or is still between
//! them (the set `fresh`). Connections of a stopped kind pass unsplit (the set `stopped`): for a
//! short time at first, since a single packet may be lost by chance, and for longer if the next one
//! is stopped too (the set `stopped_before`).
//!
//! Elements that a rule deletes stay in the kernel's hash table until its garbage collection, once
//! a second, and the table refuses a key of which it has 16. So `handed` must not change with every
//! SYN.

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
    /// They do: a connection is split only after they have accepted one of its kind, from the same
    /// client through the same interface to the same port of the same server. Rules that name
    /// clients or their interfaces (`from`, `in`) are exempt
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
            _ => Err(format!("cannot parse forward policy {text:?}: write heed or ignore")),
        }
    }
}

impl fmt::Display for ForwardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == ForwardPolicy::Heed { "heed" } else { "ignore" })
    }
}

/// Lifetime of an element of `allowed`. Changes of the firewall are noticed at once. This bounds
/// the effect of what cannot be noticed: rules that depend on time, rates or counts, and the tables
/// of iptables-legacy.
const ALLOWED: Duration = Duration::from_secs(600);
/// Upper bound on the time between the last SYN of a handshake and its ACK.
const ASKED: Duration = Duration::from_secs(8);
/// Lifetime of an element of `fresh`: upper bound on the time of a SYN between the hooks. Less than
/// one second, after which a lost SYN is retransmitted. Further SYNs of the kind do not extend it,
/// so that a busy kind that is stopped is noticed.
const FRESH: Duration = Duration::from_millis(500);
/// How long the input chains are assumed to accept a kind after one of its SYNs has arrived.
/// Changes of the firewall are noticed at once; this bounds the effect of rate limits.
const ARRIVED: Duration = Duration::from_secs(2);
/// How long connections of a kind pass unsplit after an input chain has stopped one SYN, and after
/// it has stopped the next one too.
const STOPPED_ONCE: Duration = Duration::from_secs(10);
const STOPPED: Duration = Duration::from_secs(300);
/// Capacity of each set, in elements. If a set is full, connections pass unsplit.
const SIZE: u32 = 1 << 18;
/// Hook priority after all other chains.
const LAST: i32 = i32::MAX - 1;
/// For each hook: its name in nftables, our chain at it, the chain that handles SYNs.
const LATE: [(Hook, &str, &str, &str); 2] = [(Hook::Forward, "forward", "passed", "ask"), (Hook::Input, "input", "arrived", "arrive")];
/// The chains that are not at a hook.
const CHAINS: [&str; 7] = ["guard", "admit", "stop", "recall", "ask", "allow", "arrive"];
/// The sets.
const SETS: [&str; 7] = ["asked", "allowed", "arrived", "handed", "fresh", "stopped", "stopped_before"];

/// The commands that create the sets, counters and chains that exist on every host.
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

/// The commands that fill the chains on a host with these rules of other programs.
pub(super) fn rules(firewall: &Firewall) -> Vec<String> {
    let mut lines = Vec::new();
    for (hook, at, late, then) in LATE {
        if [Family::V4, Family::V6].into_iter().any(|family| firewall.filters(hook, family)) {
            lines.push(format!("add chain inet {TABLE} {late} {{ type filter hook {at} priority {LAST}; policy accept; }}"));
            lines.push(format!("add rule inet {TABLE} {late} tcp flags & (syn | ack) == syn goto {then}"));
            if hook == Hook::Forward {
                // Only short packets: the data of a bulk transfer needs no lookup in the set.
                let acknowledges = "tcp flags & (syn | fin | rst | ack) == ack meta length <= 120";
                lines.push(format!("add rule inet {TABLE} {late} {acknowledges} goto allow"));
            }
        }
    }
    let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
    if firewall.tracks() || firewall.has_zone() {
        // Conntrack still has an entry with the same addresses and ports, of an unsplit connection
        // that did not end. Its source NAT would apply to packets delivered to the listener.
        rule("admit", "ct status snat goto direct".into());
    }
    for family in [Family::V4, Family::V6] {
        let (n, forwarded, handed) = (family.number(), forwarded(family), handed(family));
        // With the interface: an ACK through another interface does not belong to this SYN.
        let (connection, tracked) = (format!("iifname . {}", family.client_key()), firewall.tracks());
        if firewall.filters(Hook::Forward, family) {
            rule("guard", format!("{forwarded} @allowed{n} goto split"));
            rule("guard", format!("meta nfproto ipv{n} counter name not_yet_allowed goto direct"));
            if firewall.translates(family) {
                // A SYN with translated destination (DNAT) was accepted because of its original
                // destination. That does not allow connections to the translated address itself.
                rule("ask", format!("meta nfproto ipv{n} ct status dnat accept"));
            }
            rule("ask", format!("update @asked{n} {{ {connection} }}"));
            // Conntrack, if in use, knows whether the ACK completes the handshake. `add`, not
            // `update`: the element must expire even if the kind is never idle, so that the forward
            // chain decides again.
            let is_complete = if tracked { "ct status assured " } else { "" };
            rule("allow", format!("{is_complete}{connection} @asked{n} add @allowed{n} {{ {forwarded} }}"));
        }
        if firewall.filters(Hook::Input, family) {
            if tracked {
                // Input chains commonly drop packets in this state.
                rule("admit", format!("meta nfproto ipv{n} ct state invalid goto direct"));
            }
            rule("admit", format!("{handed} @arrived{n} return"));
            rule("admit", format!("{handed} @stopped{n} counter name stopped goto direct"));
            rule("admit", format!("{handed} @handed{n} {handed} != @fresh{n} goto stop"));
            rule("admit", format!("{handed} @handed{n} return"));
            // `fresh` first: another CPU must not see the kind in `handed` without it.
            rule("admit", format!("update @fresh{n} {{ {handed} }} add @handed{n} {{ {handed} }} return"));
            // Reached if a set is full or cannot grow fast enough: it could not be noticed that the
            // SYN is stopped.
            rule("admit", format!("meta nfproto ipv{n} counter name unsplit goto direct"));
            // The SYN was not handed over after all.
            rule("recall", format!("delete @handed{n} {{ {handed} }}"));
            let long = STOPPED.as_secs();
            let again = format!("counter name stopped_again add @stopped{n} {{ {handed} timeout {long}s }}");
            rule("stop", format!("{handed} @stopped_before{n} {again}"));
            rule(
                "stop",
                format!("add @stopped{n} {{ {handed} }} update @stopped_before{n} {{ {handed} }} delete @handed{n} {{ {handed} }}"),
            );
            // `update` is last, since a full set ends the rule.
            let arrived = format!("update @arrived{n} {{ {handed} }}");
            rule("arrive", format!("delete @handed{n} {{ {handed} }} delete @stopped_before{n} {{ {handed} }} {arrived}"));
        }
    }
    rule("stop", "counter name stopped goto direct".into());
    rule("guard", "goto split".into());
    lines
}

/// The commands that replace the rules for `before` by those for `now`, and empty the sets. They
/// always change something, as `TableWatch::has_changed` requires.
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

/// The key of a kind of connections at the forward hook.
fn forwarded(family: Family) -> String {
    let ip = family.ip();
    format!("iifname . {ip} saddr . {ip} daddr . tcp dport")
}

/// The key of a kind of connections at the input hook. Without the server: input chains rarely
/// distinguish servers.
fn handed(family: Family) -> String {
    format!("iifname . {} saddr . tcp dport", family.ip())
}
