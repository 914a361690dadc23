//! What is known of a flow: both legs, both directions.

use intercept::sys::TcpInfo;
use relay::{DirectionStats, Ending, FlowRecord, FlowStats, MultipathView};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};
use units::Phase;

/// Who keeps a direction from going faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limiter {
    /// The end that sends has nothing to send.
    Sender,
    /// The accepted leg.
    NearLeg,
    /// The proxy's buffer: the sender is held back though nothing waits to be sent on.
    ProxyBuffer,
    /// The dialled leg.
    FarLeg,
    /// The end that receives does not read, or its window is too small for the leg.
    Receiver,
}

/// Who keeps a direction from going faster; `legs` are what the source's and the destination's leg
/// are called.
fn limiter(direction: &DirectionStats, source: &TcpInfo, destination: &TcpInfo, legs: [Limiter; 2]) -> Limiter {
    let in_flight = u64::from(destination.unacked) * u64::from(destination.snd_mss);
    if direction.unsent > 0 || direction.in_hand > 0 {
        // No room for another segment in the window that the receiver announced.
        let window_full = in_flight + u64::from(destination.snd_mss) > u64::from(destination.snd_wnd);
        return if window_full { Limiter::Receiver } else { legs[1] };
    }
    if source.holds_back() {
        return Limiter::ProxyBuffer;
    }
    if direction.has_hole {
        // The sender waits for its own recovery from the loss, however long that takes.
        return legs[0];
    }
    // Nothing for two round trips: its sender has nothing to say.
    let quiet_ms = source.last_data_recv_ms;
    if u64::from(quiet_ms) > (u64::from(source.rtt_us) / 500).max(50) { Limiter::Sender } else { legs[0] }
}

/// A leg as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegView {
    /// Congestion controller.
    pub control: String,
    /// Smoothed round trip time, seconds.
    pub rtt_s: f64,
    /// Least round trip time seen, seconds.
    pub min_rtt_s: f64,
    /// Congestion window, segments.
    pub cwnd_pkt: u32,
    /// Slow start threshold, segments; absent before the first loss.
    pub ssthresh_pkt: Option<u32>,
    /// Segment size, bytes.
    pub mss_bytes: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Retransmission timeouts; absent where the kernel does not count them (before Linux 6.7), and
    /// of a bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u16>,
    /// Segments that this leg's socket has dropped: duplicates, outside of its window, or for lack
    /// of room in its receive buffer.
    #[serde(default)]
    pub drops: u32,
    /// What the peer acknowledged lately, bit/s.
    pub delivery_bps: f64,
}

impl LegView {
    fn of(info: &TcpInfo, control: &str, drops: u32) -> Self {
        // The kernel's "none yet" (TCP_INFINITE_SSTHRESH).
        const INFINITE: u32 = 0x7fff_ffff;
        let seconds = |us: u32| f64::from(us) / 1e6;
        LegView {
            control: control.into(),
            rtt_s: seconds(info.rtt_us),
            // All ones until there is one.
            min_rtt_s: if info.min_rtt_us == u32::MAX { 0.0 } else { seconds(info.min_rtt_us) },
            cwnd_pkt: info.snd_cwnd,
            ssthresh_pkt: (info.snd_ssthresh < INFINITE).then_some(info.snd_ssthresh),
            mss_bytes: info.snd_mss,
            retransmits: info.total_retrans,
            timeouts: info.timeouts(),
            drops,
            delivery_bps: info.delivery_rate as f64 * 8.0,
        }
    }
}

/// A direction as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionView {
    /// Payload given to the destination's socket.
    pub bytes: u64,
    /// What the proxy holds: the Q that B bounds.
    pub held_bytes: u64,
    /// What it is doing.
    pub phase: Phase,
    /// Who keeps it from going faster.
    pub limited_by: Limiter,
}

/// A flow as it is shown, and as `tandem flows --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Who opened it.
    pub client: SocketAddr,
    /// Where it goes.
    pub server: SocketAddr,
    /// How long it has been here, seconds.
    pub age_s: f64,
    /// The accepted leg.
    pub near: LegView,
    /// The dialled leg.
    pub far: LegView,
    /// From client to server.
    pub up: DirectionView,
    /// From server to client.
    pub down: DirectionView,
    /// The bond, where a leg is one; that leg then stands for all its connections together.
    #[serde(rename = "bond", default, skip_serializing_if = "Option::is_none")]
    pub multipath: Option<MultipathView>,
}

impl FlowView {
    /// Of a flow as it is now.
    pub fn of(flow: &FlowStats) -> Self {
        let direction = |stats: &DirectionStats, source: &TcpInfo, destination: &TcpInfo, legs| DirectionView {
            bytes: stats.moved,
            held_bytes: stats.held().0,
            phase: stats.phase(source),
            limited_by: limiter(stats, source, destination, legs),
        };
        let legs = [Limiter::NearLeg, Limiter::FarLeg];
        FlowView {
            client: flow.client,
            server: flow.server,
            age_s: flow.age.as_secs_f64(),
            near: LegView::of(&flow.near, &flow.control[0], flow.drops[0]),
            far: LegView::of(&flow.far, &flow.control[1], flow.drops[1]),
            up: direction(&flow.up, &flow.near, &flow.far, legs),
            down: direction(&flow.down, &flow.far, &flow.near, [legs[1], legs[0]]),
            multipath: flow.multipath.clone(),
        }
    }
}

/// What flows came to, all together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Flows at present, those too that have not said yet where they go.
    pub flows: u64,
    /// Flows that have ended, by [`Ending::KINDS`].
    pub ended: [u64; Ending::KINDS.len()],
    /// Bytes carried from clients to servers.
    pub up: u64,
    /// Bytes carried from servers to clients.
    pub down: u64,
    /// Segments sent again on near legs of flows that have ended.
    pub near_retransmits: u64,
    /// Segments sent again on far legs of flows that have ended.
    pub far_retransmits: u64,
    /// Connections to listeners for a bond that have not shown that they have its key.
    #[serde(default)]
    pub refused: u64,
    /// What went over each network of a bond: at the end that dials by its name, at the other by
    /// its number.
    #[serde(default)]
    pub networks: BTreeMap<String, NetworkTotals>,
}

/// What went over a network of a bond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkTotals {
    /// Connections of streams at present.
    pub connections: u64,
    /// Payload given to its connections.
    pub sent: u64,
    /// Payload that came over them.
    pub received: u64,
    /// For how long what came over other networks waited for what came over this one, seconds, of
    /// all streams together.
    pub waited_s: f64,
}

impl Totals {
    /// Flows that have ended in this way, one of [`Ending::KINDS`].
    pub fn ended_as(&self, kind: &str) -> u64 {
        Ending::KINDS.iter().zip(self.ended).find(|(name, _)| **name == kind).map_or(0, |(_, count)| count)
    }

    /// Counts a flow that has ended.
    pub(crate) fn add(&mut self, record: &FlowRecord) {
        self.ended[record.ending.index()] += 1;
        self.up += record.last.up.moved;
        self.down += record.last.down.moved;
        self.near_retransmits += u64::from(record.last.near.total_retrans);
        self.far_retransmits += u64::from(record.last.far.total_retrans);
        if let Some(paths) = &record.last.multipath {
            self.add_paths(paths, false);
        }
    }

    /// Counts what went over the networks of a flow's bond, and its connections where it goes on.
    pub(crate) fn add_paths(&mut self, multipath: &MultipathView, goes_on: bool) {
        for path in &multipath.paths {
            *self.networks.entry(path.network.clone()).or_default() += NetworkTotals {
                connections: u64::from(goes_on && path.up),
                sent: path.sent_bytes,
                received: path.received_bytes,
                waited_s: path.waited_s,
            };
        }
    }
}

impl std::ops::AddAssign for NetworkTotals {
    fn add_assign(&mut self, other: NetworkTotals) {
        self.connections += other.connections;
        self.sent += other.sent;
        self.received += other.received;
        self.waited_s += other.waited_s;
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.flows += other.flows;
        for (ours, theirs) in self.ended.iter_mut().zip(other.ended) {
            *ours += theirs;
        }
        self.up += other.up;
        self.down += other.down;
        self.near_retransmits += other.near_retransmits;
        self.far_retransmits += other.far_retransmits;
        self.refused += other.refused;
        for (network, totals) in other.networks {
            *self.networks.entry(network).or_default() += totals;
        }
    }
}
