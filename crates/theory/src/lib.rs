//! What can be computed is computed: TCP in congestion avoidance as a fluid whose rate rises steadily and is halved by losses.
//!
//! After Baccelli, Carofiglio and Foss, *Proxy caching in split TCP: dynamics, stability and tail asymptotics* (2009): one connection
//! ([`Aimd`], §19.4.1 and §19.4.2), and two in tandem with a bounded buffer between them ([`Split`], equations (19.4) to (19.8)), which are
//! played event by event without a time step. The start-up of a transfer, after Wei et al. ([`StartUp`]). Files split over several networks,
//! after Hoekstra, van der Mei and Bosman ([`Can`], [`Wlan`]). Rates are packets a second, buffers packets, times seconds.
//!
//! ```
//! use theory::{Aimd, Losses, Split};
//! let near = Aimd::new(0.040, Losses::PerSecond(0.4))?;
//! let far = Aimd::new(0.020, Losses::PerSecond(0.4))?;
//! assert_eq!(near.mean(), 2.0 / 0.040f64.powi(2) / 0.4);
//! let split = Split::new(near, far).with_buffer(1000.0)?;
//! let found = split.estimate(1, 20_000)?;
//! assert!(found.rate.mean < near.mean());
//! # Ok::<(), theory::TheoryError>(())
//! ```

mod aimd;
mod buffer_sizing;
mod can;
mod engine;
mod estimate;
mod parallel;
mod renewal_cycle;
mod slow_start;
mod split;
pub mod tail;
mod trajectory;
mod wlan;

pub use aimd::{Aimd, Losses, PHI, TheoryError, phi};
pub use buffer_sizing::Enough;
pub use can::{Can, CanMeans, CanPlayed, CanRun, Modulation, Number, Sizes, Streams, ideal, replay};
pub use engine::Theory;
pub use estimate::{Estimate, Mean};
pub use slow_start::{Downstream, StartUp};
pub use split::{Follows, Phase, Split};
pub use trajectory::{Ends, Path, Segment, State};
pub use wlan::{Waits, Wlan};
