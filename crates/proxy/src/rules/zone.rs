//! The rules that let conntrack tell a far leg from a connection of its client.
//!
//! A far leg has its client's address, and a port that the client seldom dials from. When it does, to
//! the same server, both have the same four addresses and ports: conntrack would take them for one
//! connection and translate the addresses of neither as it should. So where addresses are
//! translated, far legs have a zone of conntrack's of their own in the original direction. In the
//! reply direction all are in the default zone, where translation keeps them apart.

use super::{Family, MARK, Source, TABLE, foreign::Firewall};

/// Before conntrack looks at packets (-200), after operators' own rules of this kind (`raw`, -300).
const PRIORITY: i32 = -299;
/// Zones have 16 bits, as has the mark.
const ZONE: u32 = MARK;

/// A chain that is always there, commands of nft.
pub(super) fn declarations() -> Vec<String> {
    vec![format!("add chain inet {TABLE} unsplit_answers")]
}

/// Whether `firewall` needs the rules. They make conntrack track connections, so that they must not
/// be there where nothing else does.
fn are_needed(firewall: &Firewall) -> bool {
    [Family::V4, Family::V6].into_iter().any(|family| firewall.translates(family))
}

/// The rules where `firewall` is other programs' rules.
pub(super) fn rules(firewall: &Firewall) -> Vec<String> {
    if !are_needed(firewall) {
        return Vec::new();
    }
    vec![
        format!("add chain inet {TABLE} outgoing {{ type filter hook output priority {PRIORITY}; policy accept; }}"),
        // Only legs are sent from here with an address that is not this host's.
        format!("add rule inet {TABLE} outgoing tcp sport >= {} fib saddr type != local ct original zone set {ZONE}", Source::OWN.start),
        // The answer to an unsplit connection, which may have the addresses and ports of a far leg.
        // Those without translation pass on: so were far legs before these rules were there.
        format!("add rule inet {TABLE} unsplit_answers ct direction reply ct status snat ct original zone != {ZONE} accept"),
    ]
}

/// The commands that put the rules for `now` in the place of those for `before`.
pub(super) fn replace(before: &Firewall, now: &Firewall) -> Vec<String> {
    let mut lines = vec![format!("flush chain inet {TABLE} unsplit_answers")];
    if are_needed(before) {
        lines.extend([format!("flush chain inet {TABLE} outgoing"), format!("delete chain inet {TABLE} outgoing")]);
    }
    lines.extend(rules(now));
    lines
}
