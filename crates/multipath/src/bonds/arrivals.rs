//! Connections before they belong to a stream: handshakes, the pool of ready connections, and the
//! frame by which an accepted one joins its stream.

use super::{BondSocket, Bonds, HandshakeOrigin};
use crate::{
    handshake::{Handshake, HandshakeFailure, HandshakeStep},
    host::Preface,
    life::BondedConnection,
    member::Member,
    networks::NetworkStep,
    settings::BondConfig,
};
use bond::{Decoded, Frame, FrameReader};
use intercept::{leg, sys};
use relay::{Scratch, UNKNOWN_ADDRESS};
use rustix::io::Errno;
use socket2::{Socket, TcpKeepalive};
use std::{
    collections::{HashSet, VecDeque},
    io::IoSliceMut,
    mem,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The most authenticated connections that have not joined a stream yet.
const MOST_PENDING: usize = 4096;
/// The most connections of a stream: two for each of the most networks.
const MOST_MEMBERS: usize = 2 * BondConfig::MOST_NETWORKS;

impl Bonds {
    /// Takes a connection of a listener for bonds. `preface` makes the bytes that servers get
    /// before those of its streams.
    pub fn accept(&mut self, socket: Socket, preface: Option<Preface>) {
        if self.draining {
            return;
        }
        if self.unauthenticated.len() >= BondConfig::most_unauthenticated() {
            self.forget_ended_handshakes();
        }
        if self.unauthenticated.len() >= BondConfig::most_unauthenticated() {
            // The oldest peer that has not sent a valid hello is closed. Where all have sent one,
            // which may be a replay, the oldest of all.
            let place = self.unauthenticated.iter().position(|index| self.is_unauthenticated(*index)).unwrap_or(0);
            if let Some(oldest) = self.unauthenticated.remove(place)
                && self.is_handshaking(oldest)
            {
                self.refused += 1;
                self.drop_entry(oldest);
            }
        }
        let _ = socket.set_linger(None);
        let handshake = Box::new(Handshake::accepted(socket, self.now));
        let index = self.entries.insert(BondSocket::Handshake(handshake, HandshakeOrigin::Accepted(preface)));
        self.unauthenticated.push_back(index);
        if let Some(BondSocket::Handshake(handshake, _)) = self.entries.get(index)
            && self.watch(index, handshake.socket()).is_err()
        {
            self.drop_entry(index);
        }
    }

    /// Removes from `unauthenticated` the indices of handshakes that have ended. An index that a
    /// later handshake has got stands there twice: its last place counts.
    pub(crate) fn forget_ended_handshakes(&mut self) {
        let mut found = HashSet::new();
        let mut kept = VecDeque::with_capacity(self.unauthenticated.len());
        for index in mem::take(&mut self.unauthenticated).into_iter().rev() {
            if self.is_handshaking(index) && found.insert(index) {
                kept.push_front(index);
            }
        }
        self.unauthenticated = kept;
    }

    /// Whether this accepted connection has not sent a valid hello yet.
    pub(crate) fn is_unauthenticated(&self, index: usize) -> bool {
        matches!(self.entries.get(index), Some(BondSocket::Handshake(handshake, HandshakeOrigin::Accepted(_))) if handshake.is_unauthenticated())
    }

    /// Whether this accepted connection has not completed its handshake.
    pub(crate) fn is_handshaking(&self, index: usize) -> bool {
        self.handshake_began(index).is_some()
    }

    /// When this connection was accepted; none: it has completed its handshake, or is gone.
    pub(crate) fn handshake_began(&self, index: usize) -> Option<Instant> {
        match self.entries.get(index)? {
            BondSocket::Handshake(handshake, HandshakeOrigin::Accepted(_)) => Some(handshake.since),
            _ => None,
        }
    }

    /// Continues a handshake.
    pub(crate) fn on_handshake(&mut self, index: usize, scratch: &mut Scratch) {
        let Some(BondSocket::Handshake(handshake, origin)) = self.entries.take(index) else { return };
        let since = handshake.since;
        if matches!(origin, HandshakeOrigin::Accepted(_)) {
            self.credentials.own.families = self.own_routes.families(self.now);
        }
        match handshake.step(&self.credentials) {
            Ok(HandshakeStep::Pending(handshake)) => self.entries.put(index, BondSocket::Handshake(handshake, origin)),
            Ok(HandshakeStep::Done(channel, theirs)) => match origin {
                HandshakeOrigin::Dialled(network) => {
                    let address = channel.socket().peer_addr().ok().and_then(|address| address.as_socket());
                    self.entries.put(index, BondSocket::Pooled(channel, network, theirs));
                    self.networks.ready(network, (index, address), theirs, since, self.now);
                    self.hand_out(network, scratch);
                }
                HandshakeOrigin::Accepted(preface) if self.pending < MOST_PENDING && !self.draining => {
                    self.pending += 1;
                    keep_alive(channel.socket(), Duration::from_secs(60));
                    self.tune(channel.socket());
                    self.entries.put(index, BondSocket::Pending(channel, theirs.window, preface, Vec::new()));
                    self.on_pending(index, scratch);
                }
                HandshakeOrigin::Accepted(_) => self.entries.release(index),
            },
            Err(why) => {
                self.entries.release(index);
                match origin {
                    HandshakeOrigin::Dialled(network) => {
                        self.networks.dialled(network);
                        self.networks.failed(network, &why, self.now);
                    }
                    HandshakeOrigin::Accepted(_) => {
                        self.refused += 1;
                        tracing::debug!("the bond's listener turned a connection away: {why}");
                    }
                }
            }
        }
    }

    /// Tunes an accepted connection by the profile of its peer's address.
    pub(crate) fn tune(&self, socket: &Socket) {
        let Some(peer) = socket.peer_addr().ok().and_then(|peer| peer.as_socket()) else { return };
        // A listener for both families reports IPv4 addresses mapped to IPv6.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let (profile, _) = self.host.leg_profiles(peer, UNKNOWN_ADDRESS);
        if let Err(why) = leg::apply(socket, profile, || sys::dscp_of_syn(socket)) {
            tracing::warn!("cannot tune a connection of the bond by its profile: {why}");
        }
    }

    /// Assigns a connection that has just become ready to a stream that waits for one.
    pub(crate) fn hand_out(&mut self, network: usize, scratch: &mut Scratch) {
        while let Some((slot, id)) = self.networks.next_wanting(network) {
            if self.streams.get(slot).is_some_and(|bonded| bonded.id == id)
                && let Some(index) = self.networks.take(network)
            {
                self.join(index, slot);
                self.proceed(slot, scratch);
                return;
            }
        }
    }

    /// Reads the frame by which an authenticated connection joins its stream.
    pub(crate) fn on_pending(&mut self, index: usize, scratch: &mut Scratch) {
        let Some(BondSocket::Pending(mut channel, window, preface, mut heard)) = self.entries.take(index) else { return };
        let joins = loop {
            let mut byte = [0; 20];
            let room = Frame::JOIN_LEN - heard.len();
            match channel.receive(&mut [IoSliceMut::new(&mut byte[..room])]) {
                Ok(0) => break None,
                Ok(count) => {
                    heard.extend_from_slice(&byte[..count]);
                    if heard.len() == Frame::JOIN_LEN {
                        break FrameReader::default().read(&heard).ok().map(|(_, said)| said);
                    }
                }
                Err(Errno::AGAIN) => {
                    self.entries.put(index, BondSocket::Pending(channel, window, preface, heard));
                    return;
                }
                Err(_) => break None,
            }
        };
        self.pending -= 1;
        match joins {
            Some(Decoded::Frame(Frame::Join { stream, known, network, tier })) => {
                self.entries.put(index, BondSocket::Member(usize::MAX));
                let member = Member::new(channel, network, index, self.host.bond().connection_window);
                self.admit(member, (stream, known, tier), window, preface, scratch);
            }
            _ => {
                // It was closed, or its first frame was another.
                self.entries.release(index);
            }
        }
    }

    /// Adds a connection to its stream. The first connection begins the stream.
    pub(crate) fn admit(
        &mut self,
        member: Member,
        (id, known, tier): (u128, bool, u8),
        window: u32,
        preface: Option<Preface>,
        scratch: &mut Scratch,
    ) {
        let (index, time) = (member.entry, self.time());
        let slot = match self.by_id.get(&id) {
            Some(slot) => *slot,
            None if known && self.host.took_over() && !self.past.contains(&id) => {
                self.entries.remove(index);
                return;
            }
            None if known || self.draining || self.past.contains(&id) => {
                let why = if self.draining { bond::ResetReason::Stopped } else { bond::ResetReason::Reset };
                return self.linger(member, Frame::Reset(why as u8).header().to_vec());
            }
            None if self.stream_count() >= self.host.most_streams() => {
                return self.linger(member, Frame::Reset(bond::ResetReason::NoRoom as u8).header().to_vec());
            }
            None => {
                let bonded = BondedConnection::called(preface, id, self.stream_over(window), self.now).with_shares(self.host.bulk_shares());
                self.settle(bonded)
            }
        };
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        let old = bonded.stream.lose_over(member.network);
        if bonded.stream.members().count() < MOST_MEMBERS {
            bonded.stream.add(time, member, tier);
            bonded.alone = None;
            self.entries.put(index, BondSocket::Member(slot));
        } else {
            self.entries.remove(index);
        }
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
        self.proceed(slot, scratch);
    }

    /// Dials connections that the networks lack.
    pub(crate) fn dial_networks(&mut self) {
        while let Some((network, step)) = self.networks.dial(self.now) {
            match step {
                NetworkStep::LookUp(name, port) => self.host.look_up_far_end(name, port, network),
                NetworkStep::Dialled(Ok(socket)) => {
                    let version = self.networks.version(network);
                    let handshake = Box::new(Handshake::dialled(socket, version, self.now));
                    let index = self.entries.insert(BondSocket::Handshake(handshake, HandshakeOrigin::Dialled(network)));
                    if let Some(BondSocket::Handshake(handshake, _)) = self.entries.get(index)
                        && let Err(why) = self.watch(index, handshake.socket())
                    {
                        self.drop_entry(index);
                        self.networks.failed(network, &HandshakeFailure::Failed(why), self.now);
                    }
                }
                NetworkStep::Dialled(Err(why)) => {
                    let why = Errno::from_io_error(&why).unwrap_or(Errno::IO);
                    self.networks.failed(network, &HandshakeFailure::Failed(why), self.now);
                }
            }
        }
    }
}

/// Switches keepalive probes on.
fn keep_alive(socket: &Socket, idle: Duration) {
    let probe = TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(10)).with_retries(5);
    let _ = socket.set_tcp_keepalive(&probe);
}
