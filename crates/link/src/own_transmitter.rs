//! A queue in front of a transmitter of its own.

use crate::{
    aqm::{Discipline, Dropped},
    queue_server::{Departure, QueueServer},
    stage::LinkPacket,
    time::Time,
    transmitter::{Transmission, Transmitter},
};
use units::{Rate, Span};

/// A queue whose discipline selects the next packet when its transmitter is free.
#[derive(Debug)]
pub(crate) struct OwnTransmitter<P> {
    transmitter: Transmitter,
    discipline: Box<dyn Discipline<P>>,
    sending: Option<Sending<P>>,
    /// From when on the transmitter may begin with the next packet.
    free_from: Time,
    dropped: Dropped,
}

/// The packet in transmission, and when that begins and ends.
#[derive(Debug)]
struct Sending<P> {
    arrived: Time,
    starts: Time,
    departs: Time,
    packet: P,
}

impl<P: LinkPacket> OwnTransmitter<P> {
    pub(crate) fn new(transmission: Transmission, discipline: Box<dyn Discipline<P>>) -> Self {
        let transmitter = Transmitter::new(transmission);
        OwnTransmitter { transmitter, discipline, sending: None, free_from: Time(0), dropped: Dropped::default() }
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
}

impl<P: LinkPacket + std::fmt::Debug> QueueServer<P> for OwnTransmitter<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        if self.discipline.backlog().0 == 0 && self.sending.is_none() {
            self.free_from = self.free_from.max(now);
        }
        let accepted = self.discipline.enqueue(now, packet, &mut self.dropped);
        if let Err(packet) = &accepted {
            self.dropped.count(packet);
        }
        self.send_until(now);
        accepted
    }

    fn take_departed(&mut self, now: Time) -> Option<Departure<P>> {
        self.send_until(now);
        let Sending { arrived, departs: departed, packet, .. } = self.sending.take_if(|sending| sending.departs <= now)?;
        self.free_from = departed;
        self.send_until(now);
        Some(Departure { arrived, departed, packet })
    }

    fn next_wakeup(&self) -> Option<Time> {
        match &self.sending {
            Some(sending) => Some(sending.departs),
            None if self.discipline.backlog().0 > 0 => Some(self.transmitter.next_start(self.free_from)),
            None => None,
        }
    }

    fn backlog(&self) -> (u64, u64) {
        self.discipline.backlog()
    }

    fn len(&self) -> usize {
        self.discipline.backlog().0 as usize + usize::from(self.sending.is_some())
    }

    fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn busy_time(&self, now: Time) -> Span {
        self.transmitter.busy_time(now)
    }

    fn set_rate(&mut self, now: Time, rate: Rate) {
        let Transmitter::Rate(transmitter) = &mut self.transmitter else { return };
        let before = transmitter.set_rate(now, rate);
        if let Some(sending) = &mut self.sending {
            let times = (sending.starts, sending.departs);
            (sending.starts, sending.departs) = transmitter.transmit_again(now, before, times, sending.packet.wire_bytes());
        }
    }

    fn start_trace(&mut self, now: Time) {
        if let Transmitter::Trace(transmitter) = &mut self.transmitter {
            transmitter.start(now);
        }
    }
}
