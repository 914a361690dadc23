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
//!
//! Clients and servers are not trusted. Bytes count if their packets have passed and the other end
//! has acknowledged them. An acknowledgement of something that was not sent makes the connection
//! suspicious: it has no time. Packets far from what has passed are ignored, as their receivers do.
//! A split connection has a time only if the relay's own count of its bytes agrees.

use super::{
    relayed::RelayedFlow,
    sequence::{Acknowledgement, SentBytes},
};
use intercept::{Group, LoggedPacket, Passage};
use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The most connections that are followed at once. Further ones are not measured.
const MOST: usize = 1 << 16;
/// The most pieces of payload beyond holes, of all connections together. A connection that needs
/// one more is not followed any longer.
const PIECES: usize = 1 << 17;
/// The most complete connections between the same addresses and ports that wait for the relay.
const WAITING: usize = 4;
/// The most flows that wait for the packets of their connections, and how long one waits. The kernel
/// hands packets over in batches: a short flow may have ended before its SYN is read.
const EARLY: usize = 1 << 12;
const EARLY_FOR: Duration = Duration::from_secs(10);
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
    Ended { client: IpAddr, server: IpAddr, how: Ended },
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
    },
    /// The same, without payload.
    Empty,
    /// A reset has ended it, or the client closed it without an answer.
    Reset,
    /// Nothing was seen of it for too long.
    Unfinished,
    /// The client's SYNs were not answered.
    Unanswered,
    /// An end has acknowledged what was not sent, or the relay has not relayed what packets say.
    Suspicious,
    /// Some of its packets, or the relay's count of its bytes, did not reach the experiment.
    Missed,
}

/// The addresses and ports of a connection: client, server.
type Ends = (SocketAddr, SocketAddr);

/// A connection, from its SYN on.
#[derive(Debug)]
struct Connection {
    group: Group,
    client_isn: u32,
    syn_at: Duration,
    /// A SYN or its answer was retransmitted, which makes the round trips ambiguous.
    is_ambiguous: bool,
    /// The time of the SYN-ACK.
    answered_at: Option<Duration>,
    is_established: bool,
    /// Time of the last packet of the client.
    last: Duration,
    /// Time since the SYN, without what does not count.
    active: Duration,
    /// `active` at the last answer.
    complete: Duration,
    /// From the client.
    up: SentBytes,
    /// To the client; absent before its SYN-ACK has passed.
    down: Option<SentBytes>,
    /// The client has sent payload since the last answer.
    awaits_answer: bool,
    /// The last that the client did was to acknowledge an answer.
    is_at_rest: bool,
    /// What the relay has counted, if its flow has ended before the last packet was read.
    relayed: Option<[u64; 2]>,
}

/// How the packets of a connection say that it has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    /// With all answered: payload up and down, and the time.
    Complete([u64; 2], Duration),
    /// Otherwise.
    Other(Ended),
}

impl Connection {
    fn begin(packet: &LoggedPacket, group: Group) -> Self {
        let mut up = SentBytes::after_syn(packet.seq);
        // TCP Fast Open: a SYN may have payload.
        let awaits_answer = up.pass(packet.seq.wrapping_add(1), packet.payload);
        Connection {
            group,
            client_isn: packet.seq,
            syn_at: packet.at,
            is_ambiguous: false,
            answered_at: None,
            is_established: false,
            last: packet.at,
            active: Duration::ZERO,
            complete: Duration::ZERO,
            up,
            down: None,
            awaits_answer,
            is_at_rest: false,
            relayed: None,
        }
    }

    fn pieces(&self) -> usize {
        self.up.pieces() + self.down.as_ref().map_or(0, SentBytes::pieces)
    }

    /// A packet of the client other than a SYN. Returns how the connection has ended.
    fn take_from_client(&mut self, packet: &LoggedPacket, tell: &mut impl FnMut(Group, Event)) -> Option<Last> {
        if !self.up.is_plausible(packet.seq) {
            return None;
        }
        // A reset need not acknowledge anything.
        if packet.is_reset() {
            return Some(self.end());
        }
        let acknowledged = self.down.as_mut().map_or(Acknowledgement::NeverSent, |down| down.acknowledge(packet.ack));
        if acknowledged == Acknowledgement::NeverSent {
            return Some(Last::Other(Ended::Suspicious));
        }
        if !self.is_established {
            self.is_established = true;
            if let Some(answered) = self.answered_at.filter(|_| !self.is_ambiguous) {
                tell(self.group, Event::Near(packet.at.saturating_sub(answered)));
            }
        }
        let has_more = self.up.pass(packet.seq, packet.payload);
        let silence = packet.at.saturating_sub(self.last);
        let is_new_request = self.is_at_rest && has_more;
        if !is_new_request && silence <= IDLE {
            self.active += silence;
        }
        self.last = self.last.max(packet.at);
        if matches!(acknowledged, Acknowledgement::More(_)) {
            self.complete = self.active;
            self.awaits_answer = false;
            self.is_at_rest = !has_more;
        }
        let is_fin_acknowledged = self.down.as_ref().is_some_and(SentBytes::is_fin_acknowledged);
        if is_fin_acknowledged && self.awaits_answer {
            self.complete = self.active;
            self.awaits_answer = false;
        }
        if has_more {
            self.awaits_answer = true;
            self.is_at_rest = false;
        }
        if packet.is_fin() {
            self.up.pass_fin(packet.seq, packet.payload);
        }
        (self.up.has_fin() && is_fin_acknowledged).then(|| self.end())
    }

    /// An answer to the client's SYN, where it comes in or where it leaves.
    fn take_answer(&mut self, packet: &LoggedPacket, tell: &mut impl FnMut(Group, Event)) {
        let is_known = self.is_established || self.up.acknowledge(packet.ack) == Acknowledgement::NeverSent;
        if is_known || (self.group == Group::Split && packet.passage == Passage::FromServer) {
            return;
        }
        if packet.passage == Passage::ToClient && !self.down.as_ref().is_some_and(|down| down.is_after_syn(packet.seq)) {
            self.down = Some(SentBytes::after_syn(packet.seq));
        }
        let answered_at = match (self.group, packet.passage) {
            (Group::Unsplit, Passage::FromServer) => packet.at,
            // The same SYN-ACK again, where it leaves.
            (Group::Unsplit, _) => return,
            // This host answers a SYN at once, and the time at which its answer was read is less
            // exact.
            (Group::Split, _) => self.syn_at,
        };
        self.is_ambiguous |= self.answered_at.is_some();
        self.answered_at = Some(answered_at);
        if !self.is_ambiguous && self.group == Group::Unsplit {
            tell(self.group, Event::Far(answered_at.saturating_sub(self.syn_at)));
        }
    }

    /// A packet to the client other than a SYN. Returns how the connection has ended.
    fn take_to_client(&mut self, packet: &LoggedPacket) -> Option<Last> {
        if self.down.as_ref().is_some_and(|down| !down.is_plausible(packet.seq)) {
            return None;
        }
        let acknowledged = self.up.acknowledge(packet.ack);
        match &mut self.down {
            // A reset that refuses the SYN acknowledges it.
            None => (packet.is_reset() && acknowledged != Acknowledgement::NeverSent).then(|| self.end()),
            Some(_) if packet.is_reset() => Some(self.end()),
            Some(_) if acknowledged == Acknowledgement::NeverSent => Some(Last::Other(Ended::Suspicious)),
            Some(down) => {
                down.pass(packet.seq, packet.payload);
                if packet.is_fin() {
                    down.pass_fin(packet.seq, packet.payload);
                }
                None
            }
        }
    }

    /// How it ends by a FIN in each direction, or by a reset.
    fn end(&self) -> Last {
        let is_closed = self.up.has_fin() || self.down.as_ref().is_some_and(SentBytes::is_fin_acknowledged);
        let bytes = [self.up.acknowledged(), self.down.as_ref().map_or(0, SentBytes::acknowledged)];
        match (is_closed && !self.awaits_answer, bytes) {
            (true, [0, 0]) => Last::Other(Ended::Empty),
            (true, _) => Last::Complete(bytes, self.complete),
            (false, _) => Last::Other(Ended::Reset),
        }
    }
}

/// A split connection that is complete by its packets, and of which the relay has not told yet.
#[derive(Debug)]
struct Waiting {
    syn_at: Duration,
    since: Duration,
    bytes: [u64; 2],
    time: Duration,
}

/// What counts of a connection, beside the relay's counts of it.
///
/// What the relay has received can be less than what its host has acknowledged: a server that
/// closes early leaves some of an upload with the relay. But a client cannot have more than the
/// relay has sent.
fn verified([up, down]: [u64; 2], time: Duration, [relayed_up, relayed_down]: [u64; 2]) -> Ended {
    let bytes = up.min(relayed_up) + down;
    if down > relayed_down { Ended::Suspicious } else { Ended::Complete { bytes, time } }
}

/// The connections that are followed.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: HashMap<Ends, Connection>,
    waiting: HashMap<Ends, Vec<Waiting>>,
    /// Flows of which the relay has told, and no packet was read yet.
    early: HashMap<Ends, RelayedFlow>,
    /// Pieces beyond holes of all open connections.
    pieces: usize,
    /// Connections that were not followed, because there were too many.
    pub(super) left_out: u64,
}

/// The end of a connection.
fn ended((client, server): Ends, how: Ended) -> Event {
    Event::Ended { client: client.ip().to_canonical(), server: server.ip().to_canonical(), how }
}

impl Connections {
    /// The number of open connections of a group.
    pub(super) fn open_of(&self, group: Group) -> u64 {
        let waiting = if group == Group::Split { self.waiting.values().map(Vec::len).sum() } else { 0 };
        (self.open.values().filter(|connection| connection.group == group).count() + waiting) as u64
    }

    /// Whether connections wait for what the relay has counted.
    pub(super) fn waits_for_relay(&self) -> bool {
        !self.waiting.is_empty()
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
        let ends = if from_client { (packet.from, packet.to) } else { (packet.to, packet.from) };
        let Some(connection) = self.open.get_mut(&ends) else { return };
        let before = connection.pieces();
        let last = if from_client {
            connection.take_from_client(packet, &mut tell)
        } else if packet.is_syn() {
            connection.take_answer(packet, &mut tell);
            None
        } else {
            connection.take_to_client(packet)
        };
        self.pieces = self.pieces - before + connection.pieces();
        let has_room = self.pieces <= PIECES || connection.pieces() <= before;
        match last {
            Some(last) => self.finish(ends, last, &mut tell),
            None if has_room => {}
            None => self.finish(ends, Last::Other(Ended::Missed), &mut tell),
        }
    }

    fn begin(&mut self, packet: &LoggedPacket, group: Group, tell: &mut impl FnMut(Group, Event)) {
        let ends = (packet.from, packet.to);
        if let Some(known) = self.open.get_mut(&ends) {
            if known.client_isn == packet.seq {
                known.is_ambiguous = true;
                return;
            }
            self.finish(ends, Last::Other(Ended::Unfinished), tell);
        }
        let early = self.early.remove(&ends).filter(|flow| packet.at <= flow.ended_at);
        if self.open.len() + self.waiting.len() < MOST {
            let relayed = early.map(|flow| flow.bytes);
            self.open.insert(ends, Connection { relayed, ..Connection::begin(packet, group) });
            tell(group, Event::Began);
        } else {
            self.left_out += 1;
        }
    }

    /// Stops following a connection that has ended like this by its packets.
    fn finish(&mut self, ends: Ends, last: Last, tell: &mut impl FnMut(Group, Event)) {
        let Some(connection) = self.open.remove(&ends) else { return };
        self.pieces -= connection.pieces();
        let how = match (last, connection.group, connection.relayed) {
            (Last::Other(how), ..) => how,
            (Last::Complete([up, down], time), Group::Unsplit, _) => Ended::Complete { bytes: up + down, time },
            (Last::Complete(bytes, time), Group::Split, Some(relayed)) => verified(bytes, time, relayed),
            (Last::Complete(bytes, time), Group::Split, None) => {
                let waiting = self.waiting.entry(ends).or_default();
                waiting.push(Waiting { syn_at: connection.syn_at, since: connection.last, bytes, time });
                if waiting.len() <= WAITING {
                    return;
                }
                waiting.remove(0);
                Ended::Missed
            }
        };
        tell(connection.group, ended(ends, how));
    }

    /// The relay has counted the bytes of a flow that has ended.
    pub(super) fn take_relayed(&mut self, flow: &RelayedFlow, mut tell: impl FnMut(Group, Event)) {
        let ends = (flow.client, flow.server);
        // A later connection between the same ports is another flow.
        if let Entry::Occupied(mut waiting) = self.waiting.entry(ends)
            && let Some(at) = waiting.get().iter().position(|waiting| waiting.syn_at <= flow.ended_at)
        {
            let Waiting { bytes, time, .. } = waiting.get_mut().remove(at);
            if waiting.get().is_empty() {
                waiting.remove();
            }
            tell(Group::Split, ended(ends, verified(bytes, time, flow.bytes)));
        } else if let Some(connection) = self.open.get_mut(&ends).filter(|connection| connection.syn_at <= flow.ended_at) {
            connection.relayed = Some(flow.bytes);
        } else if self.early.len() < EARLY {
            self.early.insert(ends, *flow);
        }
    }

    /// Stops following all open connections.
    fn drop_all(&mut self, how: Ended, mut tell: impl FnMut(Group, Event)) {
        self.pieces = 0;
        for (ends, connection) in self.open.drain() {
            tell(connection.group, ended(ends, how));
        }
    }

    /// Stops following all connections, since the clock was set: the times of their next packets
    /// would not fit the earlier ones.
    pub(super) fn abandon(&mut self, tell: impl FnMut(Group, Event)) {
        self.drop_all(Ended::Unfinished, tell);
    }

    /// Stops following all connections, since packets were lost before they were read: they could
    /// be packets of each of them.
    pub(super) fn lose(&mut self, tell: impl FnMut(Group, Event)) {
        self.drop_all(Ended::Missed, tell);
    }

    /// Stops following connections of which nothing was seen for long. Call it from time to time.
    pub(super) fn sweep(&mut self, now: Duration, mut tell: impl FnMut(Group, Event)) {
        let pieces = &mut self.pieces;
        self.open.retain(|ends, connection| {
            let (limit, how) = if connection.is_established { (SILENCE, Ended::Unfinished) } else { (UNANSWERED, Ended::Unanswered) };
            let is_live = now.saturating_sub(connection.last) < limit;
            if !is_live {
                *pieces -= connection.pieces();
                tell(connection.group, ended(*ends, how));
            }
            is_live
        });
        self.waiting.retain(|ends, waiting| {
            let is_over = |waiting: &mut Waiting| now.saturating_sub(waiting.since) >= SILENCE;
            waiting.extract_if(.., is_over).for_each(|_| tell(Group::Split, ended(*ends, Ended::Missed)));
            !waiting.is_empty()
        });
        self.early.retain(|_, flow| now.saturating_sub(flow.ended_at) < EARLY_FOR);
    }
}

#[cfg(test)]
mod tests;
