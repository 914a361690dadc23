//! A connection: its two ends, and the handshake between them (RFC 9293 §3.5). Data go from the left end to the right one, whoever opens.
//!
//! With Fast Open (RFC 7413) the opener has a cookie from an earlier connection. Its first SYN carries that, and where the opener is the one
//! who sends, the first bytes. The end that is asked begins at once: it reads those, or it is the one who sends, and sends behind its SYN-ACK
//! before the handshake is over. A SYN that is repeated is one without a cookie, as Linux has it: what the first carried goes again
//! after the handshake.

use crate::{
    network::Net,
    packet::{COOKIE, COOKIE_BYTES, FIN, HEADER, Kind, Packet, SYN_BYTES},
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
    /// It was asked with a cookie, and has begun before it was up.
    early: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    opens: Opens,
    fast_open: bool,
    shakes: [Shake; 2],
    pub(crate) settings: Settings,
    lines: [usize; 2],
    conn: u32,
}

impl Conn {
    /// One that nobody has opened yet. `lines` are those that the left and the right end send into.
    pub(crate) fn new(
        sender: Sender,
        receiver: Receiver,
        (opens, fast_open): (Opens, bool),
        lines: [usize; 2],
        settings: Settings,
    ) -> Self {
        let shake = Shake { end: End::Idle, first_sent: 0, repeats: 0, echo: 0, early: false };
        let conn = sender.place.conn;
        Conn { sender, receiver, opens, fast_open, shakes: [shake; 2], settings, lines, conn }
    }

    /// Whether an end has its connection.
    pub(crate) fn is_up(&self, side: Side) -> bool {
        self.shakes[side as usize].end == End::Up
    }

    /// Whether an end that is not up may do what one that is up does: send behind its SYN-ACK, or read what came with the SYN.
    pub(crate) fn is_early(&self, side: Side) -> bool {
        let shake = &self.shakes[side as usize];
        shake.early && shake.end != End::Up
    }

    /// Whether its SYN is to carry data, and was not sent: its opener waits until there are some.
    pub(crate) fn waits_for_data(&self) -> bool {
        self.fast_open && self.opens == Opens::Sender && self.shakes[0].end == End::Idle
    }

    /// Its opener asks for it.
    pub(crate) fn open(&mut self, net: &mut Net) {
        let side = match self.opens {
            Opens::Sender => Side::Left,
            Opens::Receiver => Side::Right,
        };
        let shake = &mut self.shakes[side as usize];
        (shake.end, shake.first_sent) = (End::Asks, net.now);
        let mut packet = self.word(side, Kind::Syn, net);
        if self.fast_open {
            packet.flags |= COOKIE;
            packet.size += COOKIE_BYTES as u16;
            if side == Side::Left {
                let (len, is_all) = self.sender.syn_payload();
                packet.size += len as u16;
                packet.flags |= if is_all { FIN } else { 0 };
            }
        }
        net.send(self.lines[side as usize], packet);
        self.arm(side, net);
    }

    /// A packet of the handshake.
    fn word(&self, side: Side, kind: Kind, net: &Net) -> Packet {
        let size = if kind == Kind::Ack { HEADER } else { SYN_BYTES };
        let mut packet = Packet::bare(self.conn, kind, size);
        packet.sent = if kind == Kind::Syn { net.now } else { self.shakes[side as usize].echo };
        packet.amount = self.receiver.first_window();
        if kind == Kind::SynAck && side == Side::Right {
            packet.seq = self.receiver.next;
        }
        packet
    }

    fn say(&mut self, side: Side, kind: Kind, net: &mut Net) {
        let packet = self.word(side, kind, net);
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

    /// A packet that an end gets before it has its connection, or that belongs to the handshake; true: it has one now, or may do as if.
    pub(crate) fn shake(&mut self, side: Side, packet: &Packet, net: &mut Net) -> bool {
        let shake = &mut self.shakes[side as usize];
        match (shake.end, packet.kind) {
            (End::Idle | End::Grants, Kind::Syn) => {
                shake.echo = packet.sent;
                let is_first = shake.end == End::Idle;
                let begins = is_first && packet.has(COOKIE);
                if is_first {
                    (shake.end, shake.first_sent, shake.early) = (End::Grants, net.now, begins);
                    if begins {
                        self.begin_early(side, packet, net);
                    }
                    self.arm(side, net);
                }
                self.say(side, Kind::SynAck, net);
                begins
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
                let began = shake.early;
                self.establish(side, packet, net);
                !began
            }
            _ => false,
        }
    }

    /// A cookie has come: the end need not wait for the handshake's last word.
    fn begin_early(&mut self, side: Side, syn: &Packet, net: &mut Net) {
        match side {
            Side::Left => self.sender.establish_early(syn.amount, net),
            Side::Right => self.receiver.take_from_syn(syn.syn_payload().into(), syn.has(FIN)),
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
        let (began, first_sent) = (shake.early, shake.first_sent);
        match side {
            Side::Left if began => self.sender.end_handshake(rtt_us, net),
            Side::Left => {
                self.sender.begin_after(packet.seq, first_sent);
                self.sender.establish(rtt_us, packet.amount, initial, net);
            }
            Side::Right => {
                self.receiver.establish(rtt_us);
                if began {
                    // Room that came free since its SYN-ACK could not be told before.
                    self.receiver.release(0, net);
                }
            }
        }
    }
}
