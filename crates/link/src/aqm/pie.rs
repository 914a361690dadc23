//! PIE (RFC 8033): drops arriving packets with a probability that a proportional-integral
//! controller sets by the delay of the queue.

use super::{Discipline, Dropped, Fifo, Limit, mark};
use crate::{stage::LinkPacket, time::Time};
use rand::RngExt as _;
use rand_pcg::Pcg64;
use scenario::QueueParameters;
use std::fmt;
use units::{PKT, Span};

/// Default target (section 5.1).
const TARGET: Span = Span(15_000_000);
/// Time between updates of the probability.
const T_UPDATE: Span = Span(15_000_000);
/// A burst of this length after an idle time is not dropped.
const MAX_BURST_S: f64 = 0.15;
/// Gains of the controller, per second.
const ALPHA: f64 = 0.125;
const BETA: f64 = 1.25;
/// Above this probability packets are dropped, not marked (section 5.1).
const MARK_UP_TO: f64 = 0.1;

#[derive(Debug)]
pub(super) struct PieQueue<P> {
    fifo: Fifo<P>,
    limit: Limit,
    target_s: f64,
    marks: bool,
    rng: Pcg64,
    probability: f64,
    /// Delay at the last update, s.
    old_delay_s: f64,
    /// What is left of the allowed burst, s.
    burst_s: f64,
    /// Sum of the probabilities since the last drop: drops are neither too close nor too far apart
    /// (derandomization, section 5.4).
    accumulated: f64,
    next_update: Time,
    /// Delay of the packet that left last, s.
    last_delay_s: f64,
}

impl<P: LinkPacket> PieQueue<P> {
    pub(super) fn new(limit: Limit, parameters: QueueParameters, rng: Pcg64) -> Self {
        PieQueue {
            fifo: Fifo::new(),
            limit,
            target_s: parameters.target.unwrap_or(TARGET).secs(),
            marks: parameters.marks,
            rng,
            probability: 0.0,
            old_delay_s: 0.0,
            burst_s: MAX_BURST_S,
            accumulated: 0.0,
            next_update: Time(0) + T_UPDATE,
            last_delay_s: 0.0,
        }
    }

    /// The updates that are due by `now` (section 4.2). Between two calls nothing leaves the queue,
    /// so that all of them see the same delay.
    fn update_until(&mut self, now: Time) {
        while self.next_update <= now {
            self.update();
            self.next_update = self.next_update + T_UPDATE;
            let is_at_rest = self.probability == 0.0 && self.burst_s >= MAX_BURST_S && self.fifo.is_empty();
            if is_at_rest && self.next_update <= now {
                // Nothing changes until a packet comes.
                let missed = (now - self.next_update).0 / T_UPDATE.0 + 1;
                self.next_update = self.next_update + T_UPDATE * missed;
            }
        }
    }

    fn update(&mut self) {
        let delay_s = if self.fifo.is_empty() { 0.0 } else { self.last_delay_s };
        let change = ALPHA * (delay_s - self.target_s) + BETA * (delay_s - self.old_delay_s);
        // Small probabilities change in small steps.
        let scale = match self.probability {
            p if p < 0.000_001 => 2048.0,
            p if p < 0.000_01 => 512.0,
            p if p < 0.000_1 => 128.0,
            p if p < 0.001 => 32.0,
            p if p < 0.01 => 8.0,
            p if p < 0.1 => 2.0,
            _ => 1.0,
        };
        let mut change = change / scale;
        if self.probability >= 0.1 {
            change = change.min(0.02);
        }
        self.probability += change;
        if delay_s == 0.0 && self.old_delay_s == 0.0 {
            self.probability *= 0.98;
        } else if delay_s > 0.25 {
            self.probability += 0.02;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        // Below this one packet in a billion would be dropped.
        if self.probability < 1e-9 {
            self.probability = 0.0;
        }
        let is_calm = delay_s < self.target_s / 2.0 && self.old_delay_s < self.target_s / 2.0 && self.probability == 0.0;
        self.burst_s = if is_calm { MAX_BURST_S } else { (self.burst_s - T_UPDATE.secs()).max(0.0) };
        self.old_delay_s = delay_s;
    }

    /// Whether an arriving packet is to be dropped (section 4.1).
    fn is_unlucky(&mut self, size: u32) -> bool {
        if self.burst_s > 0.0 || (self.old_delay_s < self.target_s / 2.0 && self.probability < 0.2) || self.fifo.bytes <= 2 * PKT.0 {
            return false;
        }
        if self.probability == 0.0 {
            self.accumulated = 0.0;
        }
        self.accumulated += self.probability * f64::from(size) / PKT.0 as f64;
        if self.accumulated < 0.85 {
            return false;
        }
        if self.accumulated >= 8.5 || self.rng.random::<f64>() < self.probability {
            self.accumulated = 0.0;
            return true;
        }
        false
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for PieQueue<P> {
    fn enqueue(&mut self, now: Time, mut packet: P, _: &mut Dropped) -> Result<(), P> {
        self.update_until(now);
        if !self.limit.has_room(self.fifo.backlog(), packet.wire_bytes()) {
            self.accumulated = 0.0;
            return Err(packet);
        }
        if self.is_unlucky(packet.wire_bytes()) && !mark(&mut packet, self.marks && self.probability <= MARK_UP_TO) {
            return Err(packet);
        }
        self.fifo.push(now, packet);
        Ok(())
    }

    fn dequeue(&mut self, now: Time, _: &mut Dropped) -> Option<(Time, P)> {
        self.update_until(now);
        let (arrived, packet) = self.fifo.pop()?;
        self.last_delay_s = (now - arrived).secs();
        Some((arrived, packet))
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }
}
