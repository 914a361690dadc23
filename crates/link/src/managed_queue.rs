//! A queue under active management in front of a transmitter.

use crate::{
    aqm::{Discipline, Dropped},
    delay_histogram::DelayHistogram,
    stage::LinkPacket,
    time::Time,
    transmitter::{Transmission, Transmitter},
};
use units::{Bytes, Rate, Span};

/// A queue whose discipline selects the next packet when the transmitter is free.
///
/// Unlike a [`Shaper`](crate::Shaper) it does not know departures in advance. The caller calls
/// [`next_departure`](Self::next_departure) with the present time before each arrival, and takes
/// what has departed, so that each decision is made with the packets that had arrived by then.
#[derive(Debug)]
pub(crate) struct ManagedQueue<P> {
    transmitter: Transmitter,
    discipline: Box<dyn Discipline<P>>,
    /// The packet in transmission, and when that begins and ends.
    sending: Option<Sending<P>>,
    /// From when on the transmitter may begin with the next packet.
    free_from: Time,
    accepted: Dropped,
    dropped: Dropped,
    taken: Dropped,
    max_queued: u64,
    /// From arrival to departure, of the packets that have departed.
    delays: DelayHistogram,
}

#[derive(Debug)]
struct Sending<P> {
    arrived: Time,
    starts: Time,
    departs: Time,
    packet: P,
}

impl<P: LinkPacket> ManagedQueue<P> {
    pub(crate) fn new(transmission: Transmission, discipline: Box<dyn Discipline<P>>) -> Self {
        ManagedQueue {
            transmitter: Transmitter::new(transmission),
            discipline,
            sending: None,
            free_from: Time(0),
            accepted: Dropped::default(),
            dropped: Dropped::default(),
            taken: Dropped::default(),
            max_queued: 0,
            delays: DelayHistogram::default(),
        }
    }

    /// A packet arrives. All departures until `now` have been taken.
    ///
    /// # Errors
    /// Returns the packet if the queue drops it.
    pub(crate) fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        if self.discipline.backlog().0 == 0 && self.sending.is_none() {
            self.free_from = self.free_from.max(now);
        }
        self.accepted.packets += 1;
        self.accepted.bytes += u64::from(packet.wire_bytes());
        let accepted = self.discipline.enqueue(now, packet, &mut self.dropped);
        if let Err(packet) = &accepted {
            self.dropped.count(packet);
        }
        self.send_until(now);
        self.max_queued = self.max_queued.max(self.discipline.backlog().1);
        accepted
    }

    /// Begins with the next packet if the transmitter can by `now`.
    fn send_until(&mut self, now: Time) {
        while self.sending.is_none() && self.discipline.backlog().0 > 0 {
            let starts = self.transmitter.next_start(self.free_from);
            if starts > now {
                return;
            }
            let Some((arrived, packet)) = self.discipline.dequeue(starts, &mut self.dropped) else { continue };
            let (starts, departs) = self.transmitter.transmit(starts, u64::from(packet.wire_bytes()));
            self.sending = Some(Sending { arrived, starts, departs, packet });
        }
    }

    /// Takes the next packet that has departed by `now`, and when.
    pub(crate) fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.send_until(now);
        let Sending { arrived, departs, packet, .. } = self.sending.take_if(|sending| sending.departs <= now)?;
        self.free_from = departs;
        self.delays.add(departs - arrived);
        self.taken.packets += 1;
        self.taken.bytes += u64::from(packet.wire_bytes());
        self.send_until(now);
        Some((departs, packet))
    }

    /// When something happens next: a departure, or the begin of a transmission.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        match &self.sending {
            Some(sending) => Some(sending.departs),
            None if self.discipline.backlog().0 > 0 => Some(self.transmitter.next_start(self.free_from)),
            None => None,
        }
    }

    /// Changes the rate at `now`, for the rest of the packet in transmission as well.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Rate) {
        let Transmitter::Rate(transmitter) = &mut self.transmitter else { return };
        let before = transmitter.set_rate(now, rate);
        if let Some(sending) = &mut self.sending {
            let times = (sending.starts, sending.departs);
            (sending.starts, sending.departs) = transmitter.transmit_again(now, before, times, sending.packet.wire_bytes());
        }
    }

    pub(crate) fn start_trace(&mut self, now: Time) {
        if let Transmitter::Trace(transmitter) = &mut self.transmitter {
            transmitter.start(now);
        }
    }

    /// Bytes that wait, without the packet in transmission.
    pub(crate) fn queued(&self) -> Bytes {
        Bytes(self.discipline.backlog().1)
    }

    pub(crate) fn max_queued(&self) -> Bytes {
        Bytes(self.max_queued)
    }

    /// From arrival to departure, of the packets that have departed.
    pub(crate) fn delays(&self) -> &DelayHistogram {
        &self.delays
    }

    /// Packets inside.
    pub(crate) fn len(&self) -> usize {
        self.discipline.backlog().0 as usize + usize::from(self.sending.is_some())
    }

    /// Packets that have arrived, dropped ones included.
    pub(crate) fn arrived(&self) -> u64 {
        self.accepted.packets
    }

    pub(crate) fn drops(&self) -> u64 {
        self.dropped.packets
    }

    /// Packets and bytes that have departed and were taken.
    pub(crate) fn taken(&self) -> (u64, Bytes) {
        (self.taken.packets, Bytes(self.taken.bytes))
    }

    pub(crate) fn busy_time(&self, now: Time) -> Span {
        self.transmitter.busy_time(now)
    }
}
