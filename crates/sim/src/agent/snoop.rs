//! The Snoop agent of one connection.
//!
//! H. Balakrishnan, S. Seshan, E. Amir and R. Katz, "Improving TCP/IP Performance over Wireless
//! Networks", MobiCom 1995, with the use of SACK of H. Balakrishnan, V. Padmanabhan, S. Seshan and
//! R. Katz, "A Comparison of Mechanisms for Improving TCP Performance over Wireless Links", SIGCOMM
//! 1996. Its rules for a transfer to the mobile host are followed:
//!
//! - A new segment is kept and forwarded. One that the sender sends again, or after later data, is
//!   forwarded and marked: its losses are the sender's to repair.
//! - A new acknowledgement frees what it covers, gives an RTT sample of the links behind the agent,
//!   and is forwarded. One that is older than the last is discarded.
//! - A duplicate of the last acknowledgement is forwarded if the missing segment is not kept, or is
//!   marked. Otherwise the first duplicate has the segment sent again, and those that are expected
//!   after it are discarded.
//! - If nothing arrives for a timeout of the RTT estimate, the first missing segment is sent again.
//!
//! Choices of this program, where the papers leave it open or where TCP has changed:
//!
//! - **SACK.** With selective acknowledgements the agent sees each loss by itself, and sends again what
//!   is overtaken, first transmissions and its own retransmissions alike. It does not wait for an expected
//!   number of duplicates. While all missing data is the agent's to repair, it takes the SACK blocks
//!   out of the acknowledgements that it forwards: a sender as in Linux takes them for a sign of loss
//!   (RACK), with or without duplicates. While the sender has something to repair too, it forwards
//!   acknowledgements unchanged, also those that show losses on the wireless link.
//! - **DSACK.** A report of a duplicate is forwarded if the sender has sent that segment again. If only
//!   the agent has, the report is taken out.
//! - **Timestamps.** The copy has the sender's timestamp, so the sender's RTT estimate includes the
//!   time of the repair, and its timeout follows.
//! - **Congestion.** What the queue behind the agent drops is lost by congestion. The agent forgets it,
//!   so that the sender learns of the loss and reduces its window. A later queue is indistinguishable
//!   from the wireless link.
//! - **ECN.** An acknowledgement that echoes a mark is always forwarded.
//! - It makes no acknowledgement of its own. The paper repeats the last acknowledgement for data that
//!   is acknowledged already; here such data is forwarded, and the receiver answers.
//! - RTT samples are taken for each acknowledgement, not once a window. The timeout is that of Linux: at least
//!   200 ms above the RTT, which covers delayed acknowledgements. It doubles while nothing arrives.
//! - Retransmissions have no priority over other packets in the queue of the link.

use super::forwarded::{ForwardedSegments, Gaps};
use crate::{
    event_queue::{EventKey, Timer},
    network::SimNetwork,
    packet::{ECE, SimPacket},
};

/// What a Snoop agent has done, over its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AgentCounters {
    /// Segments that it sent again.
    pub(crate) local_retransmits: u64,
    /// Acknowledgements that it did not forward.
    pub(crate) suppressed_acks: u64,
    /// Acknowledgements that it forwarded with a notice of loss.
    pub(crate) loss_notices: u64,
    /// The most payload that it held of a connection, bytes.
    pub(crate) cache_max_bytes: u64,
}

/// The state of a connection at a Snoop agent.
#[derive(Debug)]
pub(super) struct SnoopConnection {
    forwarded: ForwardedSegments,
    /// The channel behind the agent.
    channel: usize,
    key: EventKey,
    timer: Timer,
    uses_sack: bool,
    /// Without SACK: duplicates of the last acknowledgement that are still expected.
    expected_duplicates: u64,
    /// The window of the last acknowledgement.
    last_window: u32,
}

impl SnoopConnection {
    /// A connection of which nothing was seen.
    pub(super) fn new(channel: usize, key: EventKey, initial_rto_us: u64, uses_sack: bool) -> Self {
        SnoopConnection {
            forwarded: ForwardedSegments::new(initial_rto_us),
            channel,
            key,
            timer: Timer::default(),
            uses_sack,
            expected_duplicates: 0,
            last_window: 0,
        }
    }

    /// Forwards a data segment of the sender. `cache` is the size of the cache, bytes.
    pub(super) fn on_data(&mut self, packet: &SimPacket, cache: u64, counters: &mut AgentCounters, net: &mut SimNetwork) {
        let index = self.forwarded.add(packet, cache);
        counters.cache_max_bytes = counters.cache_max_bytes.max(self.forwarded.held_bytes());
        let accepted = net.send(self.channel, *packet);
        if let Some(index) = index {
            self.forwarded.sent(index, accepted, net.now);
            self.arm_timer(net);
        }
    }

    /// An acknowledgement of the receiver: repairs what it shows to be lost, and returns what is to
    /// be forwarded.
    pub(super) fn on_ack(&mut self, packet: &SimPacket, counters: &mut AgentCounters, net: &mut SimNetwork) -> Option<SimPacket> {
        if packet.seq < self.forwarded.una() {
            counters.suppressed_acks += 1;
            return None;
        }
        let advanced = packet.seq > self.forwarded.una();
        let is_news = advanced || packet.len_or_window != self.last_window || packet.has_flag(ECE);
        self.last_window = packet.len_or_window;
        self.forwarded.acknowledge(packet, net.now);
        let forwarded = if self.uses_sack {
            self.repair_overtaken(counters, net);
            self.without_held_gaps(packet, is_news)
        } else {
            self.on_plain_ack(packet, advanced, is_news, counters, net)
        };
        self.arm_timer(net);
        counters.suppressed_acks += u64::from(forwarded.is_none());
        forwarded
    }

    /// Sends again what is lost behind the agent.
    fn repair_overtaken(&mut self, counters: &mut AgentCounters, net: &mut SimNetwork) {
        let mut from = 0;
        while let Some(index) = self.forwarded.next_lost(from) {
            self.send_again(index, counters, net);
            from = index + 1;
        }
    }

    fn send_again(&mut self, index: usize, counters: &mut AgentCounters, net: &mut SimNetwork) {
        if let Some(copy) = self.forwarded.take_again(index) {
            let accepted = net.send(self.channel, copy);
            self.forwarded.sent(index, accepted, net.now);
            counters.local_retransmits += 1;
        }
    }

    /// With SACK: an acknowledgement without the gaps that the agent repairs; `None` if nothing is
    /// left of it that the sender does not know.
    fn without_held_gaps(&self, packet: &SimPacket, is_news: bool) -> Option<SimPacket> {
        if !packet.has_sack_blocks() || self.forwarded.gaps() == Gaps::Foreign {
            return Some(*packet);
        }
        let mut ack = *packet;
        let keeps_dsack = packet.dsack().is_some_and(|(start, _)| self.forwarded.was_resent_by_sender(start));
        ack.remove_sack_blocks(keeps_dsack);
        Some(ack).filter(|_| is_news || keeps_dsack)
    }

    /// Without SACK: counts duplicates.
    fn on_plain_ack(
        &mut self,
        packet: &SimPacket,
        advanced: bool,
        is_news: bool,
        counters: &mut AgentCounters,
        net: &mut SimNetwork,
    ) -> Option<SimPacket> {
        if advanced {
            self.expected_duplicates = 0;
        }
        let is_held = self.forwarded.head().is_some_and(|(_, is_held)| is_held);
        if is_news || !is_held {
            return Some(*packet);
        }
        self.forwarded.progress_ns = net.now;
        match self.expected_duplicates.checked_sub(1) {
            Some(expected) => self.expected_duplicates = expected,
            None => {
                // This is the first of them.
                self.expected_duplicates = self.forwarded.sent_after_head().saturating_sub(1);
                self.send_again(0, counters, net);
            }
        }
        None
    }

    /// Sets the timer, or moves it to an earlier time. [`on_timer`](Self::on_timer) moves it later.
    fn arm_timer(&mut self, net: &mut SimNetwork) {
        let due = net.now + self.forwarded.rtt.rto_us() * 1000;
        if self.forwarded.held_bytes() > 0 && self.timer.due() > due {
            net.events.set_timer(&mut self.timer, self.key, due);
        }
    }

    /// To be called when an event of this connection's timer surfaces at `at` ns. The timer has run
    /// since some segment was sent; only if nothing has arrived for a whole timeout, the first
    /// missing segment is sent again.
    pub(super) fn on_timer(&mut self, at: u64, counters: &mut AgentCounters, net: &mut SimNetwork) {
        if !self.timer.expired(at, self.key, &mut net.events) {
            return;
        }
        let Some(oldest_ns) = self.forwarded.oldest_held_ns() else { return };
        let due = oldest_ns.max(self.forwarded.progress_ns) + self.forwarded.rtt.rto_us() * 1000;
        if due > net.now {
            net.events.set_timer(&mut self.timer, self.key, due);
            return;
        }
        if let Some(index) = self.forwarded.first_held() {
            self.send_again(index, counters, net);
        }
        self.expected_duplicates = 0;
        self.forwarded.rtt.back_off();
        self.arm_timer(net);
    }
}
