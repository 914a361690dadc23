//! The network between the ends of connections: links, their queues, the proxies' shapers. Also
//! holds the clock and the event queue of a run.

use crate::{
    event_queue::{EventKey, EventQueue, NEVER, Timer},
    link_monitor::MonitoredLink,
    packet::{PacketKind, SimPacket, wire_bytes_of},
    router::{self, LinkRouter},
};
use control::OwnError;
use link::{DelayHistogram, DirectionSpec, LinkDirection, LinkStreams, Time};
use outcome::EngineError;
use scenario::{Link, LinkChange, Loss, Scenario};
use units::{Bytes, QueueSize, Rate, Span};

/// Where a packet goes that a channel has delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// To another channel.
    Channel(usize),
    /// To the receiver of its connection.
    Receiver,
    /// To the sender of its connection.
    Sender,
    /// Depends on the connection: to the next channel, or to the end of the connection that is
    /// there.
    ByConnection,
}

/// One direction of a link, or a shaper in front of one.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    /// With the router at its queue, if the link has one.
    direction: LinkDirection<SimPacket, Option<Box<LinkRouter>>>,
    next_hop: NextHop,
    /// Whether it belongs to the scenario's first link, on which flows have extra delays.
    is_first: bool,
    /// The monitor that observes what enters the link, or what leaves the shaper.
    monitor: Option<usize>,
    is_shaper: bool,
}

impl LinkChannel {
    fn new(direction: LinkDirection<SimPacket, Option<Box<LinkRouter>>>, next_hop: NextHop) -> Self {
        LinkChannel { direction, next_hop, is_first: false, monitor: None, is_shaper: false }
    }
}

/// The links, their monitors, the clock and the event queue of a run. Links are called by the index
/// of a channel, one for each direction ([`forward`], [`backward`]).
#[derive(Debug)]
pub(crate) struct SimNetwork {
    /// The current time, ns since the start of the run.
    pub(crate) now: u64,
    pub(crate) events: EventQueue,
    /// The state of [`SimNetwork::draw_random`].
    random_state: u64,
    /// Events that the event loop has processed.
    pub(crate) events_processed: u64,
    pub(crate) monitors: Vec<MonitoredLink>,
    channels: Vec<LinkChannel>,
    /// When each channel delivers its next packet, ns; [`NEVER`] if it is empty.
    next_deliveries: Vec<u64>,
    /// Whether a connection's controller is `share`; packets of all others are foreign to it.
    pub(crate) uses_share: Vec<bool>,
    /// Extra delay of each connection on the first link, ns; empty if there is none.
    pub(crate) access_delays: Vec<u32>,
    /// Why the first own controller that failed did so. It ends the run.
    controller_failure: Option<Box<OwnError>>,
}

/// The channel of a link in the direction of the data.
pub(crate) fn forward(link: usize) -> usize {
    2 * link
}

/// The channel of a link against the direction of the data.
pub(crate) fn backward(link: usize) -> usize {
    2 * link + 1
}

impl SimNetwork {
    /// The links of a series scenario. The channels of link k are 2k and 2k + 1; shapers follow.
    pub(crate) fn for_series(scenario: &Scenario, seed: u64) -> Self {
        let mut channels = Vec::new();
        let depends_on_connection = scenario.beyond_forward_flows().is_some();
        let is_split = |node: usize| scenario.splits.iter().any(|split| split.after == node);
        for (index, link) in scenario.links.iter().enumerate() {
            let continues_forward = index + 1 < scenario.links.len() && !is_split(index + 1);
            let continues_backward = index > 0 && !is_split(index);
            // Fast path: if all data goes from the first link to the last, the place alone tells.
            let hops = if depends_on_connection {
                [NextHop::ByConnection; 2]
            } else {
                [
                    if continues_forward { NextHop::Channel(forward(index + 1)) } else { NextHop::Receiver },
                    if continues_backward { NextHop::Channel(backward(index - 1)) } else { NextHop::Sender },
                ]
            };
            // Acknowledgements get no feedback from routers.
            let routers = [router::for_queue(link.queue.kind, link.rate), None];
            let specs = [false, true].map(|is_reverse| DirectionSpec::of_series(scenario, index, seed, is_reverse));
            for (direction, next_hop) in LinkDirection::pair(specs, routers).into_iter().zip(hops) {
                channels.push(LinkChannel { is_first: index == 0, ..LinkChannel::new(direction, next_hop) });
            }
        }
        SimNetwork::from_channels(channels, seed)
    }

    /// The links of parallel networks, and those between the sender and the networks, with rates in
    /// IP bits a second. The channels of network k are 2k and 2k + 1; those of the links before the
    /// networks follow. With `is_split` connections end between the two.
    pub(crate) fn for_parallel(networks: &[Link], before: &[Link], is_split: bool, seed: u64) -> Self {
        let (count, end) = (networks.len(), networks.len() + before.len());
        let to_networks: Span = before.iter().map(|link| link.delay).fold(Span::ZERO, |sum, delay| sum + delay);
        let farthest = networks.iter().map(|link| link.delay).max().unwrap_or(Span::ZERO);
        let channels = networks.iter().chain(before).enumerate().flat_map(|(index, link)| {
            let (own, rest) = if index < count { (link.delay, to_networks) } else { (to_networks, farthest) };
            let base_rtt = if is_split { own } else { own + rest } * 2;
            let hops = match index {
                _ if index < count && (before.is_empty() || is_split) => [NextHop::Receiver, NextHop::Sender],
                _ if index < count => [NextHop::Receiver, NextHop::Channel(backward(end - 1))],
                _ => [
                    match index + 1 {
                        next if next < end => NextHop::Channel(forward(next)),
                        _ if is_split => NextHop::Receiver,
                        _ => NextHop::ByConnection,
                    },
                    if index == count { NextHop::Sender } else { NextHop::Channel(backward(index - 1)) },
                ],
            };
            let specs = [false, true].map(|is_reverse| {
                let streams = LinkStreams { seed, link: index as u64, is_reverse };
                DirectionSpec::of_link(link, base_rtt, streams)
            });
            let directions = LinkDirection::pair(specs, [None, None]);
            directions.into_iter().zip(hops).map(|(direction, next_hop)| LinkChannel::new(direction, next_hop))
        });
        SimNetwork::from_channels(channels.collect(), seed)
    }

    fn from_channels(channels: Vec<LinkChannel>, seed: u64) -> Self {
        let next_deliveries = vec![NEVER; channels.len()];
        SimNetwork {
            now: 0,
            events: EventQueue::default(),
            random_state: seed,
            events_processed: 0,
            monitors: Vec::new(),
            channels,
            next_deliveries,
            uses_share: Vec::new(),
            access_delays: Vec::new(),
            controller_failure: None,
        }
    }

    /// Records that the program of a connection's own controller has failed, which ends the run.
    pub(crate) fn controller_failed(&mut self, why: OwnError) {
        self.controller_failure.get_or_insert_with(|| Box::new(why));
    }

    /// Whether the program of an own controller has failed.
    #[inline]
    pub(crate) fn has_failed_controller(&self) -> bool {
        self.controller_failure.is_some()
    }

    /// Refuses the results of a run in which the program of an own controller has failed.
    ///
    /// # Errors
    /// [`EngineError::Failed`].
    pub(crate) fn check_controllers(&self) -> Result<(), EngineError> {
        self.controller_failure.as_ref().map_or(Ok(()), |why| Err(EngineError::Failed(why.to_string())))
    }

    /// Attaches a monitor to what enters a link, for a configured capacity; returns the index of
    /// the monitor.
    pub(crate) fn monitor_link(&mut self, link: usize, capacity: Rate) -> usize {
        self.monitors.push(MonitoredLink::new(capacity, false));
        let monitor = self.monitors.len() - 1;
        self.channels[forward(link)].monitor = Some(monitor);
        monitor
    }

    /// Has the flows' controllers estimate the capacity of a link: attaches a monitor to the packets
    /// that enter it, and returns the monitor's index.
    pub(crate) fn estimate_link(&mut self, link: usize) -> usize {
        self.monitors.push(MonitoredLink::estimating());
        let monitor = self.monitors.len() - 1;
        self.channels[forward(link)].monitor = Some(monitor);
        monitor
    }

    /// Adds a shaper in front of a link; returns its channel and the index of its monitor.
    pub(crate) fn add_shaper(&mut self, link: usize, capacity: Rate) -> (usize, usize) {
        self.monitors.push(MonitoredLink::new(capacity, true));
        let monitor = self.monitors.len() - 1;
        // TCP itself bounds the backlog, and a drop would only cause a retransmission. The limit is
        // that of the proxy's own shaper: half a second at the capacity, at least 4 MiB.
        let limit = QueueSize::Bytes(Bytes((capacity.bits_per_s() / 16).max(4 << 20)));
        let direction = LinkDirection::with_tap(DirectionSpec::lossless(capacity, limit, Span::ZERO), None);
        let next_hop = NextHop::Channel(forward(link));
        self.channels.push(LinkChannel { direction, next_hop, is_first: false, monitor: Some(monitor), is_shaper: true });
        self.next_deliveries.push(NEVER);
        (self.channels.len() - 1, monitor)
    }

    /// A random number for a controller (SplitMix64, Steele, Lea, Flood, OOPSLA 2014).
    pub(crate) fn draw_random(&mut self) -> u32 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random_state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }

    /// The current time, µs since the start of the run.
    pub(crate) fn now_us(&self) -> u64 {
        self.now / 1000
    }

    /// The channel that delivers next, and when, ns.
    #[inline]
    pub(crate) fn next_delivery(&self) -> (usize, u64) {
        let mut next = (0, NEVER);
        for (channel, &at) in self.next_deliveries.iter().enumerate() {
            if at < next.1 {
                next = (channel, at);
            }
        }
        next
    }

    /// Copies the next packet that a channel has delivered by now into `packet`, and returns where
    /// it goes. After [`next_delivery`](Self::next_delivery) named the channel, the caller repeats
    /// this until it returns `None`.
    #[inline(always)]
    pub(crate) fn take_arrived(&mut self, channel: usize, packet: &mut SimPacket) -> Option<NextHop> {
        if self.next_deliveries[channel] > self.now { None } else { self.take_due_packet(channel, packet) }
    }

    #[inline(never)]
    fn take_due_packet(&mut self, channel: usize, packet: &mut SimPacket) -> Option<NextHop> {
        let from = &mut self.channels[channel];
        let arrived = from.direction.poll_arrival_into(Time(self.now), packet);
        self.next_deliveries[channel] = from.direction.next_delivery().map_or(NEVER, |at| at.0);
        if !arrived {
            return None;
        }
        Some(if packet.kind == PacketKind::Udp && !from.is_shaper { NextHop::Receiver } else { from.next_hop })
    }

    /// Tells the monitor of a shaper that a packet has departed.
    pub(crate) fn record_departure(&mut self, channel: usize, packet: &SimPacket) {
        let from = &mut self.channels[channel];
        if let (true, Some(monitor)) = (from.is_shaper, from.monitor) {
            let backlog = from.direction.queued(Time(self.now)).0;
            let drops = from.direction.counts().queue_drops;
            self.monitors[monitor].on_shaper_departure(
                self.now / 1000,
                wire_bytes_of(packet),
                is_foreign(&self.uses_share, packet),
                backlog,
                drops,
            );
        }
    }

    /// Whether a channel is a proxy's shaper.
    pub(crate) fn is_shaper(&self, channel: usize) -> bool {
        self.channels[channel].is_shaper
    }

    /// Sends a packet into a channel; returns false if the queue dropped it.
    pub(crate) fn send(&mut self, channel: usize, mut packet: SimPacket) -> bool {
        let to = &mut self.channels[channel];
        if to.monitor.is_some() {
            self.on_enqueue(channel, &mut packet);
        }
        let to = &mut self.channels[channel];
        let has_extra = to.is_first && !self.access_delays.is_empty();
        // Cross traffic has no extra delay: its connection number is out of range.
        packet.extra_delay_ns = if has_extra { self.access_delays.get(packet.connection as usize).copied().unwrap_or(0) } else { 0 };
        let taken = to.direction.enqueue_lazy(Time(self.now), packet).is_ok();
        // Only with extra delays can the new packet be delivered before those in the channel.
        if self.next_deliveries[channel] == NEVER || has_extra {
            self.next_deliveries[channel] = to.direction.next_delivery().map_or(NEVER, |at| at.0);
        }
        taken
    }

    /// A packet enters a channel that is monitored.
    fn on_enqueue(&mut self, channel: usize, packet: &mut SimPacket) {
        let to = &mut self.channels[channel];
        if let (Some(monitor), false) = (to.monitor, to.is_shaper) {
            self.monitors[monitor].on_enqueue(self.now / 1000, wire_bytes_of(packet), is_foreign(&self.uses_share, packet));
        }
    }

    /// Sets a timer to expire after `after_us` µs.
    pub(crate) fn set_timer(&mut self, timer: &mut Timer, key: EventKey, after_us: u64) {
        self.events.set_timer(timer, key, self.now + after_us * 1000);
    }

    /// Changes the delay of both directions of a link, and its losses in the direction of the data.
    pub(crate) fn change_link(&mut self, link: usize, change: &LinkChange) {
        let now = Time(self.now);
        for channel in [forward(link), backward(link)] {
            let direction = &mut self.channels[channel].direction;
            if let Some(delay) = change.delay {
                direction.set_delay(now, delay);
            }
            if let (Some(loss), true) = (change.loss, channel == forward(link)) {
                direction.set_loss(now, Some(Loss::PerPacket(loss.0)));
            }
            self.next_deliveries[channel] = direction.next_delivery().map_or(NEVER, |at| at.0);
        }
    }

    /// Changes the rate of a channel.
    pub(crate) fn set_rate(&mut self, channel: usize, rate: Rate) {
        let now = Time(self.now);
        let direction = &mut self.channels[channel].direction;
        direction.set_rate(now, rate);
        if let Some(router) = direction.tap(now) {
            router.set_rate(now, rate);
        }
        self.next_deliveries[channel] = self.channels[channel].direction.next_delivery().map_or(NEVER, |at| at.0);
    }

    /// The counters of a channel until now.
    pub(crate) fn counts(&mut self, channel: usize) -> link::LinkCounts {
        self.channels[channel].direction.counts_at(Time(self.now))
    }

    /// How long packets took through the queue of a channel, as of the last poll.
    pub(crate) fn queue_delays(&self, channel: usize) -> Option<&DelayHistogram> {
        self.channels[channel].direction.queue_delays()
    }

    /// IP bytes that have departed from a channel until now.
    pub(crate) fn departed_bytes(&mut self, channel: usize) -> u64 {
        self.channels[channel].direction.departed_bytes(Time(self.now)).0
    }

    /// Bytes in the queue of a channel now.
    pub(crate) fn queued(&mut self, channel: usize) -> u64 {
        self.channels[channel].direction.queued(Time(self.now)).0
    }
}

/// Whether a packet belongs to a flow whose controller is not `share`.
fn is_foreign(uses_share: &[bool], packet: &SimPacket) -> bool {
    !uses_share.get(packet.connection as usize).copied().unwrap_or(false)
}
