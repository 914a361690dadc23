//! Tests of a medium with its two stations.

use super::*;
use crate::aqm::discipline;
use proptest::prelude::*;
use scenario::{Purpose, QueueKind, QueueParameters, stream};
use units::QueueSize;

/// A packet with a number and a size in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Numbered(usize, u32);

impl LinkPacket for Numbered {
    fn wire_bytes(&self) -> u32 {
        self.1
    }
}

fn contention(seed: u64) -> MediumAccess {
    MediumAccess::Contention(Contention::new(stream(seed, Purpose::Contention, 0)))
}

fn stations_of(access: MediumAccess, limit: u64) -> [MediumStation<Numbered>; 2] {
    let queue = || discipline(QueueKind::Droptail, QueueSize::Packets(limit), QueueParameters::default(), stream(1, Purpose::Queue, 0));
    stations(access, [queue(), queue()])
}

/// When a packet departed, from which station, and its number.
type Sent = (u64, usize, usize);

fn take_all(stations: &mut [MediumStation<Numbered>; 2], now: Time) -> Vec<Sent> {
    let mut sent = Vec::new();
    for (number, station) in stations.iter_mut().enumerate() {
        sent.extend(std::iter::from_fn(|| station.take_departed(now)).map(|left| (left.departed.0, number, left.packet.0)));
    }
    sent.sort_unstable();
    sent
}

/// Polls at each wakeup until both stations are empty.
fn run_out(stations: &mut [MediumStation<Numbered>; 2]) -> Vec<Sent> {
    let mut sent = Vec::new();
    while let Some(next) = stations.iter().filter_map(QueueServer::next_wakeup).min() {
        sent.extend(take_all(stations, next));
    }
    sent
}

fn arrive(stations: &mut [MediumStation<Numbered>; 2], at: u64, station: usize, number: usize, bytes: u32) {
    stations[station].enqueue(Time(at), Numbered(number, bytes)).unwrap();
}

#[test]
fn stations_of_a_half_duplex_medium_take_turns() {
    // 1000 bytes take a millisecond.
    let mut stations = stations_of(MediumAccess::InTurn(Rate(8_000_000)), 10);
    for (at, station, number) in [(0, 0, 0), (100, 0, 1), (200, 1, 2), (300, 0, 3)] {
        arrive(&mut stations, at, station, number, 1000);
    }
    assert_eq!(stations[0].busy_time(Time(400_000)), Span(400_000));
    assert_eq!(run_out(&mut stations), [(1_000_000, 0, 0), (2_000_000, 1, 2), (3_000_000, 0, 1), (4_000_000, 0, 3)]);
    arrive(&mut stations, 5_000_000, 0, 4, 1000);
    arrive(&mut stations, 5_000_000, 1, 5, 1000);
    arrive(&mut stations, 5_000_000, 0, 6, 1000);
    assert_eq!(run_out(&mut stations), [(6_000_000, 0, 4), (7_000_000, 1, 5), (8_000_000, 0, 6)]);
    assert_eq!([0, 1].map(|station| stations[station].busy_time(Time(9_000_000)).0), [5_000_000, 2_000_000]);
}

#[test]
fn a_queue_has_its_limit_without_the_frame_that_is_sent_next() {
    let mut stations = stations_of(MediumAccess::InTurn(Rate(8_000_000)), 2);
    let mut accepted = |at, station: usize| stations[station].enqueue(Time(at), Numbered(0, 1000)).is_ok();
    // The other station's frame is on the air; one is next, two wait.
    assert_eq!([(0, 1), (1, 0), (2, 0), (3, 0), (4, 0)].map(|(at, station)| accepted(at, station)), [true, true, true, true, false]);
    assert!(accepted(2_000_001, 0), "the first has departed");
    assert_eq!(
        (stations[0].backlog(), stations[0].len(), stations[0].dropped().packets),
        ((2, 2000), 4, 1),
        "with the one that has departed and was not taken"
    );
}

#[test]
fn a_frame_on_an_idle_network_is_sent_at_once() {
    let mut stations = stations_of(contention(1), 10);
    arrive(&mut stations, 1_000_000, 0, 0, 1500);
    // 192 µs of preamble, 1528 bytes at 11 Mbit/s.
    assert_eq!(take_all(&mut stations, Time(10_000_000)), [(1_000_000 + 192_000 + 1_111_272, 0, 0)]);
    // Its post-backoff of 31 slots at most has ended long ago.
    arrive(&mut stations, 10_000_000, 0, 1, 1500);
    assert_eq!(take_all(&mut stations, Time(20_000_000)), [(10_000_000 + 192_000 + 1_111_272, 0, 1)]);
}

#[test]
fn a_frame_that_arrives_during_another_waits_for_it_and_a_backoff() {
    for seed in 0..50 {
        let mut stations = stations_of(contention(seed), 10);
        arrive(&mut stations, 1_000_000, 0, 0, 1500);
        arrive(&mut stations, 1_000_001, 1, 1, 1500);
        let sent = run_out(&mut stations);
        let air = 1_000_000 + 192_000 + 1_111_272;
        // SIFS, MAC acknowledgement, DIFS, and 0 to 31 slots.
        let idle = 10_000 + 192_000 + 10_181 + 2_000 + 50_000;
        let slots = sent[1].0 - air - idle - (192_000 + 1_111_272);
        assert_eq!(sent[0], (air, 0, 0));
        assert!(slots.is_multiple_of(20_000) && slots <= 31 * 20_000, "{slots}");
    }
}

#[test]
fn saturated_stations_share_the_network_and_collide_as_bianchi_says() {
    let mut stations = stations_of(contention(1), 100_000);
    const EACH: usize = 40_000;
    for number in 0..EACH {
        arrive(&mut stations, 0, 0, number, 1500);
        arrive(&mut stations, 0, 1, number, 1500);
    }
    // Until one of them is empty.
    let sent = run_out(&mut stations);
    let both = &sent[..sent.len() * 9 / 10];
    let share = both.iter().filter(|(_, station, _)| *station == 0).count() as f64 / both.len() as f64;
    assert!((share - 0.5).abs() < 0.01, "{share}");
    // Bianchi, JSAC 2000, (7) and (9) with W = 32, m = 5, n = 2: τ = p = 0.0575 solves both.
    let collisions = stations[0].collisions() as f64;
    let probability = collisions / (collisions + sent.len() as f64 / 2.0);
    assert!((probability - 0.0575).abs() < 0.004, "{probability}");
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_how_often_the_caller_polls(
        arrivals in prop::collection::vec((0u64..3_000_000, 0usize..2, 40u32..1500), 1..60),
        polls in prop::collection::vec(0u64..2_000_000, 0..200),
        seed in 0u64..1000,
        contends in any::<bool>(),
    ) {
        let access = || if contends { contention(seed) } else { MediumAccess::InTurn(Rate(11_000_000)) };
        let play = |polls: &[u64]| {
            let mut stations = stations_of(access(), 1000);
            let (mut sent, mut now) = (Vec::new(), 0);
            let mut polls = polls.iter();
            let mut next_poll = polls.next().copied();
            for (number, (gap, station, bytes)) in arrivals.iter().enumerate() {
                now += gap;
                while let Some(at) = next_poll.filter(|at| *at <= now) {
                    sent.extend(take_all(&mut stations, Time(at)));
                    next_poll = polls.next().map(|gap| at + gap);
                }
                arrive(&mut stations, now, *station, number, *bytes);
            }
            sent.extend(run_out(&mut stations));
            sent.sort_unstable();
            sent
        };
        let sent = play(&[]);
        prop_assert_eq!(&sent, &play(&polls));
        prop_assert_eq!(sent.len(), arrivals.len());
        // One frame at a time, each station's in their order.
        for pair in sent.windows(2) {
            let (_, _, number) = pair[1];
            let air = if contends { Contention::air_time(arrivals[number].2) } else { Rate(11_000_000).time_for(Bytes(arrivals[number].2.into())) };
            prop_assert!(pair[1].0 - pair[0].0 >= air.0, "{:?}", pair);
        }
        for station in 0..2 {
            let numbers: Vec<usize> = sent.iter().filter(|frame| frame.1 == station).map(|frame| frame.2).collect();
            prop_assert!(numbers.is_sorted());
        }
    }
}
