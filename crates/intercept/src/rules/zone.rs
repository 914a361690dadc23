//! The rules that make conntrack distinguish a far leg from a connection of its client.
//!
//! A far leg has its client's address, and a source port that the client rarely uses. If the client
//! does use it, to the same server, both connections have the same addresses and ports: conntrack
//! would treat them as one connection, and translate only one of them. So where conntrack is in
//! use, far legs have a conntrack zone of their own in the original direction. In the reply
//! direction all connections are in the default zone, where translation keeps them apart.
//!
//! Once installed, the rules stay until the proxy ends. Without the zone, existing far legs would
//! be new connections to conntrack.

use super::{MARK, TABLE, foreign::Firewall, nft};
use std::sync::OnceLock;

/// Hook priority before conntrack (-200), after the operator's own rules of this kind (`raw`,
/// -300).
const PRIORITY: i32 = -299;
/// The id of the zone, which has 16 bits.
const ZONE: u32 = MARK;
/// The rule for packets that this host sends, without the id.
const SET: &str = "tcp sport >= 1024 fib saddr type != local ct original zone set";

/// The commands that create the chain that exists on every host.
pub(super) fn declarations() -> Vec<String> {
    vec![format!("add chain inet {TABLE} unsplit_answers")]
}

/// Whether this kernel (CONFIG_NF_CONNTRACK_ZONES) and this `nft` support zones.
pub(super) fn are_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let trial = format!(
            "add table inet {TABLE}-check\nadd chain inet {TABLE}-check it {{ type filter hook output priority {PRIORITY}; }}\n\
             add rule inet {TABLE}-check it {SET} {ZONE}\n"
        );
        let (supported, said) = nft::run_with(&["-c", "-f", "-"], &trial).unwrap_or_default();
        if !supported {
            tracing::warn!(
                "far legs get no conntrack zone ({said}): a client that dials from the port of one of them, to the same server, is reset; \
                 use a kernel with CONFIG_NF_CONNTRACK_ZONES"
            );
        }
        supported
    })
}

/// The rules for a host with this firewall. They make conntrack track connections of both families,
/// so that they must not be installed if nothing else uses it.
pub(super) fn rules(firewall: &Firewall) -> Vec<String> {
    if !firewall.has_zone() {
        return Vec::new();
    }
    vec![
        format!("add chain inet {TABLE} outgoing {{ type filter hook output priority {PRIORITY}; policy accept; }}"),
        // Of the packets that this host sends, only those of far legs have a source address that is
        // not local.
        format!("add rule inet {TABLE} outgoing {SET} {ZONE}"),
        // A reply to an unsplit connection, which may have the addresses and ports of a far leg.
        // Replies of untranslated connections continue to the socket match, because a far leg that
        // was dialled before these rules were installed has no zone.
        format!("add rule inet {TABLE} unsplit_answers ct direction reply ct status snat ct original zone 0 accept"),
    ]
}

/// The commands that replace the rules for `before` by those for `now`.
pub(super) fn replace(before: &Firewall, now: &Firewall) -> Vec<String> {
    if before.has_zone() { Vec::new() } else { rules(now) }
}
