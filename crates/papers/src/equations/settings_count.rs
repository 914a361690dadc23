//! Which of the two-segment settings of Yuan, Rossman and Winstein a split speeds up, counted as in
//! their Table 3.

use super::{
    segment_paths::{SHORT_MS, SegmentSetting},
    table::{ComputedRow, exact},
};

/// The distance from a printed count within which a count holds.
const COUNT_WITHIN: f64 = 0.1;

/// What a path of two segments carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PairSpeeds {
    /// The segments.
    pub(super) segments: [SegmentSetting; 2],
    /// Split between them, Mbit/s.
    pub(super) split: f64,
    /// From end to end, Mbit/s.
    pub(super) end_to_end: f64,
}

impl PairSpeeds {
    /// The split speed over that from end to end; infinite if nothing came from end to end, even if
    /// the split brought nothing either, as in the paper's count.
    pub(super) fn gain(&self) -> f64 {
        if self.end_to_end > 0.0 { self.split / self.end_to_end } else { f64::INFINITY }
    }

    /// Whether a split path has more than half of the slower link's rate.
    fn is_above_half(&self) -> bool {
        let [first, second] = self.segments;
        self.split > 0.5 * first.rate_mbit.min(second.rate_mbit) as f64
    }

    /// Where its losses are.
    fn losses(&self) -> Losses {
        let [first, second] = self.segments;
        let is_short = |segment: SegmentSetting| segment.delay_ms == SHORT_MS;
        match (first.loss_percent > 0, second.loss_percent > 0) {
            (true, true) if is_short(first) || is_short(second) => Losses::BothOneShort,
            (true, true) => Losses::BothLong,
            (true, false) if is_short(first) && !is_short(second) => Losses::ShortOnly,
            (false, true) if is_short(second) && !is_short(first) => Losses::ShortOnly,
            _ => Losses::Elsewhere,
        }
    }
}

/// The kinds of settings of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Losses {
    /// One segment of 1 ms loses packets, and the long one does not.
    ShortOnly,
    /// Both lose packets, and one of them has 1 ms.
    BothOneShort,
    /// Both lose packets, and neither has 1 ms.
    BothLong,
    /// Nothing is lost, or only on a long segment.
    Elsewhere,
}

/// The counts that the paper prints for a controller, each with what is counted here under
/// `setting`.
pub(super) fn counts(name: &str, setting: &str, speeds: &[PairSpeeds]) -> Vec<ComputedRow> {
    let count = |printed: usize, what: &str, is_counted: &dyn Fn(&PairSpeeds) -> bool| {
        let here = speeds.iter().filter(|pair| is_counted(pair)).count();
        counted([name, setting, what], printed, here)
    };
    let is_fast = |pair: &PairSpeeds| pair.gain() > 3.0 && pair.is_above_half();
    let is_fast_with = |losses: Losses| move |pair: &PairSpeeds| is_fast(pair) && pair.losses() == losses;
    match name {
        "BBRv1" => vec![
            count(7875, "split above half of the link's rate", &PairSpeeds::is_above_half),
            count(0, "split more than 1.5 times as fast", &|pair| pair.gain() > 1.5),
        ],
        "CUBIC" => vec![
            count(2231, "split more than 3 times as fast", &|pair| pair.gain() > 3.0),
            count(942, "… and above half of the link's rate", &is_fast),
            count(942, "… and only a segment of 1 ms loses packets", &is_fast_with(Losses::ShortOnly)),
            count(420, "split without a result", &|pair| pair.split == 0.0),
        ],
        _ => vec![
            count(234, "split more than 3 times as fast", &|pair| pair.gain() > 3.0),
            count(188, "… and above half of the link's rate", &is_fast),
            count(38, "… and only a segment of 1 ms loses packets", &is_fast_with(Losses::ShortOnly)),
            count(72, "… and both lose packets, one has 1 ms", &is_fast_with(Losses::BothOneShort)),
            count(78, "… and both lose packets, neither has 1 ms", &is_fast_with(Losses::BothLong)),
        ],
    }
}

/// A count beside the printed one.
fn counted([name, setting, what]: [&str; 3], printed: usize, here: usize) -> ComputedRow {
    let holds = (here as f64 - printed as f64).abs() <= COUNT_WITHIN * printed as f64;
    let row = ComputedRow::new([name, what, setting].map(str::to_owned).into(), exact(here as f64), 0);
    row.claimed(&format!("{name}, {what}: {printed}"), holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(delays: [u64; 2], losses: [u64; 2], split: f64, end_to_end: f64) -> PairSpeeds {
        let segment = |at: usize| SegmentSetting { delay_ms: delays[at], loss_percent: losses[at], rate_mbit: 10 };
        PairSpeeds { segments: [segment(0), segment(1)], split, end_to_end }
    }

    #[test]
    fn settings_are_counted_by_gain_rate_and_losses() {
        let speeds = [
            pair([1, 100], [4, 0], 6.0, 1.0),
            pair([100, 1], [0, 4], 6.0, 1.0),
            pair([100, 1], [2, 2], 6.0, 1.0),
            pair([40, 40], [2, 2], 6.0, 1.0),
            pair([40, 40], [2, 2], 4.0, 1.0),
            pair([40, 40], [2, 2], 6.0, 2.0),
            pair([40, 40], [0, 4], 6.0, 1.0),
        ];
        let here = |name: &str| counts(name, "", &speeds).iter().map(|row| row.here.mean).collect::<Vec<_>>();
        assert_eq!(here("BBRv3"), [6.0, 5.0, 2.0, 1.0, 1.0]);
        assert_eq!(here("CUBIC"), [6.0, 5.0, 2.0, 0.0]);
        assert_eq!(here("BBRv1"), [6.0, 7.0]);
    }

    #[test]
    fn a_count_holds_within_a_tenth_and_none_means_none() {
        let holds = |printed, here| counted(["x", "y", "z"], printed, here).holds == Some(true);
        assert!(holds(100, 110) && holds(100, 90) && !holds(100, 89) && !holds(100, 111));
        assert!(holds(0, 0) && !holds(0, 1));
    }

    #[test]
    fn what_brings_nothing_counts_as_a_gain() {
        let rows = counts("CUBIC", "", &[pair([100, 1], [4, 0], 0.0, 0.0)]);
        assert_eq!(rows.iter().map(|row| row.here.mean).collect::<Vec<_>>(), [1.0, 0.0, 0.0, 1.0]);
    }
}
