//! The networks of the end that dials: the pool of ready connections over each, and the streams
//! that wait for one.
//!
//! A network that fails is dialled with exponential backoff, up to [`LAST_PAUSE`], so that a
//! network that recovers is used soon.

use crate::{
    handshake::HandshakeFailure,
    settings::{BondConfig, BondNetwork},
};
use intercept::{leg, sys::TcpInfo};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};
use units::Bytes;

/// First and longest pause between attempts over a network that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The other end has rejected a ready connection if it closes it within this time plus twice the
/// time that the connection took to become ready.
const UNWANTED: Duration = Duration::from_millis(250);
/// How long a network counts as failing after a rejected connection.
const DOUBT: Duration = Duration::from_secs(10);
/// Shortest time limit for a connection to become ready: twice the time until a handshake's first
/// retransmission has been answered.
const LEAST_READY_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time limit for a connection to become ready: five round trips of several seconds each,
/// as over a satellite behind a full queue.
pub(crate) const MOST_READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most connections that are dialled at once over one network.
const MOST_DIALLED: usize = 32;
/// A connection is silent when its peer has not acknowledged data for this time and for this many
/// retransmission timeouts.
const SILENCE_MS: u32 = 1000;
const SILENT_TIMEOUTS: u32 = 2;

/// A network and its connections that belong to no stream.
#[derive(Debug)]
struct State {
    network: BondNetwork,
    /// Ready connections, and since when they are ready, the oldest first.
    ready: VecDeque<(usize, Instant)>,
    /// Number of connections that are being dialled.
    dialling: usize,
    /// Streams that wait for a connection, by slot and id.
    wanting: VecDeque<(usize, u128)>,
    failures: u32,
    next: Instant,
    /// How long the last connection took to become ready.
    took: Duration,
    is_up: Option<bool>,
    /// Time at which the other end last rejected a ready connection. For [`DOUBT`] after that,
    /// further ready connections do not count as success.
    unwanted: Option<Instant>,
}

/// All networks of the end that dials.
#[derive(Debug)]
pub(crate) struct BondNetworks {
    all: Vec<State>,
    spares: usize,
    /// Bound of a connection's receive window.
    connection_window: Option<Bytes>,
    /// The window that the other end last announced, bytes.
    window: Option<u32>,
    draining: bool,
}

/// Whether a connection has unacknowledged data and its peer is silent.
pub(crate) fn is_silent(info: &TcpInfo) -> bool {
    let timeouts = (info.rto_us / 1000).saturating_mul(SILENT_TIMEOUTS);
    info.unacked > 0 && info.backoff > 0 && info.last_ack_recv_ms > SILENCE_MS.max(timeouts.min(5 * SILENCE_MS))
}

impl BondNetworks {
    pub(crate) fn new(networks: &[BondNetwork], bond: &BondConfig, now: Instant) -> Self {
        let state = |network: &BondNetwork| State {
            network: network.clone(),
            ready: VecDeque::new(),
            dialling: 0,
            wanting: VecDeque::new(),
            failures: 0,
            next: now,
            took: Duration::ZERO,
            is_up: None,
            unwanted: None,
        };
        BondNetworks {
            all: networks.iter().map(state).collect(),
            spares: bond.spares,
            connection_window: bond.connection_window,
            window: None,
            draining: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn window(&self) -> Option<u32> {
        self.window
    }

    pub(crate) fn tier(&self, network: usize) -> u8 {
        self.all[network].network.tier
    }

    pub(crate) fn name(&self, network: usize) -> &str {
        self.all.get(network).map_or("", |state| &state.network.name)
    }

    /// Each network's name, and whether its last connections could be made; none: none was tried
    /// yet.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&str, Option<bool>)> {
        self.all.iter().map(|state| (state.network.name.as_str(), state.is_up))
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.all.iter_mut().for_each(|state| state.wanting.clear());
    }

    /// Takes the newest ready connection.
    pub(crate) fn take(&mut self, network: usize) -> Option<usize> {
        self.all[network].ready.pop_back().map(|(index, _)| index)
    }

    /// Notes that a stream waits for a connection.
    pub(crate) fn want(&mut self, network: usize, slot: usize, id: u128) {
        let wanting = &mut self.all[network].wanting;
        if !wanting.contains(&(slot, id)) {
            wanting.push_back((slot, id));
        }
    }

    /// Removes a stream that has ended from those that wait.
    pub(crate) fn unwant(&mut self, slot: usize, id: u128) {
        self.all.iter_mut().for_each(|state| state.wanting.retain(|wanting| *wanting != (slot, id)));
    }

    /// The next stream that waits for a connection.
    pub(crate) fn next_wanting(&mut self, network: usize) -> Option<(usize, u128)> {
        self.all[network].wanting.pop_front()
    }

    /// Requests a replacement for a stream's silent connection over this network. Returns ready
    /// connections that are too old to prove that the network works; the caller closes them.
    pub(crate) fn suspect(&mut self, network: usize, slot: usize, id: u128, now: Instant) -> Vec<usize> {
        self.want(network, slot, id);
        let silence = Duration::from_millis(SILENCE_MS.into());
        let old = |(_, since): &&(usize, Instant)| now - *since > silence;
        let old: Vec<usize> = self.all[network].ready.iter().filter(old).map(|(index, _)| *index).collect();
        old
    }

    /// Handles a ready connection that the other end has closed. An end that is full closes new
    /// connections at once: its network then counts as failing.
    pub(crate) fn closed(&mut self, network: usize, index: usize, now: Instant) {
        let state = &mut self.all[network];
        let soon = UNWANTED + 2 * state.took;
        let is_unwanted = state.ready.iter().any(|(ready, since)| *ready == index && now - *since < soon);
        self.forget(network, index);
        if is_unwanted {
            self.all[network].unwanted = Some(now);
            self.failed(network, &HandshakeFailure::Closed, now);
        }
    }

    /// Checks whether networks that counted as failing work again.
    pub(crate) fn look(&mut self, now: Instant) {
        for network in 0..self.all.len() {
            let State { unwanted, ready, .. } = &self.all[network];
            if unwanted.is_some() && !ready.is_empty() {
                self.trust(network, now);
            }
        }
    }

    /// Removes a ready connection.
    pub(crate) fn forget(&mut self, network: usize, index: usize) {
        self.all[network].ready.retain(|(ready, _)| *ready != index);
    }

    /// Notes that a connection that was being dialled has failed or was dropped.
    pub(crate) fn dialled(&mut self, network: usize) {
        self.all[network].dialling -= 1;
    }

    /// Adds a ready connection that was dialled at `since`.
    pub(crate) fn ready(&mut self, network: usize, index: usize, window: u32, since: Instant, now: Instant) {
        let state = &mut self.all[network];
        state.took = now - since;
        (state.dialling, state.next) = (state.dialling - 1, now);
        state.ready.push_back((index, now));
        self.window = Some(window);
        self.trust(network, now);
    }

    /// Counts the network as working, unless a ready connection was rejected lately.
    fn trust(&mut self, network: usize, now: Instant) {
        let state = &mut self.all[network];
        if state.unwanted.is_some_and(|at| now - at < DOUBT) {
            return;
        }
        (state.failures, state.unwanted) = (0, None);
        if state.is_up.replace(true) != Some(true) {
            tracing::info!("network {} of the bond is up, to {}", state.network.name, state.network.to);
        }
    }

    /// Notes that a connection failed or was rejected.
    pub(crate) fn failed(&mut self, network: usize, why: &HandshakeFailure, now: Instant) {
        let state = &mut self.all[network];
        state.next = now + (FIRST_PAUSE * 2u32.saturating_pow(state.failures)).min(LAST_PAUSE);
        state.failures = (state.failures + 1).min(16);
        if state.ready.is_empty() && state.is_up.replace(false) != Some(false) {
            tracing::warn!("network {} of the bond is down, to {}: {why}; trying again", state.network.name, state.network.to);
        }
    }

    /// Time limit for a connection over this network to become ready: longer after each failure.
    pub(crate) fn ready_timeout(&self, network: usize) -> Duration {
        let State { took, failures, .. } = self.all[network];
        ((LEAST_READY_TIMEOUT + 3 * took) * (1 + failures)).min(MOST_READY_TIMEOUT)
    }

    /// Begins to connect over a network that lacks connections; none: no network lacks one.
    pub(crate) fn dial(&mut self, now: Instant) -> Option<(usize, io::Result<Socket>)> {
        if self.draining && self.all.iter().all(|state| state.wanting.is_empty()) {
            return None;
        }
        let spares = if self.draining { 0 } else { self.spares };
        let lacks = |state: &State| {
            let wanted = (spares + state.wanting.len()).min(MOST_DIALLED);
            // Over a network that fails, one connection is dialled at a time.
            let most = if state.failures > 0 { wanted.min(1) } else { wanted };
            now >= state.next && state.ready.len() + state.dialling < most
        };
        let network = self.all.iter().position(lacks)?;
        let state = &mut self.all[network];
        let socket = connect(&state.network, self.connection_window);
        if socket.is_ok() {
            state.dialling += 1;
        }
        Some((network, socket))
    }
}

/// Begins to connect over a network.
pub(crate) fn connect(network: &BondNetwork, window: Option<Bytes>) -> io::Result<Socket> {
    let domain = Domain::for_address(network.to);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(window) = window {
        leg::bound_window(&socket, window.0 as usize)?;
    }
    if let Some(interface) = &network.interface {
        socket.bind_device(Some(interface.0.as_bytes()))?;
    }
    let probe = TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(Duration::from_secs(5)).with_retries(3);
    socket.set_tcp_keepalive(&probe)?;
    // The profile may override what was set so far.
    leg::apply(&socket, &network.profile, || Ok(0))?;
    if let Some(mss) = network.profile.mss {
        socket.set_tcp_mss(u32::from(mss))?;
    }
    if let Some(source) = network.source {
        socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
    }
    match socket.connect(&SockAddr::from(network.to)) {
        Err(why) if why.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        outcome => outcome.map(|()| socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NetworkSpec;

    fn networks(names: &[&str], spares: usize) -> BondNetworks {
        let network = |name: &&str| name.parse::<NetworkSpec>().unwrap().network(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        let bond = BondConfig { spares, ..BondConfig::default() };
        BondNetworks::new(&names.iter().map(network).collect::<Vec<_>>(), &bond, Instant::now())
    }

    #[test]
    fn spares_and_waiting_streams_are_dialled_for() {
        let (mut all, now) = (networks(&["127.0.0.1"], 2), Instant::now());
        let dial = |all: &mut BondNetworks, now| std::iter::from_fn(|| all.dial(now).map(|(network, _)| network)).count();
        assert_eq!(dial(&mut all, now), 2);
        all.want(0, 7, 70);
        all.want(0, 7, 70);
        assert_eq!(dial(&mut all, now), 1);
        all.ready(0, 1, 1 << 20, now, now);
        assert_eq!((all.take(0), all.take(0), all.window()), (Some(1), None, Some(1 << 20)));
        assert_eq!((all.next_wanting(0), all.next_wanting(0)), (Some((7, 70)), None));
        assert_eq!(dial(&mut all, now), 0);
    }

    #[test]
    fn an_ended_stream_waits_for_no_connection() {
        let mut all = networks(&["127.0.0.1", "127.0.0.2"], 0);
        for id in 0..1000 {
            all.want(0, id as usize, id);
            all.want(1, id as usize, id);
            all.unwant(id as usize, id);
        }
        assert!(all.all.iter().all(|state| state.wanting.is_empty()));
    }

    #[test]
    fn slow_networks_get_a_longer_time_limit() {
        let (mut all, now) = (networks(&["127.0.0.1"], 1), Instant::now());
        assert_eq!(all.ready_timeout(0), LEAST_READY_TIMEOUT);
        all.failed(0, &HandshakeFailure::Closed, now);
        assert_eq!(all.ready_timeout(0), 2 * LEAST_READY_TIMEOUT);
        (0..20).for_each(|_| all.failed(0, &HandshakeFailure::Closed, now));
        assert_eq!(all.ready_timeout(0), MOST_READY_TIMEOUT);
        all.dial(now + LAST_PAUSE).unwrap().1.unwrap();
        all.ready(0, 1, 1 << 20, now, now + Duration::from_secs(5));
        assert_eq!(all.ready_timeout(0), LEAST_READY_TIMEOUT + Duration::from_secs(15));
    }

    #[test]
    fn a_dead_network_is_dialled_less_and_less_often() {
        let (mut all, start) = (networks(&["127.0.0.1"], 4), Instant::now());
        let (mut now, mut tries) = (start, 0);
        while now < start + Duration::from_secs(60) {
            while all.dial(now).is_some() {
                tries += 1;
                all.dialled(0);
                all.failed(0, &HandshakeFailure::Closed, now);
            }
            now += Duration::from_millis(50);
        }
        assert!((10..=20).contains(&tries), "{tries}");
    }

    #[test]
    fn a_network_whose_other_end_is_full_is_dialled_less_and_less_often() {
        let (mut all, start) = (networks(&["127.0.0.1"], 4), Instant::now());
        let (mut now, mut tries) = (start, 0);
        while now < start + Duration::from_secs(60) {
            while all.dial(now).is_some() {
                tries += 1;
                all.ready(0, tries, 1 << 20, now, now);
                all.closed(0, tries, now);
            }
            now += Duration::from_millis(50);
        }
        assert!((10..=20).contains(&tries), "{tries}");
        // A connection that is not closed for a while counts as success, and others are dialled
        // beside it.
        now += LAST_PAUSE;
        all.dial(now).unwrap().1.unwrap();
        all.ready(0, 100, 1 << 20, now, now);
        assert!(all.dial(now + LAST_PAUSE).is_none());
        all.look(now + DOUBT);
        assert!(all.dial(now + DOUBT).is_some());
    }
}
