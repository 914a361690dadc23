//! The law on samples recorded on the lab's links: what the proxy measured of downloads, from their
//! beginning, while B followed this law.

use super::*;

/// The samples of a recording.
fn samples(text: &str) -> impl Iterator<Item = BufferSample> {
    text.lines().skip(1).map(|line| {
        let fields: Vec<u64> = line.split(',').map(|field| field.parse().expect("a recording has whole numbers")).collect();
        let [at, sent, held, window, source_rtt, destination_rtt, out_of_order, starved, is_late, paused] = fields[..] else {
            panic!("{line} has {} fields", fields.len())
        };
        BufferSample {
            at: Duration::from_micros(at),
            sent,
            held,
            window,
            source_rtt: Duration::from_micros(source_rtt),
            destination_rtt: Duration::from_micros(destination_rtt),
            destination_rate: 0,
            out_of_order,
            starved: Duration::from_micros(starved),
            is_late: is_late == 1,
            paused: paused == 1,
        }
    })
}

/// Plays a recording. Returns time and B at each sample.
fn play(text: &str) -> Vec<(Duration, u64)> {
    let mut samples = samples(text);
    let mut law = BufferLaw::new(BufferLimits::up_to(16 << 20), samples.next().expect("a recording has samples"), u64::MAX);
    samples.map(|sample| (sample.at, law.next(sample, u64::MAX))).collect()
}

/// 600 ms and 50 Mbit/s with BBR, then a LAN: slow start needs a window that doubles.
#[test]
fn a_long_leg_gets_its_window_while_slow_start_lasts() {
    let course = play(include_str!("recorded/geo-to-lan.csv"));
    let (at, _) = course.iter().find(|(_, buffer)| *buffer >= 12 << 20).expect("B covers two BDP of BBR");
    assert!(*at < Duration::from_secs(8), "{at:?}");
    assert!(course.windows(2).all(|pair| pair[0].1 <= pair[1].1), "B was lowered");
}

/// A LAN, then a link that varies as LTE does: any B has the rate, and a queue stands.
#[test]
fn a_fast_source_never_gets_more_than_the_start() {
    let course = play(include_str!("recorded/lan-to-lte.csv"));
    assert!(course.iter().all(|(_, buffer)| *buffer <= START));
    assert!(course.last().is_some_and(|(_, buffer)| *buffer < START * 3 / 4), "{:?}", course.last());
}

/// 600 ms and 50 Mbit/s with BBR, then 10 Mbit/s: 750 kB are in flight before the proxy.
#[test]
fn a_long_leg_before_a_slow_one_gives_back_what_its_growth_was_for() {
    let course = play(include_str!("recorded/geo-to-slow.csv"));
    let most = course.iter().map(|(_, buffer)| *buffer).max().unwrap_or(0);
    let last = course.last().map_or(0, |(_, buffer)| *buffer);
    assert!(most < 8 << 20 && (1_500_000..most * 3 / 4).contains(&last), "{most} {last}");
}

/// Two legs with 0.1 % of loss and Reno: each is the slower one at times.
#[test]
fn legs_with_losses_get_what_their_windows_need() {
    let course = play(include_str!("recorded/lossy-to-lossy.csv"));
    let last = course.last().map(|(_, buffer)| *buffer);
    assert!(last.is_some_and(|last| (512 << 10..4 << 20).contains(&last)), "{last:?}");
}
