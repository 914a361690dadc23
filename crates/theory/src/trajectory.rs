//! The trajectory of a split connection, from event to event. Between two events everything is in
//! closed form, so there is no time step, and no error but rounding.
//!
//! In the free phase the rates are linear and the buffer content is a parabola. In the other two
//! phases one leg *leads*, independently, and the other *follows*: its window grows by one ACK per
//! packet that the leader sends. With S packets sent since, Y dY = βX dt gives Y² = Y₀² + 2βS.

use crate::{
    aimd::LossRate,
    split::{LossBasis, TandemModel},
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::vec;
use units::Phase;

/// State of the tandem: the rates that the windows permit, and the buffer content.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TandemState {
    /// Rate of the first leg, packets/s.
    pub x: f64,
    /// Rate of the second leg, packets/s.
    pub y: f64,
    /// Buffer content of the proxy, packets.
    pub q: f64,
}

/// The event that ends a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentEnd {
    /// A loss of the first leg.
    FirstLoses,
    /// A loss of the second leg.
    SecondLoses,
    /// The buffer becomes empty.
    Empty,
    /// The buffer becomes full.
    Full,
    /// The rates meet: the leg that was held back is no longer the faster one.
    Meet,
    /// The first leg reaches its capacity.
    FirstCapped,
    /// The second leg reaches its capacity.
    SecondCapped,
}

/// A segment between two events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrajectorySegment {
    /// The phase throughout.
    pub phase: Phase,
    /// State at its start.
    pub from: TandemState,
    /// State at its end, before a loss that ends it.
    pub to: TandemState,
    /// Duration, s.
    pub span: f64,
    /// Packets that leave the proxy.
    pub sent: f64,
    /// Time integral of the buffer content, packets·s.
    pub held: f64,
    /// The event that ends it.
    pub ends: SegmentEnd,
    /// Slopes of the rates, packets/s²; 0 for a leg at its capacity.
    pub(crate) slopes: [f64; 2],
}

impl TrajectorySegment {
    /// The state `t` seconds after its start.
    pub fn at(&self, t: f64) -> TandemState {
        let (TandemState { x, y, q }, [a, b]) = (self.from, self.slopes);
        let followed = |rate: f64, slope: f64, led: f64| (rate * rate + 2.0 * slope * led).sqrt();
        match self.phase {
            Phase::Free => TandemState { x: x + a * t, y: y + b * t, q: (q + packets(x - y, a - b, t)).max(0.0) },
            Phase::Starvation => TandemState { x: x + a * t, y: followed(y, b, packets(x, a, t)), q },
            Phase::Backpressure => TandemState { x: followed(x, a, packets(y, b, t)), y: y + b * t, q },
        }
    }
}

/// A trajectory of a split connection: an endless sequence of segments.
///
/// [`step`](Trajectory::step) advances to the next event and returns the segment up to it.
#[derive(Debug, Clone)]
pub struct Trajectory {
    split: TandemModel,
    state: TandemState,
    phase: Phase,
    /// Which legs are at their capacity.
    capped: [bool; 2],
    /// For each leg: loss intensity still to be integrated until its next loss.
    hazard: [f64; 2],
    clocks: [LossClock; 2],
}

pub(crate) const FIRST: usize = 0;
pub(crate) const SECOND: usize = 1;

/// The losses of a leg, as the integral of the loss intensity from one loss to the next:
/// exponential with mean 1 (time change of a Poisson process), or recorded.
#[derive(Debug, Clone)]
pub(crate) enum LossClock {
    Random(Pcg64Mcg),
    Recorded(vec::IntoIter<f64>),
}

impl LossClock {
    pub(crate) fn new(seed: u64, leg: usize) -> Self {
        LossClock::Random(Pcg64Mcg::seed_from_u64(seed.wrapping_mul(2).wrapping_add(leg as u64)))
    }

    /// Losses at the given positions (seconds or packets), in ascending order, of a leg with
    /// intensity `losses` per second or packet.
    pub(crate) fn at(positions: &[f64], losses: f64) -> Self {
        let before = std::iter::once(&0.0).chain(positions);
        let hazards: Vec<f64> = positions.iter().zip(before).map(|(at, before)| (at - before) * losses).collect();
        LossClock::Recorded(hazards.into_iter())
    }

    pub(crate) fn draw(&mut self) -> f64 {
        match self {
            LossClock::Random(random) => draw(random),
            // There are no more losses.
            LossClock::Recorded(hazards) => hazards.next().unwrap_or(f64::INFINITY),
        }
    }
}

impl TandemModel {
    /// A trajectory from a state, with random losses from `seed`, independent for each leg. The
    /// integral of the loss intensity up to the n-th loss of a leg is the same in every trajectory
    /// of that seed, so trajectories can be compared loss by loss.
    pub fn trajectory(&self, from: TandemState, seed: u64) -> Trajectory {
        Trajectory::new(*self, from, seed)
    }

    /// A trajectory with the losses of each leg at given positions from the start, in ascending
    /// order: in seconds for rate-independent losses, in packets (by [`LossBasis`]) for
    /// rate-dependent ones. There are no losses after the last one.
    pub fn trajectory_with_losses(&self, from: TandemState, positions: [&[f64]; 2]) -> Trajectory {
        let clock = |leg: usize| match self.legs[leg].losses() {
            LossRate::PerSecond(losses) | LossRate::PerPacket(losses) => LossClock::at(positions[leg], losses),
        };
        Trajectory::with_clocks(*self, from, [clock(FIRST), clock(SECOND)])
    }
}

impl Trajectory {
    pub(crate) fn new(split: TandemModel, from: TandemState, seed: u64) -> Self {
        Trajectory::with_clocks(split, from, [FIRST, SECOND].map(|leg| LossClock::new(seed, leg)))
    }

    /// A trajectory with the given losses.
    pub(crate) fn with_clocks(split: TandemModel, from: TandemState, mut clocks: [LossClock; 2]) -> Self {
        let hazard = [clocks[FIRST].draw(), clocks[SECOND].draw()];
        let state = TandemState { x: from.x.min(split.caps[FIRST]), y: from.y.min(split.caps[SECOND]), q: from.q.min(split.buffer) };
        let capped = [state.x >= split.caps[FIRST], state.y >= split.caps[SECOND]];
        let mut path = Trajectory { split, state, phase: Phase::Free, capped, hazard, clocks };
        path.set_phase();
        path
    }

    /// The current state.
    pub fn state(&self) -> TandemState {
        self.state
    }

    /// Slope of a leg's rate, packets/s².
    fn slope(&self, leg: usize) -> f64 {
        if self.capped[leg] { 0.0 } else { self.split.legs[leg].slope() }
    }

    /// Sets the phase from the state.
    fn set_phase(&mut self) {
        let TandemState { x, y, q } = self.state;
        let slower = |a: f64, a_slope: f64, b: f64, b_slope: f64| a < b || (a == b && a_slope <= b_slope);
        let (a, b) = (self.slope(FIRST), self.slope(SECOND));
        self.phase = if q <= 0.0 && slower(x, a, y, b) {
            Phase::Starvation
        } else if q >= self.split.buffer && slower(y, b, x, a) {
            Phase::Backpressure
        } else {
            Phase::Free
        };
    }

    /// Advances to the next event.
    pub fn step(&mut self) -> TrajectorySegment {
        let segment = match self.phase {
            Phase::Free => self.free(),
            Phase::Starvation => self.coupled(FIRST, SECOND),
            Phase::Backpressure => self.coupled(SECOND, FIRST),
        };
        self.state = segment.to;
        match segment.ends {
            SegmentEnd::FirstLoses => self.lose(FIRST),
            SegmentEnd::SecondLoses => self.lose(SECOND),
            SegmentEnd::FirstCapped => self.capped[FIRST] = true,
            SegmentEnd::SecondCapped => self.capped[SECOND] = true,
            SegmentEnd::Empty | SegmentEnd::Full | SegmentEnd::Meet => {}
        }
        match segment.ends {
            // The rates are equal up to rounding, so the phase is set by the event.
            SegmentEnd::Meet => self.phase = Phase::Free,
            SegmentEnd::Empty => self.phase = Phase::Starvation,
            SegmentEnd::Full => self.phase = Phase::Backpressure,
            _ => self.set_phase(),
        }
        segment
    }

    /// States at Poisson times with mean distance `gap_s` (s), independent of the trajectory. Their
    /// mean is the time average (PASTA).
    pub fn samples(mut self, gap_s: f64, seed: u64) -> impl Iterator<Item = TandemState> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let (mut segment, mut t) = (self.step(), 0.0);
        std::iter::repeat_with(move || {
            t += gap_s * draw(&mut random);
            while t >= segment.span {
                t -= segment.span;
                segment = self.step();
            }
            segment.at(t)
        })
    }

    fn lose(&mut self, leg: usize) {
        let rate = if leg == FIRST { &mut self.state.x } else { &mut self.state.y };
        *rate /= 2.0;
        self.capped[leg] = false;
        self.hazard[leg] = self.clocks[leg].draw();
    }

    /// The next segment of the free phase: both legs are independent.
    fn free(&mut self) -> TrajectorySegment {
        let TandemState { x, y, q } = self.state;
        let (a, b) = (self.slope(FIRST), self.slope(SECOND));
        let until = |leg: usize, rate: f64, slope: f64| match self.split.legs[leg].losses() {
            LossRate::PerSecond(losses) => self.hazard[leg] / losses,
            LossRate::PerPacket(losses) => time_for(rate, slope, self.hazard[leg] / losses),
        };
        let cap = |leg: usize, rate: f64, slope: f64| if slope > 0.0 { (self.split.caps[leg] - rate) / slope } else { f64::INFINITY };
        let (span, ends) = earliest([
            (until(FIRST, x, a), SegmentEnd::FirstLoses),
            (until(SECOND, y, b), SegmentEnd::SecondLoses),
            (reaches(q, x - y, a - b), SegmentEnd::Empty),
            (reaches(self.split.buffer - q, y - x, b - a), SegmentEnd::Full),
            (cap(FIRST, x, a), SegmentEnd::FirstCapped),
            (cap(SECOND, y, b), SegmentEnd::SecondCapped),
        ]);
        let (arrived, sent) = (packets(x, a, span), packets(y, b, span));
        self.spend(FIRST, span, arrived);
        self.spend(SECOND, span, sent);
        let q_end = match ends {
            SegmentEnd::Empty => 0.0,
            SegmentEnd::Full => self.split.buffer,
            _ => (q + arrived - sent).clamp(0.0, self.split.buffer),
        };
        let held = q * span + (x - y) * span.powi(2) / 2.0 + (a - b) * span.powi(3) / 6.0;
        let to = self.capped_at(ends, TandemState { x: x + a * span, y: y + b * span, q: q_end });
        TrajectorySegment { phase: Phase::Free, from: self.state, to, span, sent, held, ends, slopes: [a, b] }
    }

    /// The next segment of starvation or backpressure: one leg leads, the other follows.
    fn coupled(&mut self, lead: usize, follow: usize) -> TrajectorySegment {
        let rates = [self.state.x, self.state.y];
        let v = rates[lead];
        let w = rates[follow];
        let a = self.slope(lead);
        let b = self.slope(follow);
        let CoupledEvent { span, ends, follower_exposure } = self.coupled_event(lead, follow);
        let sent = packets(v, a, span);
        self.spend(lead, span, sent);
        self.spend(follow, span, follower_exposure);
        let mut after = [0.0; 2];
        after[lead] = v + a * span;
        after[follow] = (w * w + 2.0 * b * sent).sqrt();
        if ends == SegmentEnd::Meet {
            // The rate of a leg at its capacity is exact.
            after = [if b == 0.0 { w } else { after[lead] }; 2];
        }
        let phase = if lead == FIRST { Phase::Starvation } else { Phase::Backpressure };
        let q = if lead == FIRST { 0.0 } else { self.split.buffer };
        let to = self.capped_at(ends, TandemState { x: after[FIRST], y: after[SECOND], q });
        let slopes = [self.slope(FIRST), self.slope(SECOND)];
        TrajectorySegment { phase, from: self.state, to, span, sent, held: q * span, ends, slopes }
    }

    /// The event that ends a segment of starvation or backpressure.
    fn coupled_event(&self, lead: usize, follow: usize) -> CoupledEvent {
        let rates = [self.state.x, self.state.y];
        let v = rates[lead];
        let w = rates[follow];
        let a = self.slope(lead);
        let b = self.slope(follow);
        let loses = [SegmentEnd::FirstLoses, SegmentEnd::SecondLoses];
        let caps = [SegmentEnd::FirstCapped, SegmentEnd::SecondCapped];
        let (leader, follower) = (self.split.legs[lead].losses(), self.split.legs[follow].losses());
        let time = |packets: f64| time_for(v, a, packets);

        let leader_loses = match leader {
            LossRate::PerSecond(losses) => self.hazard[lead] / losses,
            LossRate::PerPacket(losses) => time(self.hazard[lead] / losses),
        };
        // A loss by the window is expensive to find, so it is computed only if nothing else comes
        // first.
        let by_window = matches!((follower, self.split.loss_basis), (LossRate::PerPacket(_), LossBasis::Window));
        let follower_loses = match follower {
            LossRate::PerSecond(losses) => self.hazard[follow] / losses,
            LossRate::PerPacket(losses) if !by_window => time(self.hazard[follow] / losses),
            LossRate::PerPacket(_) => f64::INFINITY,
        };
        let meet = if a > b { time((w * w - v * v).max(0.0) / (2.0 * (a - b))) } else { f64::INFINITY };
        let leader_capped = if a > 0.0 { (self.split.caps[lead] - v) / a } else { f64::INFINITY };
        let follower_capped = if b > 0.0 { time((self.split.caps[follow].powi(2) - w * w) / (2.0 * b)) } else { f64::INFINITY };
        let (span, ends) = earliest([
            (leader_loses, loses[lead]),
            (follower_loses, loses[follow]),
            (meet, SegmentEnd::Meet),
            (leader_capped, caps[lead]),
            (follower_capped, caps[follow]),
            (f64::INFINITY, SegmentEnd::Empty),
        ]);
        if let (LossRate::PerPacket(losses), true) = (follower, by_window) {
            let window = Window::new(v, a, w, b);
            let hazard = self.hazard[follow] / losses;
            let exposure = if span.is_finite() { window.packets(span).0 } else { f64::INFINITY };
            return if hazard.is_finite() && exposure >= hazard {
                CoupledEvent { span: window.time_for(hazard).min(span), ends: loses[follow], follower_exposure: hazard }
            } else {
                CoupledEvent { span, ends, follower_exposure: exposure }
            };
        }
        CoupledEvent { span, ends, follower_exposure: packets(v, a, span) }
    }

    /// Subtracts the loss intensity of a segment from a leg's hazard.
    fn spend(&mut self, leg: usize, span: f64, packets: f64) {
        let used = match self.split.legs[leg].losses() {
            LossRate::PerSecond(losses) => losses * span,
            LossRate::PerPacket(losses) => losses * packets,
        };
        // A leg without further losses has none at the end of an endless segment either.
        if self.hazard[leg].is_finite() {
            self.hazard[leg] = (self.hazard[leg] - used).max(0.0);
        }
    }

    fn capped_at(&self, ends: SegmentEnd, state: TandemState) -> TandemState {
        match ends {
            SegmentEnd::FirstCapped => TandemState { x: self.split.caps[FIRST], ..state },
            SegmentEnd::SecondCapped => TandemState { y: self.split.caps[SECOND], ..state },
            _ => state,
        }
    }
}

/// The event that ends a segment in which one leg follows the other.
struct CoupledEvent {
    /// Time until the event, s.
    span: f64,
    ends: SegmentEnd,
    /// Packets that count for the follower's rate-dependent losses until then, by [`LossBasis`].
    follower_exposure: f64,
}

/// An exponential variable with mean 1.
fn draw(random: &mut Pcg64Mcg) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// The earliest event.
fn earliest<const N: usize>(events: [(f64, SegmentEnd); N]) -> (f64, SegmentEnd) {
    let mut first = events[0];
    for event in &events[1..] {
        if event.0 < first.0 {
            first = *event;
        }
    }
    (first.0.max(0.0), first.1)
}

/// Packets sent in time `t` at a rate that starts at `v` with slope `a`.
fn packets(v: f64, a: f64, t: f64) -> f64 {
    (v + a * t / 2.0) * t
}

/// Time in which that many packets are sent.
pub(crate) fn time_for(v: f64, a: f64, packets: f64) -> f64 {
    if packets <= 0.0 || packets.is_infinite() {
        return packets.max(0.0);
    }
    // In the form without cancellation.
    2.0 * packets / (v + (v * v + 2.0 * a * packets).sqrt())
}

/// When a gap ≥ 0 that changes at rate `d`, with slope `e` of that rate, reaches 0; infinite if
/// never.
fn reaches(gap: f64, d: f64, e: f64) -> f64 {
    let square = d * d - 2.0 * e * gap;
    if square < 0.0 || gap.is_infinite() {
        return f64::INFINITY;
    }
    let root = square.sqrt();
    match () {
        () if d < 0.0 => 2.0 * gap / (root - d),
        () if e < 0.0 => (d + root) / -e,
        () => f64::INFINITY,
    }
}

/// The window rate of a following leg: w² = w₀² + 2bS, while the leader sends S packets at a rate
/// that starts at v with slope a.
#[derive(Debug, Clone, Copy)]
struct Window {
    v: f64,
    a: f64,
    w: f64,
    b: f64,
    /// √(b/a): as a function of the leader's rate u the window rate is √(c + k² u²).
    k: f64,
}

impl Window {
    fn new(v: f64, a: f64, w: f64, b: f64) -> Self {
        Window { v, a, w, b, k: (b / a).sqrt() }
    }

    fn at(&self, t: f64) -> f64 {
        (self.w * self.w + 2.0 * self.b * packets(self.v, self.a, t)).sqrt()
    }

    /// Its time integral up to `t`, and its value at `t`.
    fn packets(&self, t: f64) -> (f64, f64) {
        let Window { v, a, w, b, k } = *self;
        let sent = packets(v, a, t);
        let last = (w * w + 2.0 * b * sent).sqrt();
        let by = if b * sent < 1e-6 * w * w {
            // The differences below would cancel; Simpson's rule has a fourth-order error.
            t / 6.0 * (w + 4.0 * self.at(t / 2.0) + last)
        } else if a == 0.0 {
            (last.powi(3) - w.powi(3)) / (3.0 * b * v)
        } else {
            let end = v + a * t;
            let c = w * w - k * k * v * v;
            (end * last - v * w + c / k * ((k * end + last) / (k * v + w)).ln()) / (2.0 * a)
        };
        (by, last)
    }

    /// When the integral is `packets`.
    fn time_for(&self, packets: f64) -> f64 {
        let Window { v, a, w, b, .. } = *self;
        if b == 0.0 {
            return packets / w;
        }
        // Initial guess: the slope is b v/w at first.
        let mut t = if w > 0.0 { time_for(w, b * v / w, packets) } else { (9.0 * packets * packets / (8.0 * b * v)).cbrt() };
        if !t.is_finite() || t > 1e12 {
            t = 1e-3;
            while self.packets(t).0 < packets {
                t *= 2.0;
            }
        }
        for _ in 0..60 {
            let (by, rate) = self.packets(t);
            let newton = (by - packets) / rate;
            // Halley's method: the slope of the rate is b u/rate, with u the leader's rate.
            let bend = newton * b * (v + a * t) / (rate * rate);
            let step = newton / (1.0 - bend / 2.0).max(0.5);
            t -= step;
            // The error after a step is of the order of the step's cube.
            if step.abs() <= 1e-5 * t {
                break;
            }
        }
        t.max(0.0)
    }
}
