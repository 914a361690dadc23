//! The contents of the nftables table, as commands of nft. `rules` explains the chains that a new
//! connection passes; `guard` and `zone` add chains of their own.

use super::{MARK, Rules, TABLE, conditions::conditions, experiment, family::Family, foreign::Firewall, guard, quic, zone};
use crate::policy::Action;
use std::{net::SocketAddr, time::Duration};

/// Protocol numbers. nft looks up names in /etc/protocols, which minimal systems lack.
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Lifetime of an element of `direct`: a connection that passed unsplit although this host had a
/// socket with the same addresses and ports. Longer than TIME_WAIT (60 s).
pub(super) const DIRECT_LIFETIME: Duration = Duration::from_secs(70);
/// Lifetime of an element of `opened`: a connection that was opened unsplit through this host and
/// must be answered meanwhile. A retransmitted SYN renews it.
const OPENED_LIFETIME: Duration = Duration::from_secs(8);
/// Lifetime of an element of `handshakes`: a connection whose SYN was handed to the proxy. While
/// the kernel sends SYN cookies during a flood, no socket exists for a handshake, so that the
/// socket match does not find the ACK that completes it.
const HANDSHAKE_LIFETIME: Duration = Duration::from_secs(20);
/// Hook priority of most rules: before conntrack translates destinations (`dstnat`, -100). The
/// destination of a port that the operator forwards is then still an address of this host, so that
/// its connections are not split.
const PRIORITY: i32 = -150;
/// Hook priority after that translation: only then does the answer to a masqueraded far leg have
/// the leg's addresses.
const PRIORITY_TRANSLATED: i32 = -99;
/// Capacity of each of these sets, in elements.
const SET_SIZE: u32 = 1 << 18;

impl Rules {
    /// The contents of the table on a host with these rules of other programs.
    pub(super) fn contents(&self, firewall: &Firewall) -> Vec<String> {
        let mut lines = [guard::declarations(), zone::declarations(), quic::declarations(), experiment::declarations()].concat();
        for counter in ["split", "bypassed", "unsplit", "oneway", "quic"] {
            lines.push(format!("add counter inet {TABLE} {counter}"));
        }
        for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
            let n = family.number();
            lines.push(format!("add set inet {TABLE} bypass{n} {{ type {kind}; flags interval; auto-merge; }}"));
            for (set, time) in [("direct", DIRECT_LIFETIME), ("opened", OPENED_LIFETIME), ("handshakes", HANDSHAKE_LIFETIME)] {
                lines.push(format!(
                    "add set inet {TABLE} {set}{n} {{ type {kind} . inet_service . {kind} . inet_service; flags dynamic,timeout; \
                     timeout {}s; size {SET_SIZE}; }}",
                    time.as_secs()
                ));
            }
        }
        for chain in ["direct", "open", "split", "carry", "intercept", "answers", "completes", "leg", "ours", "of_tcp", "of_udp", "of_icmp"]
        {
            lines.push(format!("add chain inet {TABLE} {chain}"));
        }
        lines.push(format!("add chain inet {TABLE} prerouting {{ type filter hook prerouting priority {PRIORITY}; policy accept; }}"));
        lines.push(format!(
            "add chain inet {TABLE} translated {{ type filter hook prerouting priority {PRIORITY_TRANSLATED}; policy accept; }}"
        ));
        let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
        for family in [Family::V4, Family::V6] {
            let (n, connection) = (family.number(), family.client_key());
            rule("direct", format!("delete @handshakes{n} {{ {connection} }} update @opened{n} {{ {connection} }}"));
        }
        rule("direct", format!("{} accept", self.finds_listener()));
        for family in [Family::V4, Family::V6] {
            // A near leg with the same addresses and ports exists, or existed a moment ago.
            rule("direct", format!("socket transparent 1 update @direct{} {{ {} }}", family.number(), family.client_key()));
        }
        rule("direct", "accept".into());
        rule("split", "jump open".into());
        rule("split", "jump recall".into());
        rule("split", "counter name unsplit goto direct".into());
        rule("of_tcp", "tcp flags & (fin | syn | rst | ack) == syn fib daddr type unicast goto intercept".into());
        self.of_tcp_to_measurement().into_iter().for_each(|text| rule("of_tcp", text));
        rule("of_tcp", "jump unsplit_answers".into());
        // Packets of the proxy's legs are delivered to this host though it does not have their
        // address.
        rule("of_tcp", "jump leg".into());
        rule("leg", format!("{} return", self.finds_listener()));
        rule("leg", "socket transparent 1 goto ours".into());
        rule("of_tcp", "tcp flags & (syn | rst | ack) == ack goto completes".into());
        for family in self.families() {
            let handshake = format!("{} @handshakes{}", family.client_key(), family.number());
            rule("completes", format!("meta nfproto ipv{} meta l4proto {TCP} {handshake} {}", family.number(), self.to_listener(*family)));
        }
        // A SYN-ACK of a connection that was not opened through this host: the routing is
        // asymmetric.
        rule("of_tcp", "tcp flags & (syn | ack) == (syn | ack) fib daddr type unicast goto answers".into());
        for family in [Family::V4, Family::V6] {
            rule("answers", format!("{} @opened{} accept", family.server_key(), family.number()));
        }
        rule("answers", "counter name oneway".into());
        // QUIC, in both directions.
        rule("of_udp", "udp dport 443 counter name quic".into());
        rule("of_udp", "udp sport 443 counter name quic".into());
        rule("of_udp", quic::entry());
        // ICMP errors about a leg's packets, which are sent to the client's address.
        rule("of_icmp", "socket wildcard 1 accept".into());
        rule("of_icmp", format!("socket transparent 1 meta mark set {MARK:#x} accept"));
        // Not a verdict map: nft 1.0.6 (Debian 12) crashes when it lists one that nft 1.1 has
        // created, as when a host lists the table of a container.
        for (protocol, chain) in [(TCP, "of_tcp"), (UDP, "of_udp"), (ICMP, "of_icmp"), (ICMPV6, "of_icmp")] {
            rule("prerouting", format!("meta l4proto {protocol} goto {chain}"));
        }
        rule("translated", format!("meta mark {MARK:#x} accept"));
        rule("translated", "jump unsplit_answers".into());
        rule("translated", format!("meta l4proto {TCP} jump leg"));
        rule("translated", format!("meta l4proto {{ {ICMP}, {ICMPV6} }} socket wildcard 1 accept"));
        rule("translated", format!("meta l4proto {{ {ICMP}, {ICMPV6} }} socket transparent 1 meta mark set {MARK:#x}"));
        lines.extend(Self::ours(false));
        lines.extend(self.open());
        lines.extend(self.experiment());
        lines.extend(guard::rules(firewall));
        lines.extend(zone::rules(firewall));
        lines.extend(self.carry());
        lines.extend(self.intercept());
        lines.extend(self.quic());
        lines
    }

    /// The condition that the socket match finds the listener, and no leg. It finds the former for
    /// any packet to its port, also for those of unsplit connections to that port of a server. The
    /// port is compared first, so that other packets do not cost another socket lookup.
    pub(super) fn finds_listener(&self) -> String {
        format!("tcp dport {} socket wildcard 1", self.listener.port())
    }

    /// The rules that deliver packets of the proxy's connections. If `careful`, they skip packets
    /// of connections that passed unsplit, although this host may still have a socket with the same
    /// addresses and ports.
    pub(super) fn ours(careful: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rule = |text: String| lines.push(format!("add rule inet {TABLE} ours {text}"));
        if careful {
            for family in [Family::V4, Family::V6] {
                let (n, inward, back) = (family.number(), family.client_key(), family.server_key());
                rule(format!("{inward} @direct{n} accept"));
                rule(format!("{back} @direct{n} accept"));
                // The answer to an unsplit connection, with the addresses and ports of a former far
                // leg.
                rule(format!("tcp flags & (syn | ack) == (syn | ack) {back} @opened{n} update @direct{n} {{ {back} }} accept"));
            }
        }
        rule(format!("meta mark set {MARK:#x} accept"));
        lines
    }

    /// The rules that hand new connections to the proxy.
    pub(super) fn open(&self) -> Vec<String> {
        let mut lines = vec![format!("add rule inet {TABLE} open jump admit")];
        lines.extend(self.open_to_choice());
        for family in self.families() {
            let (n, connection) = (family.number(), family.client_key());
            // If `handshakes` is full the rule ends at `update`, and the connection passes unsplit:
            // with SYN cookies its handshake could not be completed.
            lines.push(format!(
                "add rule inet {TABLE} open meta nfproto ipv{n} meta l4proto {TCP} update @handshakes{n} {{ {connection} }} \
                 delete @direct{n} {{ {connection} }} delete @opened{n} {{ {connection} }} counter name split {}",
                self.to_listener(*family)
            ));
        }
        lines
    }

    /// The end of a rule that hands a packet to the listener.
    fn to_listener(&self, family: Family) -> String {
        let to = match self.listener {
            SocketAddr::V4(at) if !at.ip().is_unspecified() => at.ip().to_string(),
            SocketAddr::V6(at) if !at.ip().is_unspecified() => format!("[{}]", at.ip()),
            _ => String::new(),
        };
        format!("tproxy {} to {to}:{} meta mark set {MARK:#x} accept", family.ip(), self.listener.port())
    }

    /// The rules that decide which connections bypass, by the bypass list and the policy.
    pub(super) fn intercept(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rule = |text: String| lines.push(format!("add rule inet {TABLE} intercept {text}"));
        for family in [Family::V4, Family::V6] {
            for end in ["saddr", "daddr"] {
                rule(format!("{} {end} @bypass{} counter name bypassed goto direct", family.ip(), family.number()));
            }
        }
        for one in &self.policy {
            let verdict = match one.action {
                // A rule that names clients is exempt from other programs' forward chains.
                Action::Split | Action::Carry if one.names_clients() => "goto split",
                Action::Split | Action::Carry => "goto guard",
                Action::Bypass => "counter name bypassed goto direct",
                // Only TCP SYNs reach this chain.
                Action::Refuse => "reject with tcp reset",
            };
            for condition in conditions(one) {
                if let Some(ask) = self.ask_carrier().filter(|_| one.action == Action::Carry) {
                    rule(format!("{condition}{ask}"));
                }
                rule(format!("{condition}{verdict}"));
            }
        }
        // Where there is a carrier, it is the default.
        self.ask_carrier().into_iter().for_each(|ask| rule(ask.into()));
        rule("goto guard".into());
        lines
    }
}
