//! Statistics of flows as they are shown: both legs and both directions of each, and their totals.

use crate::measure::{LegMeasurements, Measurements};
use account::AccountShares;
use intercept::sys::TcpInfo;
use relay::{DirectionStats, Ending, FlowRecord, FlowStats, MultipathView, ProfileId};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};
use units::Phase;

/// What limits the throughput of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limiter {
    /// The sender has no data.
    Sender,
    /// The near leg: its path or its congestion control.
    NearLeg,
    /// The proxy's buffer: backpressure stops the sender although the other leg has nothing to
    /// send.
    ProxyBuffer,
    /// The far leg: its path or its congestion control.
    FarLeg,
    /// The receiver: it does not read fast enough, or its window is below the BDP of its leg.
    Receiver,
}

impl Limiter {
    /// All, in the order of a path.
    pub const ALL: [Limiter; 5] = [Limiter::Sender, Limiter::NearLeg, Limiter::ProxyBuffer, Limiter::FarLeg, Limiter::Receiver];
}

/// What limits the throughput of a direction. `legs` are the values for the source's and the
/// destination's leg. `to_bond`: the destination's leg is a bond. That reads no more than its
/// networks take, so that data which it cannot send yet waits in the receive queue of the source.
fn limiter(direction: &DirectionStats, source: &TcpInfo, destination: &TcpInfo, legs: [Limiter; 2], to_bond: bool) -> Limiter {
    if direction.unsent > 0 || direction.in_hand > 0 || to_bond && (direction.received > 0 || source.holds_back()) {
        return if destination.window_is_full() { Limiter::Receiver } else { legs[1] };
    }
    if source.holds_back() {
        return Limiter::ProxyBuffer;
    }
    if direction.has_hole {
        // The sender recovers from a loss.
        return legs[0];
    }
    if source.peer_is_silent() { Limiter::Sender } else { legs[0] }
}

/// A leg, for display.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegView {
    /// Congestion controller.
    pub control: String,
    /// Smoothed round-trip time, seconds.
    pub rtt_s: f64,
    /// Minimum round-trip time, seconds; 0 before the first sample.
    pub min_rtt_s: f64,
    /// Congestion window, segments.
    pub cwnd_pkt: u32,
    /// Slow start threshold, segments; absent before the first loss.
    pub ssthresh_pkt: Option<u32>,
    /// Segment size, bytes.
    pub mss_bytes: u32,
    /// Retransmitted segments.
    pub retransmits: u32,
    /// Retransmission timeouts; absent if the kernel does not count them (before Linux 6.7), and
    /// for a bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u16>,
    /// Segments that this leg's socket has dropped: duplicates, those outside its window, and those
    /// for which its receive buffer had no space.
    #[serde(default)]
    pub drops: u32,
    /// Recent delivery rate, by the peer's acknowledgements, bit/s.
    pub delivery_bps: f64,
    /// The receive window of the peer, bytes.
    #[serde(default)]
    pub window_bytes: u32,
}

impl LegView {
    fn of(info: &TcpInfo, control: &str, drops: u32) -> Self {
        // TCP_INFINITE_SSTHRESH: the kernel's value before the first loss.
        const INFINITE: u32 = 0x7fff_ffff;
        let seconds = |us: u32| f64::from(us) / 1e6;
        LegView {
            control: control.into(),
            rtt_s: seconds(info.rtt_us),
            // The kernel's value before the first sample is all ones.
            min_rtt_s: if info.min_rtt_us == u32::MAX { 0.0 } else { seconds(info.min_rtt_us) },
            cwnd_pkt: info.snd_cwnd,
            ssthresh_pkt: (info.snd_ssthresh < INFINITE).then_some(info.snd_ssthresh),
            mss_bytes: info.snd_mss,
            retransmits: info.total_retrans,
            timeouts: info.timeouts(),
            drops,
            delivery_bps: info.delivery_rate as f64 * 8.0,
            window_bytes: info.snd_wnd,
        }
    }
}

/// A direction, for display.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionView {
    /// Payload written to the destination's socket, bytes.
    pub bytes: u64,
    /// What of it the destination's host has acknowledged, bytes; absent for a bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_bytes: Option<u64>,
    /// Payload that the proxy holds, bytes: Q, which B bounds.
    pub held_bytes: u64,
    /// B, bytes, if it follows the flow (`buffer = "auto"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
    /// Its phase.
    pub phase: Phase,
    /// What limits its throughput now.
    pub limited_by: Limiter,
    /// How much of what the link of the destination's leg allows it has used, and what the rest was
    /// lost to. Absent: it was not sampled, because it is younger than a second or a bond's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountShares>,
}

impl DirectionView {
    /// Payload that has arrived, bytes, as far as it is known: a rate counts it. What is written to
    /// a socket comes in bursts as large as the send buffer.
    pub fn arrived_bytes(&self) -> u64 {
        self.acknowledged_bytes.unwrap_or(self.bytes)
    }
}

/// A flow, for display; `tandem flows --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Time since the connection was accepted, seconds.
    pub age_s: f64,
    /// The near leg.
    pub near: LegView,
    /// The far leg.
    pub far: LegView,
    /// From client to server.
    pub up: DirectionView,
    /// From server to client.
    pub down: DirectionView,
    /// The bond, if a leg is one. The statistics of that leg are then the sums over its
    /// connections.
    #[serde(rename = "bond", default, skip_serializing_if = "Option::is_none")]
    pub multipath: Option<MultipathView>,
}

impl FlowView {
    /// From the present state of a flow.
    pub fn of(flow: &FlowStats) -> Self {
        let direction =
            |stats: &DirectionStats, source: &TcpInfo, destination: &TcpInfo, legs, to_bond, account: &Option<AccountShares>| {
                DirectionView {
                    bytes: stats.moved,
                    acknowledged_bytes: stats.acknowledged(),
                    held_bytes: stats.held().0,
                    buffer_bytes: stats.buffer,
                    phase: stats.phase(source),
                    limited_by: limiter(stats, source, destination, legs, to_bond),
                    account: account.clone(),
                }
            };
        let legs = [Limiter::NearLeg, Limiter::FarLeg];
        let are_bonds = flow.measured.profiles.map(|profile| profile == ProfileId::Bond);
        FlowView {
            client: flow.client,
            server: flow.server,
            age_s: flow.age.as_secs_f64(),
            near: LegView::of(&flow.near, &flow.control[0], flow.drops[0]),
            far: LegView::of(&flow.far, &flow.control[1], flow.drops[1]),
            up: direction(&flow.up, &flow.near, &flow.far, legs, are_bonds[1], &flow.accounts[0]),
            down: direction(&flow.down, &flow.far, &flow.near, [legs[1], legs[0]], are_bonds[0], &flow.accounts[1]),
            multipath: flow.multipath.clone(),
        }
    }
}

/// Totals of all flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Open flows, including clients that have not named their destination yet.
    pub flows: u64,
    /// Flows that have ended, by [`Ending::KINDS`].
    #[serde(deserialize_with = "counts_of_endings")]
    pub ended: [u64; Ending::KINDS.len()],
    /// Bytes carried from clients to servers.
    pub up: u64,
    /// Bytes carried from servers to clients.
    pub down: u64,
    /// What of both is acknowledged by its destination, as far as it is known, bytes.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub acknowledged: [u64; 2],
    /// Segments retransmitted on near legs of flows that have ended.
    pub near_retransmits: u64,
    /// Segments retransmitted on far legs of flows that have ended.
    pub far_retransmits: u64,
    /// Connections to listeners for a bond that failed to authenticate.
    #[serde(default)]
    pub refused: u64,
    /// Totals of each network of a bond: by its name at the end that dials, by its number at the
    /// other end.
    #[serde(default)]
    pub networks: BTreeMap<String, NetworkTotals>,
    /// What open connections take, as far as it was measured, bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory: u64,
    /// Measurements of legs.
    #[serde(default, skip_serializing_if = "Measurements::is_empty")]
    pub measured: Measurements,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Reads the counts of another version of the program, which may know other endings.
fn counts_of_endings<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<[u64; Ending::KINDS.len()], D::Error> {
    let counts = Vec::<u64>::deserialize(deserializer)?;
    let mut all = [0; Ending::KINDS.len()];
    all.iter_mut().zip(counts).for_each(|(ours, theirs)| *ours = theirs);
    Ok(all)
}

fn is_nothing(bytes: &[u64; 2]) -> bool {
    *bytes == [0; 2]
}

/// What all flows that a leg's profile sends used of its link, and what the rest was lost to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegAccount {
    /// `near` or `far`.
    pub leg: String,
    /// Name of the profile.
    pub profile: String,
    /// The account.
    pub account: AccountShares,
}

/// Totals of a network of a bond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkTotals {
    /// Open connections of streams.
    pub connections: u64,
    /// Payload sent over it, bytes.
    pub sent: u64,
    /// Payload received over it, bytes.
    pub received: u64,
    /// Head-of-line blocking: how long data of other networks waited for data of this one, seconds,
    /// summed over all streams.
    pub waited_s: f64,
    /// Whether a worker could make its last connection over it, at the end that dials; absent:
    /// none was tried yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
}

impl Totals {
    /// Number of flows that ended in this way, one of [`Ending::KINDS`].
    pub fn ended_as(&self, kind: &str) -> u64 {
        Ending::KINDS.iter().zip(self.ended).find(|(name, _)| **name == kind).map_or(0, |(_, count)| count)
    }

    /// What the flows of each leg's profile used of its link.
    pub fn accounts(&self) -> Vec<LegAccount> {
        let of =
            |leg: &LegMeasurements| Some(LegAccount { leg: leg.leg.clone(), profile: leg.profile.clone(), account: leg.account.shares()? });
        self.measured.legs.iter().filter_map(of).collect()
    }

    /// Adds a flow that has ended.
    pub(crate) fn add(&mut self, record: &FlowRecord) {
        self.ended[record.ending.index()] += 1;
        self.up += record.last.up.moved;
        self.down += record.last.down.moved;
        self.add_acknowledged([record.last.up, record.last.down].map(|last| last.acknowledged().unwrap_or(last.moved)));
        self.near_retransmits += u64::from(record.last.near.total_retrans);
        self.far_retransmits += u64::from(record.last.far.total_retrans);
        if let Some(paths) = &record.last.multipath {
            self.add_paths(paths, false);
        }
    }

    pub(crate) fn add_acknowledged(&mut self, bytes: [u64; 2]) {
        self.acknowledged.iter_mut().zip(bytes).for_each(|(sum, more)| *sum += more);
    }

    /// The same when their process has ended, and with it its open flows.
    #[must_use]
    pub(crate) fn of_ended(mut self) -> Self {
        (self.flows, self.memory) = (0, 0);
        self.networks.values_mut().for_each(|network| (network.connections, network.up) = (0, None));
        self
    }

    /// Adds the networks of a flow's bond. Connections count only while the flow `is_open`.
    pub(crate) fn add_paths(&mut self, multipath: &MultipathView, is_open: bool) {
        for path in &multipath.paths {
            *self.networks.entry(path.network.clone()).or_default() += NetworkTotals {
                connections: u64::from(is_open && path.up),
                sent: path.sent_bytes,
                received: path.received_bytes,
                waited_s: path.waited_s,
                up: None,
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
        // It is down only where no worker reaches the other end.
        self.up = self.up.into_iter().chain(other.up).reduce(|one, other| one || other);
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
        self.add_acknowledged(other.acknowledged);
        self.near_retransmits += other.near_retransmits;
        self.far_retransmits += other.far_retransmits;
        self.refused += other.refused;
        self.memory += other.memory;
        self.measured += other.measured;
        for (network, totals) in other.networks {
            *self.networks.entry(network).or_default() += totals;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGS: [Limiter; 2] = [Limiter::NearLeg, Limiter::FarLeg];

    #[test]
    fn data_that_a_bond_does_not_take_are_limited_by_the_bond() {
        let source = TcpInfo { rcv_wnd: 1 << 20, rcv_mss: 1448, rtt_us: 100, last_data_recv_ms: 1, ..TcpInfo::default() };
        let bond = TcpInfo { snd_mss: 1448, unacked: 100, snd_wnd: 1 << 20, ..TcpInfo::default() };
        let limited = |direction: DirectionStats, destination: &TcpInfo, to_bond| limiter(&direction, &source, destination, LEGS, to_bond);
        // All that it has read is in flight; the rest waits in the receive queue of the client's leg.
        let waits = || DirectionStats { received: 2 << 20, ..DirectionStats::default() };
        assert_eq!(limited(waits(), &bond, true), Limiter::FarLeg);
        assert_eq!(limited(DirectionStats::default(), &bond, true), Limiter::NearLeg);
        let shut = TcpInfo { rcv_wnd: 0, ..source };
        assert_eq!(limiter(&DirectionStats::default(), &shut, &bond, LEGS, true), Limiter::FarLeg);
        assert_eq!(limiter(&DirectionStats::default(), &shut, &bond, LEGS, false), Limiter::ProxyBuffer);
        // The window of the other end is full: its server does not read.
        let full = TcpInfo { snd_wnd: 100 * 1448, ..bond };
        assert_eq!(limited(waits(), &full, true), Limiter::Receiver);
    }

    #[test]
    fn data_that_wait_for_another_network_are_limited_by_the_bond() {
        let (bond, near) = (TcpInfo { rcv_wnd: 1 << 20, rcv_mss: 1448, ..TcpInfo::default() }, TcpInfo::default());
        let hole = DirectionStats { received: 1 << 20, has_hole: true, ..DirectionStats::default() };
        assert_eq!(limiter(&hole, &bond, &near, [Limiter::FarLeg, Limiter::NearLeg], false), Limiter::FarLeg);
    }
}
