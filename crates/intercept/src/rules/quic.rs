//! What becomes of QUIC (UDP port 443) that the rules of the policy name.
//!
//! Only the first packets of a connection are looked at: a client's Initial has a long header
//! (RFC 9000 §17.2, the first bit after the UDP header), and its datagram has at least 1200 bytes
//! (§14.1). Connections that are open when a rule is installed go on, also where they migrate, and
//! so do other protocols at that port: their first bit is 0 (DTLS, OpenVPN, WireGuard).
//!
//! A rejected client gets an ICMP error, by which a browser falls back to TCP at once. Above a rate
//! the packets are dropped without one: the firewall must not become a source of ICMP floods.

use super::{Rules, TABLE, conditions::conditions_of, family::Family};
use crate::policy::QuicAction;

/// The bytes of a UDP header and of the smallest datagram of a client's Initial.
const LEAST_LENGTH: u32 = 8 + 1200;
/// How long a connection counts as seen after its last Initial, seconds. Clients give up after ten.
const SEEN_S: u32 = 30;
/// Size of the sets of connections that were seen, in elements.
const SET_SIZE: u32 = 1 << 16;
/// ICMP errors each second, and at once. The kernel also limits those to each client
/// (`net.ipv4.icmp_ratelimit`).
const RATE: u32 = 200;
const BURST: u32 = 400;

/// Counters of these rules.
pub(super) const COUNTERS: [&str; 3] = ["quic_connections", "quic_rejected", "quic_dropped"];

/// The sets and chains, which exist whether or not a rule names QUIC.
pub(super) fn declarations() -> Vec<String> {
    let mut lines: Vec<String> = COUNTERS.iter().map(|counter| format!("add counter inet {TABLE} {counter}")).collect();
    for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
        lines.push(format!(
            "add set inet {TABLE} quic{} {{ type {kind} . inet_service . {kind} . inet_service; flags dynamic,timeout; timeout {SEEN_S}s; \
             size {SET_SIZE}; }}",
            family.number()
        ));
    }
    let chains = ["quic", "quic_seen", "quic_count", "quic_reject"];
    lines.extend(chains.map(|chain| format!("add chain inet {TABLE} {chain}")));
    let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
    for family in [Family::V4, Family::V6] {
        let (n, key) = (family.number(), family.client_key().replace("tcp", "udp"));
        rule("quic_seen", format!("{key} @quic{n} return"));
        rule("quic_seen", format!("meta nfproto ipv{n} update @quic{n} {{ {key} }} counter name quic_connections"));
    }
    rule("quic_count", "jump quic_seen".into());
    rule("quic_count", "accept".into());
    lines
}

/// The rule that leads a client's Initials to the chain `quic`. Not those to this host itself.
pub(super) fn entry() -> String {
    format!("udp dport 443 @th,64,1 1 udp length >= {LEAST_LENGTH} fib daddr type unicast goto quic")
}

impl Rules {
    /// The rules of the chain `quic`, by the bypass list and the policy, and of `quic_reject`, the
    /// action of which older kernels lack.
    pub(super) fn quic(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
        let Some(last) = self.policy.iter().rposition(|one| one.quic.is_some()) else { return lines };
        for family in [Family::V4, Family::V6] {
            for end in ["saddr", "daddr"] {
                rule("quic", format!("{} {end} @bypass{} accept", family.ip(), family.number()));
            }
        }
        // The first rule that matches decides, as for TCP: without `quic`, the packet passes.
        for one in &self.policy[..=last] {
            let verdict = match one.quic {
                Some(QuicAction::Count) => "goto quic_count",
                Some(QuicAction::Reject) => "goto quic_reject",
                None => "accept",
            };
            for condition in conditions_of(one, "udp") {
                rule("quic", format!("{condition}{verdict}"));
            }
        }
        if self.policy.iter().any(|one| one.quic == Some(QuicAction::Reject)) {
            rule("quic_reject", "jump quic_seen".into());
            rule(
                "quic_reject",
                format!(
                    "limit rate {RATE}/second burst {BURST} packets counter name quic_rejected reject with icmpx type port-unreachable"
                ),
            );
            rule("quic_reject", "counter name quic_dropped drop".into());
        }
        lines
    }
}
