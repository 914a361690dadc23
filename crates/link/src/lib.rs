//! What a link does to packets: queue and rate, loss, delay.
//!
//! A stage is a queue: a caller enqueues packets, and each leaves at its own time ([`LinkStage`]).
//! Stages compose. [`LinkDirection`] is one direction of a scenario's link: a [`Shaper`] (drop-tail
//! queue, and a transmitter that follows a rate or a trace), then a [`LossProcess`], then a
//! [`Delay`]. Both directions may share a medium ([`LinkDirection::pair`]). Time and randomness are
//! arguments, so the simulator (virtual time) and the lab's emulator (real time) use the same
//! stages. A stage reports the exact time at which each packet left it, so a caller that polls late
//! loses neither rate nor order. The caller chooses the packet type ([`LinkPacket`]).

mod aqm;
mod contention;
mod delay;
mod delay_histogram;
mod direction_spec;
mod disorder;
mod link_direction;
mod loss_process;
mod managed_queue;
mod outages;
mod own_transmitter;
mod queue_server;
mod random;
mod shaper;
mod shared_medium;
mod stage;
mod time;
mod timing_wheel;
mod transmitter;

pub use delay::Delay;
pub use delay_histogram::DelayHistogram;
pub use direction_spec::DirectionSpec;
pub use disorder::DisorderSpec;
pub use link_direction::{LinkCounts, LinkDirection};
pub use loss_process::{LossProcess, asked_loss, mean_loss};
pub use random::LinkStreams;
pub use shaper::Shaper;
pub use stage::{Ecn, LinkPacket, LinkStage, QueueTap};
pub use time::Time;
pub use transmitter::Transmission;
