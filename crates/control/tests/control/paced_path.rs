//! A path with one bottleneck, and a sender with all that a controller with rate samples is told:
//! what was in flight and lost when each packet was sent is known here, so that what a controller
//! reconstructs can be compared with it.

use control::{APP_LIMITED, CWND_LIMITED, Controller, ControllerState, Event, EventKind, FlowState, INFINITE};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;

pub(crate) const MSS: u32 = 1448;
const OPEN: u32 = 0;
const RECOVERY: u32 = 3;
/// Later packets that must be delivered before one counts as lost.
const DUPLICATE_THRESHOLD: usize = 3;

/// A packet that was sent.
#[derive(Debug, Clone, Copy)]
struct Packet {
    sent_us: f64,
    delivered: u32,
    delivered_us: f64,
    first_sent_us: f64,
    app_limited: bool,
    in_flight: u32,
    lost: u32,
    is_acked: bool,
    is_lost: bool,
}

/// What a controller would find in the record of the newest packet that an ACK delivers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Truth {
    /// In flight just after it was sent.
    pub(crate) in_flight: u32,
    /// Lost since.
    pub(crate) lost: u32,
}

/// A sender on a path: rate in packets/s, RTT without queue, buffer in packets.
pub(crate) struct PacedPath {
    pub(crate) flow: FlowState,
    pub(crate) state: ControllerState,
    pub(crate) now_us: f64,
    pub(crate) rate: f64,
    pub(crate) rtt_us: f64,
    pub(crate) buffer: f64,
    /// Probability of the loss of a packet.
    pub(crate) loss: f64,
    /// Packets that the application writes in a second; none: as many as can be sent.
    pub(crate) application: Option<f64>,
    /// Packets that one ACK acknowledges.
    pub(crate) stretch: usize,
    /// Truth of the last ACK, and the event.
    pub(crate) truth: Truth,
    pub(crate) event: Event,
    pub(crate) delivered: u64,
    written: f64,
    packets: Vec<Packet>,
    /// Packets on their way: number, and when the ACK arrives.
    acks: VecDeque<(usize, f64)>,
    /// The first packet that is neither acknowledged nor lost.
    first: usize,
    link_free_us: f64,
    next_send_us: f64,
    first_sent_us: f64,
    delivered_us: f64,
    app_limited: u32,
    recovery_end: usize,
    random: Pcg64Mcg,
}

impl PacedPath {
    pub(crate) fn new(name: &str, mbit: f64, rtt_ms: f64, buffer_bdp: f64) -> Self {
        let rate = mbit * 1e6 / 8.0 / f64::from(MSS);
        let mut flow = FlowState { mss: MSS, cwnd: 10, ssthresh: INFINITE, snd_wnd: 1 << 30, header: 52, ..FlowState::default() };
        flow.srtt_us = (rtt_ms * 1e3) as u32;
        flow.min_rtt_us = flow.srtt_us;
        let state = Controller::named(name).unwrap().begin(&mut flow, None, 1_000_000);
        PacedPath {
            flow,
            state,
            now_us: 1e6,
            rate,
            rtt_us: rtt_ms * 1e3,
            buffer: (rate * rtt_ms / 1e3 * buffer_bdp).max(4.0),
            loss: 0.0,
            application: None,
            stretch: 1,
            truth: Truth::default(),
            event: Event::default(),
            delivered: 0,
            written: 0.0,
            packets: Vec::new(),
            acks: VecDeque::new(),
            first: 0,
            link_free_us: 1e6,
            next_send_us: 1e6,
            first_sent_us: 1e6,
            delivered_us: 1e6,
            app_limited: 0,
            recovery_end: 0,
            random: Pcg64Mcg::seed_from_u64(11),
        }
    }

    /// Bandwidth-delay product, packets.
    pub(crate) fn bdp(&self) -> f64 {
        self.rate * self.rtt_us / 1e6
    }

    /// Changes the rate of the bottleneck, for what is queued too.
    pub(crate) fn set_rate(&mut self, rate: f64) {
        let (now, slower) = (self.now_us, self.rate / rate);
        let moved = |departs: f64| if departs > now { now + (departs - now) * slower } else { departs };
        for ack in &mut self.acks {
            ack.1 = moved(ack.1 - self.rtt_us) + self.rtt_us;
        }
        self.link_free_us = moved(self.link_free_us);
        self.rate = rate;
    }

    /// The 32-bit words of the controller's state.
    pub(crate) fn words(&self) -> Vec<u32> {
        self.state.words().iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect()
    }

    fn step(&mut self, event: Event) {
        self.flow.pacing_wait_us = (self.next_send_us - self.now_us).max(0.0) as u32;
        self.flow.app_limited = u32::from(self.app_limited > 0);
        self.flow.delivered = self.delivered as u32;
        let event = Event { now_us: self.now_us as u64, random: self.random.random(), ..event };
        self.state.step(&mut self.flow, None, &event);
        self.event = event;
    }

    pub(crate) fn notify(&mut self, kind: EventKind) {
        self.step(Event { kind, ..Event::default() });
    }

    /// Runs for a time; `each` is called after each ACK.
    pub(crate) fn run(&mut self, seconds: f64, mut each: impl FnMut(&mut PacedPath)) {
        let end = self.now_us + seconds * 1e6;
        while self.now_us < end {
            self.run_to_ack(end, &mut each);
        }
    }

    fn run_to_ack(&mut self, end: f64, each: &mut impl FnMut(&mut PacedPath)) {
        let may_send = self.flow.in_flight < self.flow.cwnd;
        let writes = match self.application {
            None => self.now_us,
            Some(rate) => self.now_us + ((self.packets.len() as f64 + 1.0 - self.written) / rate * 1e6).max(0.0),
        };
        let sends = if may_send { self.next_send_us.max(writes) } else { f64::INFINITY };
        // As many as one ACK stands for, or the last ones in flight.
        let ack = self.acks.get(self.stretch - 1).or(self.acks.back()).map_or(f64::INFINITY, |ack| ack.1);
        let next = sends.min(ack).min(end);
        self.written += self.application.unwrap_or(0.0) * (next - self.now_us).max(0.0) / 1e6;
        self.now_us = self.now_us.max(next);
        if ack <= next {
            self.ack();
            each(self);
        } else if sends <= next {
            self.send();
        } else if self.acks.is_empty() && !may_send {
            // Everything in flight was lost: the timer finds it.
            self.time_out();
        }
    }

    fn check_app_limited(&mut self) {
        let has_data = self.application.is_none() || self.written >= self.packets.len() as f64 + 1.0;
        if !has_data && self.flow.in_flight < self.flow.cwnd {
            self.app_limited = (self.delivered as u32 + self.flow.in_flight).max(1);
        }
    }

    fn send(&mut self) {
        if self.application.is_some() && self.next_send_us < self.now_us {
            self.app_limited = (self.delivered as u32 + self.flow.in_flight).max(1);
        }
        if self.flow.in_flight == 0 {
            self.notify(EventKind::Restart);
            self.first_sent_us = self.now_us;
            self.delivered_us = self.now_us;
        }
        self.flow.in_flight += 1;
        let number = self.packets.len();
        self.packets.push(Packet {
            sent_us: self.now_us,
            delivered: self.delivered as u32,
            delivered_us: self.delivered_us,
            first_sent_us: self.first_sent_us,
            app_limited: self.app_limited > 0,
            in_flight: self.flow.in_flight,
            lost: self.flow.lost,
            is_acked: false,
            is_lost: false,
        });
        self.next_send_us = self.next_send_us.max(self.now_us) + f64::from(MSS) * 1e6 / self.flow.pacing_rate.max(1) as f64;
        let queued = (self.link_free_us - self.now_us).max(0.0) * self.rate / 1e6;
        if queued <= self.buffer && !self.random.random_bool(self.loss) {
            self.link_free_us = self.link_free_us.max(self.now_us) + 1e6 / self.rate;
            self.acks.push_back((number, self.link_free_us + self.rtt_us));
        } else if queued <= self.buffer {
            // Lost behind the bottleneck.
            self.link_free_us = self.link_free_us.max(self.now_us) + 1e6 / self.rate;
        }
    }

    fn ack(&mut self) {
        self.check_app_limited();
        let prior_in_flight = self.flow.in_flight;
        let count = self.acks.iter().take_while(|ack| ack.1 <= self.now_us).count();
        let acked: Vec<usize> = self.acks.drain(..count).map(|ack| ack.0).collect();
        let newest = *acked.last().expect("an ACK is due");
        for number in acked {
            self.packets[number].is_acked = true;
            // A packet that the timer took for lost is not in flight.
            self.flow.in_flight -= u32::from(!self.packets[number].is_lost);
            self.delivered += 1;
        }
        if self.app_limited > 0 && self.delivered as u32 > self.app_limited {
            self.app_limited = 0;
        }
        let packet = self.packets[newest];
        let rtt_us = (self.now_us - packet.sent_us) as u32;
        let interval = (self.now_us - packet.delivered_us).max(packet.sent_us - packet.first_sent_us);
        self.first_sent_us = packet.sent_us;
        self.delivered_us = self.now_us;
        let lost = self.find_losses(newest);
        if self.flow.ca_state >= RECOVERY && self.first >= self.recovery_end {
            self.flow.ca_state = OPEN;
        }
        if lost > 0 && self.flow.ca_state == OPEN {
            self.notify(EventKind::Loss);
            self.flow.ca_state = RECOVERY;
            self.recovery_end = self.packets.len();
        }
        self.flow.srtt_us = (self.flow.srtt_us * 7 + rtt_us) / 8;
        self.flow.min_rtt_us = self.flow.min_rtt_us.min(rtt_us);
        self.truth = Truth { in_flight: packet.in_flight, lost: self.flow.lost - packet.lost };
        self.step(Event {
            kind: EventKind::Ack,
            flags: if prior_in_flight >= self.flow.cwnd { CWND_LIMITED } else { 0 } | if packet.app_limited { APP_LIMITED } else { 0 },
            acked: count as u32,
            rtt_us,
            lost,
            interval_us: interval as u32,
            sampled: self.delivered as u32 - packet.delivered,
            prior_delivered: packet.delivered,
            prior_in_flight,
            ..Event::default()
        });
    }

    /// Marks lost what was sent well before a packet that was delivered.
    fn find_losses(&mut self, newest: usize) -> u32 {
        let mut lost = 0;
        while self.first <= newest {
            let packet = &mut self.packets[self.first];
            if !packet.is_acked && !packet.is_lost {
                if newest - self.first < DUPLICATE_THRESHOLD {
                    break;
                }
                packet.is_lost = true;
                self.flow.in_flight -= 1;
                lost += 1;
            }
            self.first += 1;
        }
        self.flow.lost += lost;
        lost
    }

    fn time_out(&mut self) {
        self.notify(EventKind::Loss);
        for packet in &mut self.packets[self.first..] {
            if !packet.is_acked && !packet.is_lost {
                packet.is_lost = true;
                self.flow.lost += 1;
            }
        }
        self.first = self.packets.len();
        self.flow.in_flight = 0;
        self.flow.cwnd = 1;
        self.notify(EventKind::Timeout);
        self.flow.ca_state = 4;
        self.recovery_end = self.packets.len();
    }
}
