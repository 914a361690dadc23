//! Compares what an emulated link delivers with its configuration, at 1, 10, 100 and 1000 Mbit/s.
//!
//! A measurement during which the machine did not keep up (packets arrive milliseconds late on an
//! idle link) is repeated. If the machine never keeps up, that rate is skipped, and the test says
//! so. Otherwise the link must deliver what was configured.

use crate::{ALONE, common};
use lab::{Calibration, ImpairmentMeasurement, LabError, calibrate};
use scenario::Loss;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Exp};
use std::{
    sync::{MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use units::{Rate, Span};

const DELAY: Span = Span(20_000_000);

/// How long to repeat measurements on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures until `holds`, or until [`PATIENCE`] is exhausted. Returns the last measurement.
fn measure(mbit: u64, loss: Option<Loss>, seconds: f64, holds: impl Fn(&Calibration) -> bool) -> Calibration {
    let mut last = None;
    let begun = Instant::now();
    for attempt in 0.. {
        let found = calibrate(Rate(mbit * 1_000_000), DELAY, loss, 1 + attempt, Duration::from_secs_f64(seconds)).unwrap();
        let good = found.refused == 0 && holds(&found);
        last = Some(found);
        if good || (attempt > 3 && begun.elapsed() > PATIENCE) {
            break;
        }
        thread::sleep(Duration::from_millis(300));
    }
    last.expect("there was an attempt")
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measures losses at four rates. They do not depend on the time, so that three rates are measured
/// at once; a gigabit occupies the machine.
fn losses<T: Sync>(rates: &[T; 4], measure: impl Fn(&T) + Sync) {
    let _alone = alone();
    let [slow @ .., gigabit] = rates;
    thread::scope(|scope| slow.iter().for_each(|rate| drop(scope.spawn(|| measure(rate)))));
    measure(gigabit);
}

fn rate_error(found: &Calibration) -> f64 {
    found.delivered_rate_bps / found.rate.bits_per_s() as f64 - 1.0
}

fn delay_error(found: &Calibration) -> f64 {
    found.delivered_delay_s - found.delay.secs()
}

#[test]
fn rate_and_delay_are_what_was_asked() {
    if common::skip("rate_and_delay_are_what_was_asked") {
        return;
    }
    let _alone = alone();
    for mbit in [1, 10, 100, 1000] {
        let good = |found: &Calibration| rate_error(found).abs() < 0.01 && (0.0..0.0002).contains(&delay_error(found));
        let found = measure(mbit, None, 1.5, good);
        // The machine was too slow if it did not send enough, if packets were milliseconds late on
        // an idle link, or if the emulator was late.
        let slow = found.offered_rate_bps < 1.01 * found.rate.bits_per_s() as f64 || found.late_p99_s > 0.001;
        if !good(&found) && (found.jitter_p99_s > 0.001 || slow) {
            let (late, offered) = (found.late_p99_s.max(found.jitter_p99_s) * 1e3, found.offered_rate_bps / 1e6);
            testing::skipped(
                "rate_and_delay_are_what_was_asked",
                &format!("{mbit} Mbit/s: this machine never kept up, {offered:.0} Mbit/s were sent and packets came {late:.1} ms late"),
            );
            continue;
        }
        assert!(rate_error(&found).abs() < 0.01, "{mbit} Mbit/s: {found:?}");
        assert!((0.0..0.0002).contains(&delay_error(&found)), "{mbit} Mbit/s: {} s late", delay_error(&found));
    }
}

#[test]
fn loss_per_packet_is_within_its_binomial_interval() {
    if common::skip("loss_per_packet_is_within_its_binomial_interval") {
        return;
    }
    losses(&[1, 10, 100, 1000], |&mbit| {
        let found = measure(mbit, Some(Loss::PerPacket(0.01)), 2.0, |found| found.lost < found.sent / 20);
        let law = Binomial::new(0.01, found.sent).unwrap();
        // Fails if either tail probability is below one in two thousand.
        let (at_most, at_least) = (law.cdf(found.lost), 1.0 - found.lost.checked_sub(1).map_or(0.0, |less| law.cdf(less)));
        assert!(at_most > 0.0005 && at_least > 0.0005, "{mbit} Mbit/s: {} of {} lost", found.lost, found.sent);
    });
}

#[test]
fn loss_events_per_second_are_exponentially_spaced() {
    if common::skip("loss_events_per_second_are_exponentially_spaced") {
        return;
    }
    // Packets are much more frequent than loss events, so that each event hits a packet at once.
    losses(&[(1, 3.0, 25.0), (10, 20.0, 8.0), (100, 60.0, 5.0), (1000, 100.0, 3.0)], |&(mbit, rate, seconds)| {
        let expected = rate * seconds;
        let found = measure(mbit, Some(Loss::PerSecond(rate)), seconds, |found| found.lost as f64 > expected / 2.0);
        let mut gaps: Vec<f64> = found.lost_at_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let (n, law) = (gaps.len() as f64, Exp::new(rate).unwrap());
        assert!((n - expected).abs() < 4.0 * expected.sqrt(), "{mbit} Mbit/s: {n} events in {seconds} s at {rate} a second");
        let distance = |(index, gap): (usize, &f64)| (law.cdf(*gap) - (index as f64 + 0.5) / n).abs();
        let kolmogorov = gaps.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt();
        assert!(kolmogorov < 1.95, "{mbit} Mbit/s: Kolmogorov distance {kolmogorov}, 99.9 % lie below 1.95");
    });
}

#[test]
fn impairments_are_what_was_asked() {
    impairments_hold("impairments_are_what_was_asked", lab::measure_impairments);
}

#[test]
fn impairments_of_a_network_in_parallel_are_what_was_asked() {
    impairments_hold("impairments_of_a_network_in_parallel_are_what_was_asked", lab::measure_network_impairments);
}

/// Measures until every impairment is what was asked. `test` is the name of the test.
fn impairments_hold(test: &'static str, measure: fn(Duration) -> Result<Vec<ImpairmentMeasurement>, LabError>) {
    if common::skip(test) {
        return;
    }
    let _alone = alone();
    let begun = Instant::now();
    loop {
        let measured = measure(Duration::from_secs(2)).unwrap();
        let wrong: Vec<_> = measured.iter().filter(|one| !one.holds()).collect();
        if wrong.is_empty() {
            return;
        }
        // Losses and duplicates do not depend on the machine's speed; delays do, by which overtaken
        // packets are told.
        let is_late = wrong.iter().all(|one| one.refused > 0 || one.what.ends_with("ms") || one.what.contains("overtaken"));
        if begun.elapsed() > 3 * PATIENCE {
            assert!(is_late, "{wrong:#?}");
            return testing::skipped(test, &format!("this machine never kept up: {wrong:?}"));
        }
    }
}
