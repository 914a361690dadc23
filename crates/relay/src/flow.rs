//! Statistics of a flow: its two legs, its two directions, and how it ended.

use crate::ending::Ending;
use account::AccountShares;
use intercept::sys::TcpInfo;
use serde::{Deserialize, Serialize};
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use units::{Bytes, Phase};

/// Placeholder for an unknown address.
pub const UNKNOWN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// The present state of a flow.
#[derive(Debug, Clone)]
pub struct FlowStats {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Time since the connection was accepted.
    pub age: Duration,
    /// The accepted connection.
    pub near: TcpInfo,
    /// The dialled one.
    pub far: TcpInfo,
    /// Congestion controllers, near and far; empty for a flow that has ended.
    pub control: [String; 2],
    /// From client to server.
    pub up: DirectionStats,
    /// From server to client.
    pub down: DirectionStats,
    /// Segments that each leg's socket has dropped, near and far.
    pub drops: [u32; 2],
    /// What each direction, up and down, used of its link, and what the rest was lost to; absent:
    /// it was not sampled.
    pub accounts: [Option<AccountShares>; 2],
    /// The paths of a leg that consists of several connections; its [`TcpInfo`] then stands for all
    /// of them together.
    pub multipath: Option<MultipathView>,
    /// What was measured while it was open.
    pub measured: FlowMeasurements,
}

impl FlowStats {
    /// A flow whose far leg could not be dialled.
    pub fn unbegun(client: SocketAddr, server: SocketAddr) -> Self {
        let (near, far) = (TcpInfo::default(), TcpInfo::default());
        let (up, down) = (DirectionStats::default(), DirectionStats::default());
        let measured = FlowMeasurements::default();
        FlowStats {
            client,
            server,
            age: Duration::ZERO,
            near,
            far,
            control: Default::default(),
            up,
            down,
            drops: [0; 2],
            accounts: [None, None],
            multipath: None,
            measured,
        }
    }
}

/// What was measured of a flow while it was open, besides its last state. Pairs are the near and
/// the far leg, or the directions up and down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowMeasurements {
    /// The profiles of its legs.
    pub profiles: [ProfileId; 2],
    /// How long each leg's handshake took; none: not known.
    pub handshakes: [Option<Duration>; 2],
    /// The phases of each direction, as far as it was sampled.
    pub phases: [PhaseTimes; 2],
    /// The most payload that a sample found held in each direction, bytes.
    pub most_held: [u64; 2],
}

/// A leg's profile, as the proxy numbers them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProfileId {
    /// There was no such leg, or its profile is not known.
    #[default]
    Unknown,
    /// The leg is a bond.
    Bond,
    /// The profile that the proxy knows by this number.
    Number(u8),
}

/// Time that one direction of a flow spent in each phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    times: [Duration; 3],
}

impl PhaseTimes {
    /// Adds time in a phase.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        self.times[Self::index(phase)] += time;
    }

    /// The time in a phase.
    pub fn of(&self, phase: Phase) -> Duration {
        self.times[Self::index(phase)]
    }

    /// The time in all phases.
    pub fn total(&self) -> Duration {
        self.times.iter().sum()
    }

    fn index(phase: Phase) -> usize {
        match phase {
            Phase::Free => 0,
            Phase::Starvation => 1,
            Phase::Backpressure => 2,
        }
    }
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Bytes written to the destination's socket.
    pub moved: u64,
    /// Payload in the receive queue of the source, bytes.
    pub received: usize,
    /// The receive queue has only data beyond a missing segment, which waits for the
    /// retransmission.
    pub has_hole: bool,
    /// Payload in the proxy's pipes and buffers, bytes.
    pub in_hand: usize,
    /// Unsent payload in the send queue of the destination, bytes.
    pub unsent: usize,
    /// Payload of that queue that is not acknowledged, bytes; absent: not known.
    pub unacknowledged: Option<usize>,
    /// B, bytes, if it follows the flow (`buffer = "auto"`).
    pub buffer: Option<u64>,
}

impl DirectionStats {
    /// Payload that the destination's host has acknowledged, bytes; absent: not known.
    pub fn acknowledged(&self) -> Option<u64> {
        self.unacknowledged.map(|bytes| self.moved.saturating_sub(bytes as u64))
    }

    /// Payload that the proxy holds: Q, which B bounds.
    pub fn held(&self) -> Bytes {
        Bytes((self.received + self.in_hand + self.unsent) as u64)
    }

    /// Phase of this direction, by the state of the leg that its bytes come from.
    pub fn phase(&self, source: &TcpInfo) -> Phase {
        if source.holds_back() {
            Phase::Backpressure
        } else if self.held() == Bytes(0) {
            Phase::Starvation
        } else {
            Phase::Free
        }
    }
}

/// A flow that has ended.
#[derive(Debug, Clone)]
pub struct FlowRecord {
    /// Its last state.
    pub last: FlowStats,
    /// How it ended.
    pub ending: Ending,
}

/// The paths of a leg that consists of several connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MultipathView {
    /// One for each network.
    pub paths: Vec<PathView>,
    /// Bytes received out of order that wait for earlier ones.
    pub waiting_bytes: u64,
    /// The largest `waiting_bytes` so far.
    pub most_waiting_bytes: u64,
}

/// One path of a leg that consists of several connections: what went over one network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// Name of the network at the end that dials; at the other end its number, from 1.
    pub network: String,
    /// Whether it has a connection.
    pub up: bool,
    /// It has data to deliver, and makes no progress.
    pub stalled: bool,
    /// The score, Hoekstra (7), seconds; absent without a connection.
    pub score_s: Option<f64>,
    /// G, the smoothed throughput, Hoekstra (8), bit/s; absent: not measured yet.
    pub throughput_bps: Option<f64>,
    /// sRTT, the smoothed round trip time, seconds.
    pub srtt_s: f64,
    /// Q, bytes assigned to it that wait to be sent.
    pub queued_bytes: u64,
    /// Payload assigned to it, bytes.
    pub sent_bytes: u64,
    /// Payload received over it, bytes.
    pub received_bytes: u64,
    /// Head-of-line blocking: how long data of other networks waited for data of this one, seconds.
    pub waited_s: f64,
    /// Congestion controller.
    pub control: String,
    /// Retransmitted segments.
    pub retransmits: u32,
}
