//! The buffer question: how the rate depends on B, and what buffer is enough.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use theory::{Aimd, Ends, Follows, Losses, Split, State, TheoryError};

/// Two legs whose means are as 1 to `ratio`, losses of the faster `often` times those of the slower, which comes first or second.
#[derive(Debug, Clone, Copy)]
struct Point {
    per_packet: bool,
    follows: Follows,
    ratio: f64,
    often: f64,
    slow_first: bool,
    share: f64,
}

impl Point {
    fn split(&self) -> Split {
        let losses = |rate: f64| if self.per_packet { Losses::PerPacket(rate) } else { Losses::PerSecond(rate) };
        let slope = self.often * if self.per_packet { self.ratio.powi(2) } else { self.ratio };
        let slow = Aimd::new(1.0, losses(1.0)).unwrap();
        let fast = Aimd::new(slope.powf(-0.5), losses(self.often)).unwrap();
        let (first, second) = if self.slow_first { (slow, fast) } else { (fast, slow) };
        Split::new(first, second).with_losses_by(self.follows)
    }

    fn random(random: &mut Pcg64Mcg) -> Self {
        let kind = random.random_range(0..3);
        Point {
            per_packet: kind > 0,
            follows: if kind == 1 { Follows::Sending } else { Follows::Window },
            ratio: 3f64.powf(random.random()),
            often: 4f64.powf(random.random_range(-1.0..1.0)),
            slow_first: random.random(),
            share: [0.9, 0.95, 0.99, 0.999][random.random_range(0..4)],
        }
    }
}

#[test]
fn the_advice_holds_at_points_drawn_at_random() {
    // What it says, by 100,000 losses, against paths of other losses, four times as long: at the ends of its interval the rate is on either side of
    // what was asked for, but for the error of the check itself.
    const POINTS: usize = 50;
    let mut random = Pcg64Mcg::seed_from_u64(20);
    let (mut wrong, mut told) = (Vec::new(), 0);
    while told < POINTS {
        let point = Point::random(&mut random);
        let split = point.split();
        let advice = match split.enough(point.share, 1, 100_000) {
            Ok(advice) => advice,
            // Legs that are all but alike are refused, with what it takes.
            Err(error) => {
                assert!(matches!(error, TheoryError::Critical { .. }) && point.ratio < 1.1, "{point:?}: {error}");
                continue;
            }
        };
        told += 1;
        let shortfall = |packets: f64| split.with_buffer(packets).unwrap().shortfall(2, 400_000);
        let (low, high) = (advice.packets.mean - advice.packets.half, advice.packets.mean + advice.packets.half);
        let enough = shortfall(high.max(1e-9));
        let little = (low > 0.0).then(|| shortfall(low));
        let wanted = 1.0 - point.share;
        if enough.mean - enough.half > wanted || little.is_some_and(|little| little.mean + little.half < wanted) {
            wrong.push(format!("{point:?}: {advice:?}, checked {little:?} and {enough:?}"));
        }
    }
    // Of intervals of 95 % one in twenty may miss.
    assert!(wrong.len() <= 4, "{} of {POINTS}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn in_units_of_what_a_leg_gains_between_losses_only_the_legs_comparison_counts() {
    // The same in a world where a second is three and a packet is seven.
    let point = Point { per_packet: false, follows: Follows::Window, ratio: 1.5, often: 2.0, slow_first: true, share: 0.99 };
    let (time, size) = (3.0f64, 7.0f64);
    let slope = |leg: Aimd| (leg.slope() * size / time.powi(2)).powf(-0.5);
    for per_packet in [false, true] {
        let one = Point { per_packet, ..point }.split();
        let leg = |losses: f64, ratio: f64| {
            let losses = if per_packet { Losses::PerPacket(losses / size) } else { Losses::PerSecond(losses / time) };
            let slow = Aimd::new(1.0, Losses::PerSecond(1.0)).unwrap();
            Aimd::new(slope(slow) / ratio.sqrt(), losses).unwrap()
        };
        let steep = if per_packet { 1.5f64.powi(2) * 2.0 } else { 3.0 };
        let other = Split::new(leg(1.0, 1.0), leg(2.0, steep));
        let [here, there] = [one, other].map(|split| split.with_buffer(2.0 * split.unit()).unwrap().shortfall(5, 100_000).mean);
        assert!((here / there - 1.0).abs() < 1e-6, "{here} {there}");
    }
}

/// When the first leg has lost `losses` times, what the second has sent by then.
fn sent_by(split: &Split, start: State, seed: u64, losses: usize) -> (f64, f64) {
    let (mut path, mut time, mut sent, mut seen) = (split.path(start, seed), 0.0, 0.0, 0);
    while seen < losses {
        let segment = path.step();
        time += segment.span;
        sent += segment.sent;
        seen += usize::from(segment.ends == Ends::FirstLoses);
    }
    (time, sent)
}

#[test]
fn more_buffer_never_sends_less_by_any_time() {
    // Open question (i)(a), under losses by time: stronger than what is asked, and not proved in the paper. With the same losses, at the same
    // moments, all that has left by then grows with B, on every path looked at.
    let mut random = Pcg64Mcg::seed_from_u64(8);
    for seed in 0..200 {
        let point = Point { per_packet: false, ..Point::random(&mut random) };
        let start = State { x: random.random_range(0.1..3.0), y: random.random_range(0.1..3.0), q: 0.0 };
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
fn a_share_that_is_no_share_is_named() {
    let split = Point { per_packet: false, follows: Follows::Window, ratio: 2.0, often: 1.0, slow_first: true, share: 0.9 }.split();
    for share in [0.0, 1.0, 1.5, f64::NAN] {
        assert!(split.enough(share, 1, 1000).unwrap_err().to_string().contains("the share of the rate"), "{share}");
    }
}

#[test]
fn legs_that_are_alike_are_refused_where_too_little_is_played() {
    let split = Point { per_packet: false, follows: Follows::Window, ratio: 1.0, often: 1.0, slow_first: true, share: 0.999 }.split();
    let error = split.enough(0.999, 1, 10_000).unwrap_err();
    assert!(matches!(error, TheoryError::Critical { ratio: 1.0, have: 10_000, need: 10_001.., .. }), "{error}");
    // Of what is small in comparison it can tell.
    assert!(split.enough(0.9, 1, 100_000).is_ok());
}
