//! One direction of a link: queue and rate, then loss, then delay.

use crate::{
    aqm,
    contention::Contention,
    delay::Delay,
    delay_histogram::DelayHistogram,
    direction_spec::DirectionSpec,
    disorder::{Disorder, ExtraDelay},
    loss_process::LossProcess,
    managed_queue::ManagedQueue,
    outages::OutageProcess,
    own_transmitter::OwnTransmitter,
    shaper::Shaper,
    shared_medium::{self, MediumAccess},
    stage::{LinkPacket, LinkStage, QueueTap},
    time::Time,
    transmitter::Transmission,
};
use rand::RngExt as _;
use rand_pcg::Pcg64;
use scenario::{Loss, Medium, Purpose};
use std::fmt;
use units::{Bytes, Rate, Span};

/// One direction of a link. A lost packet occupies the transmitter like any other and is discarded
/// when its transmission ends. A tap may observe the queue; `()` is no tap.
///
/// A caller takes packets in one of two ways, and keeps to it:
/// - as with any [`LinkStage`]: [`enqueue`](LinkStage::enqueue), [`ready`](LinkStage::ready),
///   [`next_wakeup`](LinkStage::next_wakeup);
/// - the fast path, which wakes up only when packets arrive and moves each of them once:
///   [`enqueue_lazy`](Self::enqueue_lazy), [`poll_arrival`](Self::poll_arrival) or
///   [`poll_arrival_into`](Self::poll_arrival_into), [`next_delivery`](Self::next_delivery).
///
/// Both deliver the same packets at the same times.
#[derive(Debug)]
pub struct LinkDirection<P, T = ()> {
    shaper: Shaper<P>,
    /// In place of the shaper, if the queue is under active management, or the directions share a
    /// medium.
    managed: Option<ManagedQueue<P>>,
    tap: T,
    losses: LossProcess,
    damage: Option<Damage>,
    disorder: Option<Disorder>,
    delay: Delay<P>,
    /// Whether all packets have the same delay. If not, the time of an arrival is known at the
    /// departure.
    has_constant_delay: bool,
    /// Whether departures are handled when they happen, and not only on arrival.
    is_eager: bool,
    queue_drops: u64,
    lost: u64,
    lost_bytes: u64,
    duplicates: u64,
    duplicate_bytes: u64,
    /// Bytes in `delay`.
    delayed_bytes: u64,
}

/// What damages packets besides the losses that most links have.
#[derive(Debug)]
struct Damage {
    /// Probability that a bit is received wrongly, and what draws it.
    bit_errors: Option<(f64, Pcg64)>,
    outages: Option<OutageProcess>,
}

impl Damage {
    /// `None` if a link has neither bit errors nor outages.
    fn of(spec: &DirectionSpec) -> Option<Self> {
        let streams = spec.streams;
        let bit_errors = (spec.bit_errors > 0.0).then(|| (spec.bit_errors, streams.of_direction(Purpose::BitErrors)));
        let outages = spec.outages.map(|outages| OutageProcess::new(outages, streams.of_link(Purpose::Outages)));
        (bit_errors.is_some() || outages.is_some()).then_some(Damage { bit_errors, outages })
    }

    /// Decides whether a packet whose transmission ended at `departed` is lost to a bit error or an
    /// outage.
    fn drops(&mut self, departed: Time, bytes: u32) -> bool {
        let has_bit_error = self.bit_errors.as_mut().is_some_and(|(probability, rng)| {
            let bits = 8.0 * f64::from(bytes);
            rng.random::<f64>() < -(bits * (-*probability).ln_1p()).exp_m1()
        });
        has_bit_error | self.outages.as_mut().is_some_and(|outages| outages.is_out(departed))
    }
}

/// Counters of one direction of a link. Sizes count IP bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that arrived at the queue.
    pub arrived: u64,
    /// Packets that the queue dropped.
    pub queue_drops: u64,
    /// Packets whose transmission had ended at the last poll.
    pub departed: u64,
    /// Bytes of the packets in `departed`.
    pub departed_bytes: Bytes,
    /// Packets lost after their transmission.
    pub losses: u64,
    /// Packets that were duplicated.
    pub duplicates: u64,
    /// Packets delivered at the other end, duplicates included.
    pub delivered: u64,
    /// Bytes of the packets in `delivered`.
    pub delivered_bytes: Bytes,
    /// The largest queue length, without the packet in transmission.
    pub max_queued: Bytes,
    /// Collisions of frames on the medium that both directions share.
    pub collisions: u64,
}

/// What a queue has counted.
struct QueueCounts {
    arrived: u64,
    drops: u64,
    /// Packets and bytes.
    departed: (u64, Bytes),
    taken: (u64, Bytes),
    max_queued: Bytes,
}

fn discipline_of<P: LinkPacket + fmt::Debug + 'static>(spec: &DirectionSpec) -> Box<dyn aqm::Discipline<P>> {
    let (kind, parameters) = spec.discipline;
    aqm::discipline(kind, spec.limit, parameters, spec.streams.of_direction(Purpose::Queue))
}

impl<P: LinkPacket> LinkDirection<P> {
    /// An empty link without a tap.
    pub fn new(spec: DirectionSpec) -> Self
    where
        P: fmt::Debug + 'static,
    {
        LinkDirection::with_tap(spec, ())
    }
}

impl<P: LinkPacket, T: QueueTap<P>> LinkDirection<P, T> {
    /// An empty link with a tap at its queue.
    pub fn with_tap(spec: DirectionSpec, tap: T) -> Self
    where
        P: fmt::Debug + 'static,
    {
        let managed = aqm::is_managed(spec.discipline.0)
            .then(|| ManagedQueue::new(Box::new(OwnTransmitter::new(spec.transmission.clone(), discipline_of(&spec)))));
        LinkDirection::with_queue(spec, tap, managed)
    }

    /// Both directions of an empty link, with taps at their queues: that of the data, and the
    /// reverse. The link's medium is that of the first.
    ///
    /// The times that the caller passes to the two never decrease, as if they were one.
    pub fn pair(specs: [DirectionSpec; 2], taps: [T; 2]) -> [Self; 2]
    where
        P: fmt::Debug + 'static,
    {
        let access = match (specs[0].medium, &specs[0].transmission) {
            (Medium::HalfDuplex, Transmission::Rate(rate)) => MediumAccess::InTurn(*rate),
            (Medium::Wifi80211b, _) => MediumAccess::Contention(Contention::new(specs[0].streams.of_link(Purpose::Contention))),
            (Medium::FullDuplex, _) | (Medium::HalfDuplex, Transmission::Trace(_)) => {
                let [one, other] = specs;
                let [tap, other_tap] = taps;
                return [LinkDirection::with_tap(one, tap), LinkDirection::with_tap(other, other_tap)];
            }
        };
        let stations = shared_medium::stations(access, specs.each_ref().map(discipline_of));
        let mut parts = specs.into_iter().zip(taps).zip(stations);
        [(); 2].map(|()| {
            let ((spec, tap), station) = parts.next().expect("two of each");
            LinkDirection::with_queue(spec, tap, Some(ManagedQueue::new(Box::new(station))))
        })
    }

    fn with_queue(spec: DirectionSpec, tap: T, managed: Option<ManagedQueue<P>>) -> Self {
        let streams = spec.streams;
        let has_constant_delay = !spec.varies_delay && spec.disorder.is_none();
        let damage = Damage::of(&spec);
        let shaper = Shaper::new(spec.transmission, spec.limit);
        LinkDirection {
            shaper: if streams.is_reverse { shaper.without_delays() } else { shaper },
            losses: LossProcess::new(spec.loss, streams.losses()),
            damage,
            disorder: (!spec.disorder.is_none()).then(|| Disorder::new(spec.disorder, streams)),
            delay: Delay::new(spec.delay),
            has_constant_delay,
            is_eager: !has_constant_delay || managed.is_some() || tap.is_attached(),
            managed,
            tap,
            queue_drops: 0,
            lost: 0,
            lost_bytes: 0,
            duplicates: 0,
            duplicate_bytes: 0,
            delayed_bytes: 0,
        }
    }

    /// The tap, after it has seen everything that happened until `now`.
    pub fn tap(&mut self, now: Time) -> &mut T {
        self.advance(now);
        &mut self.tap
    }

    /// The counters as of the last poll.
    pub fn counts(&self) -> LinkCounts {
        let of_queue = match &self.managed {
            None => QueueCounts {
                arrived: self.shaper.accepted() + self.queue_drops,
                drops: self.queue_drops,
                departed: self.shaper.departed(),
                taken: (self.shaper.taken(), Bytes(self.shaper.taken_bytes())),
                max_queued: self.shaper.max_queued(),
            },
            Some(queue) => QueueCounts {
                arrived: queue.arrived(),
                drops: queue.drops(),
                departed: queue.taken(),
                taken: queue.taken(),
                max_queued: queue.max_queued(),
            },
        };
        let (taken, Bytes(taken_bytes)) = of_queue.taken;
        // A packet that was taken from the queue and is neither lost nor in flight was delivered.
        LinkCounts {
            arrived: of_queue.arrived,
            queue_drops: of_queue.drops,
            departed: of_queue.departed.0,
            departed_bytes: of_queue.departed.1,
            losses: self.lost,
            duplicates: self.duplicates,
            delivered: taken + self.duplicates - self.lost - self.delay.len() as u64,
            delivered_bytes: Bytes(taken_bytes + self.duplicate_bytes - self.lost_bytes - self.delayed_bytes),
            max_queued: of_queue.max_queued,
            collisions: self.managed.as_ref().map_or(0, ManagedQueue::collisions),
        }
    }

    /// The counters at `now`, independent of earlier polls.
    pub fn counts_at(&mut self, now: Time) -> LinkCounts {
        self.advance(now);
        self.counts()
    }

    /// How long packets took from their arrival at the queue until the end of their transmission,
    /// as of the last poll. `None` for the reverse direction, in which delays are not counted.
    pub fn queue_delays(&self) -> Option<&DelayHistogram> {
        self.managed.as_ref().map_or_else(|| self.shaper.delays(), |queue| Some(queue.delays()))
    }

    /// IP bytes whose transmission has ended by `now`.
    pub fn departed_bytes(&mut self, now: Time) -> Bytes {
        if self.is_eager {
            self.advance(now);
        }
        self.managed.as_ref().map_or_else(|| self.shaper.departed_by(now).1, |queue| queue.taken().1)
    }

    /// Bytes in the queue at `now`, without the packet in transmission.
    pub fn queued(&mut self, now: Time) -> Bytes {
        if self.is_eager {
            // The tap sees each departure together with the queue length at that time.
            self.advance(now);
        }
        self.queue_length(now)
    }

    /// [`queued`](Self::queued), where departures until `now` have been handled.
    fn queue_length(&mut self, now: Time) -> Bytes {
        self.managed.as_ref().map_or_else(|| self.shaper.queued(now), ManagedQueue::queued)
    }

    /// When the queue changes next, as far as is known.
    fn next_departure(&self) -> Option<Time> {
        self.managed.as_ref().map_or_else(|| self.shaper.next_wakeup(), ManagedQueue::next_wakeup)
    }

    /// For how long the transmitter has been busy from time zero until `now`.
    pub fn busy_time(&self, now: Time) -> Span {
        self.managed.as_ref().map_or_else(|| self.shaper.busy_time(now), |queue| queue.busy_time(now))
    }

    /// Packets in the queue, in transmission and in flight, including packets that will be lost
    /// when their transmission ends.
    pub fn len(&self) -> usize {
        self.managed.as_ref().map_or_else(|| self.shaper.len(), ManagedQueue::len) + self.delay.len()
    }

    /// Whether no packet is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The earliest time at which a packet may arrive at the other end; `None` if no packet is
    /// inside. For callers of the fast path: unlike [`LinkStage::next_wakeup`] it skips the ends of
    /// transmissions.
    #[inline]
    pub fn next_delivery(&self) -> Option<Time> {
        if self.is_eager {
            return self.next_eager_delivery();
        }
        let undelayed = self.shaper.next_wakeup().map(|departs| departs + self.delay.base_delay());
        if self.delay.is_empty() {
            return undelayed;
        }
        earlier(undelayed, self.delay.next_wakeup())
    }

    /// [`next_delivery`](Self::next_delivery) where departures are handled when they happen.
    fn next_eager_delivery(&self) -> Option<Time> {
        let departs = self.next_departure();
        let undelayed = if self.has_constant_delay { departs.map(|departs| departs + self.delay.base_delay()) } else { departs };
        earlier(undelayed, self.delay.next_wakeup())
    }

    /// [`LinkStage::enqueue`] of the fast path: packets that have departed stay in the shaper until
    /// they arrive.
    ///
    /// # Errors
    /// Returns the packet if the queue drops it.
    #[inline]
    pub fn enqueue_lazy(&mut self, now: Time, packet: P) -> Result<(), P> {
        if !self.is_eager {
            return self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1);
        }
        self.advance(now);
        self.tap.packet_arrived(now, &packet);
        let accepted = match &mut self.managed {
            None => self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1),
            Some(queue) => queue.enqueue(now, packet),
        };
        let length = self.queue_length(now);
        self.tap.queue_changed(length);
        accepted
    }

    /// [`LinkStage::ready`] of the fast path: a packet is moved once, when it arrives, and a lost
    /// one is discarded only then.
    pub fn poll_arrival(&mut self, now: Time) -> Option<(Time, P)> {
        if self.is_eager {
            return self.ready(now);
        }
        loop {
            let undelayed = self.shaper.next_wakeup().map(|departs| departs + self.delay.base_delay());
            // Of two packets that arrive together, the one with the extra delay departed first.
            if let Some(delayed) = self.delay.next_wakeup()
                && undelayed.is_none_or(|undelayed| delayed <= undelayed)
            {
                return self.take_delayed(now);
            }
            if undelayed? > now {
                return None;
            }
            let (departed, packet) = self.shaper.ready(now)?;
            if self.is_lost(departed, &packet) {
                continue;
            }
            if packet.extra_delay() == Span::ZERO {
                return Some((departed + self.delay.base_delay(), packet));
            }
            self.put_in_flight(departed, packet);
        }
    }

    /// As [`poll_arrival`](Self::poll_arrival), but copies the packet into `place`; returns whether
    /// a packet has arrived. Nearly always that packet is the first in the shaper and is copied
    /// from there directly.
    #[inline]
    pub fn poll_arrival_into(&mut self, now: Time, place: &mut P) -> bool
    where
        P: Copy,
    {
        while !self.is_eager && self.delay.is_empty() {
            let Some((departs, packet)) = self.shaper.first() else { return false };
            if departs + self.delay.base_delay() > now {
                return false;
            }
            if packet.extra_delay() > Span::ZERO {
                break;
            }
            *place = *packet;
            self.shaper.discard_first();
            if !self.is_lost(departs, place) {
                return true;
            }
        }
        self.poll_arrival(now).map(|(_, packet)| *place = packet).is_some()
    }

    /// Decides whether a packet whose transmission ended at `departed` is lost.
    #[inline]
    fn is_lost(&mut self, departed: Time, packet: &P) -> bool {
        let mut is_lost = self.losses.drops(departed);
        if let Some(damage) = &mut self.damage {
            is_lost |= damage.drops(departed, packet.wire_bytes());
        }
        if is_lost {
            self.lost += 1;
            self.lost_bytes += u64::from(packet.wire_bytes());
        }
        is_lost
    }

    /// Passes a transmitted packet to the delay stage.
    fn put_in_flight(&mut self, departed: Time, packet: P) {
        let Some(disorder) = &mut self.disorder else {
            self.delayed_bytes += u64::from(packet.wire_bytes());
            return self.delay.put(departed, ExtraDelay::NONE, packet);
        };
        let copies = if disorder.is_duplicated() { 2 } else { 1 };
        let bytes = u64::from(packet.wire_bytes());
        self.delayed_bytes += copies * bytes;
        self.duplicates += copies - 1;
        self.duplicate_bytes += (copies - 1) * bytes;
        for _ in 1..copies {
            let extra = disorder.extra_delay();
            self.delay.put(departed, extra, packet.clone());
        }
        let extra = disorder.extra_delay();
        self.delay.put(departed, extra, packet);
    }

    /// Takes the next packet that has passed the delay stage by `now`.
    fn take_delayed(&mut self, now: Time) -> Option<(Time, P)> {
        let (at, packet) = self.delay.ready(now)?;
        self.delayed_bytes -= u64::from(packet.wire_bytes());
        Some((at, packet))
    }

    /// Starts the clock of traces and outages at `origin`, which has passed by `now`. Packets that
    /// are inside keep their times.
    pub fn start(&mut self, now: Time, origin: Time) {
        self.advance(now);
        self.shaper.start_trace(origin);
        if let Some(queue) = &mut self.managed {
            queue.start_trace(origin);
        }
        if let Some(outages) = self.damage.as_mut().and_then(|damage| damage.outages.as_mut()) {
            outages.start(origin);
        }
    }

    /// Changes the propagation delay of packets that are transmitted after `now`. They do not
    /// overtake packets that are in flight.
    ///
    /// # Panics
    /// The link was made without [`DirectionSpec::varies_delay`].
    pub fn set_delay(&mut self, now: Time, delay: Span) {
        assert!(!self.has_constant_delay, "a link whose delay changes is made with varies_delay");
        self.advance(now);
        self.delay.set_base_delay(delay);
    }

    /// Changes the losses of packets that are transmitted after `now`.
    pub fn set_loss(&mut self, now: Time, loss: Option<Loss>) {
        self.advance(now);
        self.losses.set(loss);
    }

    /// Changes the rate at `now`, also for the packets in the queue and in transmission.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.advance(now);
        self.shaper.set_rate(now, rate);
        if let Some(queue) = &mut self.managed {
            queue.set_rate(now, rate);
        }
    }

    /// Moves the packets whose transmission has ended by `now` to the delay stage.
    fn advance(&mut self, now: Time) {
        while let Some((departed, mut packet)) = self.take_departed(now) {
            self.tap.packet_departed(departed, &mut packet);
            let length = self.queue_length(departed);
            self.tap.queue_changed(length);
            if !self.is_lost(departed, &packet) {
                self.put_in_flight(departed, packet);
            }
        }
    }

    /// Takes the next packet that has been transmitted by `now`.
    #[inline]
    fn take_departed(&mut self, now: Time) -> Option<(Time, P)> {
        match &mut self.managed {
            None => self.shaper.ready(now),
            Some(queue) => queue.ready(now),
        }
    }
}

impl<P: LinkPacket, T: QueueTap<P>> LinkStage<P> for LinkDirection<P, T> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.advance(now);
        self.enqueue_lazy(now, packet)
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.advance(now);
        self.take_delayed(now)
    }

    fn next_wakeup(&self) -> Option<Time> {
        earlier(self.next_departure(), self.delay.next_wakeup())
    }
}

/// The earlier of two times, as far as there are any.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
