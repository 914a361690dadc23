//! The buffer question, open in the paper (§19.5): what rate does a bounded buffer leave, and how much of it is enough?
//!
//! An unbounded buffer passes on all that the slower leg does alone, so what a bound costs is a share of that. It is measured against the
//! slower leg alone *with the same losses*, the n-th of which takes the same share of chance in both, so that what both have in common cancels.
//! Under losses by time they come at the same moments, under losses per packet that is sent after the same packets, and a shortfall of a
//! thousandth is known to a few percent of itself.

use crate::{
    Aimd, Ends, Losses, Mean, Path, Split, State, TheoryError,
    aimd::positive,
    estimate,
    trajectory::{Chances, FIRST, SECOND},
};
use outcome::half_width;

/// A buffer that is enough, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Enough {
    /// The share of the rate without a bound that it leaves.
    pub share: f64,
    /// How much, packets; the half width is that of its 95 % interval.
    pub packets: Mean,
    /// How long a byte waits in it in the mean, s.
    pub waits_s: f64,
}

/// Parts of a path, for an interval.
const PARTS: usize = 40;

impl Split {
    /// The leg that alone is the slower, by its mean: what an unbounded buffer passes on.
    fn slower(&self) -> usize {
        let [first, second] = self.legs;
        if first.mean() <= second.mean() { FIRST } else { SECOND }
    }

    /// The share of the rate without a bound on the buffer that this bound costs, by so many losses of both legs together. Without a bound it is 0,
    /// whatever the losses: capacities are not looked at.
    pub fn shortfall(&self, seed: u64, losses: u64) -> Mean {
        let slower = self.slower();
        let [first, second] = self.legs;
        let q = if self.buffer.is_finite() { self.buffer / 2.0 } else { 0.0 };
        let mut path = self.path(State { x: first.mean(), y: second.mean(), q }, seed);
        let mut twin = Twin::new(self.legs[slower], Chances::new(seed, slower));
        // As many of the slower leg's own losses as there are in the mean.
        let each = (losses as f64 * self.slower_share() / PARTS as f64).ceil() as u64;
        // The first part forgets where it began.
        let parts: Vec<Compared> = (0..=PARTS).map(|_| Compared::over(each, slower, &mut path, &mut twin)).skip(1).collect();
        let sum = |of: fn(&Compared) -> f64| parts.iter().map(of).sum::<f64>() / PARTS as f64;
        let means = [sum(|part| part.sent), sum(|part| part.time_s), sum(|part| part.sent_alone), sum(|part| part.time_alone_s)];
        let ratio = means[0] / means[1] * means[3] / means[2];
        // What a part deviates by, to the first order.
        let deviation = |part: &Compared| {
            let [sent, time, alone, time_alone] = means;
            ratio * (part.sent / sent - part.time_s / time - part.sent_alone / alone + part.time_alone_s / time_alone)
        };
        Mean { mean: 1.0 - ratio, half: half_width(&parts.iter().map(deviation).collect::<Vec<_>>()) }
    }

    /// The least buffer that leaves `share` of the rate without a bound (0.99 for 99 %), by paths of so many losses: the shortfall falls with the
    /// buffer, and paths with the same losses make it a smooth function, whose root is found between powers of four.
    pub fn enough(&self, share: f64, seed: u64, losses: u64) -> Result<Enough, TheoryError> {
        let wanted = 1.0 - positive("the share of the rate", share)?;
        positive("the share of the rate that may be lost", wanted)?;
        let shortfall = |packets: f64| {
            self.forgets(packets, losses)?;
            Ok(Split { buffer: packets, ..*self }.shortfall(seed, losses))
        };
        let Some((low, high)) = self.bracket(wanted, &shortfall)? else {
            return Ok(Enough { share, packets: Mean { mean: 0.0, half: 0.0 }, waits_s: 0.0 });
        };
        let packets = root(low, high, wanted, &shortfall)?;
        // An error of the shortfall is one of the buffer by the slope between here and a quarter more.
        let there = shortfall(packets)?;
        let steepness = -(shortfall(packets * 1.25)?.mean / there.mean).ln() / 1.25f64.ln();
        let half = packets * there.half / wanted / steepness.max(1e-3);
        let found = estimate::estimate(&Split { buffer: packets, ..*self }, seed, losses);
        Ok(Enough { share, packets: Mean { mean: packets, half }, waits_s: found.queue.mean / found.rate.mean })
    }

    /// A buffer that costs more than is wanted and one, four times as large, that costs less; none where no buffer at all does.
    fn bracket(&self, wanted: f64, shortfall: &impl Fn(f64) -> Result<Mean, TheoryError>) -> Result<Option<(f64, f64)>, TheoryError> {
        let mut high = self.unit();
        while shortfall(high)?.mean > wanted {
            high *= 4.0;
        }
        let mut low = high / 4.0;
        while shortfall(low)?.mean < wanted {
            (low, high) = (low / 4.0, low);
            if low < 1e-6 * self.unit() {
                return Ok(None);
            }
        }
        Ok(Some((low, high)))
    }

    /// Whether a path of so many losses is long enough for what a buffer holds to have been all there is, many times over. In units of what the
    /// slower leg gains between two losses it goes a step of about 1 with each, at random, and twice what the faster leg's mean is ahead.
    fn forgets(&self, packets: f64, losses: u64) -> Result<(), TheoryError> {
        const TIMES: f64 = 10.0;
        let [first, second] = self.alone_means();
        let (ratio, size) = (first.max(second) / first.min(second), packets / self.unit());
        let drift = 2.0 * (ratio - 1.0);
        let steps = size.powi(2).min(size / drift + drift.powi(-2));
        let need = (TIMES * steps / self.slower_share()).ceil() as u64;
        if need <= losses { Ok(()) } else { Err(TheoryError::Critical { ratio, packets, have: losses, need }) }
    }

    /// How often the leg that alone is the slower loses, a second in the mean.
    pub fn slower_losses(&self) -> f64 {
        self.losses_of(self.slower())
    }

    fn losses_of(&self, leg: usize) -> f64 {
        self.legs[leg].mean() * self.legs[leg].loss_probability()
    }

    /// Of all losses those of the slower leg.
    fn slower_share(&self) -> f64 {
        self.slower_losses() / (self.losses_of(FIRST) + self.losses_of(SECOND))
    }

    /// A buffer of the order of what the slower leg gains between two of its losses, packets: α/λ² (RI), 1/λ (RD). In units of it, of its rate's
    /// (α/λ and √(α/λ)) and of its time, the equations know only how the two legs compare.
    pub fn unit(&self) -> f64 {
        let leg = self.legs[self.slower()];
        match leg.losses() {
            Losses::PerSecond(losses) => leg.slope() / losses.powi(2),
            Losses::PerPacket(losses) => 1.0 / losses,
        }
    }
}

/// Where the shortfall is what is wanted: in logarithms it is nearly straight, so bisection and an end by the secant find it.
fn root(mut low: f64, mut high: f64, wanted: f64, shortfall: &impl Fn(f64) -> Result<Mean, TheoryError>) -> Result<f64, TheoryError> {
    for _ in 0..7 {
        let middle = (low * high).sqrt();
        if shortfall(middle)?.mean > wanted { low = middle } else { high = middle }
    }
    let ends = [shortfall(low)?.mean, shortfall(high)?.mean];
    let slope = (ends[0] / ends[1]).ln() / (high / low).ln();
    Ok(low * (ends[0] / wanted).powf(1.0 / slope))
}

/// What the tandem and its slower leg alone do over the same losses of that leg.
struct Compared {
    sent: f64,
    time_s: f64,
    sent_alone: f64,
    time_alone_s: f64,
}

impl Compared {
    fn over(losses: u64, leg: usize, path: &mut Path, twin: &mut Twin) -> Self {
        let (mut sent, mut time_s, before) = (0.0, 0.0, twin.done);
        let mine = if leg == FIRST { Ends::FirstLoses } else { Ends::SecondLoses };
        for _ in 0..losses {
            loop {
                let segment = path.step();
                // The first leg's packets are those that came.
                sent += segment.sent + if leg == FIRST { segment.to.q - segment.from.q } else { 0.0 };
                time_s += segment.span;
                if segment.ends == mine {
                    break;
                }
            }
            twin.step();
        }
        Compared { sent, time_s, sent_alone: twin.done[0] - before[0], time_alone_s: twin.done[1] - before[1] }
    }
}

/// The slower leg alone, with the losses that it has in the tandem.
struct Twin {
    leg: Aimd,
    rate: f64,
    chances: Chances,
    /// Packets sent, and time, s.
    done: [f64; 2],
}

impl Twin {
    fn new(leg: Aimd, chances: Chances) -> Self {
        Twin { leg, rate: leg.mean(), chances, done: [0.0; 2] }
    }

    /// Goes on until after the next loss.
    fn step(&mut self) {
        let span = self.leg.loses_after(self.rate, self.chances.draw());
        let end = self.rate + self.leg.slope() * span;
        self.done[0] += (self.rate + end) / 2.0 * span;
        self.done[1] += span;
        self.rate = end / 2.0;
    }
}
