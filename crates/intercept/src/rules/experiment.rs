//! The rules of an experiment: a share of the connections that would be split pass unsplit, and an
//! equal share is split and measured beside them.
//!
//! Keyed hashes of a connection's addresses and ports decide, so that retransmitted SYNs are
//! treated alike, and clients, which do not know the keys, cannot choose their group. One hash says
//! which connections are measured. The sum of three others, each a single bit, says whether one is
//! split: nftables has hashes with keys of 32 bits, of which a client that sees its groups could
//! try all. For three at once it would have to try 2⁶⁴ (by meeting in the middle). The set
//! `measured` holds both kinds. The packets of both from the client, before any other hook has
//! changed them, and those to the client, after all other hooks, go to the packet log of the kernel
//! (NFLOG), their headers alone. Both groups are measured at the same two places. The packets to
//! the client show which of its acknowledgements are true. The kernel tells the time of a packet
//! only where it comes in, so that the server's answer to an unsplit SYN is logged there too.
//!
//! The chain `open` jumps to `choose` only for connections that it would hand to the proxy: neither
//! a bypass rule, nor another program's chain, nor the lack of room has any part in the choice.

use super::{Rules, TABLE, family::Family};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    num::NonZeroU32,
    str::FromStr,
    time::Duration,
};

/// The share of connections that pass unsplit: one in this many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String", extend("pattern" = "^1 in [1-9][0-9]*$"), example = "1 in 50")]
pub struct ExperimentShare(NonZeroU32);

impl ExperimentShare {
    /// The largest N of "1 in N".
    const MOST: u32 = 1_000_000;

    /// The N of "1 in N".
    pub fn one_in(self) -> u32 {
        self.0.get()
    }
}

impl FromStr for ExperimentShare {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("1 in ").and_then(|number| number.trim().parse::<NonZeroU32>().ok());
        let possible = number.filter(|number| (2..=Self::MOST).contains(&number.get()));
        possible
            .map(ExperimentShare)
            .ok_or_else(|| format!("cannot parse share {text:?}: write \"1 in N\", with N from 2 to {}", Self::MOST))
    }
}

impl TryFrom<String> for ExperimentShare {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ExperimentShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 in {}", self.0)
    }
}

/// An experiment: its share, and the keys of the hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experiment {
    /// The share of connections in each group.
    pub share: ExperimentShare,
    /// The key of the hash that says which connections are measured, and those of the three that
    /// say whether one is split.
    pub keys: [u32; 4],
}

/// A group of measured connections. Its number is the last bit of the sum of three hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Connections that pass unsplit.
    Unsplit,
    /// Connections that are split.
    Split,
}

impl Group {
    /// Both groups.
    pub const ALL: [Group; 2] = [Group::Unsplit, Group::Split];

    /// Its name, and the prefix of its SYNs in the packet log.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Unsplit => "unsplit",
            Group::Split => "split",
        }
    }
}

/// The group of the packet log that the packets go to ("TD").
pub(crate) const LOG_GROUP: u16 = 0x5444;
/// The captured part of a TCP header, bytes: ports, numbers, length and flags.
const CAPTURED_TCP: u32 = 14;
/// The most that is captured of a packet, bytes.
pub(crate) const CAPTURED: u32 = captured(Family::V6);
/// The prefix in the packet log of the server's answer to a SYN, where it comes in.
pub(crate) const ANSWER: &str = "answer";
/// Lifetime of an element of `measured`, which each packet of the connection renews.
const MEASURED_LIFETIME: Duration = Duration::from_secs(900);
/// Capacity of the set, in connections. Further ones are split, and not measured.
const SET_SIZE: u32 = 1 << 16;
/// Hook priority of the chain for packets to the client: after conntrack has restored the addresses
/// that the client knows (`srcnat`, 100).
const PRIORITY: i32 = 150;

/// The captured part of each packet, bytes: the IP header without options, and the first part of
/// the TCP header. The smallest headers are longer, so that no payload is ever copied. A rule's
/// length is fixed: headers of all lengths could not be captured whole without a part of the
/// payload of others.
const fn captured(family: Family) -> u32 {
    let ip = match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    ip + CAPTURED_TCP
}

/// The commands that create what every host has.
pub(super) fn declarations() -> Vec<String> {
    let mut lines = vec![format!("add counter inet {TABLE} experiment")];
    for (family, kind) in [(Family::V4, "ipv4_addr"), (Family::V6, "ipv6_addr")] {
        lines.push(format!(
            "add set inet {TABLE} measured{} {{ type {kind} . inet_service . {kind} . inet_service; flags dynamic,timeout; timeout {}s; \
             size {SET_SIZE}; }}",
            family.number(),
            MEASURED_LIFETIME.as_secs()
        ));
    }
    lines.extend(["choose", "let_pass", "pass", "measure"].map(|chain| format!("add chain inet {TABLE} {chain}")));
    lines
}

/// New keys, from the system's random numbers.
pub(crate) fn random_keys() -> [u32; 4] {
    // `RandomState` is keyed by them once per thread, and each one differs.
    let random = RandomState::new();
    std::array::from_fn(|index| random.hash_one(index) as u32)
}

impl Experiment {
    /// The condition that a connection is measured.
    fn measures(self, [client, server, from, to]: [String; 4]) -> String {
        let Experiment { share, keys: [key, ..] } = self;
        format!("jhash {client} . {server} . {from} . {to} mod {} seed {key:#010x} {MEASURED}", share.one_in())
    }

    /// The condition for packets from the client of connections that are measured.
    fn client_packets(self, family: Family) -> String {
        let ip = family.ip();
        let fields = [format!("{ip} saddr"), format!("{ip} daddr"), "tcp sport".into(), "tcp dport".into()];
        format!("meta nfproto ipv{} meta l4proto 6 {}", family.number(), self.measures(fields))
    }

    /// The condition for packets to the client of connections that are measured.
    fn packets_back(self, family: Family) -> String {
        let ip = family.ip();
        let fields = [format!("{ip} daddr"), format!("{ip} saddr"), "tcp dport".into(), "tcp sport".into()];
        format!("meta nfproto ipv{} meta l4proto 6 {}", family.number(), self.measures(fields))
    }

    /// The conditions for packets from the client of measured connections of a group: one of them
    /// is met.
    fn of_group(self, family: Family, group: Group) -> Vec<String> {
        let ip = family.ip();
        let bits = (0..8u32).filter(|bits| bits.count_ones() % 2 == group as u32);
        let hash = |(index, key): (usize, &u32), bits: u32| {
            format!("jhash {ip} saddr . {ip} daddr . tcp sport . tcp dport mod 2 seed {key:#010x} {}", bits >> index & 1)
        };
        let each = |bits: u32| self.keys[1..].iter().enumerate().map(|key| hash(key, bits)).collect::<Vec<_>>().join(" ");
        bits.map(|bits| format!("{} {}", self.client_packets(family), each(bits))).collect()
    }
}

/// The values of the hash of connections that are measured.
const MEASURED: &str = "<= 1";

impl Rules {
    /// The rule of `open` that leads to the choice.
    pub(super) fn open_to_choice(&self) -> Vec<String> {
        let Some(experiment) = self.experiment else { return Vec::new() };
        let rule = |family: &Family| format!("add rule inet {TABLE} open {} jump choose", experiment.client_packets(*family));
        self.families().iter().map(rule).collect()
    }

    /// The rule of `of_tcp` that leads to the measurement of packets from clients.
    pub(super) fn of_tcp_to_measurement(&self) -> Vec<String> {
        let Some(experiment) = self.experiment else { return Vec::new() };
        let rule = |family: &Family| format!("{} jump measure", experiment.client_packets(*family));
        self.families().iter().map(rule).collect()
    }

    /// The rules of the experiment's own chains.
    pub(super) fn experiment(&self) -> Vec<String> {
        let Some(experiment) = self.experiment else { return Vec::new() };
        let mut lines =
            vec![format!("add chain inet {TABLE} measured {{ type filter hook postrouting priority {PRIORITY}; policy accept; }}")];
        let mut rule = |chain: &str, text: String| lines.push(format!("add rule inet {TABLE} {chain} {text}"));
        for family in self.families() {
            let log = format!("log group {LOG_GROUP} snaplen {}", captured(*family));
            // Without waiting for a batch: a connection is shown as soon as it begins or ends.
            let log_at_once =
                |group: &str| format!("log prefix \"{group}\" group {LOG_GROUP} snaplen {} queue-threshold 1", captured(*family));
            let (n, key) = (family.number(), family.client_key());
            // `update` ends the rule if the set is full: the connection is split, and not measured.
            for (group, chain, then) in [(Group::Split, "choose", "return"), (Group::Unsplit, "let_pass", "goto pass")] {
                for chosen in experiment.of_group(*family, group) {
                    rule(chain, format!("{chosen} update @measured{n} {{ {key} }} {} {then}", log_at_once(group.name())));
                }
            }
            rule("measure", format!("{key} @measured{n} update @measured{n} {{ {key} }} {log}"));
            let back = family.server_key();
            let answers = "tcp flags & (syn | ack) == (syn | ack)";
            rule("translated", format!("{answers} {} {back} @measured{n} {}", experiment.packets_back(*family), log_at_once(ANSWER)));
            // The flags come first, so that a packet needs one hash.
            let to_client = format!("{} {back} @measured{n}", experiment.packets_back(*family));
            rule("measured", format!("tcp flags & (syn | fin | rst) != 0x0 {to_client} {}", log_at_once("back")));
            rule("measured", format!("tcp flags & (syn | fin | rst) == 0x0 {to_client} {log}"));
        }
        rule("choose", format!("{} goto let_pass", self.finds_listener()));
        // A leg with the same addresses and ports exists, or existed a moment ago: the packets of
        // an unsplit connection would be taken for its own.
        rule("choose", "socket transparent 1 return".into());
        rule("choose", "goto let_pass".into());
        rule("pass", "jump recall".into());
        rule("pass", "counter name experiment goto direct".into());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ForwardPolicy, *};

    #[test]
    fn no_payload_is_captured() {
        const LEAST_TCP: u32 = 20;
        assert!(captured(Family::V4) < 20 + LEAST_TCP && captured(Family::V6) < 40 + LEAST_TCP);
        let experiment = Some(Experiment { share: "1 in 2".parse().unwrap(), keys: [1, 2, 3, 4] });
        let listener = "[::]:5000".parse().unwrap();
        let rules = Rules { experiment, listener, policy: vec![], forward_policy: ForwardPolicy::Heed, carried: None };
        let lines = rules.experiment();
        let logging: Vec<&String> = lines.iter().filter(|line| line.contains("log ")).collect();
        assert!(logging.len() >= 10, "{lines:?}");
        for line in logging {
            let length = if line.contains("nfproto ipv6") || line.contains("@measured6") { "snaplen 54" } else { "snaplen 34" };
            assert!(line.contains(length), "{line}");
        }
    }

    #[test]
    fn a_share_is_one_in_a_number() {
        assert_eq!("1 in 50".parse::<ExperimentShare>().unwrap().one_in(), 50);
        assert_eq!("1 in 2".parse::<ExperimentShare>().unwrap().to_string(), "1 in 2");
        for wrong in ["2%", "1 in 1", "1 in 0", "2 in 50", "1 in 1000001", "1 in -3", ""] {
            let error = wrong.parse::<ExperimentShare>().unwrap_err();
            assert!(error.contains("write \"1 in N\""), "{wrong}: {error}");
        }
    }
}
