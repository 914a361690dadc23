//! Statistics of one direction of a connection: segment sizes and advertised windows.

/// A window counts as closed when it falls below this fraction of its maximum. It counts as open
/// again when it has grown by the same factor and has room for several segments (bytes).
const SHUT: f64 = 0.1;
const OPEN: u64 = 6000;

/// The most frequent payload sizes.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentSizes {
    /// Size and count.
    counts: Vec<(u32, u64)>,
    pub(crate) largest: u32,
}

impl SegmentSizes {
    const KEPT: usize = 8;

    pub(crate) fn note(&mut self, size: u32) {
        self.largest = self.largest.max(size);
        if let Some((_, count)) = self.counts.iter_mut().find(|(kept, _)| *kept == size) {
            *count += 1;
        } else if self.counts.len() < Self::KEPT {
            self.counts.push((size, 1));
        } else if let Some(least) = self.counts.iter_mut().min_by_key(|(_, count)| *count) {
            // A rare size is replaced, a frequent one returns (Metwally et al. 2005,
            // "Space-Saving").
            *least = (size, least.1 + 1);
        }
    }

    /// The most frequent size, bytes.
    pub(crate) fn usual(&self) -> Option<u32> {
        self.counts.iter().max_by_key(|(size, count)| (*count, *size)).map(|(size, _)| *size)
    }
}

/// The windows that one side advertised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AdvertisedWindows {
    /// Bytes, scaled where the scale is known. SYNs are left out.
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// How often it went from open to closed.
    pub(crate) shuts: u32,
    pub(crate) count: u64,
    shut: bool,
    /// Maximum since it opened, or minimum since it closed. The initial window says little about
    /// later ones.
    turn: u64,
}

impl AdvertisedWindows {
    pub(crate) fn note(&mut self, window: u64) {
        self.least = if self.count == 0 { window } else { self.least.min(window) };
        self.most = self.most.max(window);
        self.count += 1;
        self.turn = if self.shut { self.turn.min(window) } else { self.turn.max(window) };
        if !self.shut && (window as f64) < SHUT * self.turn as f64 {
            (self.shut, self.turn) = (true, window);
            self.shuts += 1;
        } else if self.shut && window >= OPEN && (self.turn as f64) < SHUT * window as f64 {
            (self.shut, self.turn) = (false, window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuts(windows: impl IntoIterator<Item = u64>) -> u32 {
        let mut all = AdvertisedWindows::default();
        windows.into_iter().for_each(|window| all.note(window));
        all.shuts
    }

    #[test]
    fn a_window_closes_each_time_it_falls_after_opening() {
        assert_eq!(shuts([65_535, 60_000, 7_000, 65_535]), 0);
        assert_eq!(shuts([65_535, 0, 65_535, 3_000, 0, 65_535]), 2);
        // The initial window is never offered again.
        assert_eq!(shuts([2_000_000, 0, 56_000, 0, 15_000, 0, 36_000]), 3);
        // One or two segments do not count as open. A slow decrease is no alternation.
        assert_eq!(shuts([65_535, 0, 2_896, 0, 2_896, 0]), 1);
        assert_eq!(shuts([65_535, 6_000, 30_000, 6_000, 50_000, 6_000]), 1);
    }
}
