//! Splits TCP connections.
//!
//! The way of a byte: the crate `intercept` brings a connection to one of the `listeners` → a
//! `greeting`, where the client names its destination → the crate `relay` (splice, bounded,
//! back-pressured) between the legs that `intercept` dials and tunes → `connection` (its life and
//! its close); `meter` looks on. `gate` lets the firewall pass connections by when there is no
//! room. One worker a thread, each with its own listeners and its own epoll; workers share nothing
//! on the data path.
//!
//! A far leg may be a *bond*, one stream over several connections, and so may the near leg where
//! such streams come out: the crate `multipath` has them, and a worker drives them as a `carrier`.
//!
//! The accepted connection is the *near leg*, the dialled one the *far leg*, whichever way the data
//! flows.

mod bonds;
mod carrier;
pub mod check;
mod config;
mod connection;
pub mod control;
pub mod diagnosis;
mod error;
mod failure;
mod flow_log;
#[doc(hidden)]
pub mod fuzz_api;
mod gate;
mod greeting;
mod listeners;
mod liveness;
mod meter;
pub mod metrics;
mod resolver;
mod running;
mod worker;

pub use config::{BufferSetting, Config, ConfigError, Listen, ListenMode, ProxyVersion, Service, config_schema};
pub use error::{ChangeError, StartError};
pub use failure::Failure;
pub use gate::Change;
pub use liveness::Liveness;
pub use meter::{DirectionView, FlowView, LegView, Limiter, NetworkTotals, Totals};
pub use multipath::{BondConfig, BondError, Network, NetworkSpec};
pub use relay::{DirectionStats, Ending, FlowRecord, FlowStats, MultipathView, PathView};
pub use running::Proxy;
pub use units::Phase;
