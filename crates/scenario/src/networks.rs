//! The keys of a scenario of networks in parallel, whose transfers are split over all of them
//! (Hoekstra, van der Mei and Bosman 2011).

use crate::{
    bond_values::{MeasurementInterval, SplitFractions},
    foreground_arrivals::{ForegroundArrivals, StreamLoad},
    fraction::{self, Fraction},
    law::SizeLaw,
    link::Link,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, PKT, Rate, Span};

/// One of several networks in parallel: a link, and traffic of its own. Its rates, those of
/// `changes`, `steps` and `demand` too, count the payload of full segments in bits a second: the
/// effective throughput of a long transfer. Those of a `[[link]]` count IP bytes.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ParallelNetwork {
    /// The link. [`ip_link`](Self::ip_link) has its rates in IP bits a second.
    #[serde(flatten)]
    pub link: Link,
    /// Load of the network's own transfers (its background) as a part of its rate, below 1.
    #[serde(default)]
    #[schemars(with = "Fraction")]
    pub load: f64,
    /// Sizes of these transfers. Absent: as the foreground's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeLaw>,
    /// Window of their receivers. Absent: the foreground's, or larger than the network needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// Streams of a fixed rate in the network, beside the transfers. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamLoad>,
}

/// Bytes of the headers of a data segment: IPv4, and TCP with timestamps.
const HEADERS: u64 = 52;

impl ParallelNetwork {
    /// The payload in full segments that crosses a network of this rate in IP bits a second.
    pub(crate) fn payload_rate(ip: Rate) -> Rate {
        Rate((u128::from(ip.bits_per_s()) * u128::from(PKT.0 - HEADERS) / u128::from(PKT.0)) as u64)
    }

    /// The rate in IP bits a second that carries this rate of payload in segments of `mss` bytes.
    fn ip_rate(payload: Rate, mss: u32) -> Rate {
        let (rate, mss) = (u128::from(payload.bits_per_s()), u128::from(mss));
        Rate((rate * (mss + u128::from(HEADERS))).div_ceil(mss) as u64)
    }

    /// The network as a link of a series, with all rates in IP bits a second, where full segments
    /// carry `mss` bytes.
    pub fn ip_link(&self, mss: u32) -> Link {
        let mut link = self.link.clone();
        link.rate = match &link.trace {
            Some(trace) => trace.down.trace().mean_rate(),
            None => ParallelNetwork::ip_rate(link.rate, mss),
        };
        for change in &mut link.changes {
            change.rate = change.rate.map(|rate| ParallelNetwork::ip_rate(rate, mss));
        }
        if let Some(reverse) = &mut link.reverse {
            reverse.rate = ParallelNetwork::ip_rate(reverse.rate, mss);
        }
        if let Some(demand) = &mut link.demand {
            demand.least = ParallelNetwork::ip_rate(demand.least, mss);
        }
        link
    }
}

/// Random transfers, each split over all networks.
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
    /// How they arrive.
    #[serde(default, skip_serializing_if = "ForegroundArrivals::is_poisson")]
    pub arrivals: ForegroundArrivals,
    /// Weight of a transfer against a network's own transfer: it gets as much of a network as this many
    /// of them. 1 is fair.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(extend("default" = one()))]
    pub weight: f64,
}

impl Foreground {
    /// The fewest transfers that can be measured: an interval takes twenty batches of them.
    pub const LEAST_JOBS: u64 = 100;
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == one()
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
    /// Size of a piece, for schedulers that assign pieces; at least 1 KiB for those of the bond. Absent:
    /// 16 KiB; with `score-paper` 1460 bytes, a segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<Bytes>,
    /// `score`, `tiers` and `redundant`: a connection with this much unsent data gets no more. Absent:
    /// one piece; with `score-paper` 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Bytes>,
    /// `score`, `tiers` and `redundant`: weight of the past in the throughput estimate (α of the paper's
    /// (8)), from 0 to below 1.
    #[serde(default = "alpha", skip_serializing_if = "is_alpha")]
    #[schemars(extend("default" = alpha()))]
    pub alpha: f64,
    /// `score`, `tiers` and `redundant`: interval over which throughput is measured (τ of the paper), in
    /// round trips, or as a time.
    #[serde(default = "tau", skip_serializing_if = "is_tau")]
    #[schemars(extend("default" = 4.0))]
    pub tau: MeasurementInterval,
    /// `score`, `tiers` and `redundant`: whether a piece waits instead of going over a connection where
    /// it would be later than all the rest over another, and whether late pieces go over another
    /// connection too. `false`: the paper's score alone.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[schemars(extend("default" = true))]
    pub foresight: bool,
    /// Receive buffer of a transfer, at least two pieces, for the schedulers of the bond: it bounds what
    /// may be sent beyond the first byte that is missing. Absent: larger than the networks need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// `static`: the part of each transfer that each network carries. Absent: in proportion to what the
    /// network's own transfers leave of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fractions: Option<SplitFractions>,
}

impl Bond {
    /// A bond with this scheduler and the defaults of a file for all other keys.
    pub fn of(scheduler: TransferScheduler) -> Self {
        Bond { scheduler, piece: None, queue: None, alpha: alpha(), tau: tau(), foresight: yes(), window: None, fractions: None }
    }

    /// Size of a piece.
    pub fn piece_size(&self) -> Bytes {
        let is_paper = self.scheduler == TransferScheduler::ScorePaper;
        self.piece.unwrap_or(if is_paper { Bond::SEGMENT } else { Bytes(16 * 1024) })
    }

    /// What a connection may have unsent before it gets no more.
    pub fn queue_limit(&self) -> Bytes {
        let is_paper = self.scheduler == TransferScheduler::ScorePaper;
        self.queue.unwrap_or(if is_paper { Bytes(64 * 1024) } else { self.piece_size() })
    }

    /// The paper's maximum segment size (Table IV).
    const SEGMENT: Bytes = Bytes(1460);

    /// The settings of Tandem's own bond; absent if it has no part: with the fluid ideal, a single
    /// network, or the kernel's Multipath TCP.
    pub fn settings(&self) -> Option<bond::BondSettings> {
        let scheduler = match self.scheduler {
            TransferScheduler::Score | TransferScheduler::ScorePaper => bond::Scheduler::Score,
            TransferScheduler::RoundRobin => bond::Scheduler::RoundRobin,
            TransferScheduler::Redundant => bond::Scheduler::Redundant,
            TransferScheduler::Tiers => bond::Scheduler::Tiers,
            TransferScheduler::Fluid | TransferScheduler::Single | TransferScheduler::Static | TransferScheduler::Mptcp => return None,
        };
        let is_paper = self.scheduler == TransferScheduler::ScorePaper;
        let smoothing = match self.tau {
            MeasurementInterval::RoundTrips(rtts) => bond::Smoothing { alpha: self.alpha, rtts, fixed: None },
            MeasurementInterval::Fixed(span) => bond::Smoothing { alpha: self.alpha, fixed: Some(span), ..bond::Smoothing::default() },
        };
        let defaults = bond::BondSettings::new(scheduler);
        Some(bond::BondSettings {
            smoothing,
            piece: self.piece_size(),
            queue: self.queue_limit(),
            foresight: self.foresight && !is_paper,
            probes: !is_paper,
            lookahead: if is_paper { Span::ZERO } else { defaults.lookahead },
            ..defaults
        })
    }
}

fn alpha() -> f64 {
    0.4
}

fn is_alpha(value: &f64) -> bool {
    *value == alpha()
}

fn tau() -> MeasurementInterval {
    MeasurementInterval::RoundTrips(4.0)
}

fn is_tau(value: &MeasurementInterval) -> bool {
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
    /// `score` as the paper prints it (§IV): pieces of a segment, assigned early, while a connection has
    /// less than 64 KiB unsent; no foresight, no duplicates
    ScorePaper,
    /// One piece to each connection in turn, whether it keeps up or not
    RoundRobin,
    /// All of a transfer over the network with the largest rate × (1 − load), the first of equals
    Single,
    /// Fixed parts of each transfer, one over each network (`fractions`)
    Static,
    /// Every piece over each connection
    Redundant,
    /// As `score` among the connections of the first network; those of the second get what it has no
    /// room for, and so on
    Tiers,
    /// The kernel's own Multipath TCP (RFC 8684), without the bond, to compare with
    Mptcp,
}
