//! A medium that both directions of a link share: one frame at a time.
//!
//! Each direction has a station: a queue, and the frame that the station sends next. A station is
//! the [`QueueServer`] of its direction. Both act on one medium, which is brought up to date before
//! every call, so that the frames are the same however often the caller polls.

use crate::{
    aqm::{Discipline, Dropped},
    contention::{Backoff, Contention},
    queue_server::{Departure, QueueServer},
    stage::LinkPacket,
    time::Time,
};
use std::{cell::RefCell, collections::VecDeque, fmt, rc::Rc};
use units::{Bytes, Rate, Span};

/// How a station comes to send its frame.
#[derive(Debug)]
pub(crate) enum MediumAccess {
    /// Stations that have frames take turns, frame by frame, at a rate.
    InTurn(Rate),
    /// The stations contend for the medium.
    Contention(Contention),
}

/// Connects two stations with these queues by a medium.
pub(crate) fn stations<P>(access: MediumAccess, queues: [Box<dyn Discipline<P>>; 2]) -> [MediumStation<P>; 2] {
    let stations = queues.map(|queue| Station {
        queue,
        frame: None,
        backoff: None,
        departures: VecDeque::new(),
        dropped: Dropped::default(),
        busy: Span::ZERO,
    });
    let medium = Medium { access, stations, exchange: None, idle_since: Time(0), last_sender: 1, collisions: 0 };
    let medium = Rc::new(RefCell::new(medium));
    [0, 1].map(|number| MediumStation { medium: medium.clone(), number })
}

/// One of the two stations of a medium.
#[derive(Debug)]
pub(crate) struct MediumStation<P> {
    medium: Rc<RefCell<Medium<P>>>,
    number: usize,
}

#[derive(Debug)]
struct Medium<P> {
    access: MediumAccess,
    stations: [Station<P>; 2],
    exchange: Option<Exchange<P>>,
    /// Since when the medium has been idle, if no exchange is under way.
    idle_since: Time,
    last_sender: usize,
    collisions: u64,
}

#[derive(Debug)]
struct Station<P> {
    queue: Box<dyn Discipline<P>>,
    /// The frame that is sent next. It has left the queue.
    frame: Option<Frame<P>>,
    backoff: Backoff,
    departures: VecDeque<Departure<P>>,
    dropped: Dropped,
    /// For how long its frames have occupied the medium, without the present exchange.
    busy: Span,
}

#[derive(Debug)]
struct Frame<P> {
    arrived: Time,
    /// Since when it has been the station's next frame.
    next_since: Time,
    packet: P,
}

/// A use of the medium.
#[derive(Debug)]
struct Exchange<P> {
    senders: Senders,
    /// The frame, until it has departed; none in a collision.
    frame: Option<Frame<P>>,
    starts: Time,
    departs: Time,
    /// When the medium is idle again.
    ends: Time,
}

/// Which stations send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Senders {
    One(usize),
    /// Their frames collide.
    Both,
}

impl<P: LinkPacket> Medium<P> {
    /// Lets everything happen that happens by `now`.
    fn advance(&mut self, now: Time) {
        loop {
            if let Some(exchange) = &mut self.exchange {
                if exchange.departs <= now
                    && let (Senders::One(sender), Some(frame)) = (exchange.senders, exchange.frame.take())
                {
                    let departure = Departure { arrived: frame.arrived, departed: exchange.departs, packet: frame.packet };
                    self.stations[sender].departures.push_back(departure);
                }
                if exchange.ends > now {
                    return;
                }
                self.end_exchange();
            }
            match self.next_start() {
                Some((starts, senders)) if starts <= now => self.begin_exchange(starts, senders),
                _ => return,
            }
        }
    }

    /// When the next exchange begins, and which stations send. None is under way.
    fn next_start(&self) -> Option<(Time, Senders)> {
        let order = |number: usize| {
            let Station { frame, backoff, .. } = &self.stations[number];
            let frame = frame.as_ref()?;
            Some(match (&self.access, backoff) {
                (MediumAccess::InTurn(_), _) => (frame.next_since.max(self.idle_since), number == self.last_sender),
                (MediumAccess::Contention(contention), Some(slots)) => (contention.backoff_end(*slots, self.idle_since), false),
                (MediumAccess::Contention(_), None) => (frame.next_since, false),
            })
        };
        let (one, other) = (order(0), order(1));
        match (one, other) {
            (Some(one), Some(other)) if one == other => Some((one.0, Senders::Both)),
            (Some(one), Some(other)) => Some(if one < other { (one.0, Senders::One(0)) } else { (other.0, Senders::One(1)) }),
            (Some((starts, _)), None) => Some((starts, Senders::One(0))),
            (None, other) => other.map(|(starts, _)| (starts, Senders::One(1))),
        }
    }

    fn begin_exchange(&mut self, starts: Time, senders: Senders) {
        let frame_bytes = |station: &Station<P>| station.frame.as_ref().map_or(0, |frame| frame.packet.wire_bytes());
        let bytes = match senders {
            Senders::One(sender) => frame_bytes(&self.stations[sender]),
            Senders::Both => self.stations.iter().map(frame_bytes).max().unwrap_or(0),
        };
        let (departs, ends) = match (&self.access, senders) {
            (MediumAccess::InTurn(rate), _) => {
                let departs = starts + rate.time_for(Bytes(bytes.into()));
                (departs, departs)
            }
            (MediumAccess::Contention(_), senders) => {
                let departs = starts + Contention::air_time(bytes);
                let is_acknowledged = senders != Senders::Both;
                (departs, if is_acknowledged { departs + Contention::acknowledgement_time() } else { departs })
            }
        };
        let frame = match senders {
            Senders::One(sender) => self.stations[sender].frame.take(),
            Senders::Both => None,
        };
        if let (MediumAccess::Contention(contention), Senders::One(sender)) = (&self.access, senders) {
            let other = &mut self.stations[1 - sender];
            other.backoff = contention.interrupted(other.backoff, self.idle_since, starts);
        }
        self.exchange = Some(Exchange { senders, frame, starts, departs, ends });
    }

    fn end_exchange(&mut self) {
        let Some(Exchange { senders, starts, ends, .. }) = self.exchange.take() else { return };
        self.idle_since = ends;
        match (&mut self.access, senders) {
            (_, Senders::Both) => {
                self.collisions += 1;
                if let MediumAccess::Contention(contention) = &mut self.access {
                    let [one, other] = contention.collided();
                    (self.stations[0].backoff, self.stations[1].backoff) = (one, other);
                }
            }
            (access, Senders::One(sender)) => {
                self.last_sender = sender;
                let station = &mut self.stations[sender];
                station.busy += ends - starts;
                if let MediumAccess::Contention(contention) = access {
                    station.backoff = contention.succeeded(sender);
                }
                self.load_frame(sender, ends);
            }
        }
    }

    /// Takes the next frame of a station from its queue.
    fn load_frame(&mut self, number: usize, now: Time) {
        let Station { queue, frame, dropped, .. } = &mut self.stations[number];
        while frame.is_none() && queue.backlog().0 > 0 {
            *frame = queue.dequeue(now, dropped).map(|(arrived, packet)| Frame { arrived, next_since: now, packet });
        }
    }

    fn is_sending(&self, number: usize) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.senders == Senders::One(number))
    }

    /// A packet arrives at a station at `now`, after [`advance`](Self::advance) to that time.
    fn enqueue(&mut self, number: usize, now: Time, packet: P) -> Result<(), P> {
        let is_first = self.stations[number].frame.is_none() && !self.is_sending(number);
        let Station { queue, dropped, .. } = &mut self.stations[number];
        queue.enqueue(now, packet, dropped).inspect_err(|packet| dropped.count(packet))?;
        if is_first {
            let idle_since = self.exchange.is_none().then_some(self.idle_since);
            if let MediumAccess::Contention(contention) = &mut self.access {
                let backoff = &mut self.stations[number].backoff;
                *backoff = contention.backoff_on_arrival(number, *backoff, idle_since, now);
            }
            self.load_frame(number, now);
            self.advance(now);
        }
        Ok(())
    }
}

impl<P: LinkPacket + fmt::Debug> QueueServer<P> for MediumStation<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let mut medium = self.medium.borrow_mut();
        medium.advance(now);
        medium.enqueue(self.number, now, packet)
    }

    fn take_departed(&mut self, now: Time) -> Option<Departure<P>> {
        let mut medium = self.medium.borrow_mut();
        medium.advance(now);
        medium.stations[self.number].departures.pop_front()
    }

    fn next_wakeup(&self) -> Option<Time> {
        let medium = self.medium.borrow();
        let station = &medium.stations[self.number];
        if let Some(departure) = station.departures.front() {
            return Some(departure.departed);
        }
        match &medium.exchange {
            Some(exchange) if exchange.senders == Senders::One(self.number) && exchange.frame.is_some() => Some(exchange.departs),
            Some(exchange) => (self.len() > 0).then_some(exchange.ends),
            None => station.frame.is_some().then(|| medium.next_start().map(|(starts, _)| starts)).flatten(),
        }
    }

    fn backlog(&self) -> (u64, u64) {
        self.medium.borrow().stations[self.number].queue.backlog()
    }

    fn len(&self) -> usize {
        let medium = self.medium.borrow();
        let Station { queue, frame, departures, .. } = &medium.stations[self.number];
        let is_on_the_air = medium.is_sending(self.number) && medium.exchange.as_ref().is_some_and(|exchange| exchange.frame.is_some());
        queue.backlog().0 as usize + usize::from(frame.is_some()) + usize::from(is_on_the_air) + departures.len()
    }

    fn dropped(&self) -> Dropped {
        self.medium.borrow().stations[self.number].dropped
    }

    fn busy_time(&self, now: Time) -> Span {
        let medium = self.medium.borrow();
        let present = medium.exchange.as_ref().filter(|exchange| exchange.senders == Senders::One(self.number));
        let present = present.map_or(Span::ZERO, |exchange| now.min(exchange.ends) - exchange.starts.min(now));
        medium.stations[self.number].busy + present
    }

    fn collisions(&self) -> u64 {
        self.medium.borrow().collisions
    }

    // A medium has one rate and follows no trace: `Scenario::check` refuses both beside it.
    fn set_rate(&mut self, _: Time, _: Rate) {}

    fn start_trace(&mut self, _: Time) {}
}

#[cfg(test)]
mod tests;
