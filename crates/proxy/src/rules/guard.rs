//! The rules that heed other programs' forward and input chains.
//!
//! A split connection passes the host's input chain, not its forward chain. So that the operator's
//! forward chain decides all the same, a SYN is split only when the chain has let a connection of
//! its kind pass: same interface, client, server and port. The first of a kind passes unsplit, and
//! a chain behind all others at the forward hook, which sees only what they have let pass, notes
//! its kind in the set `allowed`.
//!
//! Where an input chain may stop what is handed to the proxy, the kind of each SYN (interface,
//! client, port) is noted in the set `handed` as it is handed over, and struck out by a chain
//! behind all others at the input hook. A kind that is still there when its next SYN comes was
//! stopped on the way, unless both come almost together (the set `fresh`): its connections pass
//! unsplit for a while (the set `stopped`), since one packet may be lost by chance; for long when
//! the next try fails too (the set `struck`).

use super::{
    Family, TABLE,
    foreign::{Firewall, Hook},
    from_client,
};
use serde::Deserialize;
use std::{fmt, str::FromStr, time::Duration};

/// Whether the forward chains of other programs decide what may be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardPolicy {
    /// A connection is split only when they have let one of its kind pass: from the same client
    /// through the same interface, to the same port of the same server. Rules that name clients or
    /// their interfaces (`from`, `in`) are exempt.
    #[default]
    Heed,
    /// What the proxy's own rules say is split at once.
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

/// For so long what the forward chain has let pass counts for others of its kind. Changes of the
/// firewall are noticed at once; this bounds what cannot be: rules that depend on time, rates or
/// counts, and the tables of the older iptables.
const ALLOWED: Duration = Duration::from_secs(600);
/// For so long a handshake may go on: round trips over satellites, and a SYN that is sent again.
const ASKED: Duration = Duration::from_secs(8);
/// A SYN may be on its way from one hook to the other for so long; it is sent again after a second.
const FRESH: Duration = Duration::from_millis(500);
/// For so long connections of a kind that an input chain has stopped once pass unsplit, and for so
/// long when it has stopped the next too.
const STOPPED_ONCE: Duration = Duration::from_secs(10);
const STOPPED: Duration = Duration::from_secs(3600);
/// What the sets hold at most, of each family. Where they are full, connections pass unsplit.
const SIZE: u32 = 1 << 18;
/// Behind all other chains.
const LAST: i32 = i32::MAX - 1;
/// The hooks' chains, by what they do with SYNs.
const LATE: [(Hook, &str, &str, &str); 2] = [(Hook::Forward, "forward", "passed", "ask"), (Hook::Input, "input", "arrived", "arrive")];
/// Chains that other chains lead to.
const CHAINS: [&str; 7] = ["guard", "admit", "stop", "recall", "ask", "allow", "arrive"];
/// The sets.
const SETS: [&str; 6] = ["asked", "allowed", "handed", "fresh", "stopped", "struck"];

/// Sets, counters and chains that are always there, commands of nft.
pub(super) fn declarations() -> Vec<String> {
    let mut lines = Vec::new();
    for counter in ["not_yet_allowed", "stopped"] {
        lines.push(format!("add counter inet {TABLE} {counter}"));
    }
    for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
        let (connection, forwarded) =
            (format!("{kind} . inet_service . {kind} . inet_service"), format!("ifname . {kind} . {kind} . inet_service"));
        let handed = format!("ifname . {kind} . inet_service");
        for (set, key, time) in [
            ("asked", &connection, ASKED),
            ("allowed", &forwarded, ALLOWED),
            ("handed", &handed, STOPPED),
            ("fresh", &handed, FRESH),
            ("stopped", &handed, STOPPED_ONCE),
            ("struck", &handed, STOPPED),
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
                lines.push(format!("add rule inet {TABLE} {late} tcp flags & (syn | fin | rst | ack) == ack goto allow"));
            }
        }
    }
    let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
    for family in [Family::V4, Family::V6] {
        let (n, connection, forwarded, handed) = (family.number(), from_client(family), forwarded(family), handed(family));
        if firewall.filters(Hook::Forward, family) {
            rule("guard", format!("{forwarded} @allowed{n} goto split"));
            rule("guard", format!("meta nfproto ipv{n} counter name not_yet_allowed goto direct"));
            if firewall.translates(family) {
                // It was let pass by the address that it was sent to, which may be more open than
                // the one that it has now.
                rule("ask", format!("meta nfproto ipv{n} ct status dnat accept"));
            }
            rule("ask", format!("add @asked{n} {{ {connection} }}"));
            // Not `update`: the forward chain is asked again even when the kind is never idle.
            rule("allow", format!("{connection} @asked{n} add @allowed{n} {{ {forwarded} }} delete @asked{n} {{ {connection} }}"));
        }
        if firewall.filters(Hook::Input, family) {
            rule("admit", format!("{handed} @stopped{n} counter name stopped goto direct"));
            rule("admit", format!("{handed} @handed{n} {handed} != @fresh{n} goto stop"));
            // In this order, lest another processor see the one without the other.
            rule("admit", format!("add @fresh{n} {{ {handed} }} add @handed{n} {{ {handed} }}"));
            // Not handed over after all.
            rule("recall", format!("delete @handed{n} {{ {handed} }}"));
            let long = STOPPED.as_secs();
            rule("stop", format!("{handed} @struck{n} add @stopped{n} {{ {handed} timeout {long}s }}"));
            rule("stop", format!("add @stopped{n} {{ {handed} }} update @struck{n} {{ {handed} }} delete @handed{n} {{ {handed} }}"));
            rule("arrive", format!("delete @handed{n} {{ {handed} }} delete @struck{n} {{ {handed} }}"));
        }
    }
    rule("stop", "counter name stopped goto direct".into());
    rule("guard", "goto split".into());
    lines
}

/// The commands that put the rules for `now` in the place of those for `before`, and forget what
/// was noted. They change something in any case, as `Watch` needs it.
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

/// … and at the input hook: one refusal by it tells of many servers.
fn handed(family: Family) -> String {
    format!("iifname . {} saddr . tcp dport", family.ip())
}
