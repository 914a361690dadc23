//! DualPI2 (RFC 9332, appendix A): a queue of low latency (L4S) and a classic one. A
//! proportional-integral controller sets the probability of classic drops, and couples to it the
//! marks of the L4S queue, so that flows of both share the link.

use super::{Discipline, Dropped, Fifo, Limit, mark};
use crate::{
    stage::{Ecn, LinkPacket},
    time::Time,
};
use rand::RngExt as _;
use rand_pcg::Pcg64;
use scenario::QueueParameters;
use std::fmt;
use units::Span;

/// Default target of the classic queue.
const TARGET: Span = Span(15_000_000);
/// Maximum expected round trip, s: it sets the gains and the update time.
const RTT_MAX_S: f64 = 0.1;
/// Coupling factor.
const K: f64 = 2.0;
/// Above this classic probability the L4S queue drops too.
const P_CMAX: f64 = 1.0 / (K * K);
/// The L4S queue's ramp: no marks below `MIN_TH`, all marked from `MIN_TH` + `RANGE` on.
const MIN_TH_S: f64 = 0.0008;
const RANGE_S: f64 = 0.0004;

#[derive(Debug)]
pub(super) struct DualPi2Queue<P> {
    l4s: Fifo<P>,
    classic: Fifo<P>,
    limit: Limit,
    target_s: f64,
    marks: bool,
    rng: Pcg64,
    /// The base probability p'.
    p: f64,
    /// Delay of the longer queue at the last update, s.
    prevq_s: f64,
    t_update: Span,
    next_update: Time,
    /// Sums of probabilities since the last mark or drop of each queue, so that they are evenly
    /// spaced.
    l4s_count: f64,
    classic_count: f64,
}

impl<P: LinkPacket> DualPi2Queue<P> {
    pub(super) fn new(limit: Limit, parameters: QueueParameters, rng: Pcg64) -> Self {
        let target = parameters.target.unwrap_or(TARGET);
        let t_update = target.min(Span::from_secs_f64(RTT_MAX_S / 3.0));
        DualPi2Queue {
            l4s: Fifo::new(),
            classic: Fifo::new(),
            limit,
            target_s: target.secs(),
            marks: parameters.marks,
            rng,
            p: 0.0,
            prevq_s: 0.0,
            t_update,
            next_update: Time(0) + t_update,
            l4s_count: 0.0,
            classic_count: 0.0,
        }
    }

    /// The updates that are due by `now` (figure 6 of the RFC).
    fn update_until(&mut self, now: Time) {
        while self.next_update <= now {
            let at = self.next_update;
            self.next_update = at + self.t_update;
            let waits_s = |fifo: &Fifo<P>| fifo.first_arrival().map_or(0.0, |arrived| (at - arrived).secs());
            let curq_s = waits_s(&self.l4s).max(waits_s(&self.classic));
            let alpha = 0.1 * self.t_update.secs() / RTT_MAX_S.powi(2);
            let beta = 0.3 / RTT_MAX_S;
            let p = self.p + alpha * (curq_s - self.target_s) + beta * (curq_s - self.prevq_s);
            (self.p, self.prevq_s) = (p.clamp(0.0, 1.0), curq_s);
            if self.p == 0.0 && self.l4s.is_empty() && self.classic.is_empty() && self.next_update <= now {
                let missed = (now - self.next_update).0 / self.t_update.0 + 1;
                self.next_update = self.next_update + self.t_update * missed;
            }
        }
    }

    fn classic_probability(&self) -> f64 {
        (self.p * self.p).min(P_CMAX)
    }

    /// Whether an event of this probability happens: evenly spaced where the sum alone decides.
    fn recurs(count: &mut f64, likelihood: f64) -> bool {
        *count += likelihood;
        if *count > 1.0 {
            *count -= 1.0;
            return true;
        }
        false
    }

    /// The probability that the L4S queue marks by itself: a ramp over the delay.
    fn ramp(delay_s: f64) -> f64 {
        ((delay_s - MIN_TH_S) / RANGE_S).clamp(0.0, 1.0)
    }

    /// The next packet of the L4S queue, unless it was dropped.
    fn dequeue_l4s(&mut self, now: Time, dropped: &mut Dropped) -> Option<(Time, P)> {
        let (arrived, mut packet) = self.l4s.pop()?;
        let coupled = (self.p * K).min(1.0);
        if self.p * self.p < P_CMAX {
            let own = if self.l4s.is_empty() { 0.0 } else { Self::ramp((now - arrived).secs()) };
            if Self::recurs(&mut self.l4s_count, own.max(coupled)) {
                packet.mark_congestion();
            }
        } else if self.rng.random::<f64>() < self.classic_probability() {
            // Overload: both queues drop alike, and L4S marks besides.
            dropped.count(&packet);
            return None;
        } else if Self::recurs(&mut self.l4s_count, coupled) {
            packet.mark_congestion();
        }
        Some((arrived, packet))
    }

    fn dequeue_classic(&mut self, dropped: &mut Dropped) -> Option<(Time, P)> {
        let (arrived, mut packet) = self.classic.pop()?;
        let probability = self.classic_probability();
        let is_hit = if self.p * self.p < P_CMAX {
            Self::recurs(&mut self.classic_count, probability)
        } else {
            self.rng.random::<f64>() < probability
        };
        let marks = self.marks && self.p * self.p < P_CMAX;
        if is_hit && !mark(&mut packet, marks) {
            dropped.count(&packet);
            return None;
        }
        Some((arrived, packet))
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for DualPi2Queue<P> {
    fn enqueue(&mut self, now: Time, packet: P, _: &mut Dropped) -> Result<(), P> {
        self.update_until(now);
        if !self.limit.has_room(self.backlog(), packet.wire_bytes()) {
            return Err(packet);
        }
        match packet.ecn() {
            Ecn::Ect1 | Ecn::Ce => self.l4s.push(now, packet),
            Ecn::NotEct | Ecn::Ect0 => self.classic.push(now, packet),
        }
        Ok(())
    }

    fn dequeue(&mut self, now: Time, dropped: &mut Dropped) -> Option<(Time, P)> {
        self.update_until(now);
        // The L4S queue goes first, unless the classic one has waited longer by twice the target (a
        // time-shifted FIFO).
        let shift = Span::from_secs_f64(2.0 * self.target_s);
        while !self.l4s.is_empty() || !self.classic.is_empty() {
            let is_l4s_first = match (self.l4s.first_arrival(), self.classic.first_arrival()) {
                (Some(l4s), Some(classic)) => l4s <= classic + shift,
                (l4s, _) => l4s.is_some(),
            };
            let packet = if is_l4s_first { self.dequeue_l4s(now, dropped) } else { self.dequeue_classic(dropped) };
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    fn backlog(&self) -> (u64, u64) {
        let (l4s, classic) = (self.l4s.backlog(), self.classic.backlog());
        (l4s.0 + classic.0, l4s.1 + classic.1)
    }
}
