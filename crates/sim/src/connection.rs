//! A TCP connection: a sender, a receiver, and the handshake between them (RFC 9293 §3.5). Data
//! flows from the sender to the receiver; either end may open the connection.
//!
//! With Fast Open (RFC 7413) the opener has a cookie from an earlier connection. Its first SYN
//! carries the cookie and, if the opener is the sender, the first payload. The passive end begins
//! without waiting for the rest of the handshake: a receiver delivers the payload of the SYN, a
//! sender sends data after its SYN-ACK. A retransmitted SYN has no cookie and no payload, as in
//! Linux; the payload of the first SYN is sent again after the handshake.
//!
//! The caller calls [`TcpConnection::open`], and then passes each packet that arrives at an end to
//! [`TcpConnection::on_handshake_packet`] until that end is established. Afterwards packets go to
//! the sender or the receiver directly, except for SYN-ACKs.

use crate::{
    event_queue::ScheduledEventKind,
    network::SimNetwork,
    packet::{FIN, HEADER_BYTES, PacketKind, SYN_BYTES, SimPacket, TFO_COOKIE, TFO_COOKIE_BYTES},
    receiver::TcpReceiver,
    sender::TcpSender,
    settings::TcpSettings,
};
use scenario::Opens;

/// Number of SYNs that are retransmitted at constant intervals, before the intervals double (Linux:
/// tcp_syn_linear_timeouts).
const LINEAR_SYNS: u32 = 4;

/// The state of the handshake at one end (RFC 9293 §3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    /// Before the handshake; a passive end listens.
    Closed,
    /// Has sent a SYN.
    SynSent,
    /// Has answered a SYN with a SYN-ACK.
    SynReceived,
    /// The handshake is complete at this end.
    Established,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The end that sends data.
    Sender,
    /// The end that receives data.
    Receiver,
}

/// One end's part of the handshake.
#[derive(Debug, Clone, Copy)]
struct TcpHandshake {
    state: HandshakeState,
    /// When its first SYN or SYN-ACK was sent.
    first_sent_ns: u64,
    /// Retransmissions of the SYN or SYN-ACK.
    retransmits: u32,
    /// The timestamp that the next SYN-ACK or ACK echoes.
    echo_ns: u64,
    /// The SYN that it received had a cookie, so it began before the handshake was complete.
    has_early_data: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct TcpConnection {
    pub(crate) sender: TcpSender,
    pub(crate) receiver: TcpReceiver,
    opens: Opens,
    fast_open: bool,
    /// By [`ConnectionEnd`].
    handshakes: [TcpHandshake; 2],
    pub(crate) settings: TcpSettings,
    /// The channels that the sender and the receiver send into.
    channels: [usize; 2],
    number: u32,
}

impl TcpConnection {
    /// A closed connection. `channels` are those that the sender and the receiver send into.
    pub(crate) fn new(
        sender: TcpSender,
        receiver: TcpReceiver,
        (opens, fast_open): (Opens, bool),
        channels: [usize; 2],
        settings: TcpSettings,
    ) -> Self {
        let handshake = TcpHandshake { state: HandshakeState::Closed, first_sent_ns: 0, retransmits: 0, echo_ns: 0, has_early_data: false };
        let number = sender.config.connection;
        TcpConnection { sender, receiver, opens, fast_open, handshakes: [handshake; 2], settings, channels, number }
    }

    /// Whether the handshake is complete at an end.
    pub(crate) fn is_established(&self, end: ConnectionEnd) -> bool {
        self.handshakes[end as usize].state == HandshakeState::Established
    }

    /// Establishes an end without a handshake of its own: by that of a connection in the opposite
    /// direction over the same leg, whose RTT was `rtt_us` (0: not measured).
    pub(crate) fn establish_with(&mut self, end: ConnectionEnd, rtt_us: u32, net: &mut SimNetwork) {
        self.handshakes[end as usize].state = HandshakeState::Established;
        match end {
            ConnectionEnd::Sender => {
                let window = self.receiver.handshake_window();
                self.sender.establish(rtt_us, window, self.settings.initial_window, net);
            }
            ConnectionEnd::Receiver => self.receiver.establish(rtt_us),
        }
    }

    /// The RTT that an end has measured so far, µs; 0 if none.
    pub(crate) fn handshake_rtt_us(&self, end: ConnectionEnd) -> u32 {
        match end {
            ConnectionEnd::Sender => self.sender.rtt.srtt_us(),
            ConnectionEnd::Receiver => self.receiver.srtt_us(),
        }
    }

    /// Whether an end has begun by Fast Open and its handshake is not complete.
    pub(crate) fn in_early_data(&self, end: ConnectionEnd) -> bool {
        let handshake = &self.handshakes[end as usize];
        handshake.has_early_data && handshake.state != HandshakeState::Established
    }

    /// Whether the opener delays its SYN until there is payload for it to carry.
    pub(crate) fn waits_for_data(&self) -> bool {
        self.fast_open && self.opens == Opens::Sender && self.handshakes[0].state == HandshakeState::Closed
    }

    /// Sends the opener's SYN.
    pub(crate) fn open(&mut self, net: &mut SimNetwork) {
        let end = match self.opens {
            Opens::Sender => ConnectionEnd::Sender,
            Opens::Receiver => ConnectionEnd::Receiver,
        };
        let handshake = &mut self.handshakes[end as usize];
        handshake.state = HandshakeState::SynSent;
        handshake.first_sent_ns = net.now;
        let mut packet = self.handshake_packet(end, PacketKind::Syn, net);
        if self.fast_open {
            packet.flags |= TFO_COOKIE;
            packet.size += TFO_COOKIE_BYTES as u16;
            if end == ConnectionEnd::Sender {
                let (len, is_whole_stream) = self.sender.syn_payload();
                packet.size += len as u16;
                packet.flags |= if is_whole_stream { FIN } else { 0 };
            }
        }
        net.send(self.channels[end as usize], packet);
        self.arm_timer(end, net);
    }

    /// A SYN, SYN-ACK or the ACK that completes the handshake.
    fn handshake_packet(&self, end: ConnectionEnd, kind: PacketKind, net: &SimNetwork) -> SimPacket {
        let size = if kind == PacketKind::Ack { HEADER_BYTES } else { SYN_BYTES };
        let mut packet = SimPacket::without_payload(self.number, kind, size);
        packet.timestamp_ns = if kind == PacketKind::Syn { net.now } else { self.handshakes[end as usize].echo_ns };
        packet.len_or_window = self.receiver.handshake_window();
        if kind == PacketKind::SynAck {
            packet.set_syn_ack_sent_ns(net.now);
            if end == ConnectionEnd::Receiver {
                packet.seq = self.receiver.rcv_nxt;
            }
        }
        packet
    }

    fn send_handshake(&mut self, end: ConnectionEnd, kind: PacketKind, net: &mut SimNetwork) {
        let packet = self.handshake_packet(end, kind, net);
        net.send(self.channels[end as usize], packet);
    }

    fn arm_timer(&mut self, end: ConnectionEnd, net: &mut SimNetwork) {
        let handshake = &self.handshakes[end as usize];
        // The intervals of SYN-ACKs double from the first one on.
        let linear = if handshake.state == HandshakeState::SynSent { LINEAR_SYNS } else { 0 };
        let after = (self.settings.initial_rto.0 / 1000) << handshake.retransmits.saturating_sub(linear).min(6);
        match end {
            ConnectionEnd::Sender => self.sender.arm_handshake(after, net),
            ConnectionEnd::Receiver => self.receiver.arm_handshake(after, net),
        }
    }

    /// Handles a timer event of this connection that is due at `at` ns. Returns whether the sender
    /// may have sent new data.
    pub(crate) fn on_timer(&mut self, at: u64, kind: ScheduledEventKind, net: &mut SimNetwork) -> bool {
        match kind {
            ScheduledEventKind::SenderTimer if self.sender.timer_expired(at, net) => {
                if self.is_established(ConnectionEnd::Sender) {
                    self.sender.on_timer(net);
                    return true;
                }
                self.retransmit_handshake(ConnectionEnd::Sender, net);
            }
            ScheduledEventKind::Pacing if self.sender.pacing_expired(at, net) => {
                self.sender.resume(net);
                return true;
            }
            ScheduledEventKind::ReceiverTimer if self.receiver.timer_expired(at, net) => {
                if self.is_established(ConnectionEnd::Receiver) {
                    self.receiver.on_timer(net);
                } else {
                    self.retransmit_handshake(ConnectionEnd::Receiver, net);
                }
            }
            _ => {}
        }
        false
    }

    /// The timer of an end that is not established has expired: sends its SYN or SYN-ACK again.
    fn retransmit_handshake(&mut self, end: ConnectionEnd, net: &mut SimNetwork) {
        let kind = match self.handshakes[end as usize].state {
            HandshakeState::SynSent => PacketKind::Syn,
            HandshakeState::SynReceived => PacketKind::SynAck,
            HandshakeState::Closed | HandshakeState::Established => return,
        };
        self.handshakes[end as usize].retransmits += 1;
        if end == ConnectionEnd::Sender {
            self.sender.counters.retransmits += 1;
        }
        self.send_handshake(end, kind, net);
        self.arm_timer(end, net);
    }

    /// Handles a packet that arrives at an end before it is established, or a SYN-ACK. Returns true
    /// if the end has become established by it, or may act as if by Fast Open.
    pub(crate) fn on_handshake_packet(&mut self, end: ConnectionEnd, packet: &SimPacket, net: &mut SimNetwork) -> bool {
        let handshake = &mut self.handshakes[end as usize];
        match (handshake.state, packet.kind) {
            (HandshakeState::Closed | HandshakeState::SynReceived, PacketKind::Syn) => {
                handshake.echo_ns = packet.timestamp_ns;
                let is_first = handshake.state == HandshakeState::Closed;
                let begins_early = is_first && packet.has_flag(TFO_COOKIE);
                if is_first {
                    handshake.state = HandshakeState::SynReceived;
                    handshake.first_sent_ns = net.now;
                    handshake.has_early_data = begins_early;
                    if begins_early {
                        self.begin_early_data(end, packet, net);
                    }
                    self.arm_timer(end, net);
                }
                self.send_handshake(end, PacketKind::SynAck, net);
                begins_early
            }
            (HandshakeState::SynSent, PacketKind::SynAck) => {
                self.establish(end, packet, net);
                self.ack_handshake(end, packet, net);
                true
            }
            // The ACK that completes the handshake was lost.
            (HandshakeState::Established, PacketKind::SynAck) => {
                self.ack_handshake(end, packet, net);
                false
            }
            (HandshakeState::SynReceived, PacketKind::Ack | PacketKind::Data | PacketKind::Probe) => {
                let began_early = handshake.has_early_data;
                self.establish(end, packet, net);
                !began_early
            }
            _ => false,
        }
    }

    /// A SYN with a cookie has arrived: the end begins without waiting for the handshake.
    fn begin_early_data(&mut self, end: ConnectionEnd, syn: &SimPacket, net: &mut SimNetwork) {
        match end {
            ConnectionEnd::Sender => self.sender.establish_early(syn.len_or_window, net),
            ConnectionEnd::Receiver => self.receiver.accept_syn_data(syn.syn_payload().into(), syn.has_flag(FIN)),
        }
    }

    /// Answers a SYN-ACK with the ACK that completes the handshake.
    fn ack_handshake(&mut self, end: ConnectionEnd, syn_ack: &SimPacket, net: &mut SimNetwork) {
        let echo_ns = syn_ack.syn_ack_sent_ns();
        match end {
            ConnectionEnd::Sender => {
                self.handshakes[0].echo_ns = echo_ns;
                self.send_handshake(end, PacketKind::Ack, net);
            }
            ConnectionEnd::Receiver => self.receiver.answer_syn_ack(echo_ns, net),
        }
    }

    /// The handshake is complete at an end, by this packet.
    fn establish(&mut self, end: ConnectionEnd, packet: &SimPacket, net: &mut SimNetwork) {
        let handshake = &mut self.handshakes[end as usize];
        handshake.state = HandshakeState::Established;
        // A SYN-ACK echoes the timestamp of the SYN that it answers, and the ACK that of the
        // SYN-ACK. Without the echo, the answer to a retransmission is ambiguous.
        let echoed = matches!(packet.kind, PacketKind::SynAck | PacketKind::Ack).then_some(packet.timestamp_ns);
        let since = echoed.or(Some(handshake.first_sent_ns).filter(|_| handshake.retransmits == 0));
        let rtt_us = since.map_or(0, |since| ((net.now - since) / 1000).max(1) as u32);
        // RFC 6928 §2: the initial window is one segment after several SYNs or SYN-ACKs, unless the
        // echoed timestamp shows that the retransmissions were spurious (RFC 3522;
        // tcp_try_undo_spurious_syn).
        let was_spurious = echoed == Some(handshake.first_sent_ns);
        let initial_window = if handshake.retransmits > 1 && !was_spurious { 1 } else { self.settings.initial_window };
        let (began_early, first_sent_ns) = (handshake.has_early_data, handshake.first_sent_ns);
        match end {
            ConnectionEnd::Sender if began_early => self.sender.finish_early_handshake(rtt_us, net),
            ConnectionEnd::Sender => {
                self.sender.account_syn_data(packet.seq, first_sent_ns);
                self.sender.establish(rtt_us, packet.len_or_window, initial_window, net);
            }
            ConnectionEnd::Receiver => {
                self.receiver.establish(rtt_us);
                if began_early {
                    // Buffer that was freed since the SYN-ACK could not be advertised before.
                    self.receiver.release(0, net);
                }
            }
        }
    }
}
