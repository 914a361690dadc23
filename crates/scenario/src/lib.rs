//! The scenario file: a network and the traffic over it. [`ScenarioFile`] parses a file into
//! [`Scenario`]s, one for each of its cases.
//!
//! This crate knows neither sockets nor clocks nor paths: text comes in as a string, the caller
//! opens the files that it names, and randomness comes from the seed. What an engine answers is in
//! `outcome`.

mod agent;
mod assignment;
mod attached_files;
mod bond_values;
mod case_name;
mod check;
mod check_counts;
mod check_link;
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
mod link;
mod losses;
mod model;
mod network_table;
mod networks;
mod overridden;
mod pages;
mod parallel;
mod path;
mod queue;
mod random;
mod schedule;
mod schema;
mod set_value;
mod sources;
mod split;
mod tcp;
mod trace;
mod web_client;

pub use agent::{Agent, AgentKind};
pub use assignment::Assignment;
pub use attached_files::{LARGEST_NAMED_FILE, OpenFile};
pub use bond_values::{MeasurementInterval, SplitFractions};
pub use case_name::{case_parts, short_case, short_keys, short_parts};
pub use control::{Control, ControllerSetting};
pub use cross_flows::CrossFlow;
pub use explicit::Explicit;
pub use file::{ScenarioFile, Variant, schema};
pub use flows::{Draw, FlowDirection, FlowGroup, FlowSpec, Opens};
pub use foreground_arrivals::{ForegroundArrivals, MmppPhases, StreamLoad};
pub use fraction::Fraction;
pub use law::{Law, Shape, SizeLaw, SpanLaw};
pub use link::{Jitter, Link, LinkChange, LinkChanges, LinkReordering, Medium, Outages, RateDemand, StepsFile};
pub use losses::{Gilbert, LinkLosses, Loss};
pub use model::{Interval, Scenario};
pub use networks::{Bond, Foreground, ParallelNetwork, TransferScheduler};
pub use pages::{Exchange, PageObject, WebPage};
pub use parallel::{Job, Jobs, Parallel};
pub use path::{FlowLeg, FlowPath, LegLinks};
pub use queue::{Queue, QueueKind, QueueParameters};
pub use random::{Purpose, stream};
pub use schedule::{PlannedTransfer, TransferSchedule};
pub use set_value::SetValue;
pub use sources::{Arrivals, Cross, Offer, Times, Writes};
pub use split::{Backpressure, Buffer, LinkCapacity, Split, SplitMode};
pub use tcp::{ReceiveBuffers, Tcp};
pub use trace::{DeliveryTrace, DeliveryTraceError, LinkTrace, OPPORTUNITY, TraceFile};
pub use web_client::{WebAction, WebClient, WebRequest, WebTable, WebTimes};
