//! The law against simple models of two legs, without sockets.

use super::*;
use proptest::prelude::*;

const LIMITS: BufferLimits = BufferLimits { least: 64 * 1024, most: 16 << 20, start: START };
const MS: Duration = Duration::from_millis(1);

/// A fluid model of a direction: each leg carries at most its rate (bytes/s) and has a round trip;
/// the window of the source is what B leaves free.
struct Model {
    source: f64,
    destination: f64,
    source_rtt: Duration,
    destination_rtt: Duration,
    out_of_order: u64,
    at: Duration,
    arrived: f64,
    sent: f64,
}

impl Model {
    fn new([source, destination]: [f64; 2], [source_rtt, destination_rtt]: [Duration; 2]) -> Self {
        Model { source, destination, source_rtt, destination_rtt, out_of_order: 0, at: Duration::ZERO, arrived: 0.0, sent: 0.0 }
    }

    /// Moves on by `step` with this B, and returns the sample at its end.
    fn step(&mut self, buffer: u64, step: Duration) -> BufferSample {
        let seconds = step.as_secs_f64();
        let window = (buffer as f64 / 2.0 / OVERHEAD - (self.arrived - self.sent)).max(0.0);
        let by_window = window / self.source_rtt.as_secs_f64();
        self.arrived += (self.source.min(by_window)) * seconds;
        let could = self.destination * seconds;
        let took = could.min(self.arrived - self.sent);
        self.sent += took;
        self.at += step;
        BufferSample {
            at: self.at,
            sent: self.sent as u64,
            held: (self.arrived - self.sent) as u64,
            window: window as u64,
            source_rtt: self.source_rtt,
            destination_rtt: self.destination_rtt,
            out_of_order: self.out_of_order,
            starved: if took < 0.999 * could { step } else { Duration::ZERO },
            ..BufferSample::default()
        }
    }

    /// Runs the law for this time. Returns B and the mean rate in the second half.
    fn run(&mut self, law: &mut BufferLaw, time: Duration) -> (u64, f64) {
        let (begun, mut half) = (self.at, (self.at, self.sent));
        while self.at < begun + time {
            let sample = self.step(law.buffer(), 5 * MS);
            law.next(sample, u64::MAX);
            if self.at < begun + time / 2 {
                half = (self.at, self.sent);
            }
        }
        (law.buffer(), (self.sent - half.1) / (self.at - half.0).as_secs_f64())
    }
}

fn law() -> BufferLaw {
    BufferLaw::new(LIMITS, BufferSample::default(), u64::MAX)
}

#[test]
fn the_window_is_ahead_of_slow_start() {
    // By slow start, and by BBR's startup (2/ln 2).
    for growth in [2.0, 2.89] {
        let rtt = 600 * MS;
        let first = BufferSample { source_rtt: rtt, ..BufferSample::default() };
        let (mut law, mut sent, mut at) = (BufferLaw::new(LIMITS, first, u64::MAX), 0u64, Duration::ZERO);
        let mut round_bytes = 10 * 1448;
        while round_bytes < 4 << 20 {
            // The packets of a round trip are spread over half of it.
            for _ in 0..8 {
                at += rtt / 16;
                sent += round_bytes / 8;
                let sample = BufferSample {
                    at,
                    sent,
                    held: 3000,
                    window: law.buffer() / 4,
                    source_rtt: rtt,
                    starved: rtt / 16,
                    ..BufferSample::default()
                };
                law.next(sample, u64::MAX);
            }
            at += rtt / 2;
            round_bytes = (round_bytes as f64 * growth) as u64;
            let window = (law.shares().receive as f64 / OVERHEAD) as u64;
            let needed = round_bytes.min(5 << 20);
            assert!(window >= needed, "a window of {window} bytes for {needed}");
        }
    }
}

#[test]
fn a_long_leg_gets_its_window_and_a_short_one_no_more_than_that() {
    // 50 Mbit/s, and a destination that is faster.
    let rate = 50e6 / 8.0;
    let (buffer, carried) = Model::new([rate, 4.0 * rate], [600 * MS, MS]).run(&mut law(), Duration::from_secs(30));
    assert!(carried > 0.99 * rate, "{carried} of {rate}");
    assert!(buffer as f64 > 2.0 * rate * 0.6, "{buffer}");
    let (buffer, carried) = Model::new([rate, 4.0 * rate], [MS, 600 * MS]).run(&mut law(), Duration::from_secs(30));
    assert!(carried > 0.99 * rate, "{carried} of {rate}");
    assert_eq!(buffer, START);
}

#[test]
fn a_standing_queue_is_taken_back_but_for_the_reserve() {
    let rate = 10e6 / 8.0;
    let mut law = law();
    let mut model = Model::new([20.0 * rate, rate], [MS, 40 * MS]);
    let (buffer, carried) = model.run(&mut law, Duration::from_secs(60));
    assert!(carried > 0.99 * rate, "{carried} of {rate}");
    assert!(buffer < 110_000, "{buffer}, but the reserve is 14 kB");
    // After a long leg it has a large B, which a slower destination need not have.
    let mut law = self::law();
    let mut model = Model::new([5e6, 20e6], [300 * MS, 20 * MS]);
    let (large, _) = model.run(&mut law, Duration::from_secs(30));
    model.destination = rate;
    let (buffer, carried) = model.run(&mut law, Duration::from_secs(120));
    assert!(carried > 0.99 * rate, "{carried} of {rate}");
    assert!(buffer < large / 3 * 2 && buffer as f64 > rate * 0.3, "{buffer} after {large}");
}

#[test]
fn legs_that_take_turns_get_more_and_a_slow_source_does_not() {
    // Each leg is the slower one for 300 ms, and the other one three times as fast.
    let mut law = law();
    let mut model = Model::new([3e6, 1e6], [MS, MS]);
    for turn in 0..100 {
        (model.source, model.destination) = if turn % 2 == 0 { (3e6, 1e6) } else { (1e6, 3e6) };
        model.run(&mut law, 300 * MS);
    }
    assert!(law.buffer() > 2 * START, "{}", law.buffer());
    let mut law = self::law();
    let (buffer, _) = Model::new([1e6, 3e6], [MS, MS]).run(&mut law, Duration::from_secs(30));
    assert!(buffer <= START, "{buffer}");
}

/// Samples of a flow of 2 MB/s with round trips of 1 ms, each 10 ms after the last. `change` makes
/// the sample of a step from a plain one.
fn play(law: &mut BufferLaw, steps: u32, mut change: impl FnMut(u32, BufferSample) -> BufferSample) -> u64 {
    let begun = law.last;
    for step in 1..=steps {
        let (at, sent) = (begun.at + 10 * step * MS, begun.sent + 20_000 * u64::from(step));
        let plain = BufferSample { at, sent, held: 40_000, window: 1 << 20, source_rtt: MS, destination_rtt: MS, ..begun };
        law.next(change(step, BufferSample { starved: Duration::ZERO, is_late: false, ..plain }), u64::MAX);
    }
    law.buffer()
}

#[test]
fn growth_is_what_a_gap_was_short_of() {
    // The window is closed for a second, then the destination has nothing for 30 ms.
    let gap = |step, sample| match step {
        ..=100 => BufferSample { window: 0, ..sample },
        101..=103 => BufferSample { held: 0, starved: 10 * MS, ..sample },
        _ => sample,
    };
    let mut law = law();
    let buffer = play(&mut law, 200, gap);
    // Twice 30 ms of 2 MB/s.
    assert!((START + 100_000..START + 140_000).contains(&buffer), "{buffer}");
    // The same gap while the source was not held back.
    let mut law = self::law();
    let open = |step, sample| BufferSample { window: 1 << 20, ..gap(step, sample) };
    assert!(play(&mut law, 200, open) <= START, "{}", law.buffer());
    // A gap of a second uses up no more than the time for which the source was held back.
    let mut law = self::law();
    let buffer = play(&mut law, 200, |step, sample| match step {
        ..=3 => BufferSample { window: 0, ..sample },
        _ => BufferSample { held: 0, starved: 10 * MS, ..sample },
    });
    assert!(buffer < START + 140_000, "{buffer}");
}

#[test]
fn a_late_proxy_gets_some_time_of_the_rate_and_no_more() {
    let mut law = law();
    let buffer = play(&mut law, 3000, |_, sample| BufferSample { window: 0, held: 150_000, is_late: true, ..sample });
    assert!((240_000..=START).contains(&buffer), "{buffer}");
}

#[test]
fn a_fall_of_the_content_is_remembered() {
    // The content falls by 150 kB once in three seconds, and never below 50 kB.
    let mut law = law();
    let buffer = play(&mut law, 6000, |step, sample| BufferSample {
        window: 0,
        held: if (40..60).contains(&(step % 300)) { 50_000 } else { 200_000 },
        ..sample
    });
    assert!(buffer > START - 60_000, "{buffer}");
    // It never falls.
    let mut law = self::law();
    let buffer = play(&mut law, 6000, |_, sample| BufferSample { window: 0, held: 150_000, ..sample });
    assert!(buffer < START / 2, "{buffer}");
}

#[test]
fn an_unused_window_is_taken_back_and_a_fall_of_the_content_is_remembered() {
    // The content falls by 600 kB, over many intervals, and rises again. No queue stands: the
    // destination starves in each of them.
    let held = |step: u32| 2000 * u64::from(step % 600).abs_diff(300);
    let mut law = law();
    law.buffer = 8 << 20;
    let buffer = play(&mut law, 6000, |step, sample| BufferSample { held: held(step), starved: MS, ..sample });
    assert!((1_200_000..2 << 20).contains(&buffer), "{buffer}");
}

#[test]
fn a_long_leg_before_a_slower_one_gets_what_its_window_needs() {
    // 600 ms and 1.25 MB/s: 750 kB in flight.
    let rate = 10e6 / 8.0;
    let mut law = law();
    let (buffer, carried) = Model::new([5.0 * rate, rate], [600 * MS, 20 * MS]).run(&mut law, Duration::from_secs(120));
    assert!(carried > 0.99 * rate, "{carried} of {rate}");
    assert!(buffer < 4_500_000, "{buffer}");
}

#[test]
fn a_source_that_pauses_gets_no_more() {
    let mut law = law();
    let mut sent = 0;
    for burst in 0..200u32 {
        let at = burst * 500 * MS;
        sent += 200_000;
        let full = BufferSample { at, sent, held: 150_000, window: 0, source_rtt: MS, destination_rtt: MS, ..BufferSample::default() };
        law.next(BufferSample { paused: true, starved: 400 * MS, ..full }, u64::MAX);
        law.next(BufferSample { at: at + 2 * MS, ..full }, u64::MAX);
    }
    assert!(law.buffer() <= START, "{}", law.buffer());
}

#[test]
fn memory_that_is_used_up_stops_growth() {
    let rate = 50e6 / 8.0;
    let (mut law, mut model) = (law(), Model::new([rate, 4.0 * rate], [600 * MS, MS]));
    for _ in 0..2000 {
        let sample = model.step(law.buffer(), 5 * MS);
        law.next(sample, 0);
    }
    assert_eq!(law.buffer(), START);
}

#[test]
fn a_long_leg_starts_with_a_larger_buffer_if_there_is_memory() {
    let start = |rtt_ms, spare| {
        let first = BufferSample { source_rtt: rtt_ms * MS, ..BufferSample::default() };
        BufferLaw::new(BufferLimits::up_to(16 << 20), first, spare)
    };
    assert_eq!([1, 100].map(|rtt| start(rtt, u64::MAX).buffer()), [START; 2]);
    let window = start(600, u64::MAX).shares().receive as f64 / OVERHEAD;
    assert!((300_000.0..400_000.0).contains(&window), "{window}");
    assert_eq!(start(600, 1000).buffer(), START + 1000);
    let small = BufferLaw::new(BufferLimits::up_to(100_000), BufferSample { source_rtt: 600 * MS, ..BufferSample::default() }, u64::MAX);
    assert_eq!(small.buffer(), 100_000);
}

#[test]
fn a_destination_of_a_known_rate_has_b_for_it_at_once() {
    let begin = |limits: BufferLimits, destination_rate| {
        BufferLaw::new(limits, BufferSample { destination_rate, ..BufferSample::default() }, u64::MAX).buffer()
    };
    let small = LIMITS.starting_small();
    assert_eq!([begin(LIMITS, 0), begin(small, 0), begin(small, 1_000_000)], [START, LIMITS.least, LIMITS.least]);
    // 30 ms of 100 MB/s, and no more than is kept for the latency of the proxy.
    assert_eq!([begin(small, 100_000_000), begin(small, u64::MAX)], [3_000_000, MOST_FOR_LATENCY]);
    let mut law = BufferLaw::new(small, BufferSample::default(), u64::MAX);
    assert_eq!(law.next(BufferSample { at: MS, destination_rate: 100_000_000, ..BufferSample::default() }, u64::MAX), 3_000_000);
}

proptest! {
    /// Whatever is measured, B stays within its limits and grows by no more than it may.
    #[test]
    fn b_stays_within_its_limits(
        least in 6000u64..100_000,
        more in 0u64..(64 << 20),
        samples in proptest::collection::vec(
            (0u64..2_000_000, 0u64..20_000_000, 0u64..20_000_000, 0u64..20_000_000, 0u32..2_000_000, any::<[bool; 3]>(), 0u64..(1 << 24)),
            1..200,
        ),
    ) {
        let limits = BufferLimits { least, most: least + more, start: START };
        let mut law = BufferLaw::new(limits, BufferSample::default(), u64::MAX);
        let mut last = BufferSample::default();
        for (step_us, sent, held, window, rtt_us, [starves, paused, loses], spare) in samples {
            last = BufferSample {
                at: last.at + Duration::from_micros(step_us),
                sent: last.sent + sent,
                held,
                window,
                source_rtt: Duration::from_micros(rtt_us.into()),
                destination_rtt: Duration::from_micros(u64::from(rtt_us) / 2),
                destination_rate: 0,
                out_of_order: last.out_of_order + u64::from(loses),
                starved: if starves { Duration::from_micros(step_us) } else { Duration::ZERO },
                is_late: loses,
                paused,
            };
            let before = law.buffer();
            let buffer = law.next(last, spare);
            prop_assert!((limits.least..=limits.most).contains(&buffer), "{buffer}");
            prop_assert!(buffer <= before.saturating_add(spare));
        }
    }

    /// A window of any size fits into the receive queue of the B that is chosen for it.
    #[test]
    fn the_window_fits(window in 4000u64..(40 << 20)) {
        let law = BufferLaw { buffer: buffer_for_window(window, law().in_passing()), ..law() };
        let receive = law.shares().receive as f64;
        prop_assert!(receive >= window as f64 * OVERHEAD - 2.0, "{receive} for {window}");
    }
}
