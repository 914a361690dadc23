//! `bbr` beside what its sources say, `bbr3` beside the statements of draft-ietf-ccwg-bbr (the test
//! cases of its appendix have the names of its sections).

use crate::paced_path::{MSS, PacedPath};
use control::{Event, EventKind};

/// The states of `bbr3` in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}
use Mode::{Cruise, Down, Drain, ProbeRtt, Refill, Startup, Up};

/// What tests read of the state of `bbr3` (`struct td_bbr3_state`).
#[derive(Debug, Clone, Copy)]
struct Model {
    mode: Mode,
    /// The largest delivery rate, packets/s.
    max_rate: f64,
    rate_short: u32,
    window_short: u32,
    window_long: u32,
    rounds: u32,
    is_full: bool,
}

impl Model {
    fn of(path: &PacedPath) -> Self {
        let words = path.words();
        let mode = [Startup, Drain, Down, Cruise, Refill, Up, ProbeRtt][words[0] as usize];
        Model {
            mode,
            max_rate: f64::from(words[2].max(words[3])) * 1e6 / f64::from(1 << 24),
            rate_short: words[5],
            window_short: words[6],
            window_long: words[7],
            rounds: words[12],
            is_full: words[47] >> 8 & 0xff != 0,
        }
    }
}

/// A change of state: when, to which, and the model and path then.
struct Change {
    at_s: f64,
    mode: Mode,
    model: Model,
    in_flight: u32,
    pacing_gain: f64,
}

/// Runs a path and lists the changes of state.
fn changes(path: &mut PacedPath, seconds: f64) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    path.run(seconds, |path| {
        let model = Model::of(path);
        if all.last().is_none_or(|last| last.mode != model.mode) {
            let rate = model.max_rate * f64::from(MSS) * 0.99;
            all.push(Change {
                at_s: path.now_us / 1e6,
                mode: model.mode,
                model,
                in_flight: path.flow.in_flight,
                pacing_gain: path.flow.pacing_rate as f64 / rate,
            });
        }
    });
    all
}

/// Packets delivered in the next seconds over what the path can carry.
fn utilization(path: &mut PacedPath, seconds: f64) -> f64 {
    let before = path.delivered;
    path.run(seconds, |_| ());
    (path.delivered - before) as f64 / seconds / path.rate
}

fn near(a: f64, b: f64, relative: f64) {
    assert!((a - b).abs() <= relative * b, "{a} is not {b}");
}

#[test]
fn startup_doubles_each_round_trip_and_finds_the_rate() {
    for name in ["bbr", "bbr3"] {
        let mut path = PacedPath::new(name, 100.0, 40.0, 2.0);
        // From 10 packets in 40 ms to 345: between five and eleven round trips.
        let mut found = None;
        path.run(1.0, |path| {
            let rate = path.flow.pacing_rate as f64 / f64::from(MSS);
            if rate > path.rate && found.is_none() {
                found = Some((path.now_us - 1e6) / path.rtt_us);
            }
        });
        assert!(found.is_some_and(|rounds| (4.0..8.0).contains(&rounds)), "{name}: {found:?}");
        // And afterwards the link is busy without a standing queue.
        path.run(2.0, |_| ());
        let (before, mut rtts, mut acks) = (path.delivered, 0.0, 0.0);
        path.run(10.0, |path| {
            rtts += f64::from(path.event.rtt_us) / path.rtt_us;
            acks += 1.0;
        });
        let busy = (path.delivered - before) as f64 / 10.0 / path.rate;
        assert!(busy > 0.95 && busy <= 1.0, "{name}: {busy}");
        assert!(rtts / acks < 1.15, "{name}: {}", rtts / acks);
    }
}

#[test]
fn bbr_cycles_through_eight_phases_of_a_round_trip() {
    let mut path = PacedPath::new("bbr", 50.0, 40.0, 4.0);
    path.run(3.0, |_| ());
    let mut gains: Vec<(i32, f64)> = Vec::new();
    path.run(4.0, |path| {
        // 5/4, 3/4 or 1 of the rate, less 1 %.
        let gain = path.flow.pacing_rate as f64 / (0.99 * path.rate * f64::from(MSS));
        let gain = (gain * 4.0).round() as i32;
        if gains.last().is_none_or(|last| last.0 != gain) {
            gains.push((gain, path.now_us));
        }
    });
    let ups: Vec<f64> = gains.iter().filter(|(gain, _)| *gain == 5).map(|(_, at)| *at).collect();
    assert!(gains.windows(2).all(|two| two[0].0 != 5 || two[1].0 == 3), "{gains:?}");
    assert!(ups.len() >= 8, "{gains:?}");
    for two in ups.windows(2) {
        // Eight phases; that of 3/4 ends when the queue is gone.
        let phases = (two[1] - two[0]) / path.rtt_us;
        assert!((7.0..9.5).contains(&phases), "{phases}");
    }
}

#[test]
fn bbr_keeps_its_rate_through_two_percent_of_loss() {
    let mut path = PacedPath::new("bbr", 50.0, 40.0, 1.0);
    path.loss = 0.02;
    path.run(3.0, |_| ());
    let busy = utilization(&mut path, 20.0);
    assert!(busy > 0.90, "{busy}");
}

#[test]
fn bbr_measures_the_rtt_each_ten_seconds() {
    let mut path = PacedPath::new("bbr", 50.0, 40.0, 4.0);
    let mut times = Vec::new();
    path.run(35.0, |path| {
        if path.flow.cwnd == 4 && times.last().is_none_or(|last| path.now_us - last > 1e6) {
            times.push(path.now_us);
        }
    });
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(times.windows(2).all(|two| (9.9e6..11e6).contains(&(two[1] - two[0]))), "{times:?}");
}

#[test]
fn exiting_startup_on_bandwidth_plateau() {
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 2.0);
    let all = changes(&mut path, 3.0);
    let modes: Vec<Mode> = all.iter().map(|change| change.mode).collect();
    // The ACK that ends Drain finds Down at its end too: a BDP is in flight.
    assert!(modes.starts_with(&[Startup, Drain, Cruise]), "{modes:?}");
    let drain = &all[1];
    assert!(drain.model.is_full);
    near(drain.model.max_rate, path.rate, 0.02);
    near(drain.pacing_gain, 0.5, 0.01);
}

#[test]
fn exiting_startup_on_loss_when_application_limited() {
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 2.0);
    path.application = Some(3000.0);
    path.run(1.0, |_| ());
    assert_eq!(Model::of(&path).mode, Startup);
    path.loss = 0.1;
    let all = changes(&mut path, 1.0);
    // Little is in flight, so that Drain ends at once.
    assert_eq!(all[1].mode, Cruise);
    assert!(all[1].model.is_full);
}

#[test]
fn a_startup_without_loss_that_the_application_limits_does_not_end() {
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 2.0);
    path.application = Some(3000.0);
    // ProbeRTT returns to it.
    let all = changes(&mut path, 30.0);
    assert!(all.iter().all(|change| [Startup, ProbeRtt].contains(&change.mode)));
    assert!(all.iter().any(|change| change.mode == ProbeRtt));
}

#[test]
fn one_burst_of_losses_does_not_end_startup() {
    // Fewer than six ACKs report losses in the round trip.
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 20.0);
    path.run(0.15, |_| ());
    path.loss = 1.0;
    path.run(0.001, |_| ());
    path.loss = 0.0;
    let all = changes(&mut path, 0.1);
    assert!(path.flow.lost > 0 && all.iter().all(|change| change.mode == Startup));
}

#[test]
fn exiting_drain_based_on_inflight_and_based_on_time() {
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 2.0);
    let all = changes(&mut path, 2.0);
    assert!(f64::from(all[2].in_flight) <= 1.02 * path.bdp());
    assert!(all[2].model.rounds - all[1].model.rounds <= 2);
    // The path becomes much slower than estimated.
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 4.0);
    while Model::of(&path).mode == Startup {
        path.run(0.001, |_| ());
    }
    path.set_rate(0.3 * path.rate);
    let all = changes(&mut path, 2.0);
    let trace: Vec<_> = all.iter().map(|change| (change.mode, change.at_s, change.in_flight, change.model.rounds)).collect();
    let down = all.iter().find(|change| change.mode == Down).unwrap_or_else(|| panic!("{trace:?}"));
    assert_eq!(down.model.rounds - all[0].model.rounds, 4);
    assert!(f64::from(down.in_flight) > 1.2 * path.bdp());
}

#[test]
fn the_cycle_of_probe_bw() {
    // A BDP of 69 packets: 63 round trips of 40 ms, or 2 to 3 s, whichever ends first.
    let mut path = PacedPath::new("bbr3", 20.0, 40.0, 2.0);
    path.run(4.0, |_| ());
    let all = changes(&mut path, 40.0);
    let mut cycles = 0;
    for two in all.windows(2) {
        let next: &[Mode] = match two[0].mode {
            Down => &[Cruise, Refill, ProbeRtt],
            Cruise => &[Refill, ProbeRtt],
            Refill => &[Up, ProbeRtt],
            Up => &[Down, ProbeRtt],
            ProbeRtt => &[Cruise],
            other => panic!("{other:?}"),
        };
        assert!(next.contains(&two[1].mode), "{:?} to {:?}", two[0].mode, two[1].mode);
        let gain = match two[0].mode {
            Down => 0.9,
            Up => 1.25,
            _ => 1.0,
        };
        near(two[0].pacing_gain, gain, 0.02);
        if two[0].mode == Refill && two[1].mode == Up {
            // One round trip, of the queue too.
            near(two[1].at_s - two[0].at_s, path.rtt_us / 1e6, 0.6);
        }
    }
    // From the end of a probe, or of a ProbeRTT, to the next: 2 to 3 s, or 63 round trips.
    let mut since = None;
    for two in all.windows(2) {
        if two[1].mode == Down || two[0].mode == ProbeRtt {
            since = Some((two[1].at_s, two[1].model.rounds));
        }
        if let (Refill, Some((at, rounds))) = (two[1].mode, since) {
            let waited = two[1].at_s - at;
            assert!(waited < 3.05 && (waited > 2.0 || two[1].model.rounds - rounds >= 62), "{waited} s");
            cycles += 1;
        }
    }
    assert!(cycles >= 10, "{cycles}");
    let busy = utilization(&mut path, 20.0);
    assert!(busy > 0.95, "{busy}");
}

#[test]
fn small_windows_probe_as_often_as_reno() {
    // A BDP of 17 packets: at most that many round trips of 10 ms.
    let mut path = PacedPath::new("bbr3", 20.0, 10.0, 4.0);
    path.run(4.0, |_| ());
    let all = changes(&mut path, 4.5);
    let ups = all.iter().filter(|change| change.mode == Up).count();
    assert!(ups >= 12, "{ups}");
}

#[test]
fn entering_and_exiting_probe_rtt() {
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 2.0);
    let all = changes(&mut path, 22.0);
    let entered: Vec<usize> = (0..all.len()).filter(|at| all[*at].mode == ProbeRtt).collect();
    assert!((3..=4).contains(&entered.len()), "{}", entered.len());
    for at in entered {
        let exit = &all[at + 1];
        assert_eq!(exit.mode, Cruise);
        // 200 ms with half a BDP, a round trip, and the time to reach it.
        let took = exit.at_s - all[at].at_s;
        assert!((0.2..0.4).contains(&took), "{took}");
        assert!(f64::from(exit.in_flight) < 0.6 * path.bdp());
    }
}

#[test]
fn probe_rtt_is_skipped_after_idle_time() {
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 2.0);
    path.run(4.0, |_| ());
    // The application pauses beyond the interval of 5 s.
    path.application = Some(0.01);
    path.run(6.0, |_| ());
    path.application = None;
    let all = changes(&mut path, 1.0);
    assert!(all.iter().all(|change| change.mode != ProbeRtt));
}

#[test]
fn losses_above_the_threshold_end_a_probe_and_bound_the_window() {
    // A buffer of a fifth of a BDP: the probe at 5/4 of the rate overflows it.
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 0.2);
    path.run(5.0, |_| ());
    let all = changes(&mut path, 60.0);
    let model = Model::of(&path);
    let most = path.bdp() * 1.2;
    assert!(model.window_long < u32::MAX);
    assert!((0.6 * path.bdp()..1.5 * most).contains(&f64::from(model.window_long)), "{} of {most}", model.window_long);
    // No probe lasts, and after it the flow cruises with headroom.
    for two in all.windows(2).filter(|two| two[0].mode == Up) {
        assert!(two[1].at_s - two[0].at_s < 8.0 * path.rtt_us / 1e6);
    }
    let mut cruises = 0;
    path.run(20.0, |path| {
        let model = Model::of(path);
        if model.mode == Cruise {
            cruises += 1;
            let most = (f64::from(model.window_long) * 0.85).max(4.0).ceil();
            assert!(f64::from(path.flow.cwnd) <= most, "{} of {}", path.flow.cwnd, model.window_long);
        }
    });
    assert!(cruises > 1000, "{cruises}");
}

#[test]
fn cruising_with_losses_the_short_term_bounds_fall_to_what_is_delivered() {
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 2.0);
    path.run(6.0, |_| ());
    while Model::of(&path).mode != Cruise {
        path.run(0.001, |_| ());
    }
    // A tenth of the rate for a second.
    path.set_rate(0.1 * path.rate);
    path.buffer = 20.0;
    let mut least = u32::MAX;
    let mut bounds = Vec::new();
    path.run(1.5, |path| {
        let model = Model::of(path);
        if model.mode == Cruise && model.rate_short < least {
            least = model.rate_short;
            bounds.push((f64::from(model.rate_short) * 1e6 / f64::from(1 << 24), model.window_short));
        }
    });
    assert!(bounds.len() >= 3, "{bounds:?}");
    // No round trip reduces by more than 0.7.
    for two in bounds.windows(2) {
        assert!(two[1].0 >= 0.699 * two[0].0, "{bounds:?}");
    }
    assert!(bounds.last().unwrap().0 < 3.0 * path.rate, "{bounds:?}");
}

#[test]
fn two_percent_of_loss() {
    // Below and above the threshold of 2 %: a probe ends early above it.
    let busy = |loss| {
        let mut path = PacedPath::new("bbr3", 50.0, 40.0, 1.0);
        path.loss = loss;
        path.run(5.0, |_| ());
        utilization(&mut path, 60.0)
    };
    let (one, five) = (busy(0.01), busy(0.05));
    assert!(one > 0.75, "{one}");
    assert!(five < 0.8 * one, "{five} and {one}");
}

#[test]
fn ten_times_more_bandwidth_is_found() {
    let mut path = PacedPath::new("bbr3", 10.0, 40.0, 2.0);
    path.run(6.0, |_| ());
    path.set_rate(10.0 * path.rate);
    path.buffer = 2.0 * path.bdp();
    // A probe each 2 to 3 s gains a quarter a round trip and more.
    path.run(14.0, |_| ());
    let busy = utilization(&mut path, 6.0);
    assert!(busy > 0.9, "{busy}");
}

#[test]
fn ten_times_less_bandwidth_is_accepted() {
    let mut path = PacedPath::new("bbr3", 100.0, 40.0, 2.0);
    path.run(6.0, |_| ());
    path.set_rate(0.1 * path.rate);
    path.buffer = 2.0 * path.bdp();
    path.run(12.0, |_| ());
    near(Model::of(&path).max_rate, path.rate, 0.1);
    let busy = utilization(&mut path, 10.0);
    assert!(busy > 0.85, "{busy}");
}

#[test]
fn less_than_a_packet_of_bdp_keeps_four_in_flight() {
    let mut path = PacedPath::new("bbr3", 0.5, 5.0, 4.0);
    path.buffer = 20.0;
    path.stretch = 2;
    path.run(10.0, |path| assert!(path.flow.cwnd >= 4));
    let busy = utilization(&mut path, 20.0);
    assert!(busy > 0.9, "{busy}");
}

#[test]
fn a_spurious_loss_restores_state_and_bounds() {
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 0.2);
    path.run(5.0, |_| ());
    while Model::of(&path).mode != Up {
        path.run(0.001, |_| ());
    }
    let before = Model::of(&path).window_long;
    while Model::of(&path).mode == Up {
        path.run(0.001, |_| ());
    }
    path.notify(EventKind::Undo);
    let after = Model::of(&path);
    assert_eq!(after.mode, Refill);
    assert!(after.window_long >= before || before == u32::MAX);
    assert_eq!((after.rate_short, after.window_short), (u32::MAX, u32::MAX));
}

#[test]
fn a_mark_counts_as_too_much_loss() {
    let mut path = PacedPath::new("bbr3", 50.0, 40.0, 4.0);
    path.run(5.0, |_| ());
    while Model::of(&path).mode != Up {
        path.run(0.001, |_| ());
    }
    assert_eq!(Model::of(&path).window_long, u32::MAX);
    path.flow.marked += 1;
    path.run(0.002, |_| ());
    let model = Model::of(&path);
    assert_eq!(model.mode, Down);
    assert!(model.window_long < u32::MAX);
}

/// What was in flight and lost when the newest segment of an ACK was sent, as the state finds it.
fn reconstructed(path: &PacedPath) -> (u32, u32) {
    let words = path.words();
    let newest = (words[50] >> 16) as usize;
    let entry = |at: usize| &words[51 + 3 * at..54 + 3 * at];
    let at = (0..31).map(|back| (newest + 32 - back) % 32).find(|at| path.event.prior_delivered.wrapping_sub(entry(*at)[0]) < 1 << 31);
    // As the controller: the oldest one, if none is old enough.
    let entry = entry(at.unwrap_or((newest + 1) % 32));
    (entry[1], path.flow.lost - entry[2])
}

#[test]
fn what_was_in_flight_is_known_to_five_percent() {
    // The kernel has a record of each segment, the controller only 32 of them all.
    for (mbit, rtt_ms, buffer, loss) in
        [(5.0, 20.0, 1.0, 0.0), (50.0, 40.0, 0.2, 0.0), (50.0, 40.0, 1.0, 0.02), (100.0, 100.0, 2.0, 0.001), (20.0, 300.0, 0.5, 0.01)]
    {
        let mut path = PacedPath::new("bbr3", mbit, rtt_ms, buffer);
        path.loss = loss;
        path.stretch = 2;
        let (mut count, mut apart, mut worst, mut lost_apart) = (0, 0.0, 0.0_f64, 0.0);
        path.run(40.0, |path| {
            let (in_flight, lost) = reconstructed(path);
            let off = (f64::from(in_flight) - f64::from(path.truth.in_flight)).abs() / f64::from(path.truth.in_flight.max(20));
            count += 1;
            apart += off;
            worst = worst.max(off);
            lost_apart += (f64::from(lost) - f64::from(path.truth.lost)).abs() / f64::from(path.truth.in_flight.max(20));
        });
        let (apart, lost_apart) = (apart / f64::from(count), lost_apart / f64::from(count));
        println!("{mbit} Mbit/s, {rtt_ms} ms, {buffer} BDP, {loss}: in flight {apart:.4}, at most {worst:.3}; lost {lost_apart:.5}");
        assert!(apart < 0.05, "{mbit} Mbit/s: {apart}");
        assert!(lost_apart < 0.002, "{mbit} Mbit/s: {lost_apart}");
    }
}

#[test]
fn the_state_does_not_depend_on_what_the_event_leaves_out() {
    // An ACK that delivers nothing has no sample: nothing is learned from it.
    for name in ["bbr", "bbr3"] {
        let mut path = PacedPath::new(name, 50.0, 40.0, 2.0);
        path.run(3.0, |_| ());
        let (rate, cwnd) = (path.flow.pacing_rate, path.flow.cwnd);
        let event = Event { now_us: path.now_us as u64, kind: EventKind::Ack, prior_in_flight: path.flow.in_flight, ..Event::default() };
        path.state.step(&mut path.flow, None, &event);
        assert_eq!((path.flow.pacing_rate, path.flow.cwnd), (rate, cwnd), "{name}");
    }
}
