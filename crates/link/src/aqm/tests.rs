//! Tests of the disciplines by themselves, against what their RFCs state.

use super::*;
use crate::stage::Ecn;
use scenario::{Purpose, stream};
use units::{PKT, Span};

#[derive(Debug, Clone)]
struct Packet {
    size: u32,
    flow: u64,
    ecn: Ecn,
}

impl LinkPacket for Packet {
    fn wire_bytes(&self) -> u32 {
        self.size
    }
    fn ecn(&self) -> Ecn {
        self.ecn
    }
    fn mark_congestion(&mut self) {
        self.ecn = Ecn::Ce;
    }
    fn flow(&self) -> u64 {
        self.flow
    }
}

fn full(flow: u64, ecn: Ecn) -> Packet {
    Packet { size: 1500, flow, ecn }
}

fn queue(kind: QueueKind, parameters: QueueParameters) -> Box<dyn Discipline<Packet>> {
    discipline(kind, QueueSize::Packets(10_000), parameters, stream(1, Purpose::Queue, 0))
}

fn enqueue(queue: &mut dyn Discipline<Packet>, now: Time, packet: Packet, dropped: &mut Dropped) {
    if let Err(packet) = queue.enqueue(now, packet, dropped) {
        dropped.count(&packet);
    }
}

fn ms(ms: f64) -> Time {
    Time((ms * 1e6) as u64)
}

/// Sends a packet a millisecond and lets `arrivals` packets come in each, for `duration_ms`.
/// Returns for each millisecond the packet that was sent and the drops so far.
fn overload(
    queue: &mut dyn Discipline<Packet>,
    duration_ms: usize,
    mut arrivals: impl FnMut(usize) -> Vec<Packet>,
) -> Vec<(Option<Packet>, u64)> {
    let mut dropped = Dropped::default();
    (0..duration_ms)
        .map(|at| {
            for packet in arrivals(at) {
                enqueue(queue, ms(at as f64), packet, &mut dropped);
            }
            let packet = queue.dequeue(ms(at as f64 + 0.5), &mut dropped).map(|(_, packet)| packet);
            (packet, dropped.packets)
        })
        .collect()
}

/// The milliseconds in which packets were dropped.
fn drop_times(sent: &[(Option<Packet>, u64)]) -> Vec<usize> {
    (1..sent.len()).filter(|at| sent[*at].1 > sent[at - 1].1).collect()
}

#[test]
fn codel_drops_after_an_interval_and_then_by_the_square_root() {
    let mut queue = queue(QueueKind::Codel, QueueParameters::default());
    // 1.25 packets a millisecond: the delay exceeds 5 ms after some 25 ms.
    let sent = overload(&mut *queue, 1000, |at| vec![full(1, Ecn::NotEct); if at % 4 == 0 { 2 } else { 1 }]);
    let times = drop_times(&sent);
    assert!((120..135).contains(&times[0]), "25 ms, and an interval of 100: {times:?}");
    for (count, pair) in (1..).zip(times.windows(2)) {
        let expected = 100.0 / f64::from(count).sqrt();
        let gap = (pair[1] - pair[0]) as f64;
        assert!((gap - expected).abs() <= 1.0, "after drop {count}: {gap} ms, {expected:.1} expected");
    }
}

#[test]
fn codel_marks_where_it_may() {
    let marking = QueueParameters { marks: true, ..QueueParameters::default() };
    let run = |parameters, ecn| {
        let sent = overload(&mut *queue(QueueKind::Codel, parameters), 600, |at| vec![full(1, ecn); if at % 4 == 0 { 2 } else { 1 }]);
        let marked = sent.iter().filter(|(packet, _)| packet.as_ref().is_some_and(|packet| packet.ecn == Ecn::Ce)).count() as u64;
        (marked, sent.last().unwrap().1)
    };
    let (marks, drops) = run(marking, Ecn::Ect0);
    assert!(marks > 5 && drops == 0, "{marks} {drops}");
    let (_, drops) = run(marking, Ecn::NotEct);
    assert!(drops > 5, "{drops}");
    assert_eq!(run(QueueParameters::default(), Ecn::Ect0).0, 0);
}

#[test]
fn codel_leaves_a_queue_of_less_than_the_target_alone() {
    let mut queue = queue(QueueKind::Codel, QueueParameters::default());
    // Bursts of four packets that are sent within 4 ms.
    let sent = overload(&mut *queue, 2000, |at| vec![full(1, Ecn::NotEct); if at % 4 == 0 { 4 } else { 0 }]);
    assert_eq!(sent.last().unwrap().1, 0);
    assert!(sent.iter().all(|(packet, _)| packet.is_some()));
}

#[test]
fn fq_codel_lets_flows_take_turns_by_bytes_and_a_new_one_first() {
    let mut queue = queue(QueueKind::FqCodel, QueueParameters::default());
    let mut bytes = [0u64; 2];
    let sent = overload(&mut *queue, 400, |at| {
        let mut packets = vec![full(1, Ecn::NotEct); 2];
        packets.extend(vec![Packet { size: 500, flow: 2, ecn: Ecn::NotEct }; 6]);
        if at == 300 {
            packets.push(full(3, Ecn::NotEct));
        }
        packets
    });
    for (packet, _) in &sent[..300] {
        let packet = packet.as_ref().unwrap();
        bytes[packet.flow as usize - 1] += u64::from(packet.size);
    }
    let share = bytes[0] as f64 / (bytes[0] + bytes[1]) as f64;
    assert!((share - 0.5).abs() < 0.02, "{bytes:?}");
    let third = sent.iter().position(|(packet, _)| packet.as_ref().is_some_and(|packet| packet.flow == 3)).unwrap();
    assert!((300..303).contains(&third), "{third}");
}

#[test]
fn fq_codel_drops_from_the_longest_flow_when_it_is_full() {
    let mut queue =
        discipline::<Packet>(QueueKind::FqCodel, QueueSize::Packets(10), QueueParameters::default(), stream(1, Purpose::Queue, 0));
    let mut dropped = Dropped::default();
    for _ in 0..10 {
        enqueue(&mut *queue, ms(0.0), full(1, Ecn::NotEct), &mut dropped);
    }
    enqueue(&mut *queue, ms(0.0), Packet { size: 100, flow: 2, ecn: Ecn::NotEct }, &mut dropped);
    assert_eq!((dropped.packets, dropped.bytes, queue.backlog()), (1, 1500, (10, 9 * 1500 + 100)));
}

#[test]
fn pie_lets_a_burst_pass_and_then_drops() {
    let mut queue = queue(QueueKind::Pie, QueueParameters::default());
    let sent = overload(&mut *queue, 4000, |at| vec![full(1, Ecn::NotEct); if at % 4 == 0 { 2 } else { 1 }]);
    let times = drop_times(&sent);
    assert!(times[0] >= 150, "the burst allowance is 150 ms: {}", times[0]);
    // An unresponsive load of 1.25: a fifth has to be dropped for the queue to stand still.
    let late = sent[3999].1 - sent[2999].1;
    assert!((230..=280).contains(&late), "{late} of 1250");
    let (_, bytes) = queue.backlog();
    assert!(bytes / PKT.0 < 400, "{bytes}");
}

#[test]
fn dualpi2_couples_marks_to_the_square_root_of_drops() {
    let parameters = QueueParameters { marks: true, ..QueueParameters::default() };
    let mut queue = queue(QueueKind::Dualpi2, parameters);
    // A slight classic overload that does not react, and a packet of L4S now and then, which never
    // waits long enough for the queue's own marks.
    let mut classic_arrivals = 0u64;
    let sent = overload(&mut *queue, 60_000, |at| {
        let mut packets = vec![full(1, Ecn::NotEct); if at % 20 == 0 { 2 } else { 1 }];
        classic_arrivals += packets.len() as u64;
        if at % 10 == 0 {
            packets.push(full(2, Ecn::Ect1));
        }
        packets
    });
    let second = &sent[30_000..];
    let l4s: Vec<Ecn> =
        second.iter().filter_map(|(packet, _)| packet.as_ref()).filter(|packet| packet.flow == 2).map(|packet| packet.ecn).collect();
    let marked = l4s.iter().filter(|ecn| **ecn == Ecn::Ce).count() as f64 / l4s.len() as f64;
    let dropped = (second.last().unwrap().1 - second[0].1) as f64 / (30_000.0 * classic_arrivals as f64 / 60_000.0);
    // 1.05 + 0.1 packets a millisecond: of the classic ones 0.15 in 1.05 have to go.
    assert!((dropped - 0.143).abs() < 0.015, "{dropped}");
    assert!((marked - 2.0 * dropped.sqrt()).abs() < 0.08, "{marked} of L4S are marked, {dropped} of the others dropped");
    assert_eq!(l4s.len(), 3000, "none of L4S is dropped");
}

#[test]
fn dualpi2_marks_its_own_queue_by_a_ramp() {
    let parameters = QueueParameters { marks: true, ..QueueParameters::default() };
    let mut queue = queue(QueueKind::Dualpi2, parameters);
    let mut dropped = Dropped::default();
    let mut marks = |waits_ms: f64, from_ms: f64| {
        for round in 0..100 {
            let at = from_ms + 5.0 * f64::from(round);
            enqueue(&mut *queue, ms(at), full(2, Ecn::Ect1), &mut dropped);
            enqueue(&mut *queue, ms(at), full(2, Ecn::Ect1), &mut dropped);
            let _ = queue.dequeue(ms(at + waits_ms), &mut dropped);
            let _ = queue.dequeue(ms(at + waits_ms), &mut dropped);
        }
        let mut marked = 0;
        for round in 0..100 {
            let at = from_ms + 600.0 + 5.0 * f64::from(round);
            enqueue(&mut *queue, ms(at), full(2, Ecn::Ect1), &mut dropped);
            enqueue(&mut *queue, ms(at), full(2, Ecn::Ect1), &mut dropped);
            let (_, first) = queue.dequeue(ms(at + waits_ms), &mut dropped).unwrap();
            marked += u32::from(first.ecn == Ecn::Ce);
            let _ = queue.dequeue(ms(at + waits_ms), &mut dropped);
        }
        marked
    };
    assert_eq!(marks(0.7, 0.0), 0, "below 0.8 ms");
    assert!((45..=55).contains(&marks(1.0, 2000.0)), "half-way up the ramp");
    assert!(marks(1.3, 4000.0) >= 99, "above 1.2 ms");
}

#[test]
fn a_threshold_queue_marks_what_arrives_behind_more() {
    let parameters = QueueParameters { mark_above: Some(QueueSize::Packets(2)), ..QueueParameters::default() };
    let mut queue = queue(QueueKind::Ecn, parameters);
    let mut dropped = Dropped::default();
    (0..5).for_each(|_| enqueue(&mut *queue, ms(0.0), full(1, Ecn::Ect0), &mut dropped));
    let marks: Vec<bool> = std::iter::from_fn(|| queue.dequeue(ms(1.0), &mut dropped)).map(|(_, packet)| packet.ecn == Ecn::Ce).collect();
    assert_eq!(marks, [false, false, false, true, true]);
}

#[test]
fn codels_interval_and_target_are_those_that_are_asked() {
    let parameters = QueueParameters { target: Some(Span(20_000_000)), interval: Some(Span(50_000_000)), ..QueueParameters::default() };
    let mut queue = queue(QueueKind::Codel, parameters);
    let sent = overload(&mut *queue, 400, |at| vec![full(1, Ecn::NotEct); if at % 4 == 0 { 2 } else { 1 }]);
    let first = drop_times(&sent)[0];
    assert!((145..160).contains(&first), "100 ms until 20 ms wait, and 50: {first}");
}

/// Length of the queue and drops so far, packets, at some times.
struct Observed {
    seconds: f64,
    queue: f64,
    drops: f64,
}

/// What Linux 7.3.4 did with a discipline (`tools/kernels/qdiscs`).
fn of_the_kernel(discipline: &str) -> Vec<Observed> {
    let rows = include_str!("kernel_queues.csv").lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|row| row[0] == discipline)
        .map(|row| Observed { seconds: row[1].parse().unwrap(), queue: row[2].parse().unwrap(), drops: row[3].parse().unwrap() })
        .collect()
}

/// The same by this crate: flows that send at these rates, packets/s, into the link of the
/// measurement.
fn of_tandem(kind: QueueKind, rates: &[f64], at: &[Observed]) -> Vec<Observed> {
    const FRAME: u32 = 1514;
    let service = 10e6 / 8.0 / f64::from(FRAME);
    let mut queue = queue(kind, QueueParameters::default());
    let mut dropped = Dropped::default();
    let (mut next, mut sends_at, mut left) = (vec![0.0; rates.len()], 0.0f64, 0u64);
    let mut arrived = 0u64;
    let mut seen = Vec::new();
    for row in at {
        loop {
            let flow = (0..rates.len()).min_by(|a, b| f64::total_cmp(&next[*a], &next[*b])).unwrap();
            let now = next[flow].min(sends_at);
            if now > row.seconds {
                break;
            }
            if next[flow] <= sends_at {
                let packet = Packet { size: FRAME, flow: flow as u64, ecn: Ecn::NotEct };
                enqueue(&mut *queue, ms(now * 1e3), packet, &mut dropped);
                arrived += 1;
                next[flow] += 1.0 / rates[flow];
            } else {
                left += u64::from(queue.dequeue(ms(now * 1e3), &mut dropped).is_some());
                sends_at += 1.0 / service;
            }
        }
        seen.push(Observed { seconds: row.seconds, queue: (arrived - left - dropped.packets) as f64, drops: dropped.packets as f64 });
    }
    seen
}

/// Packets/s of UDP at this rate of payload, Mbit/s.
fn packets_per_second(mbit: f64) -> f64 {
    mbit * 1e6 / 8.0 / 1472.0
}

#[test]
fn codel_and_fq_codel_do_what_linux_does() {
    for (name, kind, rates) in [("codel", QueueKind::Codel, vec![12.0]), ("fq_codel", QueueKind::FqCodel, vec![9.0, 3.0])] {
        let linux = of_the_kernel(name);
        let rates: Vec<f64> = rates.into_iter().map(packets_per_second).collect();
        for (linux, own) in linux.iter().zip(of_tandem(kind, &rates, &linux)) {
            // 194 packets/s too many come, and most are in the queue for some seconds.
            assert!(
                (linux.queue - own.queue).abs() < 40.0,
                "{name}, {} s: queue of {}, in Linux {}",
                linux.seconds,
                own.queue,
                linux.queue
            );
            assert!(
                (linux.drops - own.drops).abs() < 10.0 + 0.02 * linux.drops,
                "{name}, {} s: {} drops, in Linux {}",
                linux.seconds,
                own.drops,
                linux.drops
            );
        }
    }
}

#[test]
fn pie_does_what_linux_does() {
    let linux = of_the_kernel("pie");
    let own = of_tandem(QueueKind::Pie, &[packets_per_second(12.0)], &linux);
    for (linux, own) in linux.iter().zip(&own).filter(|(linux, _)| linux.seconds > 2.0) {
        assert!(linux.queue < 40.0 && own.queue < 40.0, "{} s: queue of {}, in Linux {}", linux.seconds, own.queue, linux.queue);
        assert!((linux.drops - own.drops).abs() < 0.1 * linux.drops, "{} s: {} drops, in Linux {}", linux.seconds, own.drops, linux.drops);
    }
    let [linux, own] = [linux.last().unwrap(), own.last().unwrap()];
    assert!((linux.drops / own.drops - 1.0).abs() < 0.02, "{} drops, in Linux {}", own.drops, linux.drops);
}
