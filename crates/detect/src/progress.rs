//! Progress of a stream: when each byte was first sent, received or acknowledged, in bounded
//! memory.

/// A step of the curve: the position reached at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgressStep {
    /// Time, ns since 1970.
    pub(crate) at: i64,
    /// Position, bytes from the stream's base.
    pub(crate) reach: i64,
    /// Start of the contiguous record that reached it. Between the previous position and this one,
    /// the capture missed packets.
    from: i64,
}

/// A curve that never falls. If it has too many steps, it keeps only those that cross a multiple of
/// 2^grid bytes. For such a multiple the time remains exact, so that curves with different grids
/// can be compared on the coarser one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgressCurve {
    steps: Vec<ProgressStep>,
    grid: u32,
    reach: Option<i64>,
}

/// When a curve reached a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReachTime {
    /// Time of the first record at or beyond it, ns since 1970.
    pub(crate) at: i64,
    /// Time of the last record before it, ns. Even if the capture missed packets, the position was
    /// not reached earlier.
    pub(crate) after: Option<i64>,
    /// Whether `at` is the time of the first packet that reached the position, not of a later one.
    pub(crate) exact: bool,
}

impl ProgressCurve {
    /// Records that the position `reach` was reached at time `at` (ns since 1970), by data that
    /// begin at `from`. Keeps at most `room` steps.
    pub(crate) fn note(&mut self, at: i64, from: i64, reach: i64, room: usize) {
        let before = self.reach;
        if before.is_some_and(|before| reach <= before) {
            return;
        }
        self.reach = Some(reach);
        if before.is_none_or(|before| before >> self.grid < reach >> self.grid) {
            self.steps.push(ProgressStep { at, reach, from: before.map_or(from, |before| from.max(before)) });
            if self.steps.len() > room {
                self.thin(room);
            }
        }
    }

    /// Coarsens the grid until at most `room` steps are left.
    pub(crate) fn thin(&mut self, room: usize) {
        while self.steps.len() > room.max(2) && self.grid < 62 {
            self.grid += 1;
            let (grid, mut before) = (self.grid, None);
            // The position before a step lies in the grid cell of the previous kept step.
            self.steps.retain(|step| {
                let cell = Some(step.reach >> grid);
                std::mem::replace(&mut before, cell) != cell
            });
            self.steps.shrink_to(room);
        }
    }

    pub(crate) fn steps(&self) -> &[ProgressStep] {
        &self.steps
    }

    /// When the curve reached `place`.
    pub(crate) fn reached(&self, place: i64) -> Option<ReachTime> {
        let index = self.steps.partition_point(|step| step.reach < place);
        let step = self.steps.get(index)?;
        let exact = (self.grid == 0 || place & ((1 << self.grid) - 1) == 0) && place > step.from;
        Some(ReachTime { at: step.at, after: index.checked_sub(1).map(|before| self.steps[before].at), exact })
    }

    /// The position reached by `time`, bytes.
    pub(crate) fn by(&self, time: i64) -> i64 {
        let index = self.steps.partition_point(|step| step.at <= time);
        index.checked_sub(1).map_or(0, |last| self.steps[last].reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_missing_from_the_capture_are_inexact() {
        let mut curve = ProgressCurve::default();
        for (at, from, reach) in [(0, 0, 100), (10, 200, 300), (20, 250, 400)] {
            curve.note(at, from, reach, usize::MAX);
        }
        let exact = |place| curve.reached(place).map(|reached| (reached.at, reached.exact));
        let expected = [(100, (0, true)), (101, (10, false)), (200, (10, false)), (201, (10, true)), (301, (20, true)), (400, (20, true))];
        for (place, reached) in expected {
            assert_eq!(exact(place), Some(reached), "{place}");
        }
    }

    proptest! {
        #[test]
        fn places_on_the_grid_stay_exact_and_others_are_bounded(rises in prop::collection::vec(1i64..5000, 1..400), room in 4usize..40) {
            let (mut whole, mut kept, mut reach) = (ProgressCurve::default(), ProgressCurve::default(), -700);
            for (index, rise) in rises.iter().enumerate() {
                reach += rise;
                whole.note(index as i64 * 10, reach - rise, reach, usize::MAX);
                kept.note(index as i64 * 10, reach - rise, reach, room);
            }
            prop_assert!(kept.steps().len() <= room);
            for place in -699..reach {
                let (Some(truth), Some(seen)) = (whole.reached(place), kept.reached(place)) else { continue };
                prop_assert!(truth.exact);
                prop_assert!(truth.at <= seen.at && (!seen.exact || truth.at == seen.at));
                prop_assert!(seen.after.is_none_or(|after| after < truth.at));
            }
        }
    }
}
