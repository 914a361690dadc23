//! The lemmas of Baccelli, Carofiglio and Foss, and the constructions that their proofs are made of, on paths.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, Ends, Losses, Split, State};

/// A rate that rises by itself and is halved at given moments.
struct Free<'a> {
    slope: f64,
    losses: &'a [f64],
}

impl Free<'_> {
    /// The integral from `from`, where it begins with `rate`, to `to`; and the rate there.
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

/// A path of a tandem without a bound on its buffer: when each leg loses, when busy periods begin, and the queue at the end.
struct Seen {
    losses: [Vec<f64>; 2],
    busy: Vec<f64>,
    end: f64,
    queue: f64,
}

fn watch(split: &Split, start: State, seed: u64, steps: usize) -> Seen {
    let mut path = split.path(start, seed);
    let mut seen = Seen { losses: [Vec::new(), Vec::new()], busy: Vec::new(), end: 0.0, queue: 0.0 };
    for _ in 0..steps {
        let segment = path.step();
        if segment.from.q == 0.0 {
            seen.busy.push(seen.end);
        }
        seen.end += segment.span;
        seen.queue = segment.to.q;
        match segment.ends {
            Ends::FirstLoses => seen.losses[0].push(seen.end),
            Ends::SecondLoses => seen.losses[1].push(seen.end),
            _ => {}
        }
    }
    seen
}

/// Two legs without a bound between them, under losses by time: slopes and loss rates.
fn ri() -> impl Strategy<Value = [(f64, f64); 2]> {
    [(0.5..2.0f64, 0.5..2.0f64), (0.5..4.0f64, 0.5..2.0f64)]
}

fn unbounded(legs: [(f64, f64); 2]) -> Split {
    let [first, second] = legs.map(|(slope, losses)| Aimd::new(f64::powf(slope, -0.5), Losses::PerSecond(losses)).unwrap());
    Split::new(first, second)
}

proptest! {
    #[test]
    fn the_queue_is_between_its_bounds(legs in ri(), seed in 0..1000u64, x in 0.1..5.0f64, y in 0.1..5.0f64, steps in 20..200usize) {
        // (19.10) and (19.11), from an empty queue on. The lower bound lets the second leg go on by itself from where it begins, the upper one from
        // nothing at the moment u over which the supremum is taken: that is what the proof uses and (19.12) has. As printed, (19.11) has it begin
        // from nothing at t, which can be ahead of what the tandem's second leg has, and is no bound.
        let seen = watch(&unbounded(legs), State { x, y, q: 0.0 }, seed, steps);
        let [first, second] = [0, 1].map(|leg| Free { slope: legs[leg].0, losses: &seen.losses[leg] });
        let moments = || [0.0].into_iter().chain(seen.busy.iter().copied()).chain(seen.losses.iter().flatten().copied()).filter(|u| *u <= seen.end);
        let since = |free: &Free<'_>, start: f64, u: f64| free.integral(start, 0.0, seen.end).0 - free.integral(start, 0.0, u).0;
        let came = |u: f64| since(&first, x, u);
        let lower = moments().map(|u| came(u) - since(&second, y, u)).fold(0.0, f64::max);
        let upper = moments().map(|u| came(u) - second.integral(0.0, u, seen.end).0).fold(0.0, f64::max);
        let scale = 1e-9 * (1.0 + seen.end * seen.end);
        prop_assert!(lower <= seen.queue + scale, "L = {} > Q = {}", lower, seen.queue);
        prop_assert!(seen.queue <= upper + scale, "Q = {} > U = {}", seen.queue, upper);
    }

    #[test]
    fn the_integral_is_a_sum_of_trapezes_above_triangles(legs in ri(), seed in 0..1000u64) {
        // Figure 19.11: between losses τ apart the first leg sends at least ατ²/2.
        let mut path = unbounded(legs).path(State { x: 1.0, y: 1.0, q: 0.0 }, seed);
        let (mut trapeze, mut since, mut arrived) = (0.0, 0.0, 0);
        while arrived < 50 {
            let segment = path.step();
            since += segment.span;
            trapeze += (segment.from.x + segment.to.x) / 2.0 * segment.span;
            if segment.ends == Ends::FirstLoses {
                prop_assert!(trapeze >= legs[0].0 * since * since / 2.0 * (1.0 - 1e-9));
                (trapeze, since, arrived) = (0.0, 0.0, arrived + 1);
            }
        }
    }
}

/// Points of a Poisson process on the plane, over [0, width) × [0, height), by time: Figure 19.10.
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

    /// The integral of a rate that begins at `y` and is halved at each point below it; how often; and the highest it has been.
    fn integral(&self, y: f64, slope: f64) -> (f64, usize, f64) {
        let (mut rate, mut from, mut sum, mut losses, mut most) = (y, 0.0, 0.0, 0, y);
        for &(at, height) in &self.points {
            let here = rate + slope * (at - from);
            if height < here {
                sum += (rate + here) / 2.0 * (at - from);
                most = f64::max(most, here);
                (rate, from, losses) = (here / 2.0, at, losses + 1);
            }
        }
        let span = self.width - from;
        (sum + (rate + slope * span / 2.0) * span, losses, most.max(rate + slope * span))
    }
}

#[test]
fn points_below_the_curve_are_losses_per_packet() {
    // The construction gives losses of intensity μY: as many as packets times μ, and the mean of (19.3).
    const MU: f64 = 0.5;
    let (slope, height) = (2.0, 40.0);
    let (mut sent, mut losses, mut time) = (0.0, 0.0, 0.0);
    for seed in 0..40 {
        let plane = Plane::new(seed, MU, 500.0, height);
        let (integral, count, most) = plane.integral(2.5, slope);
        assert!(most < height, "the strip is too low: {most}");
        (sent, losses, time) = (sent + integral, losses + count as f64, time + plane.width);
    }
    // Losses less μ times packets is a martingale of that variance.
    assert!((losses - MU * sent).abs() < 4.0 * losses.sqrt(), "{losses} of {}", MU * sent);
    let mean = Aimd::new(f64::powf(slope, -0.5), Losses::PerPacket(MU)).unwrap().mean();
    assert!((sent / time / mean - 1.0).abs() < 0.02, "{} of {mean}", sent / time);
}

#[test]
fn the_integral_is_rising_in_where_it_begins_but_for_jumps_and_its_infimum_is_taken() {
    for seed in 0..50 {
        let plane = Plane::new(seed, 0.5, 6.0, 60.0);
        let points: Vec<(f64, (f64, usize, f64))> = (0..4000).map(|i| f64::from(i) * 0.01).map(|y| (y, plane.integral(y, 1.0))).collect();
        let mut jumps = 0;
        for pair in points.windows(2) {
            let [(_, (a, _, _)), (_, (b, _, _))] = [pair[0], pair[1]];
            // Without another point below the curve it rises; a jump is downwards, where one more is.
            jumps += usize::from(b < a);
        }
        assert!(jumps <= plane.points.len(), "{jumps} jumps, {} points", plane.points.len());
        let least = points.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap();
        // From so far up the curve is above all points, and only rises.
        assert!(least.0 < 30.0 && points[points.len() - 1].1.0 > least.1.0, "{least:?}");
    }
}

#[test]
fn under_losses_per_packet_who_begins_behind_can_come_out_ahead() {
    // Why the proof for RD needs an infimum: the monotonicity of the RI case fails.
    let overtaken = (0..200).any(|seed| {
        let plane = Plane::new(seed, 0.5, 6.0, 60.0);
        plane.integral(1.0, 1.0).0 > plane.integral(1.5, 1.0).0
    });
    assert!(overtaken);
}
