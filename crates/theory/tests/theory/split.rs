//! Trajectories of split connections against small-step integration, closed forms and the paper's
//! lemmas.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossBasis, LossRate, SegmentEnd, TandemModel, TandemState, tail};
use units::Phase;

const RI: fn(f64) -> LossRate = LossRate::PerSecond;
const RD: fn(f64) -> LossRate = LossRate::PerPacket;

fn split(first: (f64, LossRate), second: (f64, LossRate)) -> TandemModel {
    TandemModel::new(Aimd::new(first.0, first.1).unwrap(), Aimd::new(second.0, second.1).unwrap())
}

/// The scenario of the paper's Table 19.1.
fn table() -> TandemModel {
    split((0.040, RI(0.4)), (0.020, RI(0.4)))
}

/// Losses of one leg, as in a trajectory: integrals of the loss intensity between losses.
struct LossClock(Pcg64Mcg);

impl LossClock {
    fn of(seed: u64, leg: u64) -> Self {
        LossClock(Pcg64Mcg::seed_from_u64(seed.wrapping_mul(2).wrapping_add(leg)))
    }

    fn next(&mut self) -> f64 {
        -(1.0 - self.0.random::<f64>()).ln()
    }
}

/// Packets that leave within `seconds`, by Euler's method with the same losses.
fn euler(legs: [(f64, LossRate); 2], buffer: f64, follows: LossBasis, seed: u64, start: TandemState, seconds: f64, step: f64) -> f64 {
    let TandemState { mut x, mut y, mut q } = start;
    let mut clocks = [LossClock::of(seed, 0), LossClock::of(seed, 1)];
    let mut left = [clocks[0].next(), clocks[1].next()];
    let slopes = legs.map(|(rtt, _)| 1.0 / (rtt * rtt));
    let mut sent = 0.0;
    for _ in 0..(seconds / step) as u64 {
        let (starved, pressed) = (q <= 0.0 && x <= y, q >= buffer && x >= y);
        let (x_sends, y_sends) = (if pressed { y } else { x }, if starved { x } else { y });
        let by = |window: f64, sends: f64| if follows == LossBasis::Window { window } else { sends };
        for (leg, rate) in [(0, by(x, x_sends)), (1, by(y, y_sends))] {
            left[leg] -= step
                * match legs[leg].1 {
                    LossRate::PerSecond(losses) => losses,
                    LossRate::PerPacket(losses) => losses * rate,
                };
        }
        sent += y_sends * step;
        q = (q + (x_sends - y_sends) * step).clamp(0.0, buffer);
        x += slopes[0] * x_sends / x * step;
        y += slopes[1] * y_sends / y * step;
        for (leg, rate) in [(0, &mut x), (1, &mut y)] {
            if left[leg] <= 0.0 {
                *rate /= 2.0;
                left[leg] = clocks[leg].next();
            }
        }
    }
    sent
}

/// Time of the n-th event, and packets that have left until then, exactly.
fn exact(split: &TandemModel, seed: u64, start: TandemState, events: usize) -> (f64, f64) {
    let mut trajectory = split.trajectory(start, seed);
    (0..events).map(|_| trajectory.step()).fold((0.0, 0.0), |(time, sent), segment| (time + segment.span, sent + segment.sent))
}

#[test]
fn given_losses_come_at_their_times() {
    let times: [&[f64]; 2] = [&[0.5, 1.75, 4.0], &[1.0, 3.0]];
    let mut trajectory = table().with_buffer(20.0).unwrap().trajectory_with_losses(TandemState { x: 2000.0, y: 2500.0, q: 3.0 }, times);
    let (mut now, mut seen) = (0.0, [vec![], vec![]]);
    while seen[0].len() + seen[1].len() < 5 {
        let segment = trajectory.step();
        now += segment.span;
        match segment.ends {
            SegmentEnd::FirstLoses => seen[0].push(now),
            SegmentEnd::SecondLoses => seen[1].push(now),
            _ => {}
        }
    }
    for (seen, told) in seen.iter().zip(times) {
        assert_eq!(seen.len(), told.len());
        assert!(seen.iter().zip(told).all(|(seen, told)| (seen - told).abs() < 1e-9), "{seen:?} {told:?}");
    }
}

#[test]
fn given_losses_come_after_their_packets() {
    let places: [&[f64]; 2] = [&[700.0, 1500.5, 5000.0], &[900.0, 4000.0]];
    // The second leg sends nothing that the first has not brought.
    let legs = split((0.04, RD(0.001)), (0.02, RD(0.002))).with_loss_basis(LossBasis::Sending);
    let mut trajectory = legs.with_buffer(20.0).unwrap().trajectory_with_losses(TandemState { x: 2000.0, y: 2500.0, q: 3.0 }, places);
    let (mut gone, mut seen) = ([0.0; 2], [vec![], vec![]]);
    while seen[0].len() + seen[1].len() < 5 {
        let segment = trajectory.step();
        gone[1] += segment.sent;
        gone[0] += segment.sent + segment.to.q - segment.from.q;
        match segment.ends {
            SegmentEnd::FirstLoses => seen[0].push(gone[0]),
            SegmentEnd::SecondLoses => seen[1].push(gone[1]),
            _ => {}
        }
    }
    for (seen, told) in seen.iter().zip(places) {
        assert_eq!(seen.len(), told.len());
        assert!(seen.iter().zip(told).all(|(seen, told)| (seen - told).abs() < 1e-6), "{seen:?} {told:?}");
    }
}

#[test]
fn small_steps_converge_to_the_trajectory() {
    let start = TandemState { x: 20.0, y: 40.0, q: 2.0 };
    for (first, second, follows) in [
        ((0.2, RI(0.8)), (0.15, RI(1.1)), LossBasis::Window),
        ((0.2, RD(0.03)), (0.25, RD(0.02)), LossBasis::Window),
        ((0.2, RD(0.03)), (0.25, RD(0.02)), LossBasis::Sending),
        ((0.2, RI(0.8)), (0.25, RD(0.02)), LossBasis::Window),
        ((0.3, RD(0.02)), (0.15, RI(1.1)), LossBasis::Sending),
    ] {
        let model = split(first, second).with_buffer(15.0).unwrap().with_loss_basis(follows);
        for seed in 0..4 {
            let (seconds, truth) = exact(&model, seed, start, 300);
            let error = |step: f64| (euler([first, second], 15.0, follows, seed, start, seconds, step) / truth - 1.0).abs();
            let (coarse, fine) = (error(1e-3), error(1e-5));
            assert!(fine < 1e-3 && fine < coarse / 5.0 + 2e-5, "{first:?} {second:?} {follows:?} seed {seed}: {coarse} then {fine}");
        }
    }
}

#[test]
fn with_an_unbounded_buffer_the_first_leg_has_its_isolated_rate() {
    for (first, second) in [((0.040, RI(0.4)), (0.020, RI(0.4))), ((0.060, RD(0.03)), (0.030, RD(0.03)))] {
        let model = split(first, second);
        let mean = Aimd::new(first.0, first.1).unwrap().mean();
        let found = model.estimate(1, 4_000_000).unwrap();
        assert!((found.rate.mean / mean - 1.0).abs() < 2e-3, "{found:?}, {mean}");
        assert!(found.rate.half < 3e-3 * mean, "{found:?}");
        assert_eq!(found.phases[2].mean, 0.0);
    }
}

#[test]
fn a_bounded_buffer_reduces_the_slower_leg() {
    // Lemma 19.6 and observation 19.2: the rate increases with B and stays below both isolated
    // rates.
    let mut last = 0.0;
    for buffer in [1.0, 10.0, 100.0, 1000.0, 10_000.0] {
        let model = table().with_buffer(buffer).unwrap();
        let found = model.estimate(3, 1_000_000).unwrap();
        assert!(found.rate.mean + found.rate.half < 2.0 / 0.040f64.powi(2) / 0.4, "{buffer}: {found:?}");
        assert!(found.rate.mean > last, "{buffer}: {found:?}");
        assert!((found.phases.iter().map(|phase| phase.mean).sum::<f64>() - 1.0).abs() < 1e-12);
        last = found.rate.mean;
    }
}

#[test]
fn unstable_systems_are_refused() {
    let error = split((0.020, RI(0.4)), (0.040, RI(0.4))).estimate(1, 1000).unwrap_err();
    assert!(error.to_string().contains("rho = 4"), "{error}");
    assert!(table().with_buffer(0.0).is_err());
    assert!((split((0.1, RD(0.02)), (0.05, RD(0.03))).rho() - 0.375).abs() < 1e-12);
}

#[test]
fn a_capacity_is_not_exceeded_and_a_large_one_has_no_effect() {
    let model = table().with_buffer(50.0).unwrap();
    let far = model.with_capacities(1e9, 1e9).unwrap();
    assert_eq!(model.estimate(1, 100_000), far.estimate(1, 100_000));
    let near = model.with_capacities(2500.0, 2000.0).unwrap();
    let mut trajectory = near.trajectory(TandemState { x: 100.0, y: 100.0, q: 0.0 }, 5);
    let mut capped = 0;
    for _ in 0..100_000 {
        let segment = trajectory.step();
        assert!(segment.to.x <= 2500.0 && segment.to.y <= 2000.0, "{segment:?}");
        capped += u32::from(matches!(segment.ends, SegmentEnd::FirstCapped | SegmentEnd::SecondCapped));
    }
    assert!(capped > 1000, "{capped}");
    assert!(near.estimate(1, 100_000).unwrap().rate.mean < 2000.0);
}

#[test]
fn samples_have_the_time_average() {
    let model = table().with_buffer(200.0).unwrap();
    let found = model.estimate(1, 2_000_000).unwrap();
    let start = TandemState { x: 2000.0, y: 4000.0, q: 0.0 };
    let samples: Vec<TandemState> = model.trajectory(start, 9).samples(3.0, 2).skip(100).take(300_000).collect();
    let mean = samples.iter().map(|state| state.q).sum::<f64>() / samples.len() as f64;
    assert!((mean / found.queue.mean - 1.0).abs() < 0.03, "{mean} of {:?}", found.queue);
    let full = samples.iter().filter(|state| state.q == 200.0).count() as f64 / samples.len() as f64;
    assert!((full - found.phases[2].mean).abs() < 0.005, "{full} of {:?}", found.phases);
}

#[test]
fn the_unbounded_buffer_is_heavier_than_exponential_under_ri_losses() {
    // Lemma 19.8: the tail of Q is heavier than a Weibull law with shape 1/2.
    let model = split((0.030, RI(0.4)), (0.020, RI(0.4)));
    let queue: Vec<f64> =
        model.trajectory(TandemState { x: 2000.0, y: 4000.0, q: 0.0 }, 3).samples(10.0, 4).take(400_000).map(|state| state.q).collect();
    let verdict = tail::verdict(&queue).unwrap();
    assert_eq!(verdict.weight, tail::TailWeight::Heavier, "{verdict}");
}

fn losses() -> impl Strategy<Value = (f64, LossRate)> {
    (0.01..0.5f64, prop_oneof![(0.1..2.0f64).prop_map(RI), (0.001..0.1f64).prop_map(RD)])
}

fn ri() -> impl Strategy<Value = (f64, LossRate)> {
    (0.01..0.5f64, (0.1..2.0f64).prop_map(RI))
}

/// The second leg's rate just before each of its losses.
fn before_losses(model: &TandemModel, start: TandemState, seed: u64, count: usize) -> Vec<f64> {
    let mut trajectory = model.trajectory(start, seed);
    let mut rates = Vec::new();
    while rates.len() < count {
        let segment = trajectory.step();
        if segment.ends == SegmentEnd::SecondLoses {
            rates.push(segment.to.y);
        }
    }
    rates
}

proptest! {
    #[test]
    fn a_trajectory_is_continuous(first in losses(), second in losses(), buffer in 0.5..500.0f64, seed in 0..1000u64, sending: bool) {
        let follows = if sending { LossBasis::Sending } else { LossBasis::Window };
        let model = split(first, second).with_buffer(buffer).unwrap().with_loss_basis(follows);
        let mut trajectory = model.trajectory(TandemState { x: 5.0, y: 5.0, q: buffer / 2.0 }, seed);
        for _ in 0..500 {
            let state = trajectory.state();
            let segment = trajectory.step();
            prop_assert_eq!(segment.from, state);
            prop_assert!(segment.span >= 0.0 && segment.span.is_finite());
            let scale = 1e-9 * (segment.from.x + segment.from.y + segment.to.x + segment.to.y);
            match segment.phase {
                Phase::Free => prop_assert!((0.0..=buffer).contains(&segment.to.q)),
                Phase::Starvation => {
                    prop_assert!(segment.to.q == 0.0 && segment.from.x <= segment.from.y + scale && segment.to.x <= segment.to.y + scale);
                }
                Phase::Backpressure => {
                    prop_assert!(segment.to.q == buffer && segment.from.y <= segment.from.x + scale && segment.to.y <= segment.to.x + scale);
                }
            }
        }
    }

    #[test]
    fn the_second_leg_is_never_above_its_isolated_rate(first in ri(), second in ri(), seed in 0..1000u64) {
        // Monotonicity property 3: the same losses, with starvation.
        let start = TandemState { x: 50.0, y: 50.0, q: 0.0 };
        let tandem = split(first, second);
        // A first leg that is never the limit isolates the second one.
        let alone = split((1e-4, RI(1e-3)), second);
        let (held, free) = (before_losses(&tandem, start, seed, 60), before_losses(&alone, TandemState { x: 1e7, ..start }, seed, 60));
        for (held, free) in held.iter().zip(&free) {
            prop_assert!(*held <= free * (1.0 + 1e-9), "{} > {}", held, free);
        }
    }

    #[test]
    fn a_higher_start_stays_higher(second in ri(), seed in 0..1000u64, low in 1.0..100.0f64, more in 0.0..100.0f64) {
        // Monotonicity property 1.
        let alone = split((1e-4, RI(1e-3)), second);
        let from = |y: f64| before_losses(&alone, TandemState { x: 1e7, y, q: 0.0 }, seed, 60);
        for (low, high) in from(low).iter().zip(&from(low + more)) {
            prop_assert!(*low <= high * (1.0 + 1e-12));
        }
    }

    #[test]
    fn the_tandem_is_never_faster_than_either_leg(first in losses(), second in losses(), buffer in 0.5..200.0f64) {
        // Lemma 19.6, within the error of a short trajectory.
        let means = [first, second].map(|(rtt, losses)| Aimd::new(rtt, losses).unwrap().mean());
        let found = split(first, second).with_buffer(buffer).unwrap().estimate(7, 40_000).unwrap();
        prop_assert!(found.rate.mean - 2.0 * found.rate.half < means[0].min(means[1]), "{:?} of {:?}", found, means);
    }
}
