//! The keys of a scenario of networks in parallel, whose transfers are split over all of them
//! (Hoekstra, van der Mei and Bosman 2011).

use crate::{
    fraction::{self, Fraction},
    law::SizeLaw,
    links::{Loss, Queue},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, Rate, Span};

/// One of several networks in parallel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParallelNetwork {
    /// Payload rate in full segments, in bits a second: the effective throughput of a long transfer.
    /// (The rate of a `[[link]]` counts IP bytes.)
    pub rate: Rate,
    /// Propagation delay of one direction; both have it.
    pub delay: Span,
    /// The queue before the network, in both directions.
    #[serde(default)]
    pub queue: Queue,
    /// Losses in the direction of the data. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Load of the network's own transfers (its background) as a part of its rate, below 1.
    #[serde(default, deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub load: f64,
    /// Sizes of these transfers. Absent: as the foreground's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeLaw>,
    /// Window of their receivers. Absent: the foreground's, or larger than the network needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
}

/// Random transfers, a Poisson process, each split over all networks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Foreground {
    /// Load of these transfers as a part of the *first* network's rate (ρ₀), above 0.
    #[serde(deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub load: f64,
    /// Sizes of the transfers.
    pub size: SizeLaw,
    /// Number of transfers that are measured, at least 100.
    #[serde(default = "ten_thousand")]
    pub jobs: u64,
    /// Window of the receiving end of each connection. Absent: larger than any network needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
}

impl Foreground {
    /// The fewest transfers that can be measured: an interval takes twenty batches of them.
    pub const LEAST_JOBS: u64 = 100;
}

fn ten_thousand() -> u64 {
    10_000
}

/// How a transfer is divided among its connections, of which it has one in each network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// The scheduler, which assigns pieces to connections.
    pub scheduler: TransferScheduler,
    /// Size of a piece, for schedulers that assign pieces; at least 1 KiB for those of the bond.
    #[serde(default = "piece", skip_serializing_if = "is_piece")]
    #[schemars(extend("default" = piece().to_string()))]
    pub piece: Bytes,
    /// `score`, `tiers` and `redundant`: a connection with this much unsent data gets no more. Absent:
    /// one piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Bytes>,
    /// `score`, `tiers` and `redundant`: weight of the past in the throughput estimate (α of the paper's
    /// (8)), from 0 to below 1.
    #[serde(default = "alpha", skip_serializing_if = "is_alpha")]
    #[schemars(extend("default" = alpha()))]
    pub alpha: f64,
    /// `score`, `tiers` and `redundant`: round trips over which throughput is measured (τ of the paper).
    #[serde(default = "tau", skip_serializing_if = "is_tau")]
    #[schemars(extend("default" = tau()))]
    pub tau: f64,
    /// `score`, `tiers` and `redundant`: whether a piece waits instead of going over a connection where
    /// it would be later than all the rest over another, and whether late pieces go over another
    /// connection too. `false`: the paper's score alone.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[schemars(extend("default" = true))]
    pub foresight: bool,
}

impl Bond {
    /// A bond with this scheduler and the defaults of a file for all other keys.
    pub fn of(scheduler: TransferScheduler) -> Self {
        Bond { scheduler, piece: piece(), queue: None, alpha: alpha(), tau: tau(), foresight: yes() }
    }

    /// The settings of Tandem's own bond; absent if it has no part: with the fluid ideal, a single
    /// network, or the kernel's Multipath TCP.
    pub fn settings(&self) -> Option<bond::BondSettings> {
        let scheduler = match self.scheduler {
            TransferScheduler::Score => bond::Scheduler::Score,
            TransferScheduler::RoundRobin => bond::Scheduler::RoundRobin,
            TransferScheduler::Redundant => bond::Scheduler::Redundant,
            TransferScheduler::Tiers => bond::Scheduler::Tiers,
            TransferScheduler::Fluid | TransferScheduler::Single | TransferScheduler::Mptcp => return None,
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

/// Which connection gets which part of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransferScheduler {
    /// Whichever connection can send takes the next bytes, however few: the ideal of the CAN model
    /// (§II), which no real bond attains
    Fluid,
    /// The bond's: each piece to the connection with the least score Q/G + sRTT/2 (7), as late as
    /// possible
    Score,
    /// One piece to each connection in turn, whether it keeps up or not
    RoundRobin,
    /// All of a transfer over the network with the largest rate × (1 − load), the first of equals
    Single,
    /// Every piece over each connection
    Redundant,
    /// As `score` among the connections of the first network; those of the second get what it has no
    /// room for, and so on
    Tiers,
    /// The kernel's own Multipath TCP (RFC 8684), without the bond, to compare with
    Mptcp,
}
