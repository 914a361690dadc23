//! The lemmas of Baccelli, Carofiglio and Foss, and the constructions of their proofs, checked on
//! trajectories.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossRate, SegmentEnd, TandemModel, TandemState};

/// An independent rate that is halved at given times.
struct IsolatedRate<'a> {
    slope: f64,
    losses: &'a [f64],
}

impl IsolatedRate<'_> {
    /// The integral from `from`, where the rate is `rate`, to `to`, and the rate at `to`.
    fn integral(&self, mut rate: f64, mut from: f64, to: f64) -> (f64, f64) {
        let mut sum = 0.0;
        let start = from;
        for loss in self.losses.iter().copied().filter(|at| *at > start) {
            if loss > to {
                break;
            }
            sum += (rate + self.slope * (loss - from) / 2.0) * (loss - from);
            (rate, from) = ((rate + self.slope * (loss - from)) / 2.0, loss);
        }
        (sum + (rate + self.slope * (to - from) / 2.0) * (to - from), rate + self.slope * (to - from))
    }
}

/// A trajectory of a tandem with an unbounded buffer: the times of losses and of the starts of busy
/// periods, the end, and the queue at the end.
struct Observed {
    losses: [Vec<f64>; 2],
    busy: Vec<f64>,
    end: f64,
    queue: f64,
}

fn observe(split: &TandemModel, start: TandemState, seed: u64, steps: usize) -> Observed {
    let mut trajectory = split.trajectory(start, seed);
    let mut observed = Observed { losses: [Vec::new(), Vec::new()], busy: Vec::new(), end: 0.0, queue: 0.0 };
    for _ in 0..steps {
        let segment = trajectory.step();
        if segment.from.q == 0.0 {
            observed.busy.push(observed.end);
        }
        observed.end += segment.span;
        observed.queue = segment.to.q;
        match segment.ends {
            SegmentEnd::FirstLoses => observed.losses[0].push(observed.end),
            SegmentEnd::SecondLoses => observed.losses[1].push(observed.end),
            _ => {}
        }
    }
    observed
}

/// Slopes and loss rates of two legs with an unbounded buffer and RI losses.
fn ri() -> impl Strategy<Value = [(f64, f64); 2]> {
    [(0.5..2.0f64, 0.5..2.0f64), (0.5..4.0f64, 0.5..2.0f64)]
}

fn unbounded(legs: [(f64, f64); 2]) -> TandemModel {
    let [first, second] = legs.map(|(slope, losses)| Aimd::new(f64::powf(slope, -0.5), LossRate::PerSecond(losses)).unwrap());
    TandemModel::new(first, second)
}

proptest! {
    #[test]
    fn the_queue_is_between_its_bounds(legs in ri(), seed in 0..1000u64, x in 0.1..5.0f64, y in 0.1..5.0f64, steps in 20..200usize) {
        // (19.10) and (19.11), from an empty queue. In the lower bound the isolated second leg
        // starts at the tandem's rate, in the upper bound from 0 at the time u of the supremum: so
        // in the proof and in (19.12). As printed, (19.11) has it start from 0 at t, which can
        // exceed the rate of the tandem's second leg, and is no bound.
        let observed = observe(&unbounded(legs), TandemState { x, y, q: 0.0 }, seed, steps);
        let [first, second] = [0, 1].map(|leg| IsolatedRate { slope: legs[leg].0, losses: &observed.losses[leg] });
        let times = || [0.0].into_iter().chain(observed.busy.iter().copied()).chain(observed.losses.iter().flatten().copied()).filter(|u| *u <= observed.end);
        let since = |free: &IsolatedRate<'_>, start: f64, u: f64| free.integral(start, 0.0, observed.end).0 - free.integral(start, 0.0, u).0;
        let arrived_since = |u: f64| since(&first, x, u);
        let lower = times().map(|u| arrived_since(u) - since(&second, y, u)).fold(0.0, f64::max);
        let upper = times().map(|u| arrived_since(u) - second.integral(0.0, u, observed.end).0).fold(0.0, f64::max);
        let scale = 1e-9 * (1.0 + observed.end * observed.end);
        prop_assert!(lower <= observed.queue + scale, "L = {} > Q = {}", lower, observed.queue);
        prop_assert!(observed.queue <= upper + scale, "Q = {} > U = {}", observed.queue, upper);
    }

    #[test]
    fn the_integral_is_bounded_below_by_triangles(legs in ri(), seed in 0..1000u64) {
        // Figure 19.11: between losses τ apart the first leg sends at least ατ²/2.
        let mut trajectory = unbounded(legs).trajectory(TandemState { x: 1.0, y: 1.0, q: 0.0 }, seed);
        let mut sent = 0.0;
        let mut since = 0.0;
        let mut losses = 0;
        while losses < 50 {
            let segment = trajectory.step();
            since += segment.span;
            sent += (segment.from.x + segment.to.x) / 2.0 * segment.span;
            if segment.ends == SegmentEnd::FirstLoses {
                prop_assert!(sent >= legs[0].0 * since * since / 2.0 * (1.0 - 1e-9));
                sent = 0.0;
                since = 0.0;
                losses += 1;
            }
        }
    }
}

/// Points of a Poisson process on [0, width) × [0, height), by time: Figure 19.10.
struct Plane {
    points: Vec<(f64, f64)>,
    width: f64,
}

impl Plane {
    fn new(seed: u64, intensity: f64, width: f64, height: f64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let (mut at, mut points) = (0.0, Vec::new());
        loop {
            at -= (1.0 - random.random::<f64>()).ln() / (intensity * height);
            if at >= width {
                return Plane { points, width };
            }
            points.push((at, height * random.random::<f64>()));
        }
    }

    /// The integral of a rate that starts at `y` and is halved at each point below it, the number
    /// of these points, and the maximum of the rate.
    fn integral(&self, y: f64, slope: f64) -> (f64, usize, f64) {
        let mut rate = y;
        let mut from = 0.0;
        let mut sum = 0.0;
        let mut losses = 0;
        let mut most = y;
        for &(at, height) in &self.points {
            let here = rate + slope * (at - from);
            if height < here {
                sum += (rate + here) / 2.0 * (at - from);
                most = f64::max(most, here);
                rate = here / 2.0;
                from = at;
                losses += 1;
            }
        }
        let span = self.width - from;
        (sum + (rate + slope * span / 2.0) * span, losses, most.max(rate + slope * span))
    }
}

#[test]
fn points_below_the_curve_are_losses_per_packet() {
    // The construction gives losses with intensity μY, and the mean of (19.3).
    const MU: f64 = 0.5;
    let (slope, height) = (2.0, 40.0);
    let mut sent = 0.0;
    let mut losses = 0.0;
    let mut time = 0.0;
    for seed in 0..40 {
        let plane = Plane::new(seed, MU, 500.0, height);
        let (integral, count, most) = plane.integral(2.5, slope);
        assert!(most < height, "the strip is too low: {most}");
        sent += integral;
        losses += count as f64;
        time += plane.width;
    }
    // Losses minus μ times packets is a martingale with this variance.
    assert!((losses - MU * sent).abs() < 4.0 * losses.sqrt(), "{losses} of {}", MU * sent);
    let mean = Aimd::new(f64::powf(slope, -0.5), LossRate::PerPacket(MU)).unwrap().mean();
    assert!((sent / time / mean - 1.0).abs() < 0.02, "{} of {mean}", sent / time);
}

#[test]
fn the_integral_rises_with_its_start_except_for_jumps_and_attains_its_infimum() {
    for seed in 0..50 {
        let plane = Plane::new(seed, 0.5, 6.0, 60.0);
        let points: Vec<(f64, (f64, usize, f64))> = (0..4000).map(|i| f64::from(i) * 0.01).map(|y| (y, plane.integral(y, 1.0))).collect();
        let mut jumps = 0;
        for pair in points.windows(2) {
            let [(_, (a, _, _)), (_, (b, _, _))] = [pair[0], pair[1]];
            // It rises, except for downward jumps where one more point lies below the curve.
            jumps += usize::from(b < a);
        }
        assert!(jumps <= plane.points.len(), "{jumps} jumps, {} points", plane.points.len());
        let least = points.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap();
        // From this height on all points lie below the curve, and it only rises.
        assert!(least.0 < 30.0 && points[points.len() - 1].1.0 > least.1.0, "{least:?}");
    }
}

#[test]
fn under_rd_losses_a_lower_start_can_send_more() {
    // Why the proof for RD needs an infimum: the monotonicity of RI does not hold.
    let overtaken = (0..200).any(|seed| {
        let plane = Plane::new(seed, 0.5, 6.0, 60.0);
        plane.integral(1.0, 1.0).0 > plane.integral(1.5, 1.0).0
    });
    assert!(overtaken);
}
