//! Buffer sizing: how the rate depends on B, and what buffer suffices.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, LossBasis, LossRate, SegmentEnd, TandemModel, TandemState, TheoryError};

/// Two legs with mean rates 1 : `ratio`; the faster one has `often` times the loss intensity of the
/// slower one.
#[derive(Debug, Clone, Copy)]
struct Point {
    per_packet: bool,
    loss_basis: LossBasis,
    ratio: f64,
    often: f64,
    slow_first: bool,
    share: f64,
}

impl Point {
    fn split(&self) -> TandemModel {
        let losses = |rate: f64| if self.per_packet { LossRate::PerPacket(rate) } else { LossRate::PerSecond(rate) };
        let slope = self.often * if self.per_packet { self.ratio.powi(2) } else { self.ratio };
        let slow = Aimd::new(1.0, losses(1.0)).unwrap();
        let fast = Aimd::new(slope.powf(-0.5), losses(self.often)).unwrap();
        let (first, second) = if self.slow_first { (slow, fast) } else { (fast, slow) };
        TandemModel::new(first, second).with_loss_basis(self.loss_basis)
    }

    fn random(random: &mut Pcg64Mcg) -> Self {
        let kind = random.random_range(0..3);
        Point {
            per_packet: kind > 0,
            loss_basis: if kind == 1 { LossBasis::Sending } else { LossBasis::Window },
            ratio: 3f64.powf(random.random()),
            often: 4f64.powf(random.random_range(-1.0..1.0)),
            slow_first: random.random(),
            share: [0.9, 0.95, 0.99, 0.999][random.random_range(0..4)],
        }
    }
}

#[test]
fn sufficient_buffers_hold_at_random_points() {
    // A result from 100,000 losses against simulations with other losses, four times as long: at
    // the ends of its interval the rate must lie on either side of the target, within the error of
    // the check.
    const POINTS: usize = 50;
    let mut random = Pcg64Mcg::seed_from_u64(20);
    let (mut wrong, mut answered) = (Vec::new(), 0);
    while answered < POINTS {
        let point = Point::random(&mut random);
        let split = point.split();
        let advice = match split.sufficient_buffer(point.share, 1, 100_000) {
            Ok(advice) => advice,
            // Nearly equal legs are refused.
            Err(error) => {
                assert!(matches!(error, TheoryError::Critical { .. }) && point.ratio < 1.1, "{point:?}: {error}");
                continue;
            }
        };
        answered += 1;
        let shortfall = |packets: f64| split.with_buffer(packets).unwrap().shortfall(2, 400_000);
        let (low, high) = (advice.packets.mean - advice.packets.half, advice.packets.mean + advice.packets.half);
        let enough = shortfall(high.max(1e-9));
        let little = (low > 0.0).then(|| shortfall(low));
        let target = 1.0 - point.share;
        if enough.mean - enough.half > target || little.is_some_and(|little| little.mean + little.half < target) {
            wrong.push(format!("{point:?}: {advice:?}, checked {little:?} and {enough:?}"));
        }
    }
    // One in twenty 95 % intervals may miss.
    assert!(wrong.len() <= 4, "{} of {POINTS}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn in_natural_units_only_the_ratios_of_the_legs_matter() {
    // The same with other units of time and size.
    let point = Point { per_packet: false, loss_basis: LossBasis::Window, ratio: 1.5, often: 2.0, slow_first: true, share: 0.99 };
    let (time, size) = (3.0f64, 7.0f64);
    let slope = |leg: Aimd| (leg.slope() * size / time.powi(2)).powf(-0.5);
    for per_packet in [false, true] {
        let one = Point { per_packet, ..point }.split();
        let leg = |losses: f64, ratio: f64| {
            let losses = if per_packet { LossRate::PerPacket(losses / size) } else { LossRate::PerSecond(losses / time) };
            let slow = Aimd::new(1.0, LossRate::PerSecond(1.0)).unwrap();
            Aimd::new(slope(slow) / ratio.sqrt(), losses).unwrap()
        };
        let steep = if per_packet { 1.5f64.powi(2) * 2.0 } else { 3.0 };
        let other = TandemModel::new(leg(1.0, 1.0), leg(2.0, steep));
        let [here, there] = [one, other].map(|split| split.with_buffer(2.0 * split.buffer_unit()).unwrap().shortfall(5, 100_000).mean);
        assert!((here / there - 1.0).abs() < 1e-6, "{here} {there}");
    }
}

/// Time of the first leg's `losses`-th loss, and packets sent by the second leg until then.
fn sent_by(split: &TandemModel, start: TandemState, seed: u64, losses: usize) -> (f64, f64) {
    let mut trajectory = split.trajectory(start, seed);
    let mut time = 0.0;
    let mut sent = 0.0;
    let mut seen = 0;
    while seen < losses {
        let segment = trajectory.step();
        time += segment.span;
        sent += segment.sent;
        seen += usize::from(segment.ends == SegmentEnd::FirstLoses);
    }
    (time, sent)
}

#[test]
fn more_buffer_never_sends_less_at_any_time() {
    // Open question (i)(a) of the paper, for RI losses; stronger than asked, and not proved there.
    // With the same losses at the same times, the packets sent so far increase with B on every
    // trajectory tested.
    let mut random = Pcg64Mcg::seed_from_u64(8);
    for seed in 0..200 {
        let point = Point { per_packet: false, ..Point::random(&mut random) };
        let start = TandemState { x: random.random_range(0.1..3.0), y: random.random_range(0.1..3.0), q: 0.0 };
        let mut last = (0.0, 0.0);
        for (place, buffer) in [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0].into_iter().enumerate() {
            let now = sent_by(&point.split().with_buffer(buffer).unwrap(), start, seed, 200);
            assert!(
                place == 0 || ((now.0 / last.0 - 1.0).abs() < 1e-9 && now.1 >= last.1 * (1.0 - 1e-9)),
                "{point:?} {buffer}: {now:?} after {last:?}"
            );
            last = now;
        }
    }
}

#[test]
fn invalid_shares_are_refused() {
    let split = Point { per_packet: false, loss_basis: LossBasis::Window, ratio: 2.0, often: 1.0, slow_first: true, share: 0.9 }.split();
    for share in [0.0, 1.0, 1.5, f64::NAN] {
        assert!(split.sufficient_buffer(share, 1, 1000).unwrap_err().to_string().contains("the share of the rate"), "{share}");
    }
}

#[test]
fn equal_legs_are_refused_if_the_simulation_is_too_short() {
    let split = Point { per_packet: false, loss_basis: LossBasis::Window, ratio: 1.0, often: 1.0, slow_first: true, share: 0.999 }.split();
    let error = split.sufficient_buffer(0.999, 1, 10_000).unwrap_err();
    assert!(matches!(error, TheoryError::Critical { ratio: 1.0, have: 10_000, need: 10_001.., .. }), "{error}");
    // A small buffer mixes fast enough.
    assert!(split.sufficient_buffer(0.9, 1, 100_000).is_ok());
}
