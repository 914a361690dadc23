//! The connections of an experiment, followed by the headers of their packets.
//!
//! A connection is measured by what its client has: its time is that from the client's SYN to the
//! acknowledgement of the last byte that the client received. Both packets come from the client, so
//! that the way from the client to this host adds the same to both, and the difference is the
//! client's own time. Nothing depends on how the proxy's other leg carries the data, which makes
//! the time comparable between the groups:
//!
//! - **Downloads**: the last byte of the server.
//! - **Uploads**: a proxy acknowledges the client's bytes long before the server has them, so that
//!   their acknowledgement says nothing. The answer of the server to them does: it follows when the
//!   server has them. If no data follow them, the end of the server's stream (FIN) is the answer.
//!
//! Time in which the client has all that it asked for does not count: from the acknowledgement of
//! an answer to the next request, and silence of more than [`IDLE`], of a connection that waits for
//! an event. Connections that end by a reset or not at all are counted, and have no time.

use intercept::{Group, LoggedPacket, Passage};
use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The most connections that are followed at once. Further ones are not measured.
const MOST: usize = 1 << 16;
/// Silence of the client that is longer does not count as time of the transfer.
const IDLE: Duration = Duration::from_secs(60);
/// A connection without a packet for so long is not followed any more. The firewall forgets it then
/// too.
const SILENCE: Duration = Duration::from_secs(900);
/// The same for a connection that was not answered: longer than SYNs are retransmitted.
const UNANSWERED: Duration = Duration::from_secs(150);

/// What was seen of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// It began: the first SYN.
    Began,
    /// A SYN-ACK was acknowledged by the client after this time: a round trip on the client's side.
    Near(Duration),
    /// The server answered the SYN of an unsplit connection after this time: a round trip on its
    /// side.
    Far(Duration),
    /// It has ended.
    Ended(Ended),
}

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ended {
    /// Both ends have closed it, and the client has the answer to all that it sent.
    Complete {
        /// Payload of both directions.
        bytes: u64,
        /// Its time.
        time: Duration,
        server: IpAddr,
    },
    /// The same, without payload.
    Empty,
    /// A reset has ended it, or the client closed it without an answer.
    Reset,
    /// Nothing was seen of it for too long.
    Unfinished,
    /// The client's SYNs were not answered.
    Unanswered,
}

/// A connection, from its SYN on.
#[derive(Debug)]
struct Connection {
    group: Group,
    client_isn: u32,
    syn_at: Duration,
    /// A SYN or its answer was retransmitted, which makes the round trips ambiguous.
    is_ambiguous: bool,
    /// Whether a SYN-ACK was seen, and its time where that is known.
    is_answered: bool,
    answered_at: Option<Duration>,
    is_established: bool,
    /// Time of the last packet of the client.
    last: Duration,
    /// Time since the SYN, without what does not count.
    active: Duration,
    /// `active` at the last answer.
    complete: Duration,
    /// The next sequence number of the client, and its payload so far.
    next_seq: u32,
    up: u64,
    /// The acknowledgement number of the client, and the payload that it has received.
    ack: u32,
    down: u64,
    /// The sequence number of the server's FIN.
    server_fin: Option<u32>,
    has_client_fin: bool,
    is_fin_acknowledged: bool,
    /// The client has sent payload since the last answer.
    awaits_answer: bool,
    /// The last that the client did was to acknowledge an answer.
    is_at_rest: bool,
}

/// Whether `number` comes after `other`, and how far.
fn after(number: u32, other: u32) -> Option<u32> {
    let distance = number.wrapping_sub(other);
    (distance != 0 && distance < 1 << 31).then_some(distance)
}

impl Connection {
    fn begin(packet: &LoggedPacket, group: Group) -> Self {
        Connection {
            group,
            client_isn: packet.seq,
            syn_at: packet.at,
            is_ambiguous: false,
            is_answered: false,
            answered_at: None,
            is_established: false,
            last: packet.at,
            active: Duration::ZERO,
            complete: Duration::ZERO,
            next_seq: packet.seq.wrapping_add(1),
            up: 0,
            ack: 0,
            down: 0,
            server_fin: None,
            has_client_fin: false,
            is_fin_acknowledged: false,
            awaits_answer: false,
            is_at_rest: false,
        }
    }

    /// A packet of the client other than a SYN. Returns how the connection has ended.
    fn take_from_client(&mut self, packet: &LoggedPacket, server: IpAddr, tell: &mut impl FnMut(Group, Event)) -> Option<Ended> {
        if !self.is_established {
            self.is_established = true;
            if let Some(answered) = self.answered_at.filter(|_| !self.is_ambiguous) {
                tell(self.group, Event::Near(packet.at.saturating_sub(answered)));
            }
            if !self.is_answered {
                // The SYN-ACK was lost on the way to this reader.
                self.ack = packet.ack;
            }
        }
        let end = packet.seq.wrapping_add(packet.payload);
        let more = after(end, self.next_seq).filter(|_| packet.payload > 0);
        let silence = packet.at.saturating_sub(self.last);
        let is_new_request = self.is_at_rest && more.is_some();
        if !is_new_request && silence <= IDLE {
            self.active += silence;
        }
        self.last = self.last.max(packet.at);
        // A reset need not acknowledge anything.
        if !packet.is_reset() {
            self.acknowledge(packet.ack, more.is_some());
        }
        if let Some(more) = more {
            self.up += u64::from(more);
            self.next_seq = end;
            self.awaits_answer = true;
            self.is_at_rest = false;
        }
        self.has_client_fin |= packet.is_fin();
        let is_closed = self.has_client_fin && self.is_fin_acknowledged;
        (is_closed || packet.is_reset()).then(|| self.end(server))
    }

    fn acknowledge(&mut self, ack: u32, with_payload: bool) {
        // The FIN has a sequence number, but is no payload.
        let is_fin_acknowledged = self.server_fin.is_some_and(|fin| after(ack, fin).is_some());
        let data_end = self.server_fin.filter(|_| is_fin_acknowledged).unwrap_or(ack);
        if let Some(more) = after(data_end, self.ack) {
            self.down += u64::from(more);
            self.ack = data_end;
            self.complete = self.active;
            self.awaits_answer = false;
            self.is_at_rest = !with_payload;
        }
        self.is_fin_acknowledged |= is_fin_acknowledged;
        if is_fin_acknowledged && self.awaits_answer {
            self.complete = self.active;
            self.awaits_answer = false;
        }
    }

    /// A packet to the client. Returns how the connection has ended.
    fn take_to_client(&mut self, packet: &LoggedPacket, server: IpAddr, tell: &mut impl FnMut(Group, Event)) -> Option<Ended> {
        if packet.is_syn() && !self.is_established {
            self.is_answered = true;
            self.ack = packet.seq.wrapping_add(1);
            let answered_at = match (self.group, packet.passage) {
                (Group::Unsplit, Passage::FromServer) => packet.at,
                // The same SYN-ACK again, where it leaves.
                (Group::Unsplit, _) => return None,
                // This host answers a SYN at once, and the time at which its answer was read is
                // less exact.
                (Group::Split, _) => self.syn_at,
            };
            self.is_ambiguous |= self.answered_at.is_some();
            self.answered_at = Some(answered_at);
            if !self.is_ambiguous && self.group == Group::Unsplit {
                tell(self.group, Event::Far(answered_at.saturating_sub(self.syn_at)));
            }
        } else if packet.is_fin() {
            self.server_fin = Some(packet.seq.wrapping_add(packet.payload));
        }
        packet.is_reset().then(|| self.end(server))
    }

    /// How it ends by a FIN in each direction, or by a reset.
    fn end(&self, server: IpAddr) -> Ended {
        let is_closed = self.has_client_fin || self.is_fin_acknowledged;
        let bytes = self.up + self.down;
        match (is_closed && !self.awaits_answer, bytes) {
            (true, 0) => Ended::Empty,
            (true, _) => Ended::Complete { bytes, time: self.complete, server },
            (false, _) => Ended::Reset,
        }
    }
}

/// The connections that are followed.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// By client and server.
    open: HashMap<(SocketAddr, SocketAddr), Connection>,
    /// Connections that were not followed, because there were too many.
    pub(super) left_out: u64,
}

impl Connections {
    /// The number of open connections of a group.
    pub(super) fn open_of(&self, group: Group) -> u64 {
        self.open.values().filter(|connection| connection.group == group).count() as u64
    }

    /// Takes a packet, in the order in which the firewall saw them.
    pub(super) fn take(&mut self, packet: &LoggedPacket, mut tell: impl FnMut(Group, Event)) {
        let from_client = packet.passage == Passage::FromClient;
        if packet.is_syn() && from_client {
            if let Some(group) = packet.group {
                self.begin(packet, group, &mut tell);
            }
            return;
        }
        let (client, server) = if from_client { (packet.from, packet.to) } else { (packet.to, packet.from) };
        let Entry::Occupied(mut found) = self.open.entry((client, server)) else { return };
        let connection = found.get_mut();
        let ended = if from_client {
            connection.take_from_client(packet, server.ip(), &mut tell)
        } else {
            connection.take_to_client(packet, server.ip(), &mut tell)
        };
        if let Some(ended) = ended {
            tell(found.remove().group, Event::Ended(ended));
        }
    }

    fn begin(&mut self, packet: &LoggedPacket, group: Group, tell: &mut impl FnMut(Group, Event)) {
        let has_room = self.open.len() < MOST;
        match self.open.entry((packet.from, packet.to)) {
            Entry::Occupied(mut known) if known.get().client_isn == packet.seq => known.get_mut().is_ambiguous = true,
            Entry::Occupied(mut old) => {
                let before = old.insert(Connection::begin(packet, group));
                tell(before.group, Event::Ended(Ended::Unfinished));
                tell(group, Event::Began);
            }
            Entry::Vacant(place) if has_room => {
                place.insert(Connection::begin(packet, group));
                tell(group, Event::Began);
            }
            Entry::Vacant(_) => self.left_out += 1,
        }
    }

    /// Stops following all connections, since the clock was set: the times of their next packets
    /// would not fit the earlier ones.
    pub(super) fn abandon(&mut self, mut tell: impl FnMut(Group, Event)) {
        for (_, connection) in self.open.drain() {
            tell(connection.group, Event::Ended(Ended::Unfinished));
        }
    }

    /// Stops following connections of which nothing was seen for long. Call it from time to time.
    pub(super) fn sweep(&mut self, now: Duration, mut tell: impl FnMut(Group, Event)) {
        self.open.retain(|_, connection| {
            let (limit, how) = if connection.is_established { (SILENCE, Ended::Unfinished) } else { (UNANSWERED, Ended::Unanswered) };
            let is_live = now.saturating_sub(connection.last) < limit;
            if !is_live {
                tell(connection.group, Event::Ended(how));
            }
            is_live
        });
    }
}

#[cfg(test)]
mod tests;
