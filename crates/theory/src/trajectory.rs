//! A split connection as it goes, from event to event. Between two of them all is in closed form, so there is no time step and no error but
//! that of the arithmetic.
//!
//! In the free phase rates are straight lines and the buffer is a parabola. In the other two one leg leads, by itself, and the other
//! follows: its window grows by as many ACKs as the leader sends packets, so with S packets sent since, Y dY = βX dt gives Y² = Y₀² + 2βS.

use crate::{Follows, Losses, Phase, Split};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::vec;

/// Where both stand: the rates that their windows permit (packets/s), and the buffer (packets).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// Of the first leg.
    pub x: f64,
    /// Of the second.
    pub y: f64,
    /// What the proxy holds.
    pub q: f64,
}

/// What ends a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// A loss of the first leg.
    FirstLoses,
    /// A loss of the second.
    SecondLoses,
    /// The buffer has run empty.
    Empty,
    /// The buffer is full.
    Full,
    /// The one that was held back is no longer the faster.
    Meet,
    /// The first has reached its link's rate.
    FirstCapped,
    /// The second has.
    SecondCapped,
}

/// A stretch between two events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// The phase all through it.
    pub phase: Phase,
    /// Where it begins.
    pub from: State,
    /// Where it ends; a loss comes right after.
    pub to: State,
    /// How long it takes, s.
    pub span: f64,
    /// Packets that left the proxy in it.
    pub sent: f64,
    /// The time integral of the buffer, packets · s.
    pub held: f64,
    /// What ends it.
    pub ends: Ends,
    /// By how much both rates rise by themselves, packets/s²: 0 of one at its link's rate.
    slopes: [f64; 2],
}

impl Segment {
    /// The state `t` seconds after its beginning.
    pub fn at(&self, t: f64) -> State {
        let (State { x, y, q }, [a, b]) = (self.from, self.slopes);
        let followed = |rate: f64, slope: f64, led: f64| (rate * rate + 2.0 * slope * led).sqrt();
        match self.phase {
            Phase::Free => State { x: x + a * t, y: y + b * t, q: (q + packets(x - y, a - b, t)).max(0.0) },
            Phase::Starvation => State { x: x + a * t, y: followed(y, b, packets(x, a, t)), q },
            Phase::Backpressure => State { x: followed(x, a, packets(y, b, t)), y: y + b * t, q },
        }
    }
}

/// A path of a split connection: its stretches, without end.
#[derive(Debug, Clone)]
pub struct Path {
    split: Split,
    state: State,
    phase: Phase,
    /// Which legs are at their link's rate.
    capped: [bool; 2],
    /// For each leg: how much chance is left until its next loss, which is exponential of mean 1.
    chance: [f64; 2],
    chances: [Chances; 2],
}

pub(crate) const FIRST: usize = 0;
pub(crate) const SECOND: usize = 1;

/// The losses of a leg, each as the share of chance that it takes: exponential of mean 1, or as they were elsewhere.
#[derive(Debug, Clone)]
pub(crate) enum Chances {
    Drawn(Pcg64Mcg),
    Given(vec::IntoIter<f64>),
}

impl Chances {
    pub(crate) fn new(seed: u64, leg: usize) -> Self {
        Chances::Drawn(Pcg64Mcg::seed_from_u64(seed.wrapping_mul(2).wrapping_add(leg as u64)))
    }

    /// Losses at these places, which rise, of a leg that has so many a second, or a packet.
    pub(crate) fn at(places: &[f64], losses: f64) -> Self {
        let before = std::iter::once(&0.0).chain(places);
        let chances: Vec<f64> = places.iter().zip(before).map(|(at, before)| (at - before) * losses).collect();
        Chances::Given(chances.into_iter())
    }

    pub(crate) fn draw(&mut self) -> f64 {
        match self {
            Chances::Drawn(random) => draw(random),
            // No more are known.
            Chances::Given(chances) => chances.next().unwrap_or(f64::INFINITY),
        }
    }
}

impl Path {
    pub(crate) fn new(split: Split, from: State, seed: u64) -> Self {
        Path::by(split, from, [FIRST, SECOND].map(|leg| Chances::new(seed, leg)))
    }

    /// One whose legs lose by these chances.
    pub(crate) fn by(split: Split, from: State, mut chances: [Chances; 2]) -> Self {
        let chance = [chances[FIRST].draw(), chances[SECOND].draw()];
        let state = State { x: from.x.min(split.caps[FIRST]), y: from.y.min(split.caps[SECOND]), q: from.q.min(split.buffer) };
        let capped = [state.x >= split.caps[FIRST], state.y >= split.caps[SECOND]];
        let mut path = Path { split, state, phase: Phase::Free, capped, chance, chances };
        path.settle();
        path
    }

    /// Where it is now.
    pub fn state(&self) -> State {
        self.state
    }

    /// By how much a leg's rate rises, packets/s².
    fn slope(&self, leg: usize) -> f64 {
        if self.capped[leg] { 0.0 } else { self.split.legs[leg].slope() }
    }

    /// The phase that the state is in.
    fn settle(&mut self) {
        let State { x, y, q } = self.state;
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

    /// Goes to the next event.
    pub fn step(&mut self) -> Segment {
        let segment = match self.phase {
            Phase::Free => self.free(),
            Phase::Starvation => self.held(FIRST, SECOND),
            Phase::Backpressure => self.held(SECOND, FIRST),
        };
        self.state = segment.to;
        match segment.ends {
            Ends::FirstLoses => self.lose(FIRST),
            Ends::SecondLoses => self.lose(SECOND),
            Ends::FirstCapped => self.capped[FIRST] = true,
            Ends::SecondCapped => self.capped[SECOND] = true,
            Ends::Empty | Ends::Full | Ends::Meet => {}
        }
        match segment.ends {
            // The rates are equal to the last bit, or nearly: which way they part is known.
            Ends::Meet => self.phase = Phase::Free,
            Ends::Empty => self.phase = Phase::Starvation,
            Ends::Full => self.phase = Phase::Backpressure,
            _ => self.settle(),
        }
        segment
    }

    /// States at random times, `gap_s` apart in the mean and independent of the path: what they are in the mean the path is over time (PASTA).
    pub fn looks(mut self, gap_s: f64, seed: u64) -> impl Iterator<Item = State> {
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
        self.chance[leg] = self.chances[leg].draw();
    }

    /// Both by themselves.
    fn free(&mut self) -> Segment {
        let State { x, y, q } = self.state;
        let (a, b) = (self.slope(FIRST), self.slope(SECOND));
        let until = |leg: usize, rate: f64, slope: f64| match self.split.legs[leg].losses() {
            Losses::PerSecond(losses) => self.chance[leg] / losses,
            Losses::PerPacket(losses) => time_for(rate, slope, self.chance[leg] / losses),
        };
        let cap = |leg: usize, rate: f64, slope: f64| if slope > 0.0 { (self.split.caps[leg] - rate) / slope } else { f64::INFINITY };
        let (span, ends) = first([
            (until(FIRST, x, a), Ends::FirstLoses),
            (until(SECOND, y, b), Ends::SecondLoses),
            (reaches(q, x - y, a - b), Ends::Empty),
            (reaches(self.split.buffer - q, y - x, b - a), Ends::Full),
            (cap(FIRST, x, a), Ends::FirstCapped),
            (cap(SECOND, y, b), Ends::SecondCapped),
        ]);
        let (came, sent) = (packets(x, a, span), packets(y, b, span));
        self.spend(FIRST, span, came);
        self.spend(SECOND, span, sent);
        let q_end = match ends {
            Ends::Empty => 0.0,
            Ends::Full => self.split.buffer,
            _ => (q + came - sent).clamp(0.0, self.split.buffer),
        };
        let held = q * span + (x - y) * span.powi(2) / 2.0 + (a - b) * span.powi(3) / 6.0;
        let to = self.capped_at(ends, State { x: x + a * span, y: y + b * span, q: q_end });
        Segment { phase: Phase::Free, from: self.state, to, span, sent, held, ends, slopes: [a, b] }
    }

    /// One leads, the other follows.
    fn held(&mut self, lead: usize, follow: usize) -> Segment {
        let rates = [self.state.x, self.state.y];
        let (v, w, a, b) = (rates[lead], rates[follow], self.slope(lead), self.slope(follow));
        let loses = [Ends::FirstLoses, Ends::SecondLoses];
        let caps = [Ends::FirstCapped, Ends::SecondCapped];
        let (leader, follower) = (self.split.legs[lead].losses(), self.split.legs[follow].losses());
        let time = |packets: f64| time_for(v, a, packets);

        let leader_loses = match leader {
            Losses::PerSecond(losses) => self.chance[lead] / losses,
            Losses::PerPacket(losses) => time(self.chance[lead] / losses),
        };
        // Of what depends on the window the time is worth finding only where nothing else comes first.
        let by_window = matches!((follower, self.split.follows), (Losses::PerPacket(_), Follows::Window));
        let follower_loses = match follower {
            Losses::PerSecond(losses) => self.chance[follow] / losses,
            Losses::PerPacket(losses) if !by_window => time(self.chance[follow] / losses),
            Losses::PerPacket(_) => f64::INFINITY,
        };
        let meet = if a > b { time((w * w - v * v).max(0.0) / (2.0 * (a - b))) } else { f64::INFINITY };
        let leader_capped = if a > 0.0 { (self.split.caps[lead] - v) / a } else { f64::INFINITY };
        let follower_capped = if b > 0.0 { time((self.split.caps[follow].powi(2) - w * w) / (2.0 * b)) } else { f64::INFINITY };
        let (mut span, mut ends) = first([
            (leader_loses, loses[lead]),
            (follower_loses, loses[follow]),
            (meet, Ends::Meet),
            (leader_capped, caps[lead]),
            (follower_capped, caps[follow]),
            (f64::INFINITY, Ends::Empty),
        ]);
        let mut by = packets(v, a, span);
        if let (Losses::PerPacket(losses), true) = (follower, by_window) {
            let (window, chance) = (Window::new(v, a, w, b), self.chance[follow] / losses);
            by = if span.is_finite() { window.packets(span).0 } else { f64::INFINITY };
            if by >= chance {
                (span, ends, by) = (window.time_for(chance).min(span), loses[follow], chance);
            }
        }
        let sent = packets(v, a, span);
        self.spend(lead, span, sent);
        self.spend(follow, span, by);
        let mut after = [0.0; 2];
        after[lead] = v + a * span;
        after[follow] = (w * w + 2.0 * b * sent).sqrt();
        if ends == Ends::Meet {
            // Of one that stands still at its link's rate the rate is known to the last bit.
            after = [if b == 0.0 { w } else { after[lead] }; 2];
        }
        let phase = if lead == FIRST { Phase::Starvation } else { Phase::Backpressure };
        let q = if lead == FIRST { 0.0 } else { self.split.buffer };
        let to = self.capped_at(ends, State { x: after[FIRST], y: after[SECOND], q });
        let slopes = [self.slope(FIRST), self.slope(SECOND)];
        Segment { phase, from: self.state, to, span, sent, held: q * span, ends, slopes }
    }

    /// Takes from a leg's chance what a stretch has used of it.
    fn spend(&mut self, leg: usize, span: f64, packets: f64) {
        let used = match self.split.legs[leg].losses() {
            Losses::PerSecond(losses) => losses * span,
            Losses::PerPacket(losses) => losses * packets,
        };
        self.chance[leg] = (self.chance[leg] - used).max(0.0);
    }

    fn capped_at(&self, ends: Ends, state: State) -> State {
        match ends {
            Ends::FirstCapped => State { x: self.split.caps[FIRST], ..state },
            Ends::SecondCapped => State { y: self.split.caps[SECOND], ..state },
            _ => state,
        }
    }
}

/// An exponential variable of mean 1.
fn draw(random: &mut Pcg64Mcg) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// The earliest.
fn first<const N: usize>(events: [(f64, Ends); N]) -> (f64, Ends) {
    let mut earliest = events[0];
    for event in &events[1..] {
        if event.0 < earliest.0 {
            earliest = *event;
        }
    }
    (earliest.0.max(0.0), earliest.1)
}

/// Packets sent in `t` at a rate that begins at `v` and rises by `a`.
fn packets(v: f64, a: f64, t: f64) -> f64 {
    (v + a * t / 2.0) * t
}

/// How long that takes for so many.
fn time_for(v: f64, a: f64, packets: f64) -> f64 {
    if packets <= 0.0 {
        return 0.0;
    }
    // The usual root times its conjugate: nothing cancels.
    2.0 * packets / (v + (v * v + 2.0 * a * packets).sqrt())
}

/// When a distance `gap` ≥ 0 that changes by `d` a second, and `d` by `e`, is used up; never, perhaps.
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

/// The window rate of a leg that follows: w² = w₀² + 2bS while the leader sends S at a rate that begins at v and rises by a.
#[derive(Debug, Clone, Copy)]
struct Window {
    v: f64,
    a: f64,
    w: f64,
    b: f64,
    /// √(b/a): over the leader's rate u the window's is √(c + k² u²).
    k: f64,
}

impl Window {
    fn new(v: f64, a: f64, w: f64, b: f64) -> Self {
        Window { v, a, w, b, k: (b / a).sqrt() }
    }

    fn at(&self, t: f64) -> f64 {
        (self.w * self.w + 2.0 * self.b * packets(self.v, self.a, t)).sqrt()
    }

    /// Its time integral up to `t`, and what it is there.
    fn packets(&self, t: f64) -> (f64, f64) {
        let Window { v, a, w, b, k } = *self;
        let sent = packets(v, a, t);
        let last = (w * w + 2.0 * b * sent).sqrt();
        let by = if b * sent < 1e-6 * w * w {
            // So little that the differences below would cancel; Simpson's rule has an error of the fourth order.
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

    /// When that is `packets`.
    fn time_for(&self, packets: f64) -> f64 {
        let Window { v, a, w, b, .. } = *self;
        if b == 0.0 {
            return packets / w;
        }
        // It goes up by b v/w a second at first: less than that later, but for what the leader gains.
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
            // Halley's step: the rate itself rises by b u/rate, with u the leader's.
            let bend = newton * b * (v + a * t) / (rate * rate);
            let step = newton / (1.0 - bend / 2.0).max(0.5);
            t -= step;
            // The error after a step is of the order of its cube.
            if step.abs() <= 1e-5 * t {
                break;
            }
        }
        t.max(0.0)
    }
}
