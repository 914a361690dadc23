//! The keys of a scenario of networks in parallel, whose transfers are split over all of them
//! (Hoekstra, van der Mei and Bosman 2011).

use crate::{
    law::SizeLaw,
    links::{Loss, Queue},
};
use serde::{Deserialize, Serialize};
use units::{Bytes, Rate, Span};

/// One of several networks beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Payload, bits a second, in full segments: the effective throughput of a long transfer.
    pub rate: Rate,
    /// Propagation, one way.
    pub delay: Span,
    /// The queue before it, each way.
    #[serde(default)]
    pub queue: Queue,
    /// Losses in the direction of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// What its own transfers bring, as a part of its rate.
    #[serde(default)]
    pub load: f64,
    /// Their sizes; absent: the foreground's law.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeLaw>,
    /// Their receivers' window; absent: the foreground's, or as large as is of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
}

/// Transfers that come by chance, as a Poisson process, and go over all networks together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreground {
    /// What they bring, as a part of the first network's rate (ρ₀).
    pub load: f64,
    /// Their sizes.
    pub size: SizeLaw,
    /// How many are measured.
    #[serde(default = "ten_thousand")]
    pub jobs: u64,
    /// The window of the receiving end of each connection; absent: as large as is of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
}

impl Foreground {
    /// The fewest that can be measured: an interval is of twenty parts of them.
    pub const LEAST_JOBS: u64 = 100;
}

fn ten_thousand() -> u64 {
    10_000
}

/// How a transfer is shared out among its connections, of which it has one in each network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// Who gets what.
    pub scheduler: Scheduler,
    /// What is given out at a time, where the scheduler gives out pieces.
    #[serde(default = "piece", skip_serializing_if = "is_piece")]
    pub piece: Bytes,
    /// A connection with so much of it waiting to be sent is not given more; absent: one piece. Of
    /// `score`, `redundant` and `tiers`, as what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Bytes>,
    /// How much of a connection's throughput is what it was (α of (8)).
    #[serde(default = "alpha", skip_serializing_if = "is_alpha")]
    pub alpha: f64,
    /// Over how many round trips it is measured (τ).
    #[serde(default = "tau", skip_serializing_if = "is_tau")]
    pub tau: f64,
    /// A piece waits, rather than go over a connection where it would be late.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub foresight: bool,
}

impl Bond {
    /// One that leaves all else as it is by default.
    pub fn of(scheduler: Scheduler) -> Self {
        Bond { scheduler, piece: piece(), queue: None, alpha: alpha(), tau: tau(), foresight: yes() }
    }

    /// The settings of our own bond; absent where none takes part: with the fluid ideal, a single
    /// network, or the kernel's Multipath TCP.
    pub fn settings(&self) -> Option<bond::BondSettings> {
        let scheduler = match self.scheduler {
            Scheduler::Score => bond::Scheduler::Score,
            Scheduler::RoundRobin => bond::Scheduler::RoundRobin,
            Scheduler::Redundant => bond::Scheduler::Redundant,
            Scheduler::Tiers => bond::Scheduler::Tiers,
            Scheduler::Fluid | Scheduler::Single | Scheduler::Mptcp => return None,
        };
        Some(bond::BondSettings {
            smoothing: bond::Smoothing { alpha: self.alpha, rtts: self.tau },
            piece: self.piece,
            queue: self.queue.unwrap_or(self.piece),
            foresight: self.foresight,
            ..bond::BondSettings::new(scheduler)
        })
    }
}

fn piece() -> Bytes {
    Bytes(16 * 1024)
}

fn is_piece(bytes: &Bytes) -> bool {
    *bytes == piece()
}

fn alpha() -> f64 {
    0.4
}

fn is_alpha(value: &f64) -> bool {
    *value == alpha()
}

fn tau() -> f64 {
    4.0
}

fn is_tau(value: &f64) -> bool {
    *value == tau()
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// Which connection gets what of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Whichever can send takes the next bytes, however few: the ideal of the CAN model (§II),
    /// which no real bond attains.
    Fluid,
    /// The one with the least score (7).
    Score,
    /// One piece each in turn, whether they keep up or not.
    RoundRobin,
    /// All over one network: that of which its own load leaves most.
    Single,
    /// Every piece over each.
    Redundant,
    /// The first network as far as it goes, then the second …
    Tiers,
    /// The kernel's own Multipath TCP (RFC 8684), to compare with.
    Mptcp,
}
