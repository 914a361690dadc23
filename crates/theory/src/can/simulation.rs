//! The settings of a simulation: sizes, arrivals, streams, static splitting.

use super::{
    Can, SizeDistribution,
    arrivals::{InelasticStreams, Modulation},
    job_sizes::check_range,
};
use crate::error::TheoryError;
use std::num::NonZero;

/// A simulation of a [`Can`], for what its Markov chain does not cover: any size distribution, and
/// the paper's topics for further research (§VII). Its `with_…` methods set it up;
/// [`run`](CanSimulation::run) runs it.
///
/// ```
/// use theory::{Can, SizeDistribution};
/// let can = Can::new(0.1, &[0.5, 0.7])?;
/// let found = can.simulation().with_sizes(&SizeDistribution::DETERMINISTIC).run(1, 20_000)?;
/// let time = found.means.sojourn_s[0].unwrap();
/// assert!((time.value - 1.16).abs() < 0.01 + 2.0 * time.error);
/// # Ok::<(), theory::TheoryError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CanSimulation {
    pub(super) can: Can,
    /// Of each class.
    pub(super) sizes: Vec<SizeDistribution>,
    pub(super) modulations: Vec<Option<Modulation>>,
    /// Of each network.
    pub(super) streams: Vec<Option<InelasticStreams>>,
    /// Static fractions of a file per network; without them the split is fluid.
    pub(super) split: Option<Vec<f64>>,
    pub(super) threads: usize,
}

impl Can {
    /// A simulation of the system, by default with exponential sizes, Poisson arrivals, and a
    /// thread per processor.
    pub fn simulation(&self) -> CanSimulation {
        let classes = self.arrivals.len();
        CanSimulation {
            can: self.clone(),
            sizes: vec![SizeDistribution::EXPONENTIAL; classes],
            modulations: vec![None; classes],
            streams: vec![None; classes - 1],
            split: None,
            threads: std::thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// The static fractions that are optimal for the tail of the foreground's sojourn time if its
    /// load is light and its sizes are heavy-tailed, and good for its mean: pᵢ in proportion to cᵢ
    /// − λᵢβᵢ, what the background leaves of each network (Hoekstra, van der Mei, Nazarathy and
    /// Zwart 2009, *Optimal file splitting for wireless networks with concurrent access*, the
    /// paper's reference 28).
    pub fn tail_optimal_split(&self) -> Vec<f64> {
        let free: Vec<f64> = (1..self.sizes.len()).map(|class| self.speeds[class - 1] - self.work(class)).collect();
        let all: f64 = free.iter().sum();
        free.iter().map(|free| free / all).collect()
    }
}

impl CanSimulation {
    /// Sets the size distribution of all classes.
    pub fn with_sizes(mut self, sizes: &SizeDistribution) -> Self {
        self.sizes.fill(sizes.clone());
        self
    }

    /// Sets the size distribution of one class.
    ///
    /// # Errors
    /// When there is no such class.
    pub fn with_sizes_of(mut self, class: usize, sizes: &SizeDistribution) -> Result<Self, TheoryError> {
        *self.sizes.get_mut(class).ok_or_else(|| self.can.no_class(class))? = sizes.clone();
        Ok(self)
    }

    /// Modulates the arrivals of a class; the classes are independent.
    ///
    /// # Errors
    /// When there is no such class.
    pub fn with_modulation(mut self, class: usize, modulation: Modulation) -> Result<Self, TheoryError> {
        *self.modulations.get_mut(class).ok_or_else(|| self.can.no_class(class))? = Some(modulation);
        Ok(self)
    }

    /// Adds inelastic streams to a network; the first network is 1. The most streams at once must
    /// fit into it, and their mean must leave capacity for the jobs.
    ///
    /// # Errors
    /// When there is no such network, or the streams exceed it.
    pub fn with_streams(mut self, network: usize, streams: InelasticStreams) -> Result<Self, TheoryError> {
        if network == 0 || network > self.streams.len() {
            return Err(self.can.no_class(network));
        }
        let (full, speed) = (streams.rate * streams.max as f64, self.can.speeds[network - 1]);
        check_range(format!("the fraction of network {network} that the most streams take"), full / speed, "at most 1", full <= speed)?;
        self.streams[network - 1] = Some(streams);
        Ok(self)
    }

    /// Splits files on arrival, by fixed fractions of their size. Each part shares its network like
    /// a job; a file is done when all its parts are.
    ///
    /// # Errors
    /// When there is not one fraction per network, or they do not sum to 1.
    pub fn with_static_split(mut self, fractions: &[f64]) -> Result<Self, TheoryError> {
        check_range("the number of fractions", fractions.len() as f64, "the number of networks", fractions.len() == self.streams.len())?;
        for fraction in fractions {
            check_range("a fraction of a file", *fraction, "from 0 to 1", (0.0..=1.0).contains(fraction))?;
        }
        let all: f64 = fractions.iter().sum();
        check_range("the sum of the fractions", all, "1", (all - 1.0).abs() < 1e-9)?;
        self.split = Some(fractions.to_vec());
        Ok(self)
    }

    /// Sets the number of threads, at least one. The results do not depend on it.
    pub fn on_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }
}
