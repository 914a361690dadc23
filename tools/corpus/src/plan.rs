//! The runs of the corpus: middleboxes × directions × conditions, each with a path of its own.

use middleboxes::{BulkDirection, Middlebox, MiddleboxRun, NetworkCondition, PathSpec};
use testbed::SplitMix64;

const CONDITIONS: [NetworkCondition; 7] = [
    NetworkCondition::Plain,
    NetworkCondition::Loss,
    NetworkCondition::Reordering,
    NetworkCondition::Offload,
    NetworkCondition::Nat,
    NetworkCondition::StretchAcks,
    NetworkCondition::LateAcks,
];
/// Conditions of middleboxes that differ little from another one.
const FEW: [NetworkCondition; 3] = [NetworkCondition::Plain, NetworkCondition::Loss, NetworkCondition::Nat];
/// Runs without a middlebox for each condition and direction: nearly as many as all others
/// together.
const WHOLE: usize = 8;

/// All runs, in an order in which any first part has some of each kind.
pub(crate) fn all(seed: u64) -> Vec<MiddleboxRun> {
    let mut wanted = Vec::new();
    for direction in [BulkDirection::Down, BulkDirection::Up] {
        for condition in CONDITIONS {
            wanted.extend(std::iter::repeat_n((Middlebox::Forwarding, direction, condition), WHOLE));
            let fits = |middle: &Middlebox| middle.supports(direction) && (middle.is_thorough() || FEW.contains(&condition));
            wanted.extend(Middlebox::all().into_iter().filter(fits).map(|middle| (middle, direction, condition)));
        }
    }
    let mut order = SplitMix64::new(seed ^ 0xc0);
    let mut keyed: Vec<_> = wanted.into_iter().map(|what| (order.next_u64(), what)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let numbered = keyed.into_iter().enumerate();
    numbered
        .map(|(number, (_, (middle, direction, condition)))| {
            let mut random = SplitMix64::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
            MiddleboxRun { number, middle, direction, condition, seed: random.next_u64(), path: PathSpec::draw(&mut random, condition) }
        })
        .collect()
}

/// The runs of the small corpus: some kinds of middlebox in one direction, and every condition
/// without a middlebox.
pub(crate) fn small(seed: u64) -> Vec<MiddleboxRun> {
    let all = all(seed);
    let mut chosen: Vec<MiddleboxRun> = Vec::new();
    for condition in CONDITIONS {
        chosen.extend(all.iter().find(|run| run.middle == Middlebox::Forwarding && run.condition == condition).cloned());
    }
    // An upload reveals its proxy if the receiver delays ACKs, and a small buffer by its window.
    // Other vendors' programs are taken as they come.
    for (middle, direction, condition) in [
        (Middlebox::Tandem("plain"), BulkDirection::Down, NetworkCondition::Plain),
        (Middlebox::Tandem("plain"), BulkDirection::Up, NetworkCondition::LateAcks),
        (Middlebox::Tandem("small"), BulkDirection::Down, NetworkCondition::Nat),
        (Middlebox::Tandem("large"), BulkDirection::Up, NetworkCondition::Plain),
        (Middlebox::Haproxy, BulkDirection::Up, NetworkCondition::Nat),
        (Middlebox::NginxStream, BulkDirection::Down, NetworkCondition::Loss),
        (Middlebox::NginxHttp, BulkDirection::Down, NetworkCondition::Plain),
        (Middlebox::Socat, BulkDirection::Up, NetworkCondition::Offload),
        (Middlebox::Squid, BulkDirection::Down, NetworkCondition::StretchAcks),
        (Middlebox::Hold, BulkDirection::Down, NetworkCondition::Nat),
    ] {
        let fits = |run: &&MiddleboxRun| (run.middle, run.direction, run.condition) == (middle, direction, condition);
        chosen.extend(all.iter().find(fits).cloned());
    }
    chosen
}
