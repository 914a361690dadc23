//! Which runs the corpus is made of: middles × up- and downlink × conditions, each with a path and a size of its own.

use crate::middlebox::Middle;
use serde::{Deserialize, Serialize};
use testbed::Dice;

/// How long a receiver holds each ACK where ACKs are late, s.
pub(crate) const LATE: f64 = 1.0;

/// Who sends the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// The client, whose link is the slow one.
    Up,
    /// The server.
    Down,
}

/// What is so on the network while a run is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    /// Nothing in particular.
    Plain,
    /// 1 % of the data's packets are lost on the slow link.
    Loss,
    /// 3 % of the packets of the slow link take 8 ms longer.
    Reordering,
    /// Cards that put segments together at both ends.
    Offload,
    /// A NAT in the middle.
    Nat,
    /// The receiver's card waits for more segments: one ACK for many.
    StretchAcks,
    /// The receiver holds each ACK for [`LATE`].
    LateAcks,
}

const CONDITIONS: [Condition; 7] = [
    Condition::Plain,
    Condition::Loss,
    Condition::Reordering,
    Condition::Offload,
    Condition::Nat,
    Condition::StretchAcks,
    Condition::LateAcks,
];
/// Of what differs from another middle in little.
const FEW: [Condition; 3] = [Condition::Plain, Condition::Loss, Condition::Nat];
/// Paths without anything in the middle, each condition and way: as many as all the others of the full table nearly.
const WHOLE: usize = 8;

/// The path and the size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Path {
    pub(crate) slow_kbit: u64,
    pub(crate) slow_delay_us: u64,
    pub(crate) queue_packets: u64,
    pub(crate) fast_kbit: u64,
    pub(crate) fast_delay_us: u64,
    pub(crate) bytes: u64,
}

/// The cellular link of Wei et al. (§IV-A): 128 kbit/s, a round trip of 0.8 s for a full packet, here with room for 3 s; 30 ms to the server.
pub(crate) const CELLULAR: Path =
    Path { slow_kbit: 128, slow_delay_us: 353_000, queue_packets: 32, fast_kbit: 20_000, fast_delay_us: 15_000, bytes: 1_500_000 };

impl Path {
    /// A mobile's link of 2 to 8 Mbit/s and 15 to 60 ms, a wired one of 20 to 100 Mbit/s and 2 to 20 ms, a transfer of one to two seconds.
    fn draw(dice: &mut Dice, condition: Condition) -> Self {
        let slow_kbit = dice.spread(2_000, 8_000);
        let slow_delay_us = dice.spread(15_000, 60_000);
        let (fast_kbit, fast_delay_us) = (dice.spread(20_000, 100_000), dice.spread(2_000, 20_000));
        let seconds = match condition {
            // A window that is halved, or waits for its ACKs, carries less.
            Condition::Loss | Condition::Reordering => dice.between(500, 900),
            Condition::LateAcks => dice.between(300, 700),
            _ => dice.between(900, 1900),
        };
        Path { slow_kbit, slow_delay_us, queue_packets: dice.between(40, 150), fast_kbit, fast_delay_us, bytes: slow_kbit * seconds / 8 }
    }
}

/// One run: two traces as they were taken.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) number: usize,
    pub(crate) middle: Middle,
    pub(crate) way: Way,
    pub(crate) condition: Condition,
    pub(crate) seed: u64,
    pub(crate) path: Path,
}

impl Run {
    pub(crate) fn name(&self) -> String {
        format!("{:03}-{}-{}-{}", self.number, self.middle.name(), word(self.way), word(self.condition))
    }
}

/// A value as its label has it.
pub(crate) fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}

/// All runs, in an order in which any first part has some of everything.
pub(crate) fn all(seed: u64) -> Vec<Run> {
    let mut wanted = Vec::new();
    for way in [Way::Down, Way::Up] {
        for condition in CONDITIONS {
            wanted.extend(std::iter::repeat_n((Middle::Forwarding, way, condition), WHOLE));
            let fits = |middle: &Middle| middle.goes(way) && (middle.is_thorough() || FEW.contains(&condition));
            wanted.extend(Middle::all().into_iter().filter(fits).map(|middle| (middle, way, condition)));
        }
    }
    let mut order = Dice::new(seed ^ 0xc0);
    let mut keyed: Vec<_> = wanted.into_iter().map(|what| (order.next(), what)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let numbered = keyed.into_iter().enumerate();
    numbered
        .map(|(number, (_, (middle, way, condition)))| {
            let mut dice = Dice::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
            Run { number, middle, way, condition, seed: dice.next(), path: Path::draw(&mut dice, condition) }
        })
        .collect()
}

/// The runs of the small corpus: kinds of middle, up or down, and each condition on a path without one.
pub(crate) fn small(seed: u64) -> Vec<Run> {
    let all = all(seed);
    let mut chosen: Vec<Run> = Vec::new();
    for condition in CONDITIONS {
        chosen.extend(all.iter().find(|run| run.middle == Middle::Forwarding && run.condition == condition).cloned());
    }
    // An uplink shows its splitter where the receiver delays its ACKs, a small buffer by its window, a program of anybody's by nothing in particular.
    for (middle, way, condition) in [
        (Middle::Tandem("plain"), Way::Down, Condition::Plain),
        (Middle::Tandem("plain"), Way::Up, Condition::LateAcks),
        (Middle::Tandem("small"), Way::Down, Condition::Nat),
        (Middle::Tandem("large"), Way::Up, Condition::Plain),
        (Middle::Haproxy, Way::Up, Condition::Nat),
        (Middle::NginxStream, Way::Down, Condition::Loss),
        (Middle::NginxHttp, Way::Down, Condition::Plain),
        (Middle::Socat, Way::Up, Condition::Offload),
        (Middle::Squid, Way::Down, Condition::StretchAcks),
        (Middle::Hold, Way::Down, Condition::Nat),
    ] {
        let fits = |run: &&Run| (run.middle, run.way, run.condition) == (middle, way, condition);
        chosen.extend(all.iter().find(fits).cloned());
    }
    chosen
}
