//! The rules that bring routed connections to a transparent listener.
//!
//! They are the proxy's own: one nftables table, one routing rule a family, one routing table. The nftables table has an
//! owner, an `nft` process whose input is a pipe from this one: when the proxy goes, however it goes, so does the table, and
//! connections pass unsplit. The routing rules do nothing without the table's mark; they are removed at the end, or, when
//! the proxy was killed, replaced at the next start. One setting of the kernel is changed at times, and put back: see `SETTING`. No other table, rule or route is touched.
//!
//! A new connection goes through the chain `intercept`, where the policy's rules let some bypass, to `split`, which hands it
//! to the proxy as long as the chain `open` says so. That one is emptied when the proxy is full or ending.
//! Between them the chain `guard` heeds the forward chains of other programs, and in `open` the
//! chain `admit` heeds their input chains: see `guard`. Where they use conntrack, `zone`
//! lets it tell both legs of a connection apart.

mod foreign;
mod guard;
mod installed;
pub(crate) mod nfnetlink;
mod owner;
mod watch;
mod zone;

pub(crate) use foreign::{Firewall, Hook, input_knows_mark};
pub use guard::ForwardPolicy;
pub use installed::{Counted, Installed, RulesLost};

use crate::{
    kernel_setting::KernelSetting,
    policy::{Action, Interface, Ports, Prefix, Rule},
    routes::{AddressFamily, Delivery},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::{
    fmt,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

/// The table's name, in the family `inet`.
const TABLE: &str = "tandem";
/// The mark that routes a packet to this machine ("TD").
pub const MARK: u32 = 0x5444;
/// Protocols by number: nft looks names up in /etc/protocols, which minimal systems lack.
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// How marked packets are delivered.
const DELIVERY: Delivery = Delivery { mark: MARK, table: 0x5444, preference: 0x5444 };
/// The setting under which a packet is matched with a socket of this host before it is routed, which makes split connections much
/// cheaper. But the kernel drops a packet to be forwarded that fits a socket, and what is left of a leg that has ended (TIME_WAIT)
/// fits packets of a later connection of the same addresses and ports that passes unsplit: it would stall for a minute. So it is off
/// while connections pass unsplit that a moment ago would have been split.
const SETTING: KernelSetting = KernelSetting { name: "net.ipv4.tcp_early_demux", value: "0" };
/// A connection that passed unsplit though this host had one of the same addresses and ports (the set `direct`) is known for longer
/// than the kernel remembers one that ended (TIME_WAIT, 60 s).
const KNOWN_DIRECT: Duration = Duration::from_secs(70);
/// A connection that is opened through this host, unsplit, is known until it must have been answered (the set `opened`). Its SYN, sent
/// again, is news.
const KNOWN_OPENED: Duration = Duration::from_secs(8);
/// A connection whose SYN was handed to the proxy is known for so long (the set `handshakes`): when the
/// kernel answers a flood with SYN cookies, no socket remembers the handshake, and the packet that
/// completes it fits none.
const KNOWN_HANDSHAKE: Duration = Duration::from_secs(20);
/// When packets are looked at: before conntrack translates destinations (priority `dstnat`, -100). A
/// port that the operator forwards is then still an address of this host, and its connections pass.
const PRIORITY: i32 = -150;
/// And once more after that: the answer to a far leg that was masqueraded has a leg's addresses only now.
const PRIORITY_TRANSLATED: i32 = -99;
/// What these sets hold at most, of each family.
const KNOWN: u32 = 1 << 18;

/// What a transparent listener needs of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Where the proxy listens.
    pub listener: SocketAddr,
    /// What is split and what bypasses.
    pub policy: Vec<Rule>,
    /// Whether other programs' forward chains decide what may be split.
    pub forward_policy: ForwardPolicy,
}

/// Why the rules could not be installed or changed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// nft cannot be run.
    #[error("cannot run nft: {0}; install it (Debian package nftables)")]
    Missing(io::Error),
    /// nft refused.
    #[error("cannot install the nftables rules: {said}; {cure}")]
    Refused {
        /// What it said.
        said: String,
        /// What to do about it.
        cure: &'static str,
    },
    /// The kernel refused a routing rule or route.
    #[error("cannot install the routing rules: {why}; {cure}")]
    Routing {
        /// The kernel's reason.
        why: io::Error,
        /// What to do about it.
        cure: &'static str,
    },
    /// Another proxy is there.
    #[error(
        "cannot take over the traffic: another process owns the nftables table inet {TABLE} in this network namespace; stop that proxy first"
    )]
    Taken,
    /// Where the table has no owner, a proxy shows by a socket that it lives. There is none.
    #[error(
        "cannot take over the traffic: on this kernel a proxy with rules needs a socket in {}, which cannot be made: {why}; let this user \
         write there (in a container with a read-only root: a tmpfs at /run)",
        at.display()
    )]
    NoSocket {
        /// Where it would be.
        at: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// The kernel does not tell what the table has counted.
    #[error("cannot read the counters of the nftables table inet {TABLE}: {0}; see `tandem doctor`")]
    Unread(io::Error),
    /// The table's owner has ended, or does not answer.
    #[error("cannot change the nftables table inet {TABLE}: the nft process that owns it does not answer: {why}")]
    Lost {
        /// What was seen.
        why: String,
    },
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn ip(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    const fn number(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    const fn index(self) -> usize {
        self as usize
    }

    const fn routing(self) -> AddressFamily {
        match self {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }

    const fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }
}

impl Rules {
    fn families(&self) -> &'static [Family] {
        match self.listener {
            SocketAddr::V4(_) => &[Family::V4],
            SocketAddr::V6(at) if at.ip().is_unspecified() => &[Family::V4, Family::V6],
            SocketAddr::V6(_) => &[Family::V6],
        }
    }

    /// The nftables commands, one a line, for a host without other programs' forward and input
    /// chains.
    pub fn nft(&self) -> Vec<String> {
        [vec![format!("add table inet {TABLE} {{ flags owner; }}")], self.contents(&Firewall::default())].concat()
    }

    /// What the table holds beside these rules of other programs.
    fn contents(&self, firewall: &Firewall) -> Vec<String> {
        let mut lines = [guard::declarations(), zone::declarations()].concat();
        for counter in ["split", "bypassed", "unsplit", "oneway", "quic"] {
            lines.push(format!("add counter inet {TABLE} {counter}"));
        }
        for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
            let n = family.number();
            lines.push(format!("add set inet {TABLE} bypass{n} {{ type {kind}; flags interval; auto-merge; }}"));
            for (set, time) in [("direct", KNOWN_DIRECT), ("opened", KNOWN_OPENED), ("handshakes", KNOWN_HANDSHAKE)] {
                lines.push(format!(
                    "add set inet {TABLE} {set}{n} {{ type {kind} . inet_service . {kind} . inet_service; flags dynamic,timeout; \
                     timeout {}s; size {KNOWN}; }}",
                    time.as_secs()
                ));
            }
        }
        for chain in ["direct", "open", "split", "intercept", "answers", "completes", "ours", "of_tcp", "of_udp", "of_icmp"] {
            lines.push(format!("add chain inet {TABLE} {chain}"));
        }
        lines.push(format!("add chain inet {TABLE} prerouting {{ type filter hook prerouting priority {PRIORITY}; policy accept; }}"));
        lines.push(format!(
            "add chain inet {TABLE} translated {{ type filter hook prerouting priority {PRIORITY_TRANSLATED}; policy accept; }}"
        ));
        let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
        for family in [Family::V4, Family::V6] {
            let (n, connection) = (family.number(), from_client(family));
            rule("direct", format!("delete @handshakes{n} {{ {connection} }} update @opened{n} {{ {connection} }}"));
            // There is, or was a moment ago, a near leg of the same addresses and ports.
            rule("direct", format!("socket transparent 1 update @direct{n} {{ {connection} }}"));
        }
        rule("direct", "accept".into());
        rule("split", "jump open".into());
        rule("split", "jump recall".into());
        rule("split", "counter name unsplit goto direct".into());
        rule("of_tcp", "tcp flags & (fin | syn | rst | ack) == syn fib daddr type unicast goto intercept".into());
        rule("of_tcp", "jump unsplit_answers".into());
        // Packets of connections the proxy has, on either leg, are delivered here though their address is not ours.
        rule("of_tcp", "socket transparent 1 goto ours".into());
        rule("of_tcp", "tcp flags & (syn | rst | ack) == ack goto completes".into());
        for family in self.families() {
            let handshake = format!("{} @handshakes{}", from_client(*family), family.number());
            rule("completes", format!("meta nfproto ipv{} meta l4proto {TCP} {handshake} {}", family.number(), self.to_listener(*family)));
        }
        // The answer to a connection that was not opened through this host: half of it goes another way.
        rule("of_tcp", "tcp flags & (syn | ack) == (syn | ack) fib daddr type unicast goto answers".into());
        for family in [Family::V4, Family::V6] {
            rule("answers", format!("{} @opened{} accept", from_server(family), family.number()));
        }
        rule("answers", "counter name oneway".into());
        // Both ways.
        rule("of_udp", "udp dport 443 counter name quic".into());
        rule("of_udp", "udp sport 443 counter name quic".into());
        // An error about a leg's packet comes to the address the leg wears.
        rule("of_icmp", format!("socket transparent 1 meta mark set {MARK:#x} accept"));
        // No verdict map: nft 1.0.6 (Debian 12) crashes when it lists one that nft 1.1 made, as the
        // nft of a container on its host does.
        for (protocol, chain) in [(TCP, "of_tcp"), (UDP, "of_udp"), (ICMP, "of_icmp"), (ICMPV6, "of_icmp")] {
            rule("prerouting", format!("meta l4proto {protocol} goto {chain}"));
        }
        rule("translated", format!("meta mark {MARK:#x} accept"));
        rule("translated", "jump unsplit_answers".into());
        rule("translated", format!("meta l4proto {TCP} socket transparent 1 goto ours"));
        rule("translated", format!("meta l4proto {{ {ICMP}, {ICMPV6} }} socket transparent 1 meta mark set {MARK:#x}"));
        lines.extend(Self::ours(false));
        lines.extend(self.open());
        lines.extend(guard::rules(firewall));
        lines.extend(zone::rules(firewall));
        lines.extend(self.intercept());
        lines
    }

    /// What delivers packets of connections that the proxy has. A careful one leaves out those of connections that passed unsplit,
    /// though the proxy may still remember one of the same addresses and ports.
    fn ours(careful: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rule = |text: String| lines.push(format!("add rule inet {TABLE} ours {text}"));
        if careful {
            for family in [Family::V4, Family::V6] {
                let (n, inward, back) = (family.number(), from_client(family), from_server(family));
                rule(format!("{inward} @direct{n} accept"));
                rule(format!("{back} @direct{n} accept"));
                // There was a far leg of the same addresses and ports, seen only now.
                rule(format!("tcp flags & (syn | ack) == (syn | ack) {back} @opened{n} update @direct{n} {{ {back} }} accept"));
            }
        }
        rule(format!("meta mark set {MARK:#x} accept"));
        lines
    }

    /// What hands connections to the proxy.
    fn open(&self) -> Vec<String> {
        let mut lines = vec![format!("add rule inet {TABLE} open jump admit")];
        for family in self.families() {
            let (n, connection) = (family.number(), from_client(*family));
            // Where the set is full the rule ends there, and the connection passes unsplit: it could not be completed.
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

    /// What decides who bypasses.
    fn intercept(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rule = |text: String| lines.push(format!("add rule inet {TABLE} intercept {text}"));
        for family in [Family::V4, Family::V6] {
            for end in ["saddr", "daddr"] {
                rule(format!("{} {end} @bypass{} counter name bypassed goto direct", family.ip(), family.number()));
            }
        }
        for one in &self.policy {
            let verdict = match one.action {
                // The operator has said whose connections are split, whatever the forward chain says.
                Action::Split | Action::Carry if one.names_clients() => "goto split",
                Action::Split | Action::Carry => "goto guard",
                Action::Bypass => "counter name bypassed goto direct",
                // Only SYNs of TCP come to this chain.
                Action::Refuse => "reject with tcp reset",
            };
            for condition in conditions(one) {
                rule(format!("{condition}{verdict}"));
            }
        }
        rule("goto guard".into());
        lines
    }

    /// Has nft and the kernel check the table's contents, and changes nothing.
    pub fn try_out(&self) -> Result<(), RulesError> {
        // Under a name of its own: the table of a proxy that runs takes no commands from others.
        let (table, trial) = (format!(" inet {TABLE} "), format!(" inet {TABLE}-check "));
        let contents: Vec<String> =
            self.contents(&Firewall::look().unwrap_or_default()).iter().map(|line| line.replacen(&table, &trial, 1)).collect();
        let script = format!("add table{trial}\n{}\n", contents.join("\n"));
        let (fine, said) = run_nft_with(&["-c", "-f", "-"], &script)?;
        if fine { Ok(()) } else { Err(RulesError::Refused { cure: cure(&said), said }) }
    }

    /// Whether there are connections that are split only when the forward chains of other programs
    /// have let one of their kind pass.
    pub fn heeds_forward_chains(&self) -> bool {
        let is_split = |rule: &Rule| matches!(rule.action, Action::Split | Action::Carry);
        // Rules behind one without conditions decide nothing, and neither does the default.
        let last = self.policy.iter().position(|rule| conditions(rule) == [""]);
        let deciding = &self.policy[..last.map_or(self.policy.len(), |last| last + 1)];
        let unnamed = deciding.iter().any(|rule| is_split(rule) && !rule.names_clients());
        self.forward_policy == ForwardPolicy::Heed && (unnamed || last.is_none())
    }

    /// What delivers marked packets to this machine, as commands of `ip` for people to read.
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

    /// The settings without which routed connections neither come nor pass: set by whoever runs this router.
    pub fn sysctls(&self) -> Vec<&'static str> {
        let setting = |family: &Family| match family {
            Family::V4 => "net.ipv4.ip_forward=1",
            Family::V6 => "net.ipv6.conf.all.forwarding=1",
        };
        self.families().iter().map(setting).collect()
    }

    /// The setting that the proxy itself changes.
    pub fn own_sysctl(&self) -> String {
        format!("{}={}", SETTING.name, SETTING.value)
    }
}

/// A connection's addresses and ports in a packet from the client …
fn from_client(family: Family) -> String {
    let ip = family.ip();
    format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport")
}

/// … and the same four in one from the server.
fn from_server(family: Family) -> String {
    let ip = family.ip();
    format!("{ip} daddr . tcp dport . {ip} saddr . tcp sport")
}

/// A rule's conditions as nftables has them: one text for each family that it can fit.
fn conditions(rule: &Rule) -> Vec<String> {
    let mut common = String::new();
    if !rule.inward.is_empty() {
        common += &format!("iifname {} ", names(&rule.inward));
    }
    if !rule.outward.is_empty() {
        common += &format!("fib daddr oifname {} ", names(&rule.outward));
    }
    if !rule.ports.is_empty() {
        common += &format!("tcp dport {} ", ports(&rule.ports));
    }
    if rule.from.is_empty() && rule.to.is_empty() {
        return vec![common];
    }
    let of_family = |family: Family| {
        let mut text = String::new();
        for (end, wanted) in [("saddr", &rule.from), ("daddr", &rule.to)] {
            if !wanted.is_empty() {
                // A condition that no address of this family can meet.
                let prefixes = prefixes(wanted, family)?;
                text += &format!("{} {end} {prefixes} ", family.ip());
            }
        }
        Some(text + &common)
    };
    [Family::V4, Family::V6].into_iter().filter_map(of_family).collect()
}

fn names(interfaces: &[Interface]) -> String {
    let names: Vec<String> = interfaces.iter().map(|interface| format!("\"{}\"", interface.0)).collect();
    format!("{{ {} }}", names.join(", "))
}

/// Ports without overlaps, of which nftables wants none.
fn ports(wanted: &[Ports]) -> String {
    let mut sorted = wanted.to_vec();
    sorted.sort();
    let mut merged: Vec<Ports> = Vec::new();
    for ports in sorted {
        match merged.last_mut() {
            Some(last) if u32::from(ports.first) <= u32::from(last.last) + 1 => last.last = last.last.max(ports.last),
            _ => merged.push(ports),
        }
    }
    let texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", texts.join(", "))
}

/// The prefixes of one family, without overlaps; none where there is none.
fn prefixes(wanted: &[Prefix], family: Family) -> Option<String> {
    let v4: Vec<Ipv4Net> = wanted.iter().filter_map(|prefix| if let IpNet::V4(net) = prefix.0 { Some(net) } else { None }).collect();
    let v6: Vec<Ipv6Net> = wanted.iter().filter_map(|prefix| if let IpNet::V6(net) = prefix.0 { Some(net) } else { None }).collect();
    let texts: Vec<String> = match family {
        Family::V4 => Ipv4Net::aggregate(&v4).iter().map(ToString::to_string).collect(),
        Family::V6 => Ipv6Net::aggregate(&v6).iter().map(ToString::to_string).collect(),
    };
    (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
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
            // Quoted, so that a shell takes it as it stands.
            writeln!(f, "nft '{line}'")?;
        }
        Ok(())
    }
}

fn cure(said: &str) -> &'static str {
    if said.contains("not permitted") || said.contains("you must be root") {
        "run as root, or with CAP_NET_ADMIN"
    } else if said.contains("No such file") || said.contains("not supported") {
        "the kernel lacks a part of nftables (CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET, CONFIG_NFT_FIB_INET); see `tandem doctor`"
    } else {
        "see `tandem doctor`"
    }
}

/// Runs nft: whether it was content, and what it said.
fn run_nft(arguments: &[&str]) -> Result<(bool, String), RulesError> {
    run_nft_with(arguments, "")
}

/// The same, with `input` to read.
fn run_nft_with(arguments: &[&str], input: &str) -> Result<(bool, String), RulesError> {
    let (read, mut write) = io::pipe().map_err(RulesError::Missing)?;
    let mut command = Command::new("nft");
    let child = command.args(arguments).stdin(read).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(RulesError::Missing)?;
    // The command holds the other end of the pipe until it is gone.
    drop(command);
    // One that does not read to the end says why it does not.
    let _ = write.write_all(input.as_bytes());
    drop(write);
    let output = child.wait_with_output().map_err(RulesError::Missing)?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_string();
    }
    Ok((output.status.success(), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(listener: &str, policy: Vec<Rule>) -> String {
        Rules { listener: listener.parse().unwrap(), policy, forward_policy: ForwardPolicy::Heed }.to_string()
    }

    #[test]
    fn both_families_when_any_address_will_do() {
        let both = rules("[::]:5000", vec![]);
        assert!(both.contains("tproxy ip to :5000") && both.contains("tproxy ip6 to :5000"), "{both}");
        assert!(both.contains("ip -6 route replace local default dev lo"), "{both}");
        let one = rules("192.0.2.1:5000", vec![]);
        assert!(one.contains("tproxy ip to 192.0.2.1:5000") && !one.contains("tproxy ip6") && !one.contains("ip -6"), "{one}");
    }

    #[test]
    fn a_rule_becomes_a_line_a_family_that_it_can_fit() {
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
