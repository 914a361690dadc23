//! What is known of a flow: its two legs, its two directions, and how it ended.

use crate::ending::Ending;
use intercept::sys::TcpInfo;
use serde::{Deserialize, Serialize};
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use units::{Bytes, Phase};

/// Stands for an address that is not known.
pub const UNKNOWN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// A flow as it is now.
#[derive(Debug, Clone)]
pub struct FlowStats {
    /// Who opened it.
    pub client: SocketAddr,
    /// Where it goes.
    pub server: SocketAddr,
    /// How long it has been here.
    pub age: Duration,
    /// The accepted connection.
    pub near: TcpInfo,
    /// The dialled one.
    pub far: TcpInfo,
    /// Their congestion controllers; empty of a flow that has ended.
    pub control: [String; 2],
    /// From client to server.
    pub up: DirectionStats,
    /// From server to client.
    pub down: DirectionStats,
    /// Segments that each leg's socket has dropped, near and far.
    pub drops: [u32; 2],
    /// The paths of a leg that consists of several connections; its [`TcpInfo`] then stands for all
    /// of them together.
    pub multipath: Option<MultipathView>,
}

impl FlowStats {
    /// A flow whose far leg could not even be dialled.
    pub fn unbegun(client: SocketAddr, server: SocketAddr) -> Self {
        let (near, far) = (TcpInfo::default(), TcpInfo::default());
        let (up, down) = (DirectionStats::default(), DirectionStats::default());
        FlowStats { client, server, age: Duration::ZERO, near, far, control: Default::default(), up, down, drops: [0; 2], multipath: None }
    }
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Bytes given to the destination's socket.
    pub moved: u64,
    /// Payload in the receive queue of the source.
    pub received: usize,
    /// What the source has sent beyond a segment that is missing waits for its retransmission.
    pub has_hole: bool,
    /// Payload in the proxy's own hands.
    pub in_hand: usize,
    /// Payload in the send queue of the destination, not sent yet.
    pub unsent: usize,
}

impl DirectionStats {
    /// What the proxy holds: the Q that B bounds.
    pub fn held(&self) -> Bytes {
        Bytes((self.received + self.in_hand + self.unsent) as u64)
    }

    /// What this direction is doing, `source` being the leg that brings its bytes.
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

/// The paths of a leg that consists of several connections, as they are shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MultipathView {
    /// One for each network.
    pub paths: Vec<PathView>,
    /// What has come before its turn and waits, bytes, and the most that ever did.
    pub waiting_bytes: u64,
    /// See `waiting_bytes`.
    pub most_waiting_bytes: u64,
}

/// What went over one network of a leg that consists of several connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// What it is called: at the end that dials by its name, at the other by its number there, from
    /// 1.
    pub network: String,
    /// Whether a connection is there.
    pub up: bool,
    /// It has something, and nothing of it arrives.
    pub stalled: bool,
    /// The score, Hoekstra (7), seconds; absent without a connection.
    pub score_s: Option<f64>,
    /// G, the smoothed throughput, Hoekstra (8), bit/s; absent: not measured yet.
    pub throughput_bps: Option<f64>,
    /// sRTT, the smoothed round trip time, seconds.
    pub srtt_s: f64,
    /// Q, what was given to it and waits to be sent, bytes.
    pub queued_bytes: u64,
    /// Payload given to it.
    pub sent_bytes: u64,
    /// Payload that came over it.
    pub received_bytes: u64,
    /// For how long what came over other networks waited for what came over this one, seconds.
    pub waited_s: f64,
    /// Congestion controller.
    pub control: String,
    /// Segments sent again.
    pub retransmits: u32,
}
