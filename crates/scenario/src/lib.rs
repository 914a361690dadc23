//! The scenario file: a network and the traffic over it. [`ScenarioFile`] parses a file into
//! [`Scenario`]s, one for each of its cases.
//!
//! This crate knows neither sockets nor clocks nor paths: text comes in as a string, the caller
//! opens the files that it names, and randomness comes from the seed. What an engine answers is in
//! `outcome`.

mod agent;
mod attached_files;
mod bond_values;
mod case_name;
mod check;
mod check_traffic;
mod check_values;
mod control;
mod cross_flows;
mod explicit;
mod file;
mod flows;
mod foreground_arrivals;
mod fraction;
mod law;
mod links;
mod model;
mod networks;
mod pages;
mod parallel;
mod path;
mod random;
mod schedule;
mod schema;
mod sources;
mod split;
mod tcp;
mod trace;
mod web_client;

pub use agent::{Agent, AgentKind};
pub use attached_files::OpenFile;
pub use bond_values::{MeasurementInterval, SplitFractions};
pub use case_name::{case_parts, short_case, short_keys};
pub use control::{Control, ControllerSetting};
pub use cross_flows::CrossFlow;
pub use explicit::Explicit;
pub use file::{Assignment, ScenarioFile, Variant, schema};
pub use flows::{Direction, Draw, FlowGroup, FlowSpec, Opens};
pub use foreground_arrivals::{ForegroundArrivals, MmppPhases, StreamLoad};
pub use fraction::Fraction;
pub use law::{Law, Shape, SizeLaw, SpanLaw};
pub use links::{
    Gilbert, Jitter, Link, LinkChange, LinkChanges, LinkReordering, Loss, Losses, Outages, Queue, QueueKind, QueueParameters, RateDemand,
    StepsFile,
};
pub use model::{Interval, Scenario};
pub use networks::{Bond, Foreground, ParallelNetwork, TransferScheduler};
pub use pages::{Exchange, Page, PageObject};
pub use parallel::{Job, Jobs, Parallel};
pub use path::{FlowLeg, FlowPath, LegLinks};
pub use random::{Purpose, stream};
pub use schedule::{PlannedTransfer, TransferSchedule};
pub use sources::{Arrivals, Cross, Offer, Times, Writes};
pub use split::{Backpressure, Buffer, LinkCapacity, Split, SplitMode};
pub use tcp::Tcp;
pub use trace::{DeliveryTrace, LinkTrace, OPPORTUNITY, TraceError, TraceFile};
pub use web_client::{WebAction, WebClient, WebRequest, WebTable, WebTimes};
