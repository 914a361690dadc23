//! Both ends of a stream together: whatever happens to the paths, the bytes that are read are those
//! that were written.

mod simulation;

use bond::{BondSettings, Inbound, Outbound, PathId, PathSample, ProtocolViolation, Scheduler};
use proptest::prelude::*;
use rand::RngExt;
use rand_pcg::Pcg64;
use simulation::{Link, PathEvent, Simulation};
use units::{Bytes, Span};

const SCHEDULERS: [Scheduler; 5] = [Scheduler::Score, Scheduler::RoundRobin, Scheduler::Single, Scheduler::Redundant, Scheduler::Tiers];

fn link() -> impl Strategy<Value = Link> {
    (prop_oneof![5u64..50, 50u64..2000], prop_oneof![0u64..30, 30u64..700], 0u8..3).prop_map(|(rate, delay, tier)| Link {
        rate,
        delay,
        tier,
    })
}

fn event() -> impl Strategy<Value = PathEvent> {
    let which = 0usize..6;
    prop_oneof![
        2 => link().prop_map(PathEvent::Join),
        2 => which.clone().prop_map(PathEvent::Lose),
        1 => (which.clone(), 1u64..3000).prop_map(|(which, ms)| PathEvent::Stall(which, ms)),
        1 => which.clone().prop_map(|which| PathEvent::Stall(which, u64::MAX)),
        1 => (which, link()).prop_map(|(which, link)| PathEvent::Change(which, link)),
    ]
}

fn source(bytes: usize, seed: u64) -> (Vec<u8>, Pcg64) {
    let mut random = Pcg64::new(seed.into(), 1);
    ((0..bytes).map(|_| random.random()).collect(), random)
}

fn near(rate: u64, delay: u64) -> Link {
    Link { rate, delay, tier: 0 }
}

/// How many ms a stream of so many bytes takes over these paths, with a window of 1 MiB.
fn transfer(scheduler: Scheduler, bytes: usize, links: &[Link]) -> (u64, Simulation) {
    let (bytes, random) = source(bytes, 1);
    let mut simulation = Simulation::new(BondSettings::new(scheduler), 1 << 20, bytes, random);
    links.iter().for_each(|link| simulation.apply(PathEvent::Join(*link)));
    assert!(simulation.finish(600_000), "{scheduler:?}");
    (simulation.now, simulation)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_bytes_read_are_the_bytes_written(
        scheduler in prop::sample::select(&SCHEDULERS[..]),
        bytes in prop_oneof![1 => 0usize..100, 4 => 100usize..100_000],
        window in prop_oneof![3000usize..20_000, 20_000usize..200_000],
        piece in 1u64..20_000,
        queue in 1u64..40_000,
        paces in (50usize..3000, 50usize..3000),
        foresight: bool,
        first in prop::collection::vec(link(), 1..4),
        events in prop::collection::vec((0u64..300, event()), 0..12),
        seed: u64,
    ) {
        let (source, random) = source(bytes, seed);
        let settings = BondSettings { piece: Bytes(piece), queue: Bytes(queue), foresight, ..BondSettings::new(scheduler) };
        let mut simulation = Simulation::new(settings, window, source.clone(), random);
        (simulation.writes_per_ms, simulation.reads_per_ms) = paces;
        if source.is_empty() {
            simulation.out.close();
        }
        first.into_iter().for_each(|link| simulation.apply(PathEvent::Join(link)));
        for (after, event) in events {
            (0..after).for_each(|_| simulation.tick());
            simulation.apply(event);
        }
        // At least one path lasts.
        simulation.apply(PathEvent::Join(near(500, 10)));
        prop_assert!(simulation.finish(600_000), "it does not end: {:?}", simulation.out);
        prop_assert!(simulation.read == source, "other bytes came out");
        prop_assert!(simulation.inbound.is_fully_read() && simulation.out.acked() == source.len() as u64 && simulation.out.unassigned() == 0);
        prop_assert!(simulation.inbound.max_out_of_order_bytes() <= window as u64);
    }

    #[test]
    fn any_input_from_the_peer_is_handled_or_refused(
        words in prop::collection::vec((0u8..5, 0u64..70_000, 0u64..70_000, 0usize..3), 1..300),
    ) {
        let (mut out, mut inbound) = (Outbound::new(BondSettings::new(Scheduler::Score), 30_000), Inbound::new(30_000));
        for tier in 0..2 {
            let path = out.add_path(Span::ZERO, tier);
            out.update_path(Span::ZERO, path, PathSample { window: 10_000, srtt: Span(10_000_000), ..PathSample::default() });
            inbound.add_path(path);
        }
        out.offer(60_000);
        let mut limit = 30_000;
        for (kind, one, other, path) in words {
            let (now, path) = (Span(one * 100_000), PathId(path));
            match kind {
                0 => drop(out.on_receipt(now, path, one)),
                1 => {
                    let before = out.acked();
                    if out.on_acked(one, other).is_ok() {
                        limit = limit.max(other);
                    }
                    prop_assert!(out.acked() >= before && out.acked() <= 60_000);
                }
                2 => {
                    let bytes = vec![7; other as usize % 5000];
                    let end = one + bytes.len() as u64;
                    if inbound.receive(now, path, one, &bytes).is_ok() && !bytes.is_empty() {
                        prop_assert!(end <= inbound.next_offset() + 30_000);
                    }
                    prop_assert!(inbound.out_of_order_bytes() <= 30_000);
                }
                3 => drop(inbound.on_end(one)),
                _ => {
                    out.handle_timeout(now);
                    while let Some(piece) = out.next_piece(now) {
                        prop_assert!(piece.offset + piece.len <= limit.min(60_000));
                    }
                    prop_assert!(out.next_timeout(now).is_none_or(|at| at > now));
                    inbound.consume(now, other % 3000);
                    inbound.next_frame(now, path);
                }
            }
        }
    }
}

#[test]
fn violations_of_the_protocol_are_refused() {
    let mut inbound = Inbound::new(1000);
    inbound.add_path(PathId(0));
    assert_eq!(inbound.begin_piece(500, 501), Err(ProtocolViolation::BeyondWindow { end: 1001, limit: 1000 }));
    assert_eq!(inbound.receive(Span::ZERO, PathId(0), 0, &[1; 400]), Ok(()));
    inbound.consume(Span::ZERO, 100);
    assert_eq!(inbound.begin_piece(500, 601), Err(ProtocolViolation::BeyondWindow { end: 1101, limit: 1100 }));
    assert_eq!(inbound.on_end(399), Err(ProtocolViolation::BeyondEnd { end: 399, other: 400 }));
    assert_eq!(inbound.on_end(600), Ok(()));
    assert_eq!(inbound.on_end(601), Err(ProtocolViolation::BeyondEnd { end: 601, other: 600 }));
    assert_eq!(inbound.begin_piece(500, 101), Err(ProtocolViolation::BeyondEnd { end: 600, other: 601 }));
    // Bytes received first are kept.
    assert_eq!(inbound.receive(Span::ZERO, PathId(0), 350, &[2; 100]), Ok(()));
    let rest = inbound.readable(u64::MAX).collect::<Vec<_>>().concat();
    assert_eq!((rest.len(), rest[299], rest[300]), (350, 1, 2));

    let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 1000);
    let path = out.add_path(Span::ZERO, 0);
    out.offer(5000);
    assert_eq!(out.next_piece(Span::ZERO).map(|piece| piece.len), Some(1000), "up to the flow-control limit");
    assert_eq!(out.next_piece(Span::ZERO), None);
    assert_eq!(out.on_receipt(Span::ZERO, path, 1001), Err(ProtocolViolation::AckedUnsent { acked: 1001, sent: 1000 }));
    assert_eq!(out.on_acked(1001, 2000), Err(ProtocolViolation::AckedUnsent { acked: 1001, sent: 1000 }));
    assert_eq!(out.on_delivered(), Err(ProtocolViolation::DeliveredTooEarly));
}

#[test]
fn data_is_wanted_only_to_keep_paths_busy_or_to_choose_between_them() {
    const MIB: u64 = 1 << 20;
    let wants = |links: &[(u64, u64)], offered: u64, room: u64| {
        let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 64 * MIB);
        for (rate, rtt) in links {
            let (path, srtt) = (out.add_path(Span::ZERO, 0), Span(rtt * 1_000_000));
            let look = PathSample { window: (*rate as f64 * srtt.secs()) as u64, srtt, rto: srtt, unsent: MIB, ..PathSample::default() };
            out.update_path(Span::ZERO, path, look);
        }
        out.offer(offered);
        out.wants_data(room)
    };
    // One path, two equal ones, or none: little is wanted.
    for links in [&[(10 * MIB, 20)][..], &[(10 * MIB, 20), (10 * MIB, 20)], &[]] {
        assert_eq!([wants(links, 1000, MIB), wants(links, MIB, 7 * MIB)], [true, false], "{links:?}");
    }
    // Over the distant path a piece takes half a second and the MiB queued before it. The near one
    // has sent one MiB by then, but not 32.
    let links = [(10 * MIB, 20), (10 * MIB, 1000)];
    assert_eq!([wants(&links, MIB, 31 * MIB), wants(&links, 32 * MIB, 31 * MIB)], [true, false]);
}

#[test]
fn suspected_paths_do_not_decide_whether_data_is_wanted() {
    const MIB: u64 = 1 << 20;
    let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 64 * MIB);
    let add = |out: &mut Outbound, rate: u64, rtt: u64, unsent: u64| {
        let (path, srtt) = (out.add_path(Span::ZERO, 0), Span(rtt * 1_000_000));
        out.update_path(
            Span::ZERO,
            path,
            PathSample { window: (rate as f64 * srtt.secs()) as u64, srtt, rto: srtt, unsent, ..PathSample::default() },
        );
        path
    };
    // It stalls with everything that was offered, and recovers.
    let fast = add(&mut out, 1000 * MIB, 1, 0);
    out.offer(1000);
    assert_eq!(out.next_piece(Span::ZERO).map(|piece| piece.path), Some(fast));
    let later = Span(60_000_000_000);
    out.handle_timeout(later);
    assert!(out.path_stats(fast).unwrap().is_stalled);
    out.on_receipt(later, fast, 1000).unwrap();
    out.on_acked(1000, 64 * MIB).unwrap();
    assert!(!out.path_stats(fast).unwrap().is_stalled);
    // If the fast path were trusted, the distant one would never be used. Of the other two it is
    // unused only while little is left.
    add(&mut out, 10 * MIB, 20, MIB);
    add(&mut out, 10 * MIB, 1000, MIB);
    out.offer(MIB);
    assert!(out.wants_data(31 * MIB));
}

#[test]
fn a_piece_never_takes_the_whole_window() {
    let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 256 * 1024);
    let path = out.add_path(Span::ZERO, 0);
    let srtt = Span(1_000_000);
    out.update_path(Span::ZERO, path, PathSample { window: 4 << 20, srtt, rto: srtt, ..PathSample::default() });
    out.offer(1 << 20);
    assert_eq!(std::iter::from_fn(|| out.next_piece(Span::ZERO)).map(|piece| piece.len).collect::<Vec<_>>(), [64 * 1024; 4]);
}

#[test]
fn the_rates_of_paths_add_up() {
    let (one, _) = transfer(Scheduler::Score, 8_000_000, &[near(1000, 20)]);
    let (two, _) = transfer(Scheduler::Score, 8_000_000, &[near(1000, 20); 2]);
    assert!(one as f64 / two as f64 > 1.95, "{one} and {two} ms");
    // 10 + 2 Mbit/s.
    let (fast, _) = transfer(Scheduler::Score, 8_000_000, &[near(1250, 20)]);
    let (both, _) = transfer(Scheduler::Score, 8_000_000, &[near(1250, 20), near(250, 20)]);
    assert!(fast as f64 / both as f64 > 1.2 * 0.97, "{fast} and {both} ms");
}

#[test]
fn a_distant_path_never_slows_a_stream_whatever_the_window() {
    // Round trips of 50 and 700 ms. The window is a fifth to five times the BDP of the distant
    // path.
    for window in [70_000, 350_000, 1_750_000] {
        let time = |links: &[Link]| {
            let (bytes, random) = source(4_000_000, 1);
            let mut simulation = Simulation::new(BondSettings::new(Scheduler::Score), window, bytes, random);
            links.iter().for_each(|link| simulation.apply(PathEvent::Join(*link)));
            assert!(simulation.finish(600_000));
            simulation.now as f64
        };
        let (near, both) = (time(&[near(500, 25)]), time(&[near(500, 25), near(500, 350)]));
        assert!(both < 1.01 * near, "window {window}: {both} ms, and {near} over the near one alone");
    }
}

#[test]
fn a_silent_path_delays_the_stream_by_its_stall_timeout() {
    for scheduler in SCHEDULERS {
        let (bytes, random) = source(4_000_000, 1);
        let mut simulation = Simulation::new(BondSettings::new(scheduler), 1 << 20, bytes, random);
        (0..2).for_each(|_| simulation.apply(PathEvent::Join(near(1000, 20))));
        (0..500).for_each(|_| simulation.tick());
        simulation.apply(PathEvent::Stall(0, u64::MAX));
        simulation.longest_wait = 0;
        assert!(simulation.finish(60_000), "{scheduler:?}");
        // Two timeouts of 240 ms, 50 ms of delayed acknowledgement, a round trip, and the
        // reinjection.
        let most = if scheduler == Scheduler::Redundant { 50 } else { 2 * 240 + 50 + 40 + 60 };
        assert!(simulation.longest_wait <= most, "{scheduler:?}: {} ms", simulation.longest_wait);
        assert!(simulation.read.len() == 4_000_000);
    }
}

#[test]
fn recovered_and_late_paths_are_used() {
    let (bytes, random) = source(6_000_000, 1);
    let mut simulation = Simulation::new(BondSettings::new(Scheduler::Score), 1 << 20, bytes, random);
    (0..2).for_each(|_| simulation.apply(PathEvent::Join(near(1000, 20))));
    (0..500).for_each(|_| simulation.tick());
    simulation.apply(PathEvent::Stall(1, 1500));
    (0..1400).for_each(|_| simulation.tick());
    let before = simulation.assigned(1);
    simulation.apply(PathEvent::Join(near(1000, 20)));
    (0..600).for_each(|_| simulation.tick());
    assert!(simulation.assigned(1) > before + 300_000, "{} after {before}", simulation.assigned(1));
    assert!(simulation.assigned(2) > 300_000);
    assert!(simulation.finish(60_000));
}

#[test]
fn a_path_that_was_slow_once_is_probed_and_used_again() {
    let (bytes, random) = source(3_000_000, 1);
    let mut simulation = Simulation::new(BondSettings::new(Scheduler::Score), 1 << 20, bytes, random);
    // The application writes little: one path is enough.
    simulation.writes_per_ms = 100;
    simulation.apply(PathEvent::Join(near(1000, 30)));
    simulation.apply(PathEvent::Join(Link { rate: 2, delay: 900, tier: 0 }));
    (0..10_000).for_each(|_| simulation.tick());
    let bad = simulation.assigned(1);
    assert!(bad < 100_000, "{bad} of a million");
    // Now it is the better path; only a probe can tell.
    simulation.apply(PathEvent::Change(1, near(1000, 5)));
    (0..15_000).for_each(|_| simulation.tick());
    assert!(simulation.assigned(1) > bad + 1_000_000, "{} after {bad}", simulation.assigned(1));
}

#[test]
fn the_end_of_a_stream_is_reinjected_over_a_faster_path() {
    let time = |foresight: bool| {
        let (bytes, random) = source(2_000_000, 1);
        let settings = BondSettings { foresight, ..BondSettings::new(Scheduler::Score) };
        let mut simulation = Simulation::new(settings, 1 << 20, bytes, random);
        (0..2).for_each(|_| simulation.apply(PathEvent::Join(near(1000, 20))));
        (0..980).for_each(|_| simulation.tick());
        simulation.apply(PathEvent::Change(1, near(5, 20)));
        assert!(simulation.finish(60_000));
        (simulation.now, simulation.sent)
    };
    let ((waits, all), (ends, sent)) = (time(false), time(true));
    // 16 kB at 5 kB/s take 3 s. Reinjected they arrive within two round trips, and no more is sent
    // twice than the slow path had.
    assert!(all == 2_000_000 && waits > 3000 && ends < 1150 && sent < 2_000_000 + 60_000, "{waits} {ends} {sent}");
}

#[test]
fn what_has_a_probe_duplicate_is_not_reinjected() {
    let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 1 << 20);
    let at = |ms: u64| Span(ms * 1_000_000);
    let [first, second] = [0, 0].map(|tier| out.add_path(at(0), tier));
    let look = |unsent: u64| PathSample { unsent, window: 10_000, srtt: at(10), rto: at(2000), ..PathSample::default() };
    out.update_path(at(0), first, look(0));
    out.update_path(at(0), second, PathSample { srtt: at(11), ..look(0) });
    // The nearer path carries it. The other one is idle and carries a probe duplicate, which
    // arrives first.
    out.offer(1000);
    let given = [out.next_piece(at(1500)), out.next_piece(at(1500))].map(|piece| piece.map(|piece| (piece.path, piece.is_duplicate)));
    assert_eq!(given, [Some((first, false)), Some((second, true))]);
    out.on_receipt(at(1520), second, 1000).and(out.on_acked(1000, 1 << 20)).unwrap();
    out.update_path(at(1520), second, look(0));
    out.update_path(at(1520), first, look(1000));
    assert_eq!((out.next_piece(at(1520)), out.next_piece(at(3000))), (None, None));
}

#[test]
fn during_loss_recovery_ranges_are_reinjected_over_a_nearer_path() {
    let at = |ms: u64| Span(ms * 1_000_000);
    let look = |srtt: u64| PathSample { window: 10_000, srtt: at(srtt), rto: at(2000), ..PathSample::default() };
    // One path carries a piece while the other is full. Then nothing is left, and the TCP of the
    // first path is in loss recovery or not.
    let reinjected = |rtt: u64, other_rtt: u64, in_recovery: bool| {
        let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 1 << 20);
        let [one, other] = [0, 0].map(|tier| out.add_path(at(0), tier));
        out.update_path(at(0), one, look(rtt));
        out.update_path(at(0), other, PathSample { unsent: 1 << 20, ..look(other_rtt) });
        out.offer(1000);
        assert_eq!(out.next_piece(at(1)).map(|piece| piece.path), Some(one));
        out.update_path(at(2), one, PathSample { in_recovery, ..look(rtt) });
        out.update_path(at(2), other, look(other_rtt));
        let again = out.next_piece(at(2)).map(|piece| (piece.path == other, piece.is_duplicate));
        assert_eq!(out.next_piece(at(3)), None, "it is reinjected once");
        again
    };
    assert_eq!(reinjected(500, 10, true), Some((true, true)));
    assert_eq!(reinjected(500, 10, false), None);
    // Over a more distant path it would not arrive sooner.
    assert_eq!(reinjected(10, 500, true), None);
}

#[test]
fn redundant_is_as_fast_as_the_fastest_path_and_tiers_spare_the_dear_one() {
    let (alone, _) = transfer(Scheduler::Single, 1_000_000, &[near(1000, 5)]);
    let (each, simulation) = transfer(Scheduler::Redundant, 1_000_000, &[near(10, 300), near(1000, 5)]);
    assert!(each <= alone + 60 && simulation.sent > 1_000_000, "{each} and {alone} ms, {} bytes", simulation.sent);
    let dear = Link { rate: 1000, delay: 5, tier: 1 };
    let (bytes, random) = source(300_000, 1);
    let mut simulation = Simulation::new(BondSettings::new(Scheduler::Tiers), 1 << 20, bytes, random);
    simulation.writes_per_ms = 50;
    [near(1000, 50), dear].into_iter().for_each(|link| simulation.apply(PathEvent::Join(link)));
    assert!(simulation.finish(60_000));
    assert_eq!((simulation.assigned(1), simulation.sent), (0, 300_000));
}
