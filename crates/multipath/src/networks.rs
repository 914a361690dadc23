//! The networks of the end that dials: the pool of ready connections over each, and the streams
//! that wait for one.
//!
//! A network that fails is dialled with exponential backoff, up to [`LAST_PAUSE`], so that a
//! network that recovers is used soon. Over one that does not answer, further connections are
//! dialled beside the first, because the kernel retransmits a SYN ever later.

use crate::{
    far_end::{FarEndAddresses, NextAddress},
    handshake::HandshakeFailure,
    reach::NetworkReach,
    settings::{BondConfig, BondNetwork},
};
use bond::{Announcement, Families, HandshakeError, OLDEST_VERSION, VERSION};
use intercept::{Carried, leg, sys::TcpInfo};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::{
    collections::VecDeque,
    fmt::Display,
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
/// How many times in a row the other end may close connections that have just become ready, as when
/// it is restarted, before its network counts as failing.
const RESTARTS: u32 = 3;
/// The most that are dialled at once over a network that does not answer, and how much longer the
/// pause before each is than that before the last one.
const MOST_PROBES: usize = 6;
const PROBE_PAUSE: Duration = Duration::from_secs(2);
/// The pause before the next address of a name is dialled beside one that does not answer (RFC 8305
/// §8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// A connection is silent when its peer has not acknowledged data for this time and for this many
/// retransmission timeouts, and as many retransmissions were in vain.
const SILENCE_MS: u32 = 1000;
const SILENT_TIMEOUTS: u32 = 2;
/// Time until the first keepalive probe of a connection.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A network and its connections that belong to no stream.
#[derive(Debug)]
struct State {
    network: BondNetwork,
    addresses: FarEndAddresses,
    reach: NetworkReach,
    /// The version of the protocol in which the other end is addressed.
    version: u8,
    /// Ready connections, and since when they are ready, the oldest first.
    ready: VecDeque<(usize, Instant)>,
    /// Number of connections that are being dialled.
    dialling: usize,
    /// Streams that wait for a connection, by slot and id.
    wanting: VecDeque<(usize, u128)>,
    failures: u32,
    next: Instant,
    /// When a connection was last dialled.
    last_dial: Instant,
    /// How long the last connection took to become ready.
    took: Duration,
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
    /// What the other end last announced.
    announced: Option<Announcement>,
    draining: bool,
}

/// What is to be done for a network that lacks connections.
#[derive(Debug)]
pub(crate) enum NetworkStep {
    /// A connection is being made, or could not be begun.
    Dialled(io::Result<Socket>),
    /// This name has to be looked up; [`BondNetworks::resolved`] takes the result.
    LookUp(String, u16),
}

/// Whether a connection has unacknowledged data and its peer is silent.
pub(crate) fn is_silent(info: &TcpInfo) -> bool {
    // The kernel doubles the timeout with each retransmission.
    let timeouts = ((info.rto_us / 1000) >> info.backoff.min(16)).saturating_mul(SILENT_TIMEOUTS);
    let retransmitted = u32::from(info.backoff) >= SILENT_TIMEOUTS;
    info.unacked > 0 && retransmitted && info.last_ack_recv_ms > SILENCE_MS.max(timeouts.min(5 * SILENCE_MS))
}

/// Whether the peer of an idle connection does not answer a keepalive probe.
pub(crate) fn ignores_probe(info: &TcpInfo) -> bool {
    let answered_until = KEEPALIVE.as_millis() as u32 + SILENCE_MS + 2 * info.rtt_us / 1000;
    info.probes > 0 && info.last_ack_recv_ms > answered_until
}

impl BondNetworks {
    pub(crate) fn new(networks: &[BondNetwork], bond: &BondConfig, now: Instant) -> Self {
        let state = |network: &BondNetwork| State {
            addresses: FarEndAddresses::new(network.to.clone(), network.source),
            network: network.clone(),
            reach: NetworkReach::default(),
            version: VERSION,
            ready: VecDeque::new(),
            dialling: 0,
            wanting: VecDeque::new(),
            failures: 0,
            next: now,
            last_dial: now,
            took: Duration::ZERO,
            unwanted: None,
        };
        BondNetworks {
            all: networks.iter().map(state).collect(),
            spares: bond.spares,
            connection_window: bond.connection_window,
            announced: None,
            draining: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The window that the other end last announced, bytes.
    pub(crate) fn window(&self) -> Option<u32> {
        self.announced.map(|announced| announced.window)
    }

    /// What the bond can carry at present.
    pub(crate) fn carried(&self) -> Carried {
        let Families { ipv4, ipv6 } = self.announced.map_or(Families::BOTH, |announced| announced.families);
        let reached = self.all.is_empty() || self.all.iter().any(|state| !state.reach.is_down());
        Carried { reached, ipv4, ipv6 }
    }

    /// The version of the protocol in which the other end is addressed over a network.
    pub(crate) fn version(&self, network: usize) -> u8 {
        self.all[network].version
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
        self.all.iter().map(|state| (state.network.name.as_str(), state.reach.is_up()))
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
        self.doubt(network, now)
    }

    /// Notes that a connection over this network is silent. Returns ready connections as
    /// [`suspect`](Self::suspect) does.
    pub(crate) fn doubt(&mut self, network: usize, now: Instant) -> Vec<usize> {
        self.all[network].reach.doubt(now);
        let silence = Duration::from_millis(SILENCE_MS.into());
        let old = |(_, since): &&(usize, Instant)| now - *since > silence;
        let old: Vec<usize> = self.all[network].ready.iter().filter(old).map(|(index, _)| *index).collect();
        old
    }

    /// Handles a ready connection that the other end has closed. An end that is full closes new
    /// connections at once, again and again: its network then counts as failing. An end that stops
    /// or restarts closes those it has.
    pub(crate) fn closed(&mut self, network: usize, index: usize, now: Instant) {
        let state = &mut self.all[network];
        let soon = UNWANTED + 2 * state.took;
        let since = state.ready.iter().find(|(ready, _)| *ready == index).map(|(_, since)| *since);
        self.forget(network, index);
        // The other end may be another release now.
        self.all[network].version = VERSION;
        let Some(since) = since.filter(|since| now - *since < soon) else { return };
        let before = self.all[network].unwanted.replace(now);
        match before {
            Some(before) if since >= before && self.all[network].failures >= RESTARTS => {
                self.failed(network, &HandshakeFailure::Closed, now);
            }
            Some(before) if since >= before => self.all[network].pause(now),
            _ => {}
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

    /// Takes the result of looking up the name of the other end over this network.
    pub(crate) fn resolved(&mut self, network: usize, addresses: io::Result<Vec<SocketAddr>>, now: Instant) {
        let Some(state) = self.all.get_mut(network) else { return };
        if let Err(why) = state.addresses.resolved(addresses) {
            self.fall_back(network, &format_args!("its name cannot be looked up: {why}"), false, now);
        }
    }

    /// Judges whether the other end is reached over a network. `waits_since`: since when the oldest
    /// connection that is being dialled is unanswered; `heard`: when a peer of an open connection
    /// last acknowledged something.
    pub(crate) fn judge(&mut self, network: usize, waits_since: Option<Instant>, heard: Option<Instant>, now: Instant) {
        let State { network, addresses, reach, ready, took, .. } = &mut self.all[network];
        let waits_since = waits_since.into_iter().chain(addresses.looked_up_since()).min();
        reach.judge((&network.name, &network.to), waits_since.filter(|_| ready.is_empty()), heard, *took, now);
    }

    /// Adds a ready connection that was dialled at `since`, to this address.
    pub(crate) fn ready(
        &mut self,
        network: usize,
        (index, address): (usize, Option<SocketAddr>),
        theirs: Announcement,
        since: Instant,
        now: Instant,
    ) {
        let state = &mut self.all[network];
        address.into_iter().for_each(|address| state.addresses.reached(address));
        state.took = now - since;
        (state.dialling, state.next) = (state.dialling - 1, now);
        state.ready.push_back((index, now));
        self.announced = Some(theirs);
        self.trust(network, now);
    }

    /// Counts the network as working, unless a ready connection was rejected lately.
    fn trust(&mut self, network: usize, now: Instant) {
        let state = &mut self.all[network];
        if state.unwanted.is_some_and(|at| now - at < DOUBT) {
            return;
        }
        (state.failures, state.unwanted) = (0, None);
        let was_down = state.reach.is_down();
        state.reach.reached((&state.network.name, &state.network.to), now);
        if was_down {
            // The other networks may have been down for the same reason.
            self.all.iter_mut().filter(|state| state.reach.is_down() && state.unwanted.is_none()).for_each(|state| state.next = now);
        }
    }

    /// Notes that a connection failed or was rejected.
    pub(crate) fn failed(&mut self, network: usize, why: &HandshakeFailure, now: Instant) {
        let state = &mut self.all[network];
        if *why == HandshakeFailure::Refused(HandshakeError::UnsupportedVersion(OLDEST_VERSION)) && state.version != OLDEST_VERSION {
            (state.version, state.next) = (OLDEST_VERSION, now);
            return;
        }
        state.version = VERSION;
        if *why == HandshakeFailure::Failed(Errno::CONNREFUSED) {
            // It had closed a ready connection because it stopped, not because it is full.
            state.unwanted = None;
        }
        if state.addresses.failed() {
            state.next = now;
            return;
        }
        let is_silence = matches!(why, HandshakeFailure::Silent | HandshakeFailure::Failed(Errno::TIMEDOUT));
        self.fall_back(network, why, is_silence, now);
    }

    /// Pauses before the next attempt, and judges the network as failing if it has no other
    /// connection.
    fn fall_back(&mut self, network: usize, why: &dyn Display, is_silence: bool, now: Instant) {
        let state = &mut self.all[network];
        state.pause(now);
        if state.ready.is_empty() {
            state.reach.failed((&state.network.name, &state.network.to), why, is_silence, now);
        }
    }

    /// Time limit for a connection over this network to become ready: longer after each failure.
    pub(crate) fn ready_timeout(&self, network: usize) -> Duration {
        let State { took, failures, .. } = self.all[network];
        ((LEAST_READY_TIMEOUT + 3 * took) * (1 + failures)).min(MOST_READY_TIMEOUT)
    }

    /// Begins to connect over a network that lacks connections; none: no network lacks one.
    pub(crate) fn dial(&mut self, now: Instant) -> Option<(usize, NetworkStep)> {
        if self.draining && self.all.iter().all(|state| state.wanting.is_empty()) {
            return None;
        }
        let spares = if self.draining { 0 } else { self.spares };
        let draining = self.draining;
        let lacks = |state: &State| {
            // Over a network that is down, connections are dialled until one succeeds.
            let least = usize::from(state.reach.is_down() && !draining);
            let wanted = (spares + state.wanting.len()).clamp(least, MOST_DIALLED);
            // Over a network that fails, one connection is dialled at a time.
            let fails = state.failures > 0 || state.reach.is_down();
            let most = if fails { wanted.min(1) } else { wanted };
            let lacks = state.ready.len() + state.dialling < most || state.lacks_probe(now);
            now >= state.next && state.addresses.looked_up_since().is_none() && wanted > 0 && lacks
        };
        let network = self.all.iter().position(lacks)?;
        let state = &mut self.all[network];
        let to = match state.addresses.next(state.reach.is_up() == Some(true), now) {
            NextAddress::Dial(to) => to,
            NextAddress::LookUp(name, port) => return Some((network, NetworkStep::LookUp(name, port))),
        };
        let socket = connect(&state.network, to, self.connection_window);
        state.last_dial = now;
        if socket.is_ok() {
            state.dialling += 1;
        }
        Some((network, NetworkStep::Dialled(socket)))
    }
}

impl State {
    /// Pauses before the next attempt, for longer with each.
    fn pause(&mut self, now: Instant) {
        self.next = now + (FIRST_PAUSE * 2u32.saturating_pow(self.failures)).min(LAST_PAUSE);
        self.failures = (self.failures + 1).min(16);
    }

    /// Whether another connection is to be dialled beside those that are not answered.
    fn lacks_probe(&self, now: Instant) -> bool {
        let waits = now.saturating_duration_since(self.last_dial);
        let is_alone = self.ready.is_empty() && (1..MOST_PROBES).contains(&self.dialling);
        let next_address = self.addresses.has_another() && self.reach.is_up() != Some(true) && waits >= ATTEMPT_DELAY;
        is_alone && (next_address || self.reach.is_down() && waits >= (PROBE_PAUSE * self.dialling as u32).min(LAST_PAUSE))
    }
}

/// Begins to connect over a network to this address of the other end.
pub(crate) fn connect(network: &BondNetwork, to: SocketAddr, window: Option<Bytes>) -> io::Result<Socket> {
    let domain = Domain::for_address(to);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(window) = window {
        leg::bound_window(&socket, window.0 as usize)?;
    }
    if let Some(interface) = &network.interface {
        socket.bind_device(Some(interface.0.as_bytes()))?;
    }
    let probe = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(5)).with_retries(3);
    socket.set_tcp_keepalive(&probe)?;
    // The profile may override what was set so far.
    leg::apply(&socket, &network.profile, || Ok(0))?;
    if let Some(mss) = network.profile.mss {
        socket.set_tcp_mss(u32::from(mss))?;
    }
    if let Some(source) = network.source {
        socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
    }
    match socket.connect(&SockAddr::from(to)) {
        Err(why) if why.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        outcome => outcome.map(|()| socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NetworkSpec;

    fn networks(names: &[&str], spares: usize) -> BondNetworks {
        let network = |name: &&str| name.parse::<NetworkSpec>().unwrap().network(Some(&"127.0.0.1:9".parse().unwrap())).unwrap();
        let bond = BondConfig { spares, ..BondConfig::default() };
        BondNetworks::new(&names.iter().map(network).collect::<Vec<_>>(), &bond, Instant::now())
    }

    /// What the other end announces.
    const THEIRS: Announcement = Announcement { window: 1 << 20, families: Families::BOTH };

    /// Dials the next connection, which the kernel begins to make.
    fn dial_one(all: &mut BondNetworks, now: Instant) {
        assert!(matches!(all.dial(now), Some((0, NetworkStep::Dialled(Ok(_))))));
    }

    #[test]
    fn spares_and_waiting_streams_are_dialled_for() {
        let (mut all, now) = (networks(&["127.0.0.1"], 2), Instant::now());
        let dial = |all: &mut BondNetworks, now| std::iter::from_fn(|| all.dial(now).map(|(network, _)| network)).count();
        assert_eq!(dial(&mut all, now), 2);
        all.want(0, 7, 70);
        all.want(0, 7, 70);
        assert_eq!(dial(&mut all, now), 1);
        all.ready(0, (1, None), THEIRS, now, now);
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
        dial_one(&mut all, now + LAST_PAUSE);
        all.ready(0, (1, None), THEIRS, now, now + Duration::from_secs(5));
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
                all.ready(0, (tries, None), THEIRS, now, now);
                all.closed(0, tries, now);
            }
            now += Duration::from_millis(50);
        }
        assert!((10..=20).contains(&tries), "{tries}");
        // A connection that is not closed for a while counts as success, and others are dialled
        // beside it.
        now += LAST_PAUSE;
        dial_one(&mut all, now);
        all.ready(0, (100, None), THEIRS, now, now);
        assert!(all.dial(now + LAST_PAUSE).is_none());
        all.look(now + DOUBT);
        assert!(all.dial(now + DOUBT).is_some());
    }

    #[test]
    fn a_connection_is_silent_after_two_timeouts_and_a_second() {
        let silent = |base_ms: u32, backoff: u8, last_ack_recv_ms: u32| {
            let rto_us = (base_ms * 1000) << backoff;
            is_silent(&TcpInfo { unacked: 1, rto_us, backoff, last_ack_recv_ms, ..TcpInfo::default() })
        };
        assert!(!silent(250, 2, 900) && silent(250, 2, 1001));
        // The first retransmission may be lost too.
        assert!(!silent(250, 1, 1001));
        // Each retransmission doubles the timeout, but not the time in which a peer must answer.
        assert!(silent(250, 5, 1001));
        // A slow network, and the longest patience.
        assert!(!silent(2000, 2, 3999) && silent(2000, 2, 4001));
        assert!(!silent(4000, 2, 4999) && silent(4000, 2, 5001));
        assert!(!is_silent(&TcpInfo { last_ack_recv_ms: 60_000, ..TcpInfo::default() }), "nothing is unacknowledged");
    }

    #[test]
    fn an_idle_connection_whose_peer_ignores_a_probe_is_noticed() {
        let idle = TcpInfo { last_ack_recv_ms: 25_000, rtt_us: 40_000, ..TcpInfo::default() };
        assert!(!ignores_probe(&idle));
        assert!(ignores_probe(&TcpInfo { probes: 1, ..idle }));
        assert!(!ignores_probe(&TcpInfo { probes: 1, last_ack_recv_ms: 20_500, ..idle }));
    }

    #[test]
    fn other_connections_are_dialled_beside_those_that_are_not_answered() {
        let (mut all, start) = (networks(&["127.0.0.1"], 0), Instant::now());
        assert!(all.dial(start).is_none());
        all.want(0, 7, 70);
        dial_one(&mut all, start);
        let late = start + Duration::from_millis(1500);
        assert!(all.carried().reached && all.dial(late).is_none());
        all.judge(0, Some(start), None, late);
        assert!(!all.carried().reached);
        // Without a stream too, in growing intervals, as long as nothing answers.
        all.unwant(7, 70);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(all.dial(late).is_none());
        for seconds in [2, 6, 11, 16, 21] {
            assert!(all.dial(after(seconds) - Duration::from_millis(1)).is_none(), "{seconds}");
            dial_one(&mut all, after(seconds));
        }
        assert!(all.dial(after(60)).is_none(), "six are enough");
        all.ready(0, (1, None), THEIRS, after(59), after(60));
        assert!(all.carried().reached && all.dial(after(61)).is_none());
    }

    #[test]
    fn an_older_end_is_addressed_in_its_version() {
        let (mut all, now) = (networks(&["127.0.0.1"], 1), Instant::now());
        dial_one(&mut all, now);
        assert_eq!(all.version(0), VERSION);
        all.dialled(0);
        all.failed(0, &HandshakeFailure::Refused(HandshakeError::UnsupportedVersion(OLDEST_VERSION)), now);
        assert_eq!((all.version(0), all.carried().reached), (OLDEST_VERSION, true));
        dial_one(&mut all, now);
        all.ready(0, (1, None), THEIRS, now, now);
        // It is updated, which closes its connections.
        all.closed(0, 1, now + LAST_PAUSE);
        assert_eq!(all.version(0), VERSION);
    }

    #[test]
    fn a_name_that_does_not_resolve_is_looked_up_again() {
        let network = "127.0.0.1".parse::<NetworkSpec>().unwrap().network(Some(&"vps.test:7000".parse().unwrap())).unwrap();
        let (mut all, start) = (BondNetworks::new(&[network], &BondConfig::default(), Instant::now()), Instant::now());
        let looks_up = |all: &mut BondNetworks, now| matches!(all.dial(now), Some((0, NetworkStep::LookUp(..))));
        assert!(looks_up(&mut all, start) && all.dial(start).is_none());
        all.resolved(0, Err(io::ErrorKind::NotFound.into()), start);
        assert!(!all.carried().reached && all.dial(start).is_none());
        assert!(looks_up(&mut all, start + FIRST_PAUSE));
        // A name server that does not answer is as bad.
        all.resolved(0, Ok(vec!["127.0.0.1:9".parse().unwrap()]), start + FIRST_PAUSE);
        dial_one(&mut all, start + FIRST_PAUSE);
    }
}
