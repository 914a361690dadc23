//! Tests of a link from arrival to delivery.

use super::*;
use crate::{disorder::DisorderSpec, random::LinkStreams};
use proptest::prelude::*;
use scenario::{Fraction, Gilbert, Jitter, Law, LinkReordering, Outages, Shape};
use std::rc::Rc;
use units::QueueSize;

/// A packet with a number, a size in bytes and an extra delay. The reference count of its
/// buffer shows whether the packet still exists.
#[derive(Debug, Clone)]
struct Numbered(usize, u32, Span, #[expect(dead_code, reason = "only held")] Rc<()>);

/// The delivered packets with their times, and the dropped packets.
type Observed = (Vec<(u64, usize)>, Vec<usize>);
impl LinkPacket for Numbered {
    fn wire_bytes(&self) -> u32 {
        self.1
    }
    fn extra_delay(&self) -> Span {
        self.2
    }
}

fn drain(direction: &mut LinkDirection<Numbered>, now: Time) -> Vec<(u64, usize)> {
    std::iter::from_fn(|| direction.ready(now).map(|(at, packet)| (at.0, packet.0))).collect()
}

/// Polls at each wakeup until the link is empty.
fn run_out(direction: &mut LinkDirection<Numbered>) -> Vec<(u64, usize)> {
    let mut out = Vec::new();
    while let Some(wakeup) = direction.next_wakeup() {
        out.extend(drain(direction, wakeup));
    }
    out
}

#[test]
fn a_shorter_delay_does_not_reorder_and_a_change_of_losses_holds_at_once() {
    let spec = DirectionSpec { varies_delay: true, ..DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(9), Span(40_000_000)) };
    let mut direction = LinkDirection::new(spec);
    for number in 0..4 {
        direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
    }
    // The first two have departed.
    direction.set_delay(Time(2_500_000), Span(10_000_000));
    assert_eq!(direction.next_delivery(), Some(Time(3_000_000)), "the next departure, as its delay may change");
    direction.set_loss(Time(3_500_000), Some(Loss::PerPacket(1.0)));
    assert_eq!(run_out(&mut direction), [(41_000_000, 0), (42_000_000, 1), (42_000_000, 2)]);
    assert_eq!(direction.counts().losses, 1);
}

#[test]
fn a_packet_takes_transmission_then_delay() {
    let mut direction = LinkDirection::new(DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000)));
    for (number, extra) in [(0, 0), (1, 1_500_000), (2, 0), (3, 0)] {
        direction.enqueue(Time(7), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
    }
    // The second takes 1.5 ms more and is overtaken.
    assert_eq!(run_out(&mut direction), [(401_000_007, 0), (403_000_007, 2), (403_500_007, 1), (404_000_007, 3)]);
    assert_eq!(direction.busy_time(Time(1_000_000_000)), Span(4_000_000));
}

#[test]
fn a_lost_packet_occupies_the_transmitter_and_is_freed() {
    let mut direction = LinkDirection::new(DirectionSpec {
        loss: Some(Loss::PerPacket(1.0)),
        ..DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(0))
    });
    let buffer = Rc::new(());
    for number in 0..3 {
        direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, buffer.clone())).unwrap();
    }
    assert_eq!(direction.len(), 3);
    assert_eq!(run_out(&mut direction), []);
    assert_eq!(direction.counts().losses, 3);
    assert_eq!(direction.counts().departed_bytes, Bytes(3000));
    assert_eq!(direction.busy_time(Time(9_000_000)), Span(3_000_000));
    assert_eq!(Rc::strong_count(&buffer), 1);
}

#[test]
fn nothing_is_delivered_before_next_delivery() {
    let mut direction = LinkDirection::new(DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000)));
    assert_eq!(direction.next_delivery(), None);
    for (number, extra) in [(0, 1_500_000), (1, 0), (2, 0)] {
        direction.enqueue(Time(0), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
    }
    let (mut looks, mut out) = (Vec::new(), Vec::new());
    while let Some(at) = direction.next_delivery() {
        looks.push(at.0);
        out.extend(drain(&mut direction, at));
    }
    assert_eq!(out, [(402_000_000, 1), (402_500_000, 0), (403_000_000, 2)]);
    // One poll finds nothing: an extra delay is not known before the departure.
    assert_eq!(looks, [401_000_000, 402_000_000, 402_500_000, 403_000_000]);
}

/// A tap that adds 1000 to the number of each departing packet and records what it sees.
#[derive(Debug, Default)]
struct Notes(Vec<(u64, usize, u64)>, u64);
impl QueueTap<Numbered> for Notes {
    fn packet_arrived(&mut self, now: Time, packet: &Numbered) {
        self.0.push((now.0, packet.0, self.1));
    }
    fn packet_departed(&mut self, at: Time, packet: &mut Numbered) {
        packet.0 += 1000;
        self.0.push((at.0, packet.0, self.1));
    }
    fn queue_changed(&mut self, queued: Bytes) {
        self.1 = queued.0;
    }
}

#[test]
fn a_tap_sees_events_at_exact_times_however_often_the_caller_polls() {
    for looks in [false, true] {
        let spec = DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(2), Span(5_000_000));
        let mut direction = LinkDirection::with_tap(spec, Notes::default());
        for number in 0..4 {
            let refused = direction.enqueue(Time(number as u64), Numbered(number, 1000, Span::ZERO, Rc::default())).is_err();
            assert_eq!(refused, number == 3, "one is in transmission, two wait");
        }
        if looks {
            assert_eq!(direction.queued(Time(1_500_000)), Bytes(1000));
        }
        let out: Vec<usize> = std::iter::from_fn(|| direction.ready(Time(90_000_000)).map(|(_, packet)| packet.0)).collect();
        assert_eq!(out, [1000, 1001, 1002], "a tap may modify departing packets");
        // Time, packet number, and queue length before the event.
        let seen =
            [(0, 0, 0), (1, 1, 0), (2, 2, 1000), (3, 3, 2000), (1_000_000, 1000, 2000), (2_000_000, 1001, 1000), (3_000_000, 1002, 0)];
        assert_eq!(direction.tap(Time(90_000_000)).0, seen);
    }
}

#[test]
fn an_outage_holds_packets_until_it_ends() {
    let mut direction = LinkDirection::new(DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(10_000_000)));
    for number in 0..3 {
        direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
    }
    direction.set_rate(Time(1_000_000), Rate(0));
    assert_eq!(drain(&mut direction, Time(60_000_000_000)), [(11_000_000, 0)]);
    direction.set_rate(Time(60_000_000_000), Rate(4_000_000));
    let out = run_out(&mut direction);
    // A rate of zero counts as 1 bit/s, which sent 59.999 bits in a minute.
    assert_eq!(out, [(60_011_985_000, 1), (60_013_985_000, 2)]);
}

/// How a caller polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PollingCaller {
    /// At each wakeup.
    EachWakeup,
    /// At arbitrary times.
    Arbitrary,
    /// By the fast path.
    FastPath,
}

fn any_loss() -> impl Strategy<Value = Option<Loss>> {
    prop_oneof![
        Just(None),
        (0.0..1.0f64).prop_map(|p| Some(Loss::PerPacket(p))),
        (0.0..2000.0f64).prop_map(|rate| Some(Loss::PerSecond(rate))),
        (0.0..0.5f64, 0.1..1.0f64).prop_map(|(good_to_bad, bad_to_good)| Some(Loss::Gilbert(Gilbert {
            good_to_bad,
            bad_to_good,
            loss_good: 0.01,
            loss_bad: 0.9
        }))),
    ]
}

/// A packet that can be copied: number, size, extra delay.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PlainPacket(usize, u32, Span);
impl LinkPacket for PlainPacket {
    fn wire_bytes(&self) -> u32 {
        self.1
    }
    fn extra_delay(&self) -> Span {
        self.2
    }
}

proptest! {
    /// Copying arrivals and moving them yields the same packets and counters, with and without
    /// extra delays.
    #[test]
    fn copying_and_moving_arrivals_are_equivalent(
        packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000), 1..200),
        late: bool,
        loss in any_loss(),
        seed: u64,
    ) {
        let link = || LinkDirection::<PlainPacket>::new(DirectionSpec { loss, streams: LinkStreams { seed, ..LinkStreams::default() }, ..DirectionSpec::lossless(Rate(5_280_001), QueueSize::Packets(3), Span(5_000_000)) });
        let (mut copies, mut moves, mut now) = (link(), link(), 0);
        let take = |copies: &mut LinkDirection<PlainPacket>, moves: &mut LinkDirection<PlainPacket>, until: u64| -> Result<(), TestCaseError> {
            while let Some(at) = copies.next_delivery().filter(|at| at.0 <= until) {
                prop_assert_eq!(moves.next_delivery(), Some(at));
                let mut place = PlainPacket(usize::MAX, 0, Span::ZERO);
                while copies.poll_arrival_into(at, &mut place) {
                    prop_assert_eq!(moves.poll_arrival(at), Some((at, place)));
                }
                prop_assert_eq!(moves.poll_arrival(at), None);
            }
            Ok(())
        };
        for (number, (gap, size, extra)) in packets.iter().enumerate() {
            now += gap;
            take(&mut copies, &mut moves, now)?;
            let packet = PlainPacket(number, *size, Span(if late { extra.saturating_sub(10_000_000) } else { 0 }));
            prop_assert_eq!(copies.enqueue_lazy(Time(now), packet), moves.enqueue_lazy(Time(now), packet));
            prop_assert_eq!(copies.departed_bytes(Time(now)), moves.departed_bytes(Time(now)));
        }
        take(&mut copies, &mut moves, u64::MAX)?;
        let counts = copies.counts();
        prop_assert_eq!(counts, moves.counts());
        prop_assert_eq!(counts.delivered + counts.losses + counts.queue_drops, packets.len() as u64);
    }
}

proptest! {
    /// Every packet is accounted for, and how often the caller polls changes neither which packets
    /// are delivered nor when.
    #[test]
    fn every_packet_is_accounted_for(
        // Gap in ns, size in bytes, extra delay in ns (none for half of them), whether the
        // arbitrary caller polls.
        packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000, any::<bool>()), 1..200),
        bytes: bool,
        loss in any_loss(),
        seed: u64,
    ) {
        let limit = if bytes { QueueSize::Bytes(Bytes(4000)) } else { QueueSize::Packets(3) };
        let buffer = Rc::new(());
        let run = |caller: PollingCaller| -> Result<Observed, TestCaseError> {
            let mut direction: LinkDirection<Numbered> = LinkDirection::new(DirectionSpec { loss, streams: LinkStreams { seed, ..LinkStreams::default() }, ..DirectionSpec::lossless(Rate(5_280_001), limit, Span(5_000_000)) });
            let (mut now, mut out, mut dropped) = (0, Vec::new(), Vec::new());
            for (number, (gap, size, extra, looks)) in packets.iter().enumerate() {
                now += gap;
                match caller {
                    PollingCaller::EachWakeup => {
                        while let Some(wakeup) = direction.next_wakeup().filter(|at| at.0 <= now) {
                            out.extend(drain(&mut direction, wakeup));
                        }
                    }
                    PollingCaller::Arbitrary if *looks => out.extend(drain(&mut direction, Time(now))),
                    PollingCaller::Arbitrary => {}
                    PollingCaller::FastPath => {
                        while let Some(at) = direction.next_delivery().filter(|at| at.0 <= now) {
                            out.extend(std::iter::from_fn(|| direction.poll_arrival(at).map(|(at, packet)| (at.0, packet.0))));
                        }
                        // Reading the counters advances packets inside the link.
                        if *looks { direction.counts_at(Time(now)); }
                    }
                }
                let extra = Span(extra.saturating_sub(10_000_000));
                let packet = Numbered(number, *size, extra, buffer.clone());
                let refused = match caller {
                    PollingCaller::FastPath => direction.enqueue_lazy(Time(now), packet).is_err(),
                    PollingCaller::EachWakeup | PollingCaller::Arbitrary => direction.enqueue(Time(now), packet).is_err(),
                };
                if refused {
                    dropped.push(number);
                }
                let counts = direction.counts();
                prop_assert_eq!(counts.arrived, counts.queue_drops + counts.losses + counts.delivered + direction.len() as u64);
                prop_assert_eq!(Rc::strong_count(&buffer), 1 + direction.len(), "a packet that is not inside is freed");
            }
            out.extend(run_out(&mut direction));
            let counts = direction.counts();
            prop_assert!(direction.is_empty() && out.is_sorted_by_key(|(at, _)| *at));
            prop_assert_eq!(counts.arrived, packets.len() as u64);
            prop_assert_eq!(counts.queue_drops, dropped.len() as u64);
            prop_assert_eq!(counts.arrived, counts.queue_drops + counts.departed);
            prop_assert_eq!(counts.departed, counts.losses + counts.delivered);
            prop_assert_eq!(counts.delivered, out.len() as u64);
            prop_assert_eq!(counts.delivered_bytes.0, out.iter().map(|(_, number)| u64::from(packets[*number].1)).sum::<u64>());
            // The busy time is the transmission time of all bytes, less a fraction of a nanosecond
            // each time the transmitter becomes idle.
            let busy = direction.busy_time(Time(u64::MAX)).0;
            let exact = Rate(5_280_001).time_for(counts.departed_bytes).0;
            prop_assert!(busy <= exact && exact - busy <= counts.departed, "{} {}", busy, exact);
            Ok((out, dropped))
        };
        let each_wakeup = run(PollingCaller::EachWakeup)?;
        prop_assert_eq!(&each_wakeup, &run(PollingCaller::Arbitrary)?);
        prop_assert_eq!(&each_wakeup, &run(PollingCaller::FastPath)?);
    }
}

/// What a link delivers: the times in µs, and the numbers of the packets. A packet comes every
/// millisecond.
fn delivered(spec: DirectionSpec, count: usize) -> (Vec<(u64, usize)>, LinkCounts) {
    let mut direction = LinkDirection::new(spec);
    let mut out = Vec::new();
    for number in 0..count {
        let now = Time(number as u64 * 1_000_000);
        out.extend(drain(&mut direction, now));
        direction.enqueue(now, Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
    }
    out.extend(run_out(&mut direction));
    let counts = direction.counts();
    (out.into_iter().map(|(at, number)| (at / 1000, number)).collect(), counts)
}

/// 80 µs of transmission and 20 ms of delay.
fn plain() -> DirectionSpec {
    DirectionSpec::lossless(Rate(100_000_000), QueueSize::Packets(9), Span(20_000_000))
}

fn numbers(delivered: &[(u64, usize)]) -> Vec<usize> {
    delivered.iter().map(|(_, number)| *number).collect()
}

#[test]
fn jitter_keeps_the_order_unless_it_is_told_to_reorder() {
    let jitter = |reorders| {
        let delay = Law { shape: Shape::Exponential, mean: Span(5_000_000) };
        DirectionSpec { disorder: DisorderSpec { jitter: Some(Jitter { delay, reorders }), ..DisorderSpec::default() }, ..plain() }
    };
    let (kept, _) = delivered(jitter(false), 5000);
    assert!(kept.is_sorted() && numbers(&kept).is_sorted());
    let (reordered, _) = delivered(jitter(true), 5000);
    assert!(!numbers(&reordered).is_sorted());
    // Without waiting for each other the extra delays have their mean, 5 ms ± 0.07.
    let extra = reordered.iter().map(|(at, number)| (*at as f64 - 20_080.0) / 1000.0 - *number as f64).sum::<f64>() / 5000.0;
    assert!((extra - 5.0).abs() < 0.3, "{extra} ms");
}

#[test]
fn a_share_of_the_packets_is_overtaken() {
    let reordering = Some(LinkReordering { share: Fraction(0.1), by: Span(2_500_000) });
    let spec = DirectionSpec { disorder: DisorderSpec { reordering, ..DisorderSpec::default() }, ..plain() };
    let (out, _) = delivered(spec, 10_000);
    let late: Vec<u64> = out.iter().map(|(at, number)| at - 20_080 - 1000 * *number as u64).collect();
    assert!(late.iter().all(|late| *late == 0 || *late == 2500));
    let share = late.iter().filter(|late| **late > 0).count() as f64 / 10_000.0;
    assert!((share - 0.1).abs() < 4.0 * (0.09f64 / 10_000.0).sqrt(), "{share}");
}

#[test]
fn duplicates_are_counted() {
    let spec = DirectionSpec { disorder: DisorderSpec { duplication: 0.2, ..DisorderSpec::default() }, ..plain() };
    let (out, counts) = delivered(spec, 1000);
    assert_eq!(counts.delivered, 1000 + counts.duplicates);
    assert_eq!((counts.delivered_bytes, out.len() as u64), (Bytes(1000 * counts.delivered), counts.delivered));
    let mut once = numbers(&out);
    once.dedup();
    assert_eq!(once, (0..1000).collect::<Vec<_>>());
    assert!((150..250).contains(&counts.duplicates), "{}", counts.duplicates);
}

#[test]
fn bit_errors_lose_large_packets_more_often() {
    // 8000 bits: 1 − (1 − 10⁻⁵)^8000 = 7.7 %.
    let (_, counts) = delivered(DirectionSpec { bit_errors: 1e-5, ..plain() }, 20_000);
    let expected = 1.0 - (1.0 - 1e-5f64).powi(8000);
    let share = counts.losses as f64 / 20_000.0;
    assert!((share - expected).abs() < 4.0 * (expected / 20_000.0f64).sqrt(), "{share} {expected}");
}

#[test]
fn both_directions_have_the_same_outages_and_their_own_losses() {
    let law = |ms: u64| Law { shape: Shape::Exponential, mean: Span(ms * 1_000_000) };
    let outages = Some(Outages { every: law(500), last: law(50) });
    let lost = |spec: DirectionSpec| {
        let (out, _) = delivered(spec, 5000);
        let arrived = numbers(&out);
        (0..5000).filter(|number| arrived.binary_search(number).is_err()).collect::<Vec<_>>()
    };
    let both = |spec: &DirectionSpec| {
        [false, true].map(|is_reverse| lost(DirectionSpec { streams: LinkStreams { is_reverse, ..spec.streams }, ..spec.clone() }))
    };
    let [forward, reverse] = both(&DirectionSpec { outages, ..plain() });
    assert!(forward == reverse && forward.len() > 200, "{} {}", forward.len(), reverse.len());
    let [forward, reverse] = both(&DirectionSpec { loss: Some(Loss::PerPacket(0.05)), ..plain() });
    assert!(forward != reverse && !forward.is_empty() && !reverse.is_empty());
}

/// A window of packets that circulates over both directions of a link, 1500 bytes one way and 52
/// the other. Returns the packets that arrive within a second.
fn circulate(medium: Medium, window: usize, is_lazy: bool) -> usize {
    let specs = [false, true].map(|is_reverse| DirectionSpec {
        medium,
        streams: LinkStreams { seed: 1, link: 0, is_reverse },
        ..DirectionSpec::lossless(Rate(12_000_000), QueueSize::Packets(1000), Span(5_000_000))
    });
    let mut directions: [LinkDirection<Numbered>; 2] = LinkDirection::pair(specs, [(), ()]);
    let send = |direction: &mut LinkDirection<Numbered>, at, bytes| {
        let packet = Numbered(0, bytes, Span::ZERO, Rc::default());
        if is_lazy { direction.enqueue_lazy(at, packet).unwrap() } else { direction.enqueue(at, packet).unwrap() }
    };
    for _ in 0..window {
        send(&mut directions[0], Time(0), 1500);
    }
    let mut arrived = 0;
    loop {
        let next = directions.iter().filter_map(|direction| if is_lazy { direction.next_delivery() } else { direction.next_wakeup() });
        let now = next.min().unwrap();
        if now > Time(1_000_000_000) {
            return arrived;
        }
        for (direction, answer) in [(0, 52), (1, 1500)] {
            loop {
                let taken = if is_lazy { directions[direction].poll_arrival(now) } else { directions[direction].ready(now) };
                let Some((at, _)) = taken else { break };
                arrived += usize::from(direction == 0);
                send(&mut directions[1 - direction], at, answer);
            }
        }
    }
}

#[test]
fn a_window_that_fills_a_shared_medium_keeps_it_busy_however_it_is_polled() {
    for is_lazy in [false, true] {
        // Packets and answers of 1552 bytes together take 1.0347 ms.
        let arrived = circulate(Medium::HalfDuplex, 40, is_lazy);
        assert!((960..=966).contains(&arrived), "{is_lazy}: {arrived}");
        let contended = circulate(Medium::Wifi80211b, 40, is_lazy);
        assert!((380..=400).contains(&contended), "{is_lazy}: {contended}");
    }
}
