//! Errors of the models.

/// Why a model has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TheoryError {
    /// A parameter is not a positive number.
    #[error("{what} is {value}, and must be a positive number")]
    NotPositive {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A parameter is out of range.
    #[error("{what} is {value}, and must be {bounds}")]
    Outside {
        /// The parameter.
        what: String,
        /// Its value.
        value: f64,
        /// Its range.
        bounds: &'static str,
    },
    /// A text is not a job size.
    #[error("{0:?} is not a size")]
    NotASize(String),
    /// Too few samples for a confidence interval.
    #[error("{have} positive samples are too few for a confidence interval: at least {need} are needed")]
    TooFew {
        /// Samples given.
        have: usize,
        /// Samples needed.
        need: usize,
    },
    /// The buffer content mixes too slowly for the length of the simulation: the legs are nearly
    /// critical.
    #[error(
        "the legs are nearly alike (the faster one alone sends {ratio} times as much): {have} losses are too few to estimate the cost of a buffer \
         of {packets} packets; simulate {need}, or ask for a smaller share of the rate"
    )]
    Critical {
        /// Ratio of the mean rates of the isolated legs, the larger over the smaller.
        ratio: f64,
        /// The buffer, packets.
        packets: f64,
        /// Losses of both legs to simulate.
        have: u64,
        /// Losses needed.
        need: u64,
    },
    /// The numbers of networks and classes do not match.
    #[error("{networks} networks and {classes} classes of jobs: give 1 to {most} networks, and one class more than networks")]
    Networks {
        /// Networks given.
        networks: usize,
        /// Classes given.
        classes: usize,
        /// Most networks.
        most: usize,
    },
    /// The offered load exceeds the capacity.
    #[error("the load of {what} is {load}, and must be below 1 for a stationary state")]
    Overloaded {
        /// The overloaded part.
        what: String,
        /// Offered work over capacity.
        load: f64,
    },
    /// An unbounded buffer grows without limit.
    #[error(
        "the first connection alone is faster than the second: rho = {rho}, and an unbounded buffer is stable for rho < 1 only; give a buffer size"
    )]
    Unstable {
        /// The load, as in Lemma 19.7.
        rho: f64,
    },
}

/// Returns `value` if it is positive and finite.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64, TheoryError> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(TheoryError::NotPositive { what, value }) }
}
