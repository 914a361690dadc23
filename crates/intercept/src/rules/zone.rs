//! The rules that let conntrack tell a far leg from a connection of its client.
//!
//! A far leg has its client's address, and a port that the client seldom dials from. When it does,
//! to the same server, both have the same addresses and ports: conntrack would take them for one
//! connection, and translate only one of them. So where conntrack is in use, far legs have a
//! conntrack zone of their own in the original direction. In the reply direction all are in the
//! default zone, where translation keeps them apart.
//!
//! Once the rules are there they stay until the proxy ends: flows that had the zone a moment ago
//! would be new connections to conntrack without it.

use super::{MARK, TABLE, foreign::Firewall, nft};
use std::sync::OnceLock;

/// Before conntrack looks at packets (-200), after operators' own rules of this kind (`raw`, -300).
const PRIORITY: i32 = -299;
/// Zone ids have 16 bits; the value of the mark fits.
const ZONE: u32 = MARK;
/// The rule for packets that this host sends.
const SET: &str = "tcp sport >= 1024 fib saddr type != local ct original zone set";

/// A chain that is always there, commands of nft.
pub(super) fn declarations() -> Vec<String> {
    vec![format!("add chain inet {TABLE} unsplit_answers")]
}

/// Whether this kernel and this `nft` know zones: CONFIG_NF_CONNTRACK_ZONES.
pub(super) fn are_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let trial = format!(
            "add table inet {TABLE}-check\nadd chain inet {TABLE}-check it {{ type filter hook output priority {PRIORITY}; }}\n\
             add rule inet {TABLE}-check it {SET} {ZONE}\n"
        );
        let (known, said) = nft::run_with(&["-c", "-f", "-"], &trial).unwrap_or_default();
        if !known {
            tracing::warn!(
                "far legs get no conntrack zone ({said}): a client that dials from the port of one of them, to the same server, is reset; \
                 use a kernel with CONFIG_NF_CONNTRACK_ZONES"
            );
        }
        known
    })
}

/// The rules for a host with this firewall. They make conntrack track connections of both families,
/// so that they must not be there where nothing else does.
pub(super) fn rules(firewall: &Firewall) -> Vec<String> {
    if !firewall.has_zone() {
        return Vec::new();
    }
    vec![
        format!("add chain inet {TABLE} outgoing {{ type filter hook output priority {PRIORITY}; policy accept; }}"),
        // Of locally sent packets, only those of legs have a source address that is not local.
        format!("add rule inet {TABLE} outgoing {SET} {ZONE}"),
        // A reply to an unsplit connection, which may have the addresses and ports of a far leg.
        // Replies of untranslated connections continue to the socket match: a far leg that was
        // dialled before these rules existed has no zone.
        format!("add rule inet {TABLE} unsplit_answers ct direction reply ct status snat ct original zone 0 accept"),
    ]
}

/// The commands that put the rules for `now` in the place of those for `before`.
pub(super) fn replace(before: &Firewall, now: &Firewall) -> Vec<String> {
    if before.has_zone() { Vec::new() } else { rules(now) }
}
