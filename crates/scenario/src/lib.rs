//! The nouns of Tandem: units, [`Scenario`] and its parts, [`Outcome`].
//!
//! A scenario says what the network is and who sends what; an engine answers it with an outcome. This crate knows neither
//! sockets nor clocks nor files: text comes in as a string, randomness from the seed. How a scenario is played is left to
//! the engines (lab, simulator, equations, the fair bound); how an outcome is shown is left to `report`.

mod check;
mod curve;
mod engine;
mod explicit;
mod file;
mod flows;
mod law;
mod links;
mod model;
mod outcome;
mod parallel;
mod random;
mod seen;
mod sojourns;
mod sources;
mod split;
mod tcp;
mod text;
mod units;

pub use engine::{Engine, EngineError, Progress};
pub use explicit::Explicit;
pub use file::{Assignment, ScenarioFile, Variant};
pub use flows::{Draw, FlowGroup, FlowSpec, Opens};
pub use law::{Law, Shape, SizeLaw, SpanLaw};
pub use links::{Gilbert, Link, Loss, Queue, QueueKind, RateChange};
pub use model::{Control, Leg, Scenario};
pub use outcome::{
    Dist, FlowOutcome, LegOutcome, LinkOutcome, NUMBERS, NetworkOutcome, OVER_CAN, Outcome, Phase, Phases, ProxyOutcome, ReorderOutcome,
    SOJOURNS, Series, ShaperOutcome, add_ci95, half_width, jain,
};
pub use parallel::{Bond, Foreground, Job, Jobs, Network, Parallel, Scheduler};
pub use random::{Purpose, stream};
pub use seen::{FlowSeen, LegLook, LegSeen, LinkLook, Seen};
pub use sojourns::{Means, Sojourns};
pub use sources::{Arrivals, Cross, Offer, Times, Writes};
pub use split::{Backpressure, Buffer, Split, SplitMode};
pub use tcp::Tcp;
pub use text::{Fault, FileError, read_toml};
pub use units::{Bytes, PKT, Quantity, QueueLimit, Rate, Span, UnitError};
