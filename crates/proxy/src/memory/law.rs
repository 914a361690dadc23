//! The law of the memory budget. Pure: what is measured goes in, what the proxy does comes out.
//!
//! There are up to three limits: the configured one (`memory`), the kernel's mark of TCP memory on
//! this host, and that of the control group. What a limit leaves beside other users is the proxy's
//! budget by it; the least budget counts. What the proxy takes over its budget is the *fill*:
//!
//! | level | from | what happens |
//! |---|---|---|
//! | [`Free`](MemoryLevel::Free) | | nothing |
//! | [`Tight`](MemoryLevel::Tight) | 1/2 | B of directions that carry bulk data is at most their share |
//! | [`Full`](MemoryLevel::Full) | 3/4 | also at once; a share for each client; stuck flows end |
//! | [`Critical`](MemoryLevel::Critical) | 15/16 | only clients that have no connection; the least share of B is smaller |
//! | [`Exhausted`](MemoryLevel::Exhausted) | 31/32 | accepts pause |
//!
//! What one client has taken stays taken until it reads, or its flows count as stuck. The last part
//! before [`Exhausted`](MemoryLevel::Exhausted) is therefore kept for other clients.
//!
//! For `Tight`, receive queues of sources that are not read count with the size that their own B
//! lets them reach: they fill within a round trip.
//!
//! A connection takes most of its memory in its first second, after it was admitted. So what those
//! will take that have just begun, as much as each of the others does, counts as in use.
//!
//! A level is left 1/16 below its threshold, [`Full`](MemoryLevel::Full) 1/8 and
//! [`Exhausted`](MemoryLevel::Exhausted) 1/32 below: otherwise each connection would change what is
//! accepted.
//!
//! The share: a direction may take up to [`MEMORY_OF_B`] times its B in the kernel. So `n`
//! directions with B = 5/8 of the budget / (n × [`MEMORY_OF_B`]) each stay below
//! [`Full`](MemoryLevel::Full), whatever their peers do.

use relay::{BufferRoom, LEAST_SHARE, share_of};

/// How short memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryLevel {
    /// It is not.
    #[default]
    Free,
    /// B of each direction is at most its share.
    Tight,
    /// Clients share the connections as well, and stuck flows end.
    Full,
    /// Only clients that have no connection are served, and B is the least that works.
    Critical,
    /// Accepts pause.
    Exhausted,
}

impl MemoryLevel {
    /// All levels, in the order of their numbers.
    pub(crate) const ALL: [MemoryLevel; 5] =
        [MemoryLevel::Free, MemoryLevel::Tight, MemoryLevel::Full, MemoryLevel::Critical, MemoryLevel::Exhausted];

    /// Its name, in metrics.
    pub(crate) fn name(self) -> &'static str {
        ["free", "tight", "full", "critical", "exhausted"][self as usize]
    }

    /// Parts of a limit, of [`PARTS`], from which the level applies, and below which it ends.
    fn parts(self) -> [u64; 2] {
        [[0, 0], [16, 14], [24, 20], [30, 28], [31, 30]][self as usize]
    }
}

/// A limit in the parts that thresholds are given in.
const PARTS: u64 = 32;

/// This many parts of a number of bytes.
fn part(bytes: u64, parts: u64) -> u64 {
    (u128::from(bytes) * u128::from(parts) / u128::from(PARTS)) as u64
}

/// What limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// The configuration (`memory`).
    Configured,
    /// The kernel's mark for TCP on this host.
    Host,
    /// The control group.
    Group,
}

/// What is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    /// What the proxy takes, bytes.
    pub(crate) own: u64,
    /// What connections that have just begun will take besides, bytes.
    pub(crate) coming: u64,
    /// What it may take by the limit that leaves it least, bytes; none: there is no limit.
    pub(crate) budget: Option<(LimitKind, u64)>,
    /// How large receive queues may become of sources that are not read, by their own B, bytes.
    pub(crate) held_back: u64,
    /// Directions that carry bulk data.
    pub(crate) directions: u64,
}

impl MemoryReading {
    fn reaches(&self, parts: u64) -> bool {
        self.has(self.own.saturating_add(self.coming), parts)
    }

    fn has(&self, bytes: u64, parts: u64) -> bool {
        self.budget.is_some_and(|(_, budget)| u128::from(bytes) * u128::from(PARTS) >= u128::from(budget) * u128::from(parts))
    }
}

/// The least of these budgets; none: there is no limit.
pub(crate) fn least(budgets: [(LimitKind, Option<u64>); 3]) -> Option<(LimitKind, u64)> {
    budgets.into_iter().filter_map(|(kind, budget)| Some((kind, budget?))).min_by_key(|(_, budget)| *budget)
}

/// What the proxy does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryDecision {
    pub(crate) level: MemoryLevel,
    /// The most that B of a direction may be, bytes; none: its own B.
    pub(crate) cap: Option<u64>,
    /// Whether the cap applies at once to receive queues.
    pub(crate) is_strict: bool,
    /// What flows that are stuck should give back, bytes.
    pub(crate) excess: u64,
}

/// Memory that a direction may take in the kernel over its B: the receive queue of the source, with
/// the overhead of its packets, is held to at least half of B and at most three quarters, and the
/// send queue of the destination, sent and unsent, to B; each may exceed that by a packet.
pub(crate) const MEMORY_OF_B: u64 = 2;
/// The least B at the level [`MemoryLevel::Critical`]: two segments in each queue.
const LEAST_OF_ALL: u64 = 16 * 1024;

/// Decides by a reading and the present level.
pub(crate) fn decide(present: MemoryLevel, reading: &MemoryReading) -> MemoryDecision {
    let Some((_, budget)) = reading.budget else { return MemoryDecision::default() };
    let applies = |level: &MemoryLevel| {
        let [from, until] = level.parts();
        reading.reaches(if *level <= present { until } else { from })
    };
    let mut level = MemoryLevel::ALL.into_iter().rev().find(applies).unwrap_or_default();
    // Queues that fill within a round trip would be too late to be limited once they are measured.
    let expected = reading.own.saturating_add(reading.coming).saturating_add(reading.held_back);
    if level == MemoryLevel::Free && reading.has(expected, MemoryLevel::Tight.parts()[usize::from(present != MemoryLevel::Free)]) {
        level = MemoryLevel::Tight;
    }
    if level == MemoryLevel::Free {
        return MemoryDecision::default();
    }
    let least = if level >= MemoryLevel::Critical { LEAST_OF_ALL } else { LEAST_SHARE };
    let is_full = level >= MemoryLevel::Full;
    let excess = reading.own.saturating_sub(part(budget, MemoryLevel::Full.parts()[1]));
    MemoryDecision {
        level,
        cap: Some(share_of(shared(budget), reading.directions, least)),
        is_strict: is_full || reading.has(expected, PARTS),
        excess: if is_full { excess } else { 0 },
    }
}

/// The sum of B that all directions may have while memory is short, bytes.
fn shared(budget: u64) -> u64 {
    part(budget, MemoryLevel::Full.parts()[1]) / MEMORY_OF_B
}

/// What may be taken before the next measurement. `held_back` and `directions` are those of the
/// event loop that asks, which the reading contains.
pub(crate) fn room(reading: &MemoryReading, held_back: u64, directions: u64) -> BufferRoom {
    let Some((_, budget)) = reading.budget else { return BufferRoom::UNLIMITED };
    let others = reading.own.saturating_add(reading.held_back.saturating_sub(held_back));
    let from = |parts| part(budget, parts).saturating_sub(others);
    let other_bulk = reading.directions.saturating_sub(directions);
    BufferRoom {
        tight_from: from(MemoryLevel::Tight.parts()[0]),
        strict_from: from(PARTS),
        shared: shared(budget),
        other_bulk,
        for_trials: from(MemoryLevel::Full.parts()[0]),
    }
}

/// By how much memory may grow before it has to be measured again, bytes: an eighth of what is left
/// up to [`Full`](MemoryLevel::Full), or up to the budget beyond that.
pub(crate) fn quantum(reading: &MemoryReading) -> u64 {
    const LEAST_QUANTUM: u64 = 1 << 20;
    let Some((_, budget)) = reading.budget else { return u64::MAX };
    let full = MemoryLevel::Full.parts()[0];
    let next = if reading.reaches(full) { budget } else { part(budget, full) };
    (next.saturating_sub(reading.own) / 8).max(LEAST_QUANTUM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn reading(own: u64, budget: u64, directions: u64) -> MemoryReading {
        MemoryReading { own, coming: 0, budget: Some((LimitKind::Host, budget)), held_back: 0, directions }
    }

    #[test]
    fn measures_begin_in_their_order_and_end_below_their_threshold() {
        let mut level = MemoryLevel::Free;
        let mut at = |used| {
            level = decide(level, &reading(used * MIB, 64 * MIB, 4)).level;
            level
        };
        let up = [(31, MemoryLevel::Free), (32, MemoryLevel::Tight), (47, MemoryLevel::Tight), (48, MemoryLevel::Full)];
        let top = [(60, MemoryLevel::Critical), (61, MemoryLevel::Critical), (62, MemoryLevel::Exhausted), (60, MemoryLevel::Exhausted)];
        let down = [(59, MemoryLevel::Critical), (57, MemoryLevel::Critical), (55, MemoryLevel::Full), (41, MemoryLevel::Full)];
        let free = [(39, MemoryLevel::Tight), (29, MemoryLevel::Tight), (27, MemoryLevel::Free)];
        for (used, expected) in up.into_iter().chain(top).chain(down).chain(free) {
            assert_eq!(at(used), expected, "{used} MiB of 64");
        }
    }

    #[test]
    fn nothing_changes_without_a_limit_or_pressure() {
        let none = MemoryReading { own: 1 << 40, coming: 1 << 40, budget: None, held_back: 1 << 40, directions: 9 };
        assert_eq!(decide(MemoryLevel::Critical, &none), MemoryDecision::default());
        assert_eq!(quantum(&none), u64::MAX);
        assert_eq!(decide(MemoryLevel::Free, &reading(20 * MIB, 64 * MIB, 1000)), MemoryDecision::default());
    }

    #[test]
    fn a_share_is_what_the_budget_has_for_each_direction() {
        // 20 MiB × 10/16 / 2, rounded down to a power of two.
        let decision = decide(MemoryLevel::Free, &reading(16 * MIB, 20 * MIB, 1));
        assert_eq!((decision.level, decision.cap), (MemoryLevel::Full, Some(4 * MIB)));
        assert_eq!(decision.excess, 16 * MIB - 20 * MIB / 16 * 10);
        assert_eq!(decide(MemoryLevel::Free, &reading(11 * MIB, 20 * MIB, 10_000)).cap, Some(LEAST_SHARE));
        assert_eq!(decide(MemoryLevel::Free, &reading(20 * MIB, 20 * MIB, 10_000)).cap, Some(LEAST_OF_ALL));
        // Others take everything.
        assert_eq!(decide(MemoryLevel::Free, &reading(1, 0, 1)).cap, Some(LEAST_OF_ALL));
    }

    #[test]
    fn queues_that_will_fill_count_before_they_are_full() {
        let held = |held_back| MemoryReading { held_back, ..reading(2 * MIB, 64 * MIB, 20) };
        assert_eq!(decide(MemoryLevel::Free, &held(29 * MIB)).level, MemoryLevel::Free);
        let tight = decide(MemoryLevel::Free, &held(30 * MIB));
        assert_eq!((tight.level, tight.cap, tight.is_strict), (MemoryLevel::Tight, Some(MIB), false));
        // They are in use only later: accepts go on.
        let strict = decide(MemoryLevel::Free, &held(62 * MIB));
        assert_eq!((strict.level, strict.is_strict, strict.excess), (MemoryLevel::Tight, true, 0));
        assert_eq!(decide(MemoryLevel::Tight, &held(27 * MIB)).level, MemoryLevel::Tight);
        assert_eq!(decide(MemoryLevel::Tight, &held(25 * MIB)).level, MemoryLevel::Free);
        let room = room(&MemoryReading { held_back: 10 * MIB, ..held(0) }, 4 * MIB, 5);
        assert_eq!([room.tight_from, room.strict_from].map(|bytes| bytes / MIB), [32 - 8, 64 - 8]);
        assert_eq!((room.shared, room.other_bulk), (20 * MIB, 15));
    }

    #[test]
    fn connections_that_have_just_begun_count_before_they_take_memory() {
        let with = |coming| decide(MemoryLevel::Free, &MemoryReading { coming, ..reading(20 * MIB, 64 * MIB, 20) });
        assert_eq!(with(11 * MIB).level, MemoryLevel::Free);
        let full = with(28 * MIB);
        assert_eq!((full.level, full.excess), (MemoryLevel::Full, 0), "they hold nothing yet that could be given back");
    }

    #[test]
    fn the_least_budget_counts() {
        let of = |configured, host, group| least([(LimitKind::Configured, configured), (LimitKind::Host, host), (LimitKind::Group, group)]);
        assert_eq!(of(Some(5), Some(3), Some(9)), Some((LimitKind::Host, 3)));
        assert_eq!(of(None, None, Some(9)), Some((LimitKind::Group, 9)));
        assert_eq!(of(None, None, None), None);
    }

    proptest! {
        /// If every direction takes all that its B lets it take, accepts do not pause.
        #[test]
        fn directions_within_their_share_stay_below_the_pause(limit in 1u64 << 20..1 << 40, directions in 1u64..100_000) {
            let tight = reading(limit / 16 * 9, limit, directions);
            let cap = decide(MemoryLevel::Free, &tight).cap.unwrap();
            prop_assert!(cap == LEAST_SHARE || cap * MEMORY_OF_B * directions <= part(limit, MemoryLevel::Full.parts()[1]));
        }

        /// More memory in use never means less is done about it.
        #[test]
        fn levels_are_monotonous(limit in 1u64..1 << 40, one in 0u64..1 << 41, more in 0u64..1 << 40, level in 0usize..5) {
            let present = MemoryLevel::ALL[level];
            let (low, high) = (decide(present, &reading(one, limit, 3)), decide(present, &reading(one + more, limit, 3)));
            prop_assert!(low.level <= high.level && low.excess <= high.excess);
            prop_assert!(high.excess <= one + more);
            prop_assert!(quantum(&reading(one, limit, 3)) <= limit.max(1 << 20));
        }
    }
}
