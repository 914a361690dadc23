//! Splits TCP connections.
//!
//! The accepted connection is the *near leg*, the dialled one the *far leg*, whichever way the data
//! flows. Each *worker* is a thread with an event loop, listeners and connections of its own;
//! workers share nothing on the data path.
//!
//! The way of a byte: the crate `intercept` brings a connection to one of the `listeners` → a
//! `greeting`, where the client names its destination → `connection` (the state machine of the
//! connection and its close), which relays between the legs that `intercept` dials and tunes, by
//! the crate `relay` (zero-copy or copied, bounded, with backpressure); `meter` derives statistics.
//! `gate` has the firewall forward new connections unsplit while the proxy is full. An `experiment`
//! has it forward a share of them unsplit, and compares these with split ones.
//!
//! A far leg may be a *bond*, one stream over several connections, and so may a near leg at the
//! other end of the bond: the crate `multipath` implements bonds, and a worker drives them as its
//! `carrier`.
//!
//! A program calls [`Proxy::start`] with a [`ProxyConfig`], which [`Service::read`] reads from a
//! file, and watches [`Proxy::failures`]. Other processes use [`control::Remote`].

mod bonds;
mod brief;
mod carrier;
pub mod check;
mod config;
mod connection;
pub mod control;
pub mod diagnosis;
mod end;
mod error;
mod experiment;
mod failure;
mod flow_log;
mod flow_records;
#[doc(hidden)]
pub mod fuzz_api;
mod gate;
mod greeting;
mod line_batches;
mod listeners;
mod liveness;
mod measure;
mod memory;
mod meter;
pub mod metrics;
mod resolver;
mod running;
pub mod takeover;
mod worker;

pub use brief::{FlowBrief, FlowId};
pub use config::{
    Application, Buffer, BufferSetting, ConfigSource, KeyChange, ListenMode, ListenerConfig, PageConfig, PageError, ProxyConfig,
    ProxyConfigError, ProxyVersion, ReloadReport, Service, application, config_schema,
};
pub use end::END_TIMEOUT;
pub use error::{ChangeError, ProxyStartError};
pub use experiment::{ExperimentRow, ExperimentView, Gain, GroupCounts, GroupView, prefix_of};
pub use failure::ProxyFailure;
pub use flow_records::{FlowRecordsConfig, RecordCounts};
pub use gate::BypassChange;
pub use liveness::Liveness;
pub use measure::{Histogram, LegMeasurements, Measurements};
pub use memory::MemoryView;
pub use meter::{DirectionView, FlowView, LegAccount, LegView, Limiter, NetworkTotals, Totals};
pub use multipath::{BondConfig, BondError, BondNetwork, FarEnd, NetworkSpec};
pub use relay::{DirectionStats, Ending, FlowRecord, FlowStats, MultipathView, PathView};
pub use running::{Proxy, ProxyLimits};
pub use units::Phase;
