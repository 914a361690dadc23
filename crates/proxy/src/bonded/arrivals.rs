//! Connections until they are of a stream: dialled and accepted ones, those that are ready, those that say of which stream they are.

use super::{
    BondConfig, Bonds, Entry, Origin, UNKNOWN,
    entrance::{Entrance, Step, Unfit},
    life::Bonded,
    member::Member,
};
use crate::{
    config::{Config, ProxyVersion},
    relay::Tools,
};
use bond::{Decoded, Frame, FrameReader};
use intercept::{leg, sys};
use rustix::io::Errno;
use socket2::{Socket, TcpKeepalive};
use std::{io::IoSliceMut, net::SocketAddr, time::Duration};

/// Connections that have, and are of no stream yet.
const MOST_GUESTS: usize = 4096;
/// Connections of a stream: twice as many as there can be networks.
const MOST_MEMBERS: usize = 2 * BondConfig::MOST_NETWORKS;

impl Bonds {
    /// A connection has come to a listener for bonds.
    pub(crate) fn greet(&mut self, socket: Socket, send_proxy: Option<ProxyVersion>) {
        if self.draining {
            return;
        }
        if self.strangers.len() >= Config::most_strangers() {
            // Of those that have shown nothing the oldest; where all have shown something, which may have been overheard, the oldest of all.
            let place = self.strangers.iter().position(|index| self.is_stranger(*index)).unwrap_or(0);
            if let Some(oldest) = self.strangers.remove(place)
                && self.is_arriving(oldest)
            {
                self.refused += 1;
                self.drop_entry(oldest);
            }
        }
        let _ = socket.set_linger(None);
        let entrance = Box::new(Entrance::accepted(socket, self.now));
        let index = self.enter(Entry::Entrance(entrance, Origin::Accepted(send_proxy)));
        self.strangers.push_back(index);
        if let Some(Some(Entry::Entrance(entrance, _))) = self.entries.get(index)
            && self.watch(index, entrance.socket()).is_err()
        {
            self.drop_entry(index);
        }
    }

    pub(super) fn is_stranger(&self, index: usize) -> bool {
        matches!(&self.entries[index], Some(Entry::Entrance(entrance, Origin::Accepted(_))) if entrance.is_stranger())
    }

    /// Whether it was accepted, and is not in.
    pub(super) fn is_arriving(&self, index: usize) -> bool {
        matches!(&self.entries[index], Some(Entry::Entrance(_, Origin::Accepted(_))))
    }

    pub(super) fn on_entrance(&mut self, index: usize, tools: &mut Tools) {
        let Some(Entry::Entrance(entrance, origin)) = self.entries[index].take() else { return };
        let since = entrance.since;
        match entrance.step(&self.keeper) {
            Ok(Step::Waits(entrance)) => self.entries[index] = Some(Entry::Entrance(entrance, origin)),
            Ok(Step::In(channel, window)) => match origin {
                Origin::Dialled(network) => {
                    self.entries[index] = Some(Entry::Spare(channel, network, window));
                    self.networks.ready(network, index, window, since, self.now);
                    self.hand_out(network, tools);
                }
                Origin::Accepted(send_proxy) if self.guests < MOST_GUESTS && !self.draining => {
                    self.guests += 1;
                    keep_alive(channel.socket(), Duration::from_secs(60));
                    self.tune(channel.socket());
                    self.entries[index] = Some(Entry::Guest(channel, window, send_proxy, Vec::new()));
                    self.on_guest(index, tools);
                }
                Origin::Accepted(_) => self.freed.push(index),
            },
            Err(why) => {
                self.freed.push(index);
                match origin {
                    Origin::Dialled(network) => {
                        self.networks.dialled(network);
                        self.networks.failed(network, &why, self.now);
                    }
                    Origin::Accepted(_) => {
                        self.refused += 1;
                        tracing::debug!("the bond's listener turned a connection away: {why}");
                    }
                }
            }
        }
    }

    /// Gives a connection that was accepted the profile of where it leads.
    pub(super) fn tune(&self, socket: &Socket) {
        let Some(peer) = socket.peer_addr().ok().and_then(|peer| peer.as_socket()) else { return };
        // A listener for both families tells IPv4 addresses in the form of IPv6.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let routes = self.routes.as_ref();
        let (profile, _) = self.config.policy.legs_of(peer, UNKNOWN, |address| routes?.interface_to(address));
        if let Err(why) = leg::apply(socket, profile, || sys::dscp_of_syn(socket)) {
            tracing::warn!("a connection of the bond is not tuned as its profile says: {why}");
        }
    }

    /// Gives a connection that has just become ready to a stream that waits for one.
    pub(super) fn hand_out(&mut self, network: usize, tools: &mut Tools) {
        while let Some((slot, id)) = self.networks.next_wanting(network) {
            if self.streams.get(slot).and_then(Option::as_ref).is_some_and(|bonded| bonded.id == id)
                && let Some(index) = self.networks.take(network)
            {
                self.join(index, slot);
                self.proceed(slot, tools);
                return;
            }
        }
    }

    /// One that has the key says of which stream it is.
    pub(super) fn on_guest(&mut self, index: usize, tools: &mut Tools) {
        let Some(Entry::Guest(mut channel, window, send_proxy, mut heard)) = self.entries[index].take() else { return };
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
                    self.entries[index] = Some(Entry::Guest(channel, window, send_proxy, heard));
                    return;
                }
                Err(_) => break None,
            }
        };
        self.guests -= 1;
        match joins {
            Some(Decoded::Frame(Frame::Join { stream, known, network, tier })) => {
                self.entries[index] = Some(Entry::Member(usize::MAX));
                let member = Member::new(channel, network, index, self.bond().connection_window);
                self.admit(member, (stream, known, tier), window, send_proxy, tools);
            }
            _ => {
                // It has ended, or speaks of something else before a stream.
                self.freed.push(index);
            }
        }
    }

    /// A connection says of which stream it is: of one there is, or the first of one.
    pub(super) fn admit(
        &mut self,
        member: Member,
        (id, known, tier): (u128, bool, u8),
        window: u32,
        send_proxy: Option<ProxyVersion>,
        tools: &mut Tools,
    ) {
        let (index, time) = (member.entry, self.time());
        let slot = match self.by_id.get(&id) {
            Some(slot) => *slot,
            None if known || self.draining || self.past.contains(&id) => {
                let why = if self.draining { bond::ResetReason::Stopped } else { bond::ResetReason::Reset };
                return self.say_farewell(member, Frame::Reset(why as u8).header().to_vec());
            }
            None if self.len() >= self.config.room_of_a_worker() => {
                return self.say_farewell(member, Frame::Reset(bond::ResetReason::NoRoom as u8).header().to_vec());
            }
            None => {
                let bonded = Bonded::called(send_proxy, id, self.stream_over(window), self.now).with_shares(self.shares());
                self.settle(bonded)
            }
        };
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        let old = bonded.stream.lose_over(member.network);
        if bonded.stream.members().count() < MOST_MEMBERS {
            bonded.stream.add(time, member, tier);
            bonded.alone = None;
            self.entries[index] = Some(Entry::Member(slot));
        } else {
            self.freed.push(index);
            self.entries[index] = None;
        }
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
        self.proceed(slot, tools);
    }

    /// Keeps connections ready over the networks.
    pub(super) fn dial_networks(&mut self) {
        while let Some((network, socket)) = self.networks.dial(self.now) {
            match socket {
                Ok(socket) => {
                    let entrance = Box::new(Entrance::dialled(socket, self.now));
                    let index = self.enter(Entry::Entrance(entrance, Origin::Dialled(network)));
                    if let Some(Some(Entry::Entrance(entrance, _))) = self.entries.get(index)
                        && let Err(why) = self.watch(index, entrance.socket())
                    {
                        self.drop_entry(index);
                        self.networks.failed(network, &Unfit::Failed(why), self.now);
                    }
                }
                Err(why) => {
                    let why = Errno::from_io_error(&why).unwrap_or(Errno::IO);
                    self.networks.failed(network, &Unfit::Failed(why), self.now);
                }
            }
        }
    }
}

/// Has a connection's other end asked whether it is still there.
fn keep_alive(socket: &Socket, idle: Duration) {
    let probe = TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(10)).with_retries(5);
    let _ = socket.set_tcp_keepalive(&probe);
}
