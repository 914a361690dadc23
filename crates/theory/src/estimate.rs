//! Stationary figures from a long path, by the means of its parts.

use crate::{Ends, Phase, Split, State};
use outcome::half_width;

/// A mean with the half width of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of its interval (Student's t over the parts).
    pub half: f64,
}

/// What a split connection does in the long run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Packets a second that go through.
    pub rate: Mean,
    /// Shares of time: free, starvation, backpressure.
    pub phases: [Mean; 3],
    /// Packets that the proxy holds.
    pub queue: Mean,
    /// What is free of the buffer, packets; infinite where it has no bound.
    pub antibuffer: Mean,
    /// From end to end by (19.16): half of both round trips, and the buffer at the second leg's rate, s.
    pub delay_s: Mean,
}

/// Parts of a path, long enough that they hardly know of each other.
const PARTS: usize = 40;

/// Sums over a part: time, packets, time in each phase, ∫ Q dt.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    time: f64,
    sent: f64,
    phases: [f64; 3],
    held: f64,
}

pub(crate) fn estimate(split: &Split, seed: u64, losses: u64) -> Estimate {
    let [first, second] = split.legs;
    let mut path = split.path(State { x: first.mean(), y: second.mean(), q: 0.0 }, seed);
    let each = (losses / PARTS as u64).max(1);
    // The first part forgets where it began.
    let parts: Vec<Part> = (0..=PARTS).map(|_| play(&mut path, each)).skip(1).collect();
    let rate = mean(&parts, |part| part.sent);
    let queue = mean(&parts, |part| part.held);
    let phases = [0, 1, 2].map(|phase| mean(&parts, |part| part.phases[phase]));
    let way = (first.rtt_s() + second.rtt_s()) / 2.0;
    Estimate {
        rate,
        phases,
        queue,
        antibuffer: Mean { mean: split.buffer - queue.mean, half: queue.half },
        delay_s: Mean { mean: way + queue.mean / rate.mean, half: queue.half / rate.mean },
    }
}

fn play(path: &mut crate::Path, losses: u64) -> Part {
    let (mut part, mut left) = (Part::default(), losses);
    while left > 0 {
        let segment = path.step();
        part.time += segment.span;
        part.sent += segment.sent;
        part.held += segment.held;
        let phase = match segment.phase {
            Phase::Free => 0,
            Phase::Starvation => 1,
            Phase::Backpressure => 2,
        };
        part.phases[phase] += segment.span;
        left -= u64::from(matches!(segment.ends, Ends::FirstLoses | Ends::SecondLoses));
    }
    part
}

/// A time average, as the ratio of two sums; its error is that of the parts' deviations from it.
fn mean(parts: &[Part], of: impl Fn(&Part) -> f64) -> Mean {
    let time: f64 = parts.iter().map(|part| part.time).sum();
    let mean = parts.iter().map(&of).sum::<f64>() / time;
    let each = time / parts.len() as f64;
    let deviations: Vec<f64> = parts.iter().map(|part| (of(part) - mean * part.time) / each).collect();
    Mean { mean, half: half_width(&deviations) }
}
