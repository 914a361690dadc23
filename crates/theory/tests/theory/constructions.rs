//! Constructions in the proofs of Baccelli, Carofiglio and Foss: the duality of §19.4.7, the second
//! monotonicity property, the super-additivity behind (19.14), the bound (19.15), and the limit of a
//! large buffer.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossRate, SegmentEnd, TandemModel, TandemState, Trajectory};
use units::Phase;

/// Times of a Poisson process.
fn poisson(seed: u64, intensity: f64, until: f64) -> Vec<f64> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut at = 0.0;
    let mut times = Vec::new();
    loop {
        at -= (1.0 - random.random::<f64>()).ln() / intensity;
        if at > until {
            return times;
        }
        times.push(at);
    }
}

/// The free rate that starts at `rate` at time `from`, with losses at times: its integral until `to`,
/// and its value then.
fn free(slope: f64, mut rate: f64, mut from: f64, to: f64, losses: &[f64]) -> (f64, f64) {
    let mut sum = 0.0;
    let mut pass = |until: f64, rate: &mut f64, from: &mut f64| {
        sum += (*rate + slope * (until - *from) / 2.0) * (until - *from);
        *rate += slope * (until - *from);
        *from = until;
    };
    for loss in losses.iter().filter(|loss| **loss > from && **loss <= to).copied().collect::<Vec<_>>() {
        pass(loss, &mut rate, &mut from);
        rate /= 2.0;
    }
    pass(to, &mut rate, &mut from);
    (sum, rate)
}

proptest! {
    #[test]
    fn the_antibuffer_is_the_buffer_of_the_exchanged_legs(
        slopes in [0.5..3.0f64, 0.5..3.0f64], per_packet in any::<bool>(), seed in 0..1000u64,
        x in 0.1..6.0f64, y in 0.1..6.0f64, buffer in 0.5..20.0f64, share in 0.01..0.99f64,
    ) {
        let losses = if per_packet { LossRate::PerPacket(0.3) } else { LossRate::PerSecond(1.0) };
        let legs = slopes.map(|slope| Aimd::new(f64::powf(slope, -0.5), losses).unwrap());
        let positions = [2 * seed, 2 * seed + 1].map(|seed| poisson(seed, 0.5, 60.0));
        let [first, second] = [&positions[0][..], &positions[1][..]];
        let model = |a: Aimd, b: Aimd| TandemModel::new(a, b).with_buffer(buffer).unwrap();
        let mut path = model(legs[0], legs[1]).trajectory_with_losses(TandemState { x, y, q: share * buffer }, [first, second]);
        let mut dual = model(legs[1], legs[0]).trajectory_with_losses(TandemState { x: y, y: x, q: buffer - share * buffer }, [second, first]);
        for _ in 0..40 {
            // Events at the same instant may come in either order.
            let next = |path: &mut Trajectory| (0..100).map(|_| path.step()).find(|segment| segment.span > 1e-9);
            let [here, there] = [next(&mut path), next(&mut dual)];
            prop_assert!(here.is_some() && there.is_some(), "time stands still: {:?} {:?}", path, dual);
            let (here, there) = (here.unwrap(), there.unwrap());
            let exchanged = match there.phase {
                Phase::Free => Phase::Free,
                Phase::Starvation => Phase::Backpressure,
                Phase::Backpressure => Phase::Starvation,
            };
            prop_assert_eq!(here.phase, exchanged);
            if !here.span.is_finite() {
                break;
            }
            for (a, b) in [(here.span, there.span), (here.to.x, there.to.y), (here.to.y, there.to.x), (buffer - here.to.q, there.to.q)] {
                prop_assert!((a - b).abs() < 1e-6 * (1.0 + a.abs()), "{:?} and {:?}", here, there);
            }
        }
    }

    #[test]
    fn an_earlier_start_from_zero_is_never_below_a_later_one(slope in 0.5..3.0f64, seed in 0..1000u64, starts in [0.0..20.0f64, 0.0..20.0f64], after in 0.0..20.0f64) {
        // Property 2 of §19.4.4.1, and φ(t + s) ≥ φ(t)∘θ(−s) + φ(s), which follows.
        let losses = poisson(seed, 1.0, 45.0);
        let [early, late] = [starts[0].min(starts[1]), starts[0].max(starts[1])];
        let end = late + after;
        let ((long, rate), (short, later_rate)) = (free(slope, 0.0, early, end, &losses), free(slope, 0.0, late, end, &losses));
        prop_assert!(rate >= later_rate - 1e-9);
        let before = free(slope, 0.0, early, late, &losses).0;
        prop_assert!(long >= before + short - 1e-9 * (1.0 + long), "{} < {} + {}", long, before, short);
    }

    #[test]
    fn a_buffer_above_the_largest_content_changes_nothing(slopes in [0.5..2.0f64, 2.0..4.0f64], per_packet in any::<bool>(), seed in 0..500u64) {
        let losses = if per_packet { LossRate::PerPacket(0.3) } else { LossRate::PerSecond(1.0) };
        let legs = slopes.map(|slope| Aimd::new(f64::powf(slope, -0.5), losses).unwrap());
        let start = TandemState { x: 1.0, y: 1.0, q: 0.0 };
        let sent = |split: TandemModel| {
            let mut path = split.trajectory(start, seed);
            let (mut sent, mut most, mut now) = (0.0, 0.0f64, 0.0);
            for _ in 0..300 {
                let segment = path.step();
                (sent, now) = (sent + segment.sent, now + segment.span);
                most = (0..=20).map(|part| segment.at(segment.span * f64::from(part) / 20.0).q).fold(most, f64::max);
            }
            (sent, now, most)
        };
        let unbounded = TandemModel::new(legs[0], legs[1]);
        let (all, time, most) = sent(unbounded);
        prop_assume!(most > 0.0);
        let (bounded, bounded_time, _) = sent(unbounded.with_buffer(1.1 * most).unwrap());
        prop_assert_eq!((all, time), (bounded, bounded_time));
    }
}

#[test]
fn the_mean_from_a_start_at_zero_tends_to_that_of_the_stationary_rate() {
    // (19.14): the integral from −t to 0 of the rate that starts from 0 at −t, over t.
    let (slope, until) = (2.0, 40_000.0);
    let losses = poisson(5, 0.5, until);
    let distance = |t: f64| (free(slope, 0.0, until - t, until, &losses).0 / t / (2.0 * slope / 0.5) - 1.0).abs();
    assert!(distance(10.0) > 0.05 && distance(40_000.0) < 0.03, "{} {}", distance(10.0), distance(40_000.0));
}

#[test]
fn the_rate_tends_to_that_of_the_slower_leg_as_the_buffer_grows() {
    for losses in [LossRate::PerSecond(1.0), LossRate::PerPacket(1.0)] {
        let split = TandemModel::new(Aimd::new(1.0, losses).unwrap(), Aimd::new(0.8, losses).unwrap());
        let lost: Vec<f64> =
            [0.25, 1.0, 4.0, 16.0, 64.0].map(|buffer| split.with_buffer(buffer).unwrap().shortfall(1, 200_000).mean).into();
        assert!(
            lost.windows(2).all(|pair| pair[1] < pair[0] || pair[0] < 1e-9) && lost[4] < 0.01 && lost[0] > 0.02,
            "{losses:?}: {lost:?}"
        );
    }
}

/// The points of Figure 19.10 and the rate of the second leg, which loses at those below its rate.
struct PlanePath<'a> {
    slope: f64,
    points: &'a [(f64, f64)],
}

impl PlanePath<'_> {
    /// The integral of the free rate that starts at `rate` at time `from` until `to`.
    fn free(&self, mut rate: f64, mut from: f64, to: f64) -> f64 {
        let mut sum = 0.0;
        for &(at, height) in self.points.iter().filter(|(at, _)| *at > from && *at <= to).collect::<Vec<_>>() {
            let here = rate + self.slope * (at - from);
            sum += (rate + here) / 2.0 * (at - from);
            (rate, from) = (if height < here { here / 2.0 } else { here }, at);
        }
        sum + (rate + self.slope * (to - from) / 2.0) * (to - from)
    }
}

#[test]
fn the_queue_under_losses_per_packet_is_below_its_bound() {
    // (19.15) on paths of the tandem whose losses are points below the rates, by small steps: the
    // bound must hold at every instant, up to the error of a step.
    const STEP: f64 = 2e-4;
    const UNTIL: f64 = 8.0;
    let mut full = 0;
    for seed in 0..30 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut plane = |intensity: f64| -> Vec<(f64, f64)> {
            poisson(random.random(), 40.0 * intensity, UNTIL).into_iter().map(|at| (at, 40.0 * random.random::<f64>())).collect()
        };
        let (first, second) = (plane(0.5), plane(0.5));
        let (mut x, mut y, mut q) = (2.0, 1.0, 0.0);
        let (mut next_first, mut next_second) = (first.iter().peekable(), second.iter().peekable());
        let mut arrived = vec![0.0];
        let mut sent = 0.0;
        let mut starts = vec![(0, y)];
        for step in 1..=(UNTIL / STEP) as usize {
            let starved = q <= 0.0 && x <= y;
            let sends = if starved { x } else { y };
            sent += x * STEP;
            arrived.push(sent);
            q = f64::max(0.0, q + (x - sends) * STEP);
            (x, y) = (x + STEP, y + 1.5 * sends / y * STEP);
            let now = step as f64 * STEP;
            while next_first.next_if(|(at, _)| *at <= now).is_some_and(|(_, height)| *height < x) {
                x /= 2.0;
            }
            while next_second.next_if(|(at, _)| *at <= now).is_some_and(|(_, height)| *height < y) {
                y /= 2.0;
            }
            if q == 0.0 {
                starts.push((step, y));
            }
        }
        let path = PlanePath { slope: 1.5, points: &second };
        // The infimum over all starts: a grid, which leaves it too large by a step of the grid at
        // most, and the rate of the tandem itself.
        let bound = starts
            .iter()
            .step_by(1 + starts.len() / 200)
            .chain(starts.last())
            .map(|(step, own)| {
                let u = *step as f64 * STEP;
                let starts = (0..150).map(|rate| f64::from(rate) * 0.1).chain([*own]);
                let least = starts.map(|rate| path.free(rate, u, UNTIL)).fold(f64::INFINITY, f64::min);
                sent - arrived[*step] - least
            })
            .fold(0.0, f64::max);
        full += usize::from(q > 0.0);
        assert!(q <= bound + 0.02, "seed {seed}: Q = {q} > U = {bound}");
    }
    assert!(full > 5, "the buffer was hardly ever used: {full} of 30");
}

#[test]
fn a_leg_without_further_losses_does_not_lose() {
    for losses in [LossRate::PerPacket(0.3), LossRate::PerSecond(1.0)] {
        let leg = Aimd::new(0.5, losses).unwrap();
        let model = TandemModel::new(leg, leg).with_buffer(2.0).unwrap();
        let mut path = model.trajectory_with_losses(TandemState { x: 3.0, y: 1.0, q: 1.0 }, [&[0.5], &[]]);
        let ends: Vec<SegmentEnd> =
            (0..50).map(|_| path.step()).take_while(|segment| segment.span.is_finite()).map(|segment| segment.ends).collect();
        assert_eq!(ends.iter().filter(|end| **end == SegmentEnd::FirstLoses).count(), 1, "{losses:?}: {ends:?}");
        assert!(!ends.contains(&SegmentEnd::SecondLoses) && ends.len() < 50, "{losses:?}: {ends:?}");
    }
}
