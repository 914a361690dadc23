//! Stats.

/// A window that has fallen to less than this share is as good as shut; one that has risen so much from there, and has room for some segments, as good as open.
const SHUT: f64 = 0.1;
const OPEN: u64 = 6000;

/// Payload sizes, the most frequent ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentSizes {
    /// Size, count; of few.
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
            // What is rare gives way; what is frequent comes back (Metwally et al. 2005).
            *least = (size, least.1 + 1);
        }
    }

    /// The most frequent one.
    pub(crate) fn usual(&self) -> Option<u32> {
        self.counts.iter().max_by_key(|(size, count)| (*count, *size)).map(|(size, _)| *size)
    }
}

/// The windows that a side advertised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AdvertisedWindows {
    /// Bytes, scaled where the scale is known; SYNs left out.
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// How often it went from open to shut.
    pub(crate) shuts: u32,
    pub(crate) count: u64,
    shut: bool,
    /// The most since it was opened, or the least since it was shut. What is offered before anything was sent says little of what comes later.
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
    fn a_window_shuts_each_time_it_falls_from_what_it_was_opened_to() {
        assert_eq!(shuts([65_535, 60_000, 7_000, 65_535]), 0);
        assert_eq!(shuts([65_535, 0, 65_535, 3_000, 0, 65_535]), 2);
        // What was offered at first was never offered again.
        assert_eq!(shuts([2_000_000, 0, 56_000, 0, 15_000, 0, 36_000]), 3);
        // A segment or two is no opening; a slow fall no alternation.
        assert_eq!(shuts([65_535, 0, 2_896, 0, 2_896, 0]), 1);
        assert_eq!(shuts([65_535, 6_000, 30_000, 6_000, 50_000, 6_000]), 1);
    }
}
