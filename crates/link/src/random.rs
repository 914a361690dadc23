//! The random streams of a link.

use rand_pcg::Pcg64;
use scenario::{Purpose, stream};

/// Which random streams a direction of a link has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStreams {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the link in its network, from 0.
    pub link: u64,
    /// Whether it is the direction against that of the data.
    pub is_reverse: bool,
}

impl LinkStreams {
    /// The stream of the direction's losses.
    pub(crate) fn losses(self) -> Pcg64 {
        stream(self.seed, if self.is_reverse { Purpose::ReverseLosses } else { Purpose::Losses }, self.link)
    }

    /// A stream that both directions have.
    pub(crate) fn of_link(self, purpose: Purpose) -> Pcg64 {
        stream(self.seed, purpose, self.link)
    }

    /// A stream of this direction alone.
    pub(crate) fn of_direction(self, purpose: Purpose) -> Pcg64 {
        stream(self.seed, purpose, 2 * self.link + u64::from(self.is_reverse))
    }
}
