//! A simulation as it is asked for: sizes, arrivals, streams, static splitting.

use super::{
    Can, Sizes,
    arrivals::{Modulation, Streams},
    job_sizes::within,
};
use crate::TheoryError;
use std::num::NonZero;

/// A simulation of a [`Can`], for what its chain does not cover: sizes of any law, and the paper's topics for further research (§VII).
///
/// ```
/// use theory::{Can, Sizes};
/// let can = Can::new(0.1, &[0.5, 0.7])?;
/// let played = can.run().with_sizes(&Sizes::DETERMINISTIC).play(1, 20_000)?;
/// let time = played.means.sojourn_s[0].unwrap();
/// assert!((time.value - 1.16).abs() < 0.01 + 2.0 * time.error);
/// # Ok::<(), theory::TheoryError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CanRun {
    pub(super) can: Can,
    /// Of each class.
    pub(super) sizes: Vec<Sizes>,
    pub(super) modulations: Vec<Option<Modulation>>,
    /// Of each network.
    pub(super) streams: Vec<Option<Streams>>,
    /// Static fractions; without, splitting is as fine as a fluid's.
    pub(super) split: Option<Vec<f64>>,
    pub(super) threads: usize,
}

impl Can {
    /// A simulation of it, at first with exponential sizes, Poisson arrivals, and as many threads as there are processors.
    pub fn run(&self) -> CanRun {
        let classes = self.arrivals.len();
        CanRun {
            can: self.clone(),
            sizes: vec![Sizes::EXPONENTIAL; classes],
            modulations: vec![None; classes],
            streams: vec![None; classes - 1],
            split: None,
            threads: std::thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// The static fractions that are best for the tail of the foreground's time where it is light and its sizes are heavy-tailed, and good for
    /// its mean: pᵢ in proportion to cᵢ − λᵢβᵢ, what the background leaves of each network (Hoekstra, van der Mei, Nazarathy and Zwart 2009,
    /// *Optimal file splitting for wireless networks with concurrent access*, the paper's reference 28).
    pub fn tail_optimal_split(&self) -> Vec<f64> {
        let free: Vec<f64> = (1..self.sizes.len()).map(|class| self.speeds[class - 1] - self.work(class)).collect();
        let all: f64 = free.iter().sum();
        free.iter().map(|free| free / all).collect()
    }
}

impl CanRun {
    /// With all classes' sizes by this law.
    pub fn with_sizes(mut self, sizes: &Sizes) -> Self {
        self.sizes.fill(sizes.clone());
        self
    }

    /// With one class's sizes by this law.
    pub fn with_sizes_of(mut self, class: usize, sizes: &Sizes) -> Result<Self, TheoryError> {
        *self.sizes.get_mut(class).ok_or_else(|| self.can.no_class(class))? = sizes.clone();
        Ok(self)
    }

    /// With arrivals of a class that rise and fall; each class in its own time.
    pub fn with_modulation(mut self, class: usize, modulation: Modulation) -> Result<Self, TheoryError> {
        *self.modulations.get_mut(class).ok_or_else(|| self.can.no_class(class))? = Some(modulation);
        Ok(self)
    }

    /// With inelastic streams in a network, the first of which is 1. At the most they may just fill it, and in the mean must leave enough.
    pub fn with_streams(mut self, network: usize, streams: Streams) -> Result<Self, TheoryError> {
        if network == 0 || network > self.streams.len() {
            return Err(self.can.no_class(network));
        }
        let (full, speed) = (streams.rate * streams.most as f64, self.can.speeds[network - 1]);
        within(format!("the part of network {network} that the most streams take"), full / speed, "at most 1", full <= speed)?;
        self.streams[network - 1] = Some(streams);
        Ok(self)
    }

    /// With files that are split on arrival, by fixed fractions of their size: a file is done when all its parts are, each of which shares its
    /// network like a job.
    pub fn with_static_split(mut self, fractions: &[f64]) -> Result<Self, TheoryError> {
        within("the number of fractions", fractions.len() as f64, "the number of networks", fractions.len() == self.streams.len())?;
        for fraction in fractions {
            within("a fraction of a file", *fraction, "from 0 to 1", (0.0..=1.0).contains(fraction))?;
        }
        let all: f64 = fractions.iter().sum();
        within("the sum of the fractions", all, "1", (all - 1.0).abs() < 1e-9)?;
        self.split = Some(fractions.to_vec());
        Ok(self)
    }

    /// On so many threads, at least one. What is found does not depend on it.
    pub fn on_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }
}
