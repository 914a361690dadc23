//! A connection: its two ends, and the handshake between them (RFC 9293 §3.5). Data go from the left end to the right one, whoever opens.

use crate::{
    net::Net,
    packet::{HEADER, Kind, Packet, SYN_BYTES},
    receiver::Receiver,
    sender::Sender,
    settings::Settings,
};
use scenario::Opens;

/// SYNs that are sent again at equal distances, before the distances double (Linux: tcp_syn_linear_timeouts).
const LINEAR_SYNS: u32 = 4;

/// Where an end stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It waits, or has not begun.
    Idle,
    /// It has asked for the connection.
    Asks,
    /// It was asked, and has granted it.
    Grants,
    /// It has a connection.
    Up,
}

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that sends data.
    Left,
    /// The one that receives them.
    Right,
}

/// What one end knows of the handshake.
#[derive(Debug, Clone, Copy)]
struct Shake {
    end: End,
    /// When its first SYN or SYN-ACK was sent, and how many followed it.
    first_sent: u64,
    repeats: u32,
    /// What the next SYN-ACK echoes.
    echo: u64,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    opens: Opens,
    shakes: [Shake; 2],
    settings: Settings,
    lines: [usize; 2],
    conn: u32,
}

impl Conn {
    /// One that nobody has opened yet. `lines` are those that the left and the right end send into.
    pub(crate) fn new(sender: Sender, receiver: Receiver, opens: Opens, lines: [usize; 2], settings: Settings) -> Self {
        let shake = Shake { end: End::Idle, first_sent: 0, repeats: 0, echo: 0 };
        let conn = sender.place.conn;
        Conn { sender, receiver, opens, shakes: [shake; 2], settings, lines, conn }
    }

    /// Whether an end has its connection.
    pub(crate) fn is_up(&self, side: Side) -> bool {
        self.shakes[side as usize].end == End::Up
    }

    /// Its opener asks for it.
    pub(crate) fn open(&mut self, net: &mut Net) {
        let side = match self.opens {
            Opens::Sender => Side::Left,
            Opens::Receiver => Side::Right,
        };
        let shake = &mut self.shakes[side as usize];
        (shake.end, shake.first_sent) = (End::Asks, net.now);
        self.say(side, Kind::Syn, net);
        self.arm(side, net);
    }

    fn say(&mut self, side: Side, kind: Kind, net: &mut Net) {
        let shake = &self.shakes[side as usize];
        let size = if kind == Kind::Ack { HEADER } else { SYN_BYTES };
        let mut packet = Packet::bare(self.conn, kind, size);
        packet.sent = if kind == Kind::Syn { net.now } else { shake.echo };
        packet.amount = self.receiver.first_window();
        net.send(self.lines[side as usize], packet);
    }

    fn arm(&mut self, side: Side, net: &mut Net) {
        let shake = &self.shakes[side as usize];
        // Those that grant double at once.
        let linear = if shake.end == End::Asks { LINEAR_SYNS } else { 0 };
        let after = (self.settings.initial_rto.0 / 1000) << shake.repeats.saturating_sub(linear).min(6);
        match side {
            Side::Left => self.sender.arm_handshake(after, net),
            Side::Right => self.receiver.arm_handshake(after, net),
        }
    }

    /// The timer of an end that is not up has fired: what it said is said again.
    pub(crate) fn repeat(&mut self, side: Side, net: &mut Net) {
        let kind = match self.shakes[side as usize].end {
            End::Asks => Kind::Syn,
            End::Grants => Kind::SynAck,
            End::Idle | End::Up => return,
        };
        self.shakes[side as usize].repeats += 1;
        if side == Side::Left {
            self.sender.tally.retransmits += 1;
        }
        self.say(side, kind, net);
        self.arm(side, net);
    }

    /// A packet that an end gets before it has its connection, or that belongs to the handshake; true: it has one now.
    pub(crate) fn shake(&mut self, side: Side, packet: &Packet, net: &mut Net) -> bool {
        let shake = &mut self.shakes[side as usize];
        match (shake.end, packet.kind) {
            (End::Idle | End::Grants, Kind::Syn) => {
                shake.echo = packet.sent;
                if shake.end == End::Idle {
                    (shake.end, shake.first_sent) = (End::Grants, net.now);
                    self.arm(side, net);
                }
                self.say(side, Kind::SynAck, net);
                false
            }
            (End::Asks, Kind::SynAck) => {
                self.establish(side, packet, net);
                self.confirm(side, net);
                true
            }
            // Its last word was lost.
            (End::Up, Kind::SynAck) => {
                self.confirm(side, net);
                false
            }
            (End::Grants, Kind::Ack | Kind::Data | Kind::Probe) => {
                self.establish(side, packet, net);
                true
            }
            _ => false,
        }
    }

    /// The last word of the handshake.
    fn confirm(&mut self, side: Side, net: &mut Net) {
        match side {
            Side::Left => {
                self.shakes[0].echo = net.now;
                self.say(side, Kind::Ack, net);
            }
            Side::Right => self.receiver.acknowledge(net),
        }
    }

    fn establish(&mut self, side: Side, packet: &Packet, net: &mut Net) {
        let shake = &mut self.shakes[side as usize];
        let asked = shake.end == End::Asks;
        shake.end = End::Up;
        // What a SYN-ACK answers says how long ago that was; of what follows a SYN-ACK that was repeated nobody knows what it answers.
        let since = if asked { Some(packet.sent) } else { Some(shake.first_sent).filter(|_| shake.repeats == 0) };
        let rtt_us = since.map_or(0, |since| ((net.now - since) / 1000).max(1) as u32);
        // RFC 6928 §3: from one segment on after several SYNs; not where the answer shows that they were needless (RFC 3522).
        let needless = asked && packet.sent == shake.first_sent;
        let initial = if shake.repeats > 1 && !needless { 1 } else { self.settings.initial_window };
        match side {
            Side::Left => self.sender.establish(rtt_us, packet.amount, initial, net),
            Side::Right => self.receiver.establish(rtt_us),
        }
    }
}
