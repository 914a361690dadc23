//! Fluid models: TCP in congestion avoidance as a fluid whose rate rises linearly and is halved by
//! losses.
//!
//! - One connection ([`Aimd`]) and two in tandem with a bounded buffer between them
//!   ([`TandemModel`]), after Baccelli, Carofiglio and Foss, *Proxy caching in split TCP: dynamics,
//!   stability and tail asymptotics* (2009), §19.4.1, §19.4.2 and equations (19.4) to (19.8). The
//!   tandem is simulated event by event, without a time step.
//! - The start-up of a transfer ([`SlowStart`]), after Wei et al. (2005).
//! - Files split over several networks ([`Can`], [`Wlan`]), after Hoekstra, van der Mei and Bosman
//!   (2011).
//!
//! Rates are in packets/s, buffers in packets, times in seconds, unless a name has another unit.
//!
//! ```
//! use theory::{Aimd, LossRate, TandemModel};
//! let near = Aimd::new(0.040, LossRate::PerSecond(0.4))?;
//! let far = Aimd::new(0.020, LossRate::PerSecond(0.4))?;
//! assert_eq!(near.mean(), 2.0 / 0.040f64.powi(2) / 0.4);
//! let split = TandemModel::new(near, far).with_buffer(1000.0)?;
//! let found = split.estimate(1, 20_000)?;
//! assert!(found.rate.mean < near.mean());
//! # Ok::<(), theory::TheoryError>(())
//! ```

mod aimd;
mod buffer_sizing;
mod can;
mod engine;
mod error;
mod estimate;
mod fifo_delay;
mod growth_rate;
mod parallel;
mod renewal_cycle;
mod slow_start;
mod split;
mod splitting;
mod stationary;
pub mod tail;
mod trajectory;
mod wlan;

pub use aimd::{Aimd, LossRate, PHI, phi};
pub use buffer_sizing::SufficientBuffer;
pub use can::{
    AssignmentRule, Can, CanMeans, CanSimulation, CanSimulationResult, InelasticStreams, Modulation, SizeDistribution, ValueWithError,
    ideal, replay,
};
pub use engine::Theory;
pub use error::TheoryError;
pub use estimate::{Estimate, Mean};
pub use growth_rate::TailDecay;
pub use slow_start::{Downstream, SlowStart};
pub use split::{LossBasis, TandemModel};
pub use splitting::{SplittingEffort, TailLevels};
pub use stationary::StationaryMeans;
pub use trajectory::{SegmentEnd, TandemState, Trajectory, TrajectorySegment};
pub use wlan::{BackoffModel, Wlan};
