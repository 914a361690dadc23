//! What a side sent and which window it advertised, over time, in bins whose number is bounded.

use serde::Serialize;

const BINS: usize = 256;
/// ns; bins grow by doubling.
const NARROWEST: i64 = 10_000_000;

/// Bins from the first packet on; empty until there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct BinnedSeries {
    from: i64,
    width: i64,
    bins: Vec<Bin>,
}

/// What was in one stretch of time.
#[derive(Debug, Clone, Copy)]
struct Bin {
    bytes: u64,
    /// The smallest window advertised; `NONE` where none was.
    window: u64,
}

const NONE: u64 = u64::MAX;
const EMPTY: Bin = Bin { bytes: 0, window: NONE };

/// How bursty a side sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Burstiness {
    /// The stretch of time that is looked at, s.
    pub bin_s: f64,
    /// The share of stretches, from the first byte to the last, in which nothing was sent.
    pub idle: f64,
    /// The fastest stretch, in means.
    pub peak_to_mean: f64,
}

/// Numbers over time, as Figure 3 of Wei et al. plots them; times by the sender's clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BehaviourPlot {
    /// s between entries.
    pub step_s: f64,
    /// The first entry's begin, s since 1970.
    pub from_s: f64,
    /// Payload bytes sent in each.
    pub bytes: Vec<u64>,
    /// s between entries of the window.
    pub window_step_s: f64,
    /// The first one's begin, s since 1970.
    pub window_from_s: f64,
    /// The smallest window advertised in each stretch, where one was.
    pub window: Vec<Option<u64>>,
    /// What came to the receiver, where its trace has it and the clocks' offset is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<ReceivedSeries>,
    /// When a byte was sent, s since 1970, and how long it took to the receiver, s.
    pub delays: Vec<(f64, f64)>,
}

/// What came to the receiver, over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReceivedSeries {
    /// s between entries.
    pub step_s: f64,
    /// The first entry's begin, s since 1970 by the sender's clock.
    pub from_s: f64,
    /// Payload bytes received in each.
    pub bytes: Vec<u64>,
}

impl BinnedSeries {
    pub(crate) fn note(&mut self, at: i64, bytes: u64, window: u64) {
        if self.width == 0 {
            (self.from, self.width) = (at, NARROWEST);
        }
        // A packet that is recorded late counts as the first.
        let mut index = (at - self.from).max(0) / self.width;
        while index >= BINS as i64 {
            let halves = self.bins.chunks(2).map(|pair| pair.iter().copied().reduce(Bin::with).unwrap_or(EMPTY));
            self.bins = halves.collect();
            self.width *= 2;
            index = (at - self.from).max(0) / self.width;
        }
        let index = index as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, EMPTY);
        }
        self.bins[index] = self.bins[index].with(Bin { bytes, window });
    }

    /// None when there are too few stretches to tell.
    pub(crate) fn burstiness(&self) -> Option<Burstiness> {
        let first = self.bins.iter().position(|bin| bin.bytes > 0)?;
        let last = self.bins.iter().rposition(|bin| bin.bytes > 0)?;
        let bins = &self.bins[first..=last];
        if bins.len() < 8 {
            return None;
        }
        let total: u64 = bins.iter().map(|bin| bin.bytes).sum();
        let peak = bins.iter().map(|bin| bin.bytes).max().unwrap_or(0);
        let idle = bins.iter().filter(|bin| bin.bytes == 0).count();
        let count = bins.len() as f64;
        Some(Burstiness { bin_s: self.width as f64 / 1e9, idle: idle as f64 / count, peak_to_mean: peak as f64 * count / total as f64 })
    }

    /// s between entries, and the first one's begin, s since 1970.
    pub(crate) fn grid(&self) -> (f64, f64) {
        (self.width as f64 / 1e9, self.from as f64 / 1e9)
    }

    /// Payload bytes in each stretch.
    pub(crate) fn bytes(&self) -> Vec<u64> {
        self.bins.iter().map(|bin| bin.bytes).collect()
    }

    /// The smallest window advertised in each stretch.
    pub(crate) fn windows(&self) -> Vec<Option<u64>> {
        self.bins.iter().map(|bin| (bin.window != NONE).then_some(bin.window)).collect()
    }
}

impl Bin {
    fn with(self, other: Bin) -> Bin {
        Bin { bytes: self.bytes.saturating_add(other.bytes), window: self.window.min(other.window) }
    }
}
