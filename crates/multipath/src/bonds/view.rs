//! Statistics of a bond: its streams, and for each network its estimates, byte counts and
//! head-of-line blocking.

use super::Bonds;
use crate::life::{BondedConnection, Role};
use intercept::{leg, sys::TcpInfo};
use relay::{DirectionStats, FlowMeasurements, FlowStats, MultipathView, PathView, ProfileId};
use std::{net::SocketAddr, time::Instant};

/// A stream, in brief.
#[derive(Debug, Clone, Copy)]
pub struct StreamBrief {
    /// Its index. Another stream may have it after the end of this one.
    pub index: usize,
    /// When it began.
    pub born: Instant,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Payload carried from client to server, bytes.
    pub up: u64,
    /// Payload carried from server to client, bytes.
    pub down: u64,
}

/// Bytes that a stream has carried, up and down.
fn carried(bonded: &BondedConnection) -> (u64, u64) {
    match bonded.role {
        Role::Connect { .. } => (bonded.taken, bonded.given),
        Role::Serve { .. } => (bonded.given, bonded.taken),
    }
}

impl Bonds {
    /// Every stream in brief, without a system call.
    pub fn briefs(&self) -> impl Iterator<Item = StreamBrief> {
        self.streams.iter().map(|(index, bonded)| {
            let (up, down) = carried(bonded);
            StreamBrief { index, born: bonded.born, client: bonded.client, server: bonded.server, up, down }
        })
    }

    /// Statistics of the stream with this index that began at this time; none: it has ended.
    pub fn stats_at(&self, index: usize, born: Instant) -> Option<FlowStats> {
        let bonded = self.streams.get(index).filter(|bonded| bonded.born == born)?;
        Some(self.stats_of(bonded, true))
    }

    /// Statistics of every stream.
    pub fn stats(&self) -> Vec<FlowStats> {
        self.streams.iter().map(|(_, bonded)| self.stats_of(bonded, true)).collect()
    }

    /// The paths of every open stream.
    pub fn views(&self) -> impl Iterator<Item = MultipathView> {
        self.streams.iter().filter_map(|(_, bonded)| self.stats_of(bonded, false).multipath)
    }

    /// The networks that this end dials over: the name of each, and whether its last connections
    /// could be made; none: none was tried yet.
    pub fn networks(&self) -> impl Iterator<Item = (&str, Option<bool>)> {
        self.networks.states()
    }

    /// Bytes carried by open streams, up and down.
    pub fn carried(&self) -> (u64, u64) {
        let both = self.streams.iter().map(|(_, bonded)| carried(bonded));
        both.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Statistics of a stream. Without `details` it omits controllers and queues, which cost system
    /// calls.
    pub(crate) fn stats_of(&self, bonded: &BondedConnection, details: bool) -> FlowStats {
        let plain = bonded.plain.as_ref().and_then(|plain| intercept::sys::tcp_info(plain).ok()).unwrap_or_default();
        let control =
            if details { bonded.plain.as_ref().map(|plain| leg::controller_of(plain.socket())).unwrap_or_default() } else { String::new() };
        let (mut bond, paths) = self.paths_of(bonded, details);
        // The other end's window bounds all paths together.
        let in_flight = u64::from(bond.unacked) * u64::from(bond.snd_mss);
        let window = in_flight + bonded.stream.outbound.peer_room();
        bond.snd_wnd = bond.snd_wnd.min(u32::try_from(window).unwrap_or(u32::MAX));
        let (waiting, most_waiting) = (bonded.stream.inbound.out_of_order_bytes(), bonded.stream.inbound.max_out_of_order_bytes());
        let (received, unsent) = if details { bonded.plain_queues() } else { (0, 0) };
        let queued: u64 = paths.iter().map(|path| path.queued_bytes).sum();
        let out = DirectionStats {
            moved: bonded.taken,
            received,
            in_hand: bonded.stream.outbound.unassigned() as usize,
            unsent: queued as usize,
            ..DirectionStats::default()
        };
        let back = DirectionStats {
            moved: bonded.given,
            // As in a receive queue: what waits there for a missing piece waits for its source.
            received: waiting as usize,
            has_hole: waiting > 0,
            in_hand: bonded.stream.inbound.readable_bytes() as usize,
            unsent,
            ..DirectionStats::default()
        };
        let bond_control = if details { format!("bond of {}", paths.iter().filter(|path| path.up).count()) } else { String::new() };
        let is_near = matches!(bonded.role, Role::Connect { .. });
        // The host knows the profile of the plain leg.
        let profiles = if is_near { [ProfileId::Unknown, ProfileId::Bond] } else { [ProfileId::Bond, ProfileId::Unknown] };
        let ([near, far], [up, down]) = if is_near { ([plain, bond], [out, back]) } else { ([bond, plain], [back, out]) };
        FlowStats {
            client: bonded.client,
            server: bonded.server,
            age: self.now - bonded.born,
            near,
            far,
            control: if is_near { [control, bond_control] } else { [bond_control, control] },
            up,
            down,
            drops: [0; 2],
            accounts: [None, None],
            multipath: Some(MultipathView { paths, waiting_bytes: waiting, most_waiting_bytes: most_waiting }),
            measured: FlowMeasurements { profiles, ..FlowMeasurements::default() },
        }
    }

    /// The paths of a stream, and their sum as if they were one connection.
    fn paths_of(&self, bonded: &BondedConnection, details: bool) -> (TcpInfo, Vec<PathView>) {
        let mut paths: Vec<(u8, PathView)> = Vec::new();
        let mut whole = TcpInfo { min_rtt_us: u32::MAX, last_data_recv_ms: u32::MAX, snd_ssthresh: u32::MAX / 2, ..TcpInfo::default() };
        let name = |network: u8| match bonded.role {
            Role::Connect { .. } => self.networks.name(network.into()).to_owned(),
            Role::Serve { .. } => (u32::from(network) + 1).to_string(),
        };
        for (conn, member) in bonded.stream.members() {
            let info = intercept::sys::tcp_info(&member.channel).unwrap_or_default();
            add(&mut whole, &info);
            let Some(seen) = bonded.stream.seen(conn) else { continue };
            let view = PathView {
                network: name(member.network),
                up: true,
                stalled: seen.is_stalled,
                score_s: Some(seen.score),
                throughput_bps: seen.throughput.map(|bytes| 8.0 * bytes),
                srtt_s: f64::from(info.rtt_us) / 1e6,
                queued_bytes: u64::from(info.notsent_bytes),
                sent_bytes: seen.assigned,
                received_bytes: member.received,
                waited_s: member.waited.secs(),
                control: if details { leg::controller_of(member.channel.socket()) } else { String::new() },
                retransmits: info.total_retrans,
            };
            paths.push((member.network, view));
        }
        for (network, past) in bonded.stream.past() {
            let place = paths.iter().position(|(other, _)| other == network).unwrap_or_else(|| {
                paths.push((*network, PathView { network: name(*network), ..PathView::default() }));
                paths.len() - 1
            });
            let view = &mut paths[place].1;
            view.sent_bytes += past.sent;
            view.received_bytes += past.received;
            view.waited_s += past.waited.secs();
            view.retransmits += past.retransmits;
            whole.total_retrans += past.retransmits;
        }
        paths.sort_by_key(|(network, _)| *network);
        (whole, paths.into_iter().map(|(_, view)| view).collect())
    }
}

/// Adds a connection to the sum: rates and windows add up, round-trip times are those of the
/// nearest.
fn add(whole: &mut TcpInfo, one: &TcpInfo) {
    whole.rtt_us = if whole.rtt_us == 0 { one.rtt_us } else { whole.rtt_us.min(one.rtt_us) };
    whole.min_rtt_us = whole.min_rtt_us.min(one.min_rtt_us);
    whole.snd_mss = whole.snd_mss.max(one.snd_mss);
    whole.rcv_mss = whole.rcv_mss.max(one.rcv_mss);
    whole.snd_cwnd += one.snd_cwnd;
    whole.unacked += one.unacked;
    whole.total_retrans += one.total_retrans;
    whole.bytes_sent += one.bytes_sent;
    whole.bytes_retrans += one.bytes_retrans;
    whole.delivery_rate += one.delivery_rate;
    whole.snd_wnd = whole.snd_wnd.saturating_add(one.snd_wnd);
    whole.rcv_wnd = whole.rcv_wnd.saturating_add(one.rcv_wnd);
    whole.last_data_recv_ms = whole.last_data_recv_ms.min(one.last_data_recv_ms);
}
