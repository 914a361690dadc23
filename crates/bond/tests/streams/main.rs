//! Both ends of a stream together: whatever becomes of the connections, the bytes that come out are those that went in.

mod simulation;

use bond::{Breach, ConnId, Inbound, Look, Outbound, Scheduler, Settings};
use proptest::prelude::*;
use rand::RngExt;
use rand_pcg::Pcg64;
use simulation::{Fate, Nature, World};
use units::{Bytes, Span};

const SCHEDULERS: [Scheduler; 5] = [Scheduler::Score, Scheduler::RoundRobin, Scheduler::Single, Scheduler::Redundant, Scheduler::Tiers];

fn nature() -> impl Strategy<Value = Nature> {
    (prop_oneof![5u64..50, 50u64..2000], prop_oneof![0u64..30, 30u64..700], 0u8..3).prop_map(|(rate, delay, tier)| Nature {
        rate,
        delay,
        tier,
    })
}

fn fate() -> impl Strategy<Value = Fate> {
    let which = 0usize..6;
    prop_oneof![
        2 => nature().prop_map(Fate::Join),
        2 => which.clone().prop_map(Fate::Lose),
        1 => (which.clone(), 1u64..3000).prop_map(|(which, ms)| Fate::Stall(which, ms)),
        1 => which.clone().prop_map(|which| Fate::Stall(which, u64::MAX)),
        1 => (which, nature()).prop_map(|(which, nature)| Fate::Change(which, nature)),
    ]
}

fn source(bytes: usize, seed: u64) -> (Vec<u8>, Pcg64) {
    let mut random = Pcg64::new(seed.into(), 1);
    ((0..bytes).map(|_| random.random()).collect(), random)
}

fn near(rate: u64, delay: u64) -> Nature {
    Nature { rate, delay, tier: 0 }
}

/// A stream of so many bytes over these, with 1 MiB of window; how many ms it takes.
fn takes(scheduler: Scheduler, bytes: usize, natures: &[Nature]) -> (u64, World) {
    let (bytes, random) = source(bytes, 1);
    let mut world = World::new(Settings::new(scheduler), 1 << 20, bytes, random);
    natures.iter().for_each(|nature| world.happen(Fate::Join(*nature)));
    assert!(world.finish(600_000), "{scheduler:?}");
    (world.now, world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(
        scheduler in prop::sample::select(&SCHEDULERS[..]),
        bytes in prop_oneof![1 => 0usize..100, 4 => 100usize..100_000],
        window in prop_oneof![3000usize..20_000, 20_000usize..200_000],
        piece in 1u64..20_000,
        queue in 1u64..40_000,
        paces in (50usize..3000, 50usize..3000),
        foresight: bool,
        first in prop::collection::vec(nature(), 1..4),
        fates in prop::collection::vec((0u64..300, fate()), 0..12),
        seed: u64,
    ) {
        let (source, random) = source(bytes, seed);
        let settings = Settings { piece: Bytes(piece), queue: Bytes(queue), foresight, ..Settings::new(scheduler) };
        let mut world = World::new(settings, window, source.clone(), random);
        (world.writes, world.reads) = paces;
        if source.is_empty() {
            world.out.close();
        }
        first.into_iter().for_each(|nature| world.happen(Fate::Join(nature)));
        for (after, fate) in fates {
            (0..after).for_each(|_| world.tick());
            world.happen(fate);
        }
        // One at least lasts.
        world.happen(Fate::Join(near(500, 10)));
        prop_assert!(world.finish(600_000), "it does not end: {:?}", world.out);
        prop_assert!(world.read == source, "other bytes came out");
        prop_assert!(world.inbound.is_read() && world.out.acked() == source.len() as u64 && world.out.left() == 0);
        prop_assert!(world.inbound.most_held() <= window as u64);
    }

    #[test]
    fn whatever_the_other_end_says_is_borne_or_refused(
        words in prop::collection::vec((0u8..5, 0u64..70_000, 0u64..70_000, 0usize..3), 1..300),
    ) {
        let (mut out, mut inbound) = (Outbound::new(Settings::new(Scheduler::Score), 30_000), Inbound::new(30_000));
        for tier in 0..2 {
            let conn = out.add(Span::ZERO, tier);
            out.look(Span::ZERO, conn, Look { window: 10_000, srtt: Span(10_000_000), ..Look::default() });
            inbound.add(conn);
        }
        out.offer(60_000);
        let mut limit = 30_000;
        for (kind, one, other, conn) in words {
            let (now, conn) = (Span(one * 100_000), ConnId(conn));
            match kind {
                0 => drop(out.receipt(now, conn, one)),
                1 => {
                    let before = out.acked();
                    if out.acknowledge(one, other).is_ok() {
                        limit = limit.max(other);
                    }
                    prop_assert!(out.acked() >= before && out.acked() <= 60_000);
                }
                2 => {
                    let bytes = vec![7; other as usize % 5000];
                    let end = one + bytes.len() as u64;
                    if inbound.take(now, conn, one, &bytes).is_ok() && !bytes.is_empty() {
                        prop_assert!(end <= inbound.waiting().0 + 30_000);
                    }
                    prop_assert!(inbound.waiting().1 <= 30_000);
                }
                3 => drop(inbound.end(one)),
                _ => {
                    out.check(now);
                    while let Some(piece) = out.give(now) {
                        prop_assert!(piece.offset + piece.len <= limit.min(60_000));
                    }
                    prop_assert!(out.next_check(now).is_none_or(|at| at > now));
                    inbound.consume(now, other % 3000);
                    inbound.say(now, conn);
                }
            }
        }
    }
}

#[test]
fn the_rules_are_these() {
    let mut inbound = Inbound::new(1000);
    inbound.add(ConnId(0));
    assert_eq!(inbound.begin(500, 501), Err(Breach::BeyondWindow { end: 1001, limit: 1000 }));
    assert_eq!(inbound.take(Span::ZERO, ConnId(0), 0, &[1; 400]), Ok(()));
    inbound.consume(Span::ZERO, 100);
    assert_eq!(inbound.begin(500, 601), Err(Breach::BeyondWindow { end: 1101, limit: 1100 }));
    assert_eq!(inbound.end(399), Err(Breach::BeyondEnd { end: 399, other: 400 }));
    assert_eq!(inbound.end(600), Ok(()));
    assert_eq!(inbound.end(601), Err(Breach::BeyondEnd { end: 601, other: 600 }));
    assert_eq!(inbound.begin(500, 101), Err(Breach::BeyondEnd { end: 600, other: 601 }));
    // What came first stays.
    assert_eq!(inbound.take(Span::ZERO, ConnId(0), 350, &[2; 100]), Ok(()));
    let rest = inbound.readable(u64::MAX).collect::<Vec<_>>().concat();
    assert_eq!((rest.len(), rest[299], rest[300]), (350, 1, 2));

    let mut out = Outbound::new(Settings::new(Scheduler::Score), 1000);
    let conn = out.add(Span::ZERO, 0);
    out.offer(5000);
    assert_eq!(out.give(Span::ZERO).map(|piece| piece.len), Some(1000), "as far as the window goes");
    assert_eq!(out.give(Span::ZERO), None);
    assert_eq!(out.receipt(Span::ZERO, conn, 1001), Err(Breach::NeverSent { got: 1001, sent: 1000 }));
    assert_eq!(out.acknowledge(1001, 2000), Err(Breach::NeverSent { got: 1001, sent: 1000 }));
    assert_eq!(out.delivered(), Err(Breach::NotAtEnd));
}

#[test]
fn no_more_is_wanted_than_keeps_connections_busy_or_decides_between_them() {
    const MIB: u64 = 1 << 20;
    let wants = |natures: &[(u64, u64)], offered: u64, room: u64| {
        let mut out = Outbound::new(Settings::new(Scheduler::Score), 64 * MIB);
        for (rate, rtt) in natures {
            let (conn, srtt) = (out.add(Span::ZERO, 0), Span(rtt * 1_000_000));
            let look = Look { window: (*rate as f64 * srtt.secs()) as u64, srtt, rto: srtt, unsent: MIB, ..Look::default() };
            out.look(Span::ZERO, conn, look);
        }
        out.offer(offered);
        out.wants(room)
    };
    // One network, or two alike, or none: there is enough.
    for natures in [&[(10 * MIB, 20)][..], &[(10 * MIB, 20), (10 * MIB, 20)], &[]] {
        assert_eq!([wants(natures, 1000, MIB), wants(natures, MIB, 7 * MIB)], [true, false], "{natures:?}");
    }
    // Over the far one a piece takes a second and the MiB before it; the near one has sent one MiB by then, and not eight.
    let natures = [(10 * MIB, 20), (10 * MIB, 1000)];
    assert_eq!([wants(&natures, MIB, 31 * MIB), wants(&natures, 32 * MIB, 31 * MIB)], [true, false]);
}

#[test]
fn a_doubted_connection_decides_nothing_of_what_is_wanted() {
    const MIB: u64 = 1 << 20;
    let mut out = Outbound::new(Settings::new(Scheduler::Score), 64 * MIB);
    let add = |out: &mut Outbound, rate: u64, rtt: u64, unsent: u64| {
        let (conn, srtt) = (out.add(Span::ZERO, 0), Span(rtt * 1_000_000));
        out.look(Span::ZERO, conn, Look { window: (rate as f64 * srtt.secs()) as u64, srtt, rto: srtt, unsent, ..Look::default() });
        conn
    };
    // It stalls with all that there was to give, and is heard of again.
    let fast = add(&mut out, 1000 * MIB, 1, 0);
    out.offer(1000);
    assert_eq!(out.give(Span::ZERO).map(|piece| piece.conn), Some(fast));
    let later = Span(60_000_000_000);
    out.check(later);
    assert!(out.seen(fast).unwrap().stalled);
    out.receipt(later, fast, 1000).unwrap();
    out.acknowledge(1000, 64 * MIB).unwrap();
    assert!(!out.seen(fast).unwrap().stalled);
    // If it were trusted nothing would ever go over the far one; of the two others that is so only while little is left.
    add(&mut out, 10 * MIB, 20, MIB);
    add(&mut out, 10 * MIB, 1000, MIB);
    out.offer(MIB);
    assert!(out.wants(31 * MIB));
}

#[test]
fn however_fast_the_connections_are_no_piece_is_the_whole_window() {
    let mut out = Outbound::new(Settings::new(Scheduler::Score), 256 * 1024);
    let conn = out.add(Span::ZERO, 0);
    let srtt = Span(1_000_000);
    out.look(Span::ZERO, conn, Look { window: 4 << 20, srtt, rto: srtt, ..Look::default() });
    out.offer(1 << 20);
    assert_eq!(std::iter::from_fn(|| out.give(Span::ZERO)).map(|piece| piece.len).collect::<Vec<_>>(), [64 * 1024; 4]);
}

#[test]
fn two_equal_networks_are_twice_one_and_unequal_ones_are_their_sum() {
    let (one, _) = takes(Scheduler::Score, 8_000_000, &[near(1000, 20)]);
    let (two, _) = takes(Scheduler::Score, 8_000_000, &[near(1000, 20); 2]);
    assert!(one as f64 / two as f64 > 1.95, "{one} and {two} ms");
    // 10 + 2 Mbit/s.
    let (fast, _) = takes(Scheduler::Score, 8_000_000, &[near(1250, 20)]);
    let (both, _) = takes(Scheduler::Score, 8_000_000, &[near(1250, 20), near(250, 20)]);
    assert!(fast as f64 / both as f64 > 1.2 * 0.97, "{fast} and {both} ms");
}

#[test]
fn a_far_network_never_makes_it_slower_whatever_the_window() {
    // 50 and 700 ms of round trip; the window is from a fifth to five times what the far one has under way.
    for window in [70_000, 350_000, 1_750_000] {
        let time = |natures: &[Nature]| {
            let (bytes, random) = source(4_000_000, 1);
            let mut world = World::new(Settings::new(Scheduler::Score), window, bytes, random);
            natures.iter().for_each(|nature| world.happen(Fate::Join(*nature)));
            assert!(world.finish(600_000));
            world.now as f64
        };
        let (near, both) = (time(&[near(500, 25)]), time(&[near(500, 25), near(500, 350)]));
        assert!(both < 1.01 * near, "window {window}: {both} ms, and {near} over the near one alone");
    }
}

#[test]
fn a_network_that_falls_silent_holds_nobody_up_for_long() {
    for scheduler in SCHEDULERS {
        let (bytes, random) = source(4_000_000, 1);
        let mut world = World::new(Settings::new(scheduler), 1 << 20, bytes, random);
        (0..2).for_each(|_| world.happen(Fate::Join(near(1000, 20))));
        (0..500).for_each(|_| world.tick());
        world.happen(Fate::Stall(0, u64::MAX));
        world.longest_wait = 0;
        assert!(world.finish(60_000), "{scheduler:?}");
        // Two timeouts of 240 ms, 50 ms for receipts, a round trip, and what it has to send again.
        let most = if scheduler == Scheduler::Redundant { 50 } else { 2 * 240 + 50 + 40 + 60 };
        assert!(world.longest_wait <= most, "{scheduler:?}: {} ms", world.longest_wait);
        assert!(world.read.len() == 4_000_000);
    }
}

#[test]
fn a_network_that_comes_back_and_one_that_comes_late_are_used() {
    let (bytes, random) = source(6_000_000, 1);
    let mut world = World::new(Settings::new(Scheduler::Score), 1 << 20, bytes, random);
    (0..2).for_each(|_| world.happen(Fate::Join(near(1000, 20))));
    (0..500).for_each(|_| world.tick());
    world.happen(Fate::Stall(1, 1500));
    (0..1400).for_each(|_| world.tick());
    let before = world.given(1);
    world.happen(Fate::Join(near(1000, 20)));
    (0..600).for_each(|_| world.tick());
    assert!(world.given(1) > before + 300_000, "{} after {before}", world.given(1));
    assert!(world.given(2) > 300_000);
    assert!(world.finish(60_000));
}

#[test]
fn nobody_is_locked_out_by_what_it_was_in_a_bad_hour() {
    let (bytes, random) = source(3_000_000, 1);
    let mut world = World::new(Settings::new(Scheduler::Score), 1 << 20, bytes, random);
    // The application writes little: one network is enough for it.
    world.writes = 100;
    world.happen(Fate::Join(near(1000, 30)));
    world.happen(Fate::Join(Nature { rate: 2, delay: 900, tier: 0 }));
    (0..10_000).for_each(|_| world.tick());
    let bad = world.given(1);
    assert!(bad < 100_000, "{bad} of a million");
    // Now it is the better one, and nobody knows.
    world.happen(Fate::Change(1, near(1000, 5)));
    (0..15_000).for_each(|_| world.tick());
    assert!(world.given(1) > bad + 1_000_000, "{} after {bad}", world.given(1));
}

#[test]
fn the_end_of_a_stream_does_not_wait_for_who_has_become_slow() {
    let time = |foresight: bool| {
        let (bytes, random) = source(2_000_000, 1);
        let settings = Settings { foresight, ..Settings::new(Scheduler::Score) };
        let mut world = World::new(settings, 1 << 20, bytes, random);
        (0..2).for_each(|_| world.happen(Fate::Join(near(1000, 20))));
        (0..980).for_each(|_| world.tick());
        world.happen(Fate::Change(1, near(5, 20)));
        assert!(world.finish(60_000));
        (world.now, world.sent)
    };
    let ((waits, all), (ends, sent)) = (time(false), time(true));
    // 16 kB at 5 kB/s; over the other one they are there in two round trips, and no more than what was with the slow one goes twice.
    assert!(all == 2_000_000 && waits > 3000 && ends < 1150 && sent < 2_000_000 + 60_000, "{waits} {ends} {sent}");
}

#[test]
fn what_came_as_a_copy_is_not_copied_again() {
    let mut out = Outbound::new(Settings::new(Scheduler::Score), 1 << 20);
    let at = |ms: u64| Span(ms * 1_000_000);
    let [first, second] = [0, 0].map(|tier| out.add(at(0), tier));
    let look = |unsent: u64| Look { unsent, window: 10_000, srtt: at(10), rto: at(2000), ..Look::default() };
    out.look(at(0), first, look(0));
    out.look(at(0), second, Look { srtt: at(11), ..look(0) });
    // The nearer one gets it; the other has been idle for long, and gets a copy, which comes first.
    out.offer(1000);
    let given = [out.give(at(1500)), out.give(at(1500))].map(|piece| piece.map(|piece| (piece.conn, piece.again)));
    assert_eq!(given, [Some((first, false)), Some((second, true))]);
    out.receipt(at(1520), second, 1000).and(out.acknowledge(1000, 1 << 20)).unwrap();
    out.look(at(1520), second, look(0));
    out.look(at(1520), first, look(1000));
    assert_eq!((out.give(at(1520)), out.give(at(3000))), (None, None));
}

#[test]
fn what_a_connection_mends_goes_over_a_nearer_one_too() {
    let at = |ms: u64| Span(ms * 1_000_000);
    let look = |srtt: u64| Look { window: 10_000, srtt: at(srtt), rto: at(2000), ..Look::default() };
    // A piece goes over one of the two while the other is full; then nothing is left, and that one's TCP mends a loss, or does not.
    let goes_again = |its: u64, others: u64, mends: bool| {
        let mut out = Outbound::new(Settings::new(Scheduler::Score), 1 << 20);
        let [one, other] = [0, 0].map(|tier| out.add(at(0), tier));
        out.look(at(0), one, look(its));
        out.look(at(0), other, Look { unsent: 1 << 20, ..look(others) });
        out.offer(1000);
        assert_eq!(out.give(at(1)).map(|piece| piece.conn), Some(one));
        out.look(at(2), one, Look { mends, ..look(its) });
        out.look(at(2), other, look(others));
        let again = out.give(at(2)).map(|piece| (piece.conn == other, piece.again));
        assert_eq!(out.give(at(3)), None, "once is enough");
        again
    };
    assert_eq!(goes_again(500, 10, true), Some((true, true)));
    assert_eq!(goes_again(500, 10, false), None);
    // Over a farther one it would not come sooner.
    assert_eq!(goes_again(10, 500, true), None);
}

#[test]
fn redundant_is_as_fast_as_the_fastest_and_tiers_spare_the_dear_one() {
    let (alone, _) = takes(Scheduler::Single, 1_000_000, &[near(1000, 5)]);
    let (each, world) = takes(Scheduler::Redundant, 1_000_000, &[near(10, 300), near(1000, 5)]);
    assert!(each <= alone + 60 && world.sent > 1_000_000, "{each} and {alone} ms, {} bytes", world.sent);
    let dear = Nature { rate: 1000, delay: 5, tier: 1 };
    let (bytes, random) = source(300_000, 1);
    let mut world = World::new(Settings::new(Scheduler::Tiers), 1 << 20, bytes, random);
    world.writes = 50;
    [near(1000, 50), dear].into_iter().for_each(|nature| world.happen(Fate::Join(nature)));
    assert!(world.finish(60_000));
    assert_eq!((world.given(1), world.sent), (0, 300_000));
}
