//! The control law of CoDel (RFC 8289): when the delay of a queue has been above a target for an
//! interval, packets are dropped at a rate that rises with the square root of their number.

use super::{Dropped, Fifo, mark};
use crate::{stage::LinkPacket, time::Time};
use scenario::QueueParameters;
use units::{PKT, Span};

/// Default target (RFC 8289 section 4.4).
const TARGET: Span = Span(5_000_000);
/// Default interval (section 4.3).
const INTERVAL: Span = Span(100_000_000);

/// The state of one queue under CoDel. Names are those of the pseudocode of section 5.
#[derive(Debug, Clone)]
pub(super) struct Codel {
    target: Span,
    interval: Span,
    marks: bool,
    /// When the delay will have been above the target for an interval; absent while it is below.
    first_above_time: Option<Time>,
    drop_next: Time,
    count: u64,
    lastcount: u64,
    dropping: bool,
}

impl Codel {
    pub(super) fn new(parameters: QueueParameters) -> Self {
        Codel {
            target: parameters.target.unwrap_or(TARGET),
            interval: parameters.interval.unwrap_or(INTERVAL),
            marks: parameters.marks,
            first_above_time: None,
            drop_next: Time(0),
            count: 0,
            lastcount: 0,
            dropping: false,
        }
    }

    /// Takes the next packet out of `fifo`, and drops or marks by the control law.
    pub(super) fn dequeue<P: LinkPacket>(&mut self, now: Time, fifo: &mut Fifo<P>, dropped: &mut Dropped) -> Option<(Time, P)> {
        let (mut packet, mut ok_to_drop) = self.look(now, fifo);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                if mark(&mut packet.as_mut()?.1, self.marks) {
                    self.drop_next = self.control_law(self.drop_next);
                    return packet;
                }
                dropped.count(&packet.as_ref()?.1);
                (packet, ok_to_drop) = self.look(now, fifo);
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            if !mark(&mut packet.as_mut()?.1, self.marks) {
                dropped.count(&packet.as_ref()?.1);
                packet = self.look(now, fifo).0;
            }
            self.dropping = true;
            // A queue that was dropping until lately starts with the rate that controlled it.
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < self.interval * 16 {
                self.count = delta;
            }
            self.drop_next = self.control_law(now);
            self.lastcount = self.count;
        }
        packet
    }

    /// Takes the first packet with its time of arrival, and tells whether the control law may drop
    /// it.
    fn look<P: LinkPacket>(&mut self, now: Time, fifo: &mut Fifo<P>) -> (Option<(Time, P)>, bool) {
        let Some(first) = fifo.pop() else {
            self.first_above_time = None;
            return (None, false);
        };
        // Fewer bytes than a full packet are no standing queue.
        if now - first.0 < self.target || fifo.bytes <= PKT.0 {
            self.first_above_time = None;
            return (Some(first), false);
        }
        match self.first_above_time {
            None => {
                self.first_above_time = Some(now + self.interval);
                (Some(first), false)
            }
            Some(at) => (Some(first), now >= at),
        }
    }

    /// The time of the next drop.
    fn control_law(&self, from: Time) -> Time {
        from + Span((self.interval.0 as f64 / (self.count as f64).sqrt()) as u64)
    }
}
