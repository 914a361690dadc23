//! The nouns of Tandem: units, [`Scenario`] and its parts, [`Outcome`].
//!
//! A scenario says what the network is and who sends what; an engine answers it with an outcome. This crate knows neither
//! sockets nor clocks nor files: text comes in as a string, randomness from the seed. How a scenario is played is left to
//! the engines (the lab, later the simulator and the equations); how an outcome is shown is left to `report`.

mod check;
mod engine;
mod file;
mod model;
mod outcome;
mod random;
mod tcp;
mod text;
mod units;

pub use engine::{Engine, EngineError, Progress};
pub use file::{Assignment, ScenarioFile, Variant};
pub use model::{
    Backpressure, Buffer, Control, Cross, Draw, FlowGroup, FlowSpec, Gilbert, Leg, Link, Loss, Offer, Opens, Queue, QueueKind, RateChange,
    Scenario, Split, SplitMode,
};
pub use outcome::{
    Dist, FlowOutcome, LegOutcome, LinkOutcome, NUMBERS, Outcome, Phases, ProxyOutcome, Series, ShaperOutcome, add_ci95, half_width, jain,
};
pub use random::{Purpose, stream};
pub use tcp::Tcp;
pub use text::{Fault, FileError, read_toml};
pub use units::{Bytes, PKT, QueueLimit, Rate, Span, UnitError};
