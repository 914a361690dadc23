//! Bytes sent and window advertised by one side over time, in a bounded number of bins.

use serde::Serialize;

const BINS: usize = 256;
/// Initial width of a bin, ns. It doubles whenever the bins are full.
const NARROWEST: i64 = 10_000_000;

/// Bins from the first packet on.
#[derive(Debug, Clone, Default)]
pub(crate) struct BinnedSeries {
    from: i64,
    width: i64,
    bins: Vec<Bin>,
}

/// Contents of one bin.
#[derive(Debug, Clone, Copy)]
struct Bin {
    bytes: u64,
    /// Smallest window advertised, bytes, or `NONE`.
    window: u64,
}

const NONE: u64 = u64::MAX;
const EMPTY: Bin = Bin { bytes: 0, window: NONE };

/// Burstiness of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Burstiness {
    /// Width of a bin, s.
    pub bin_s: f64,
    /// Fraction of bins, from the first byte to the last, in which nothing was sent.
    pub idle: f64,
    /// The fullest bin, relative to the mean.
    pub peak_to_mean: f64,
}

/// Series over time, as plotted in Figure 3 of Wei et al. Times are by the sender's clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BehaviourPlot {
    /// Width of a bin of `bytes`, s.
    pub step_s: f64,
    /// Start of the first bin, s since 1970.
    pub from_s: f64,
    /// Payload bytes sent in each bin.
    pub bytes: Vec<u64>,
    /// Width of a bin of `window`, s.
    pub window_step_s: f64,
    /// Start of its first bin, s since 1970.
    pub window_from_s: f64,
    /// Smallest window advertised in each bin, bytes. `None` where none was.
    pub window: Vec<Option<u64>>,
    /// Bytes received. `None` without the receiver's trace or the clock offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<ReceivedSeries>,
    /// Time at which a byte was sent, s since 1970, and its transit time, s.
    pub delays: Vec<(f64, f64)>,
}

/// Bytes received over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReceivedSeries {
    /// Width of a bin, s.
    pub step_s: f64,
    /// Start of the first bin, s since 1970 by the sender's clock.
    pub from_s: f64,
    /// Payload bytes received in each bin.
    pub bytes: Vec<u64>,
}

impl BinnedSeries {
    pub(crate) fn note(&mut self, at: i64, bytes: u64, window: u64) {
        if self.width == 0 {
            (self.from, self.width) = (at, NARROWEST);
        }
        // A packet recorded out of order counts to the first bin.
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

    /// `None` if there are too few bins to tell.
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

    /// Width of a bin, s, and the start of the first one, s since 1970.
    pub(crate) fn grid(&self) -> (f64, f64) {
        (self.width as f64 / 1e9, self.from as f64 / 1e9)
    }

    /// Payload bytes in each bin.
    pub(crate) fn bytes(&self) -> Vec<u64> {
        self.bins.iter().map(|bin| bin.bytes).collect()
    }

    /// Smallest window advertised in each bin, bytes.
    pub(crate) fn windows(&self) -> Vec<Option<u64>> {
        self.bins.iter().map(|bin| (bin.window != NONE).then_some(bin.window)).collect()
    }
}

impl Bin {
    fn with(self, other: Bin) -> Bin {
        Bin { bytes: self.bytes.saturating_add(other.bytes), window: self.window.min(other.window) }
    }
}
