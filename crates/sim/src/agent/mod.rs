//! Agents on the way of connections that they do not split: a Snoop agent, which repairs losses
//! behind it, and an agent that tells senders of such losses.
//!
//! # Notices of loss
//!
//! Joshi et al. (§II) describe E-TCP (D. Chandra, R. Harris and N. Shenoy, WOC 2003) in three
//! sentences: a base station adds to acknowledgements the cause of a loss (ACK-CLN,
//! congestion-corruption loss notification), little is added to base station and sender, and the
//! sender keeps a large window. The text of E-TCP itself was not available. What is implemented is
//! Explicit Loss Notification, the published form of the same idea: H. Balakrishnan and R. Katz,
//! "Explicit Loss Notification and Wireless Web Performance", Globecom 1998.
//!
//! While a segment is known to be lost behind the agent, acknowledgements carry a notice
//! ([`SimPacket::set_notice`]): the byte before which all data has been on the link behind the
//! agent, so that no queue has dropped it. What the sender finds lost before that byte it
//! retransmits, and its window grows on as without loss. All other losses, and timeouts, are
//! answered as ever. A retransmission that is lost before the agent is taken for one that is lost
//! behind it, since the agent has seen the segment before. The notice of ELN is one bit about the
//! first missing segment; a sender with SACK finds several losses at once and needs to know of
//! each.

mod forwarded;
mod snoop;

use crate::{
    event_queue::{EventKey, ScheduledEventKind},
    network::SimNetwork,
    packet::{PacketKind, SimPacket},
    settings::{Recovery, TcpSettings},
};
use forwarded::ForwardedSegments;
use scenario::AgentKind;
pub(crate) use snoop::AgentCounters;
use snoop::SnoopConnection;

/// An agent between two links.
#[derive(Debug)]
pub(crate) struct PathAgent {
    /// The channels that lead to it: with data, and with acknowledgements.
    arrivals: [usize; 2],
    /// The channels that follow them.
    departures: [usize; 2],
    role: AgentRole,
    uses_sack: bool,
    pub(crate) counters: AgentCounters,
}

/// What an agent does, with its connections by their numbers.
#[derive(Debug)]
enum AgentRole {
    Snoop { cache: u64, connections: Vec<SnoopConnection> },
    LossNotice { connections: Vec<ForwardedSegments> },
}

impl PathAgent {
    /// An agent of this kind behind the channel `arrivals[0]` of the data and `arrivals[1]` of the
    /// acknowledgements, which it sends on through `departures`. It sees `connections` connections,
    /// and its timers have the numbers from `first_timer` on.
    pub(crate) fn new(
        kind: AgentKind,
        cache: u64,
        [arrivals, departures]: [[usize; 2]; 2],
        connections: u32,
        first_timer: u32,
        settings: &TcpSettings,
    ) -> Self {
        let rto_us = settings.initial_rto.0 / 1000;
        let uses_sack = settings.recovery == Recovery::Sack;
        let role = match kind {
            AgentKind::Snoop => {
                let key = |number| EventKey { target: first_timer + number, kind: ScheduledEventKind::AgentTimer };
                let connection = |number| SnoopConnection::new(departures[0], key(number), rto_us, uses_sack);
                AgentRole::Snoop { cache, connections: (0..connections).map(connection).collect() }
            }
            AgentKind::LossNotice => {
                AgentRole::LossNotice { connections: (0..connections).map(|_| ForwardedSegments::new(rto_us)).collect() }
            }
        };
        PathAgent { arrivals, departures, role, uses_sack, counters: AgentCounters::default() }
    }

    /// Whether a channel leads to it.
    pub(crate) fn is_behind(&self, channel: usize) -> bool {
        self.arrivals.contains(&channel)
    }

    /// Passes a packet on that a channel has brought.
    pub(crate) fn pass(&mut self, channel: usize, packet: &SimPacket, net: &mut SimNetwork) {
        let number = packet.connection as usize;
        match packet.kind {
            PacketKind::Data if channel == self.arrivals[0] => self.on_data(number, packet, net),
            PacketKind::Ack if channel == self.arrivals[1] => {
                if let Some(ack) = self.on_ack(number, packet, net) {
                    net.send(self.departures[1], ack);
                }
            }
            _ => {
                let departure = self.departures[usize::from(channel == self.arrivals[1])];
                net.send(departure, *packet);
            }
        }
    }

    fn on_data(&mut self, number: usize, packet: &SimPacket, net: &mut SimNetwork) {
        match &mut self.role {
            AgentRole::Snoop { cache, connections } => connections[number].on_data(packet, *cache, &mut self.counters, net),
            AgentRole::LossNotice { connections } => {
                let index = connections[number].add(packet, 0);
                let accepted = net.send(self.departures[0], *packet);
                if let Some(index) = index {
                    connections[number].sent(index, accepted, net.now);
                }
            }
        }
    }

    fn on_ack(&mut self, number: usize, packet: &SimPacket, net: &mut SimNetwork) -> Option<SimPacket> {
        match &mut self.role {
            AgentRole::Snoop { connections, .. } => connections[number].on_ack(packet, &mut self.counters, net),
            AgentRole::LossNotice { connections } => {
                let forwarded = &mut connections[number];
                let is_duplicate = packet.seq == forwarded.una();
                if packet.seq >= forwarded.una() {
                    forwarded.acknowledge(packet, net.now);
                }
                let is_due = if self.uses_sack {
                    forwarded.any_lost()
                } else {
                    is_duplicate && forwarded.head().is_some_and(|(was_on_link, _)| was_on_link)
                };
                let mut ack = *packet;
                if is_due {
                    ack.set_notice(forwarded.passed_to());
                    self.counters.loss_notices += 1;
                }
                Some(ack)
            }
        }
    }

    /// Handles a timer event of connection `number` that is due at `at` ns.
    pub(crate) fn on_timer(&mut self, at: u64, number: usize, net: &mut SimNetwork) {
        if let AgentRole::Snoop { connections, .. } = &mut self.role {
            connections[number].on_timer(at, &mut self.counters, net);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        network::{NextHop, backward, forward},
        packet::HEADER_BYTES,
    };
    use proptest::prelude::*;
    use scenario::ScenarioFile;

    const MSS: u32 = 1448;

    /// What happens at an agent: a data segment of this number arrives, or an acknowledgement of so
    /// many segments with a SACK block of segments from there on, or time passes.
    fn arrival() -> impl Strategy<Value = (u8, u64, u64, u64)> {
        (0u8..3, 0u64..40, 0u64..8, 1u64..8)
    }

    fn data(number: u64, now: u64) -> SimPacket {
        let mut packet = SimPacket::without_payload(0, PacketKind::Data, HEADER_BYTES + MSS);
        (packet.seq, packet.len_or_window, packet.timestamp_ns) = (number * u64::from(MSS), MSS, now);
        packet
    }

    fn ack(to: u64, gap: u64, len: u64, now: u64) -> SimPacket {
        let mut packet = SimPacket::without_payload(0, PacketKind::Ack, HEADER_BYTES);
        (packet.seq, packet.len_or_window, packet.timestamp_ns) = (to * u64::from(MSS), 1 << 20, now);
        if gap > 0 {
            packet.add_sack_block((to + gap) * u64::from(MSS), (to + gap + len) * u64::from(MSS));
            packet.size += crate::packet::sack_option_bytes(1);
        }
        packet
    }

    /// Takes what a channel has brought by now.
    fn take(net: &mut SimNetwork, channel: usize) -> Vec<SimPacket> {
        let mut packet = SimPacket::placeholder();
        std::iter::from_fn(|| net.take_arrived(channel, &mut packet).map(|_: NextHop| packet)).collect()
    }

    /// Two links of 1 Gbit/s and 1 ms, and an agent of this kind between them.
    fn network(kind: AgentKind, cache: u64, recovery: Recovery) -> (SimNetwork, PathAgent) {
        let links = "[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n".repeat(2);
        let file = ScenarioFile::parse(&format!("name = \"x\"\nduration = \"1s\"\n{links}[[flow]]\n"), "x").unwrap();
        let net = SimNetwork::for_series(&file.variants(&[]).unwrap().remove(0).scenario, 1);
        let channels = [[forward(0), backward(1)], [forward(1), backward(0)]];
        let settings = TcpSettings { recovery, ..TcpSettings::default() };
        (net, PathAgent::new(kind, cache, channels, 1, 0, &settings))
    }

    #[test]
    fn the_last_segment_is_sent_again_after_a_timeout_of_the_wireless_link() {
        let (mut net, mut agent) = network(AgentKind::Snoop, u64::MAX, Recovery::Sack);
        agent.pass(forward(0), &data(0, 0), &mut net);
        net.now = 10_000_000;
        agent.pass(backward(1), &ack(1, 0, 0, 0), &mut net);
        agent.pass(forward(0), &data(1, 0), &mut net);
        while net.now < 400_000_000 {
            let (at, _) = net.events.pop().unwrap();
            net.now = at;
            agent.on_timer(at, 0, &mut net);
        }
        // The RTT was 10 ms. The timeout, 210 ms, starts when the segment is sent and then doubles.
        assert_eq!(agent.counters.local_retransmits, 2);
        assert_eq!(net.now, 10_000_000 + 210_000_000 + 420_000_000);
        assert_eq!(take(&mut net, forward(1)).iter().map(|packet| packet.seq).collect::<Vec<_>>(), [0, 1448, 1448]);
    }

    #[test]
    fn gaps_are_repaired_and_hidden_and_a_resent_segment_is_left_to_the_sender() {
        let (mut net, mut agent) = network(AgentKind::Snoop, u64::MAX, Recovery::Sack);
        (0..6).for_each(|number| agent.pass(forward(0), &data(number, 0), &mut net));
        net.now = 10_000_000;
        // Segments 0 and 2 have not arrived: both are sent again at once, and the sender learns
        // nothing.
        agent.pass(backward(1), &ack(0, 3, 1, 0), &mut net);
        assert_eq!((agent.counters.local_retransmits, agent.counters.suppressed_acks), (3, 0));
        agent.pass(backward(1), &ack(0, 3, 2, 0), &mut net);
        assert_eq!((agent.counters.local_retransmits, agent.counters.suppressed_acks), (3, 1));
        // The sender sends segment 0 again: from now on acknowledgements tell it of the gap.
        agent.pass(forward(0), &data(0, 0), &mut net);
        agent.pass(backward(1), &ack(0, 3, 3, 0), &mut net);
        net.now += 100_000_000;
        let sent: Vec<bool> = take(&mut net, backward(0)).iter().map(SimPacket::has_sack_blocks).collect();
        assert_eq!(sent, [false, true]);
    }

    #[test]
    fn a_notice_says_up_to_where_all_data_has_passed() {
        for recovery in [Recovery::Sack, Recovery::NewReno] {
            let (mut net, mut agent) = network(AgentKind::LossNotice, 0, recovery);
            let notice = |agent: &mut PathAgent, net: &mut SimNetwork, packet: SimPacket| {
                agent.pass(backward(1), &packet, net);
                net.now += 100_000_000;
                take(net, backward(0)).iter().find_map(SimPacket::notice).map(|byte| byte / u64::from(MSS))
            };
            // Segment 3 was lost before the agent.
            [0, 1, 2, 4, 5].into_iter().for_each(|number| agent.pass(forward(0), &data(number, 0), &mut net));
            assert_eq!(notice(&mut agent, &mut net, ack(1, 0, 0, 0)), None, "nothing is missing");
            assert_eq!(notice(&mut agent, &mut net, ack(1, 1, 1, 0)), Some(3), "segment 1 has passed");
            assert!(notice(&mut agent, &mut net, ack(3, 2, 1, 0)).is_none_or(|passed_to| passed_to == 3), "segment 3 has not");
            agent.pass(forward(0), &data(3, 0), &mut net);
            assert_eq!(notice(&mut agent, &mut net, ack(3, 2, 1, 0)), Some(6), "it has passed by now");
        }
    }

    proptest! {
        /// Whatever arrives: towards the sender it sends what has arrived from the receiver, in
        /// that order, each at most once, with SACK blocks that were there. Towards the receiver it
        /// sends what the sender has sent. It never holds more than its cache.
        #[test]
        fn it_sends_only_what_the_ends_have_sent(arrivals in prop::collection::vec(arrival(), 1..200), sack: bool, cache in 1u64..20) {
            let cache = cache * u64::from(MSS);
            let (mut net, mut agent) = network(AgentKind::Snoop, cache, if sack { Recovery::Sack } else { Recovery::NewReno });
            let (mut acks, mut timestamps) = (Vec::new(), Vec::new());
            for (what, number, gap, len) in arrivals {
                net.now += 50_000_000;
                match what {
                    0 => {
                        timestamps.push((number * u64::from(MSS), net.now));
                        agent.pass(forward(0), &data(number, net.now), &mut net);
                    }
                    1 => {
                        acks.push(ack(number, gap, len, net.now));
                        agent.pass(backward(1), acks.last().unwrap(), &mut net);
                    }
                    _ => while net.events.next_due() <= net.now {
                        let (at, _) = net.events.pop().unwrap();
                        agent.on_timer(at, 0, &mut net);
                    },
                }
                prop_assert!(agent.counters.cache_max_bytes <= cache);
                for packet in take(&mut net, forward(1)) {
                    prop_assert!(packet.kind == PacketKind::Data && timestamps.contains(&(packet.seq, packet.timestamp_ns)));
                }
            }
            net.now += 1_000_000_000;
            let sent = take(&mut net, backward(0));
            let mut received = acks.iter();
            for packet in sent {
                let same = received.find(|ack| (ack.seq, ack.timestamp_ns) == (packet.seq, packet.timestamp_ns));
                prop_assert!(same.is_some_and(|ack| ack.len_or_window == packet.len_or_window), "{packet:?}");
                let blocks: Vec<_> = same.unwrap().sack_blocks().collect();
                prop_assert!(packet.sack_blocks().all(|block| blocks.contains(&block)));
            }
        }
    }
}
