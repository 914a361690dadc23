//! The BPF build of each controller decides the same as the native build, bit for bit.

mod common;

use control::{Controller, Event, EventKind, FlowState, LinkRecord};
use kernel::Replay;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The next event of a random connection: mostly acknowledgements, with some losses, timeouts and
/// pauses. It also changes what TCP reports of the flow; the controller's last decisions are kept.
fn step(random: &mut Pcg64Mcg, flow: &mut FlowState, link: &mut LinkRecord, now: &mut u64, at: u32) -> Event {
    *now += random.random_range(50..20_000);
    flow.srtt_us = random.random_range(5_000..900_000);
    flow.min_rtt_us = flow.srtt_us / 2;
    flow.in_flight = random.random_range(0..=flow.cwnd.min(1 << 20));
    let acked = random.random_range(0..64);
    flow.una = flow.una.wrapping_add(acked * flow.mss);
    flow.nxt = flow.una.wrapping_add(flow.in_flight.wrapping_mul(flow.mss));
    flow.sent += u64::from(acked * flow.mss);
    flow.unsent = if random.random_bool(0.8) { random.random_range(0..1 << 20) } else { 0 };
    flow.snd_wnd = random.random_range(60_000..6_000_000);
    let lost = if random.random_bool(0.02) { 3 } else { 0 };
    flow.delivered = flow.delivered.wrapping_add(acked);
    flow.lost = flow.lost.wrapping_add(lost);
    flow.marked = flow.marked.wrapping_add(if random.random_bool(0.005) { acked } else { 0 });
    flow.ca_state = if random.random_bool(0.9) { flow.ca_state } else { random.random_range(0..5) };
    flow.app_limited = random.random_range(0..2);
    flow.pacing_wait_us = random.random_range(0..2_000);
    link.egress += u64::from(acked) * 1514;
    link.foreign += if random.random_bool(0.1) { 1514 } else { 0 };
    link.backlog = random.random_range(0..100_000);
    link.queue = link.backlog / 2;
    link.local = random.random_range(0..2);
    link.measured_us = *now;
    let kind = match random.random_range(0..100) {
        _ if at == 0 => EventKind::Init,
        0 => EventKind::Loss,
        1 if random.random_bool(0.2) => EventKind::Timeout,
        2 => EventKind::Recovered,
        3 if random.random_bool(0.2) => EventKind::Undo,
        4 => EventKind::Restart,
        5 if random.random_bool(0.1) => EventKind::Close,
        6..40 => EventKind::Sample,
        _ => EventKind::Ack,
    };
    if kind == EventKind::Loss {
        flow.prior_cwnd = flow.cwnd;
    }
    let flags = if random.random_bool(0.8) { control::CWND_LIMITED } else { 0 }
        | if random.random_bool(0.3) { control::DELAYED_ACK } else { 0 }
        | if random.random_bool(0.1) { control::APP_LIMITED } else { 0 }
        | if random.random_bool(0.1) { control::LONE_RUNT } else { 0 }
        | if random.random_bool(0.9) { control::TIMESTAMP } else { 0 };
    let rtt_us = if random.random_bool(0.9) { flow.srtt_us } else { 0 };
    let sampled = if random.random_bool(0.9) { random.random_range(0..400) } else { 0 };
    Event {
        now_us: *now,
        kind,
        flags,
        acked,
        marked: acked / 3,
        rtt_us,
        lost,
        interval_us: if random.random_bool(0.9) { flow.srtt_us } else { 0 },
        sampled,
        prior_delivered: flow.delivered.wrapping_sub(sampled),
        prior_in_flight: flow.in_flight.wrapping_add(acked),
        random: random.random(),
        return_ms: (*now / 1000) as u32 + 7 + if random.random_bool(0.2) { random.random_range(0..400) } else { 0 },
    }
}

#[test]
fn bpf_and_native_builds_decide_the_same() {
    if common::skip("bpf_and_native_builds_decide_the_same") {
        return;
    }
    for controller in Controller::all().flat_map(common::tunings) {
        let mut replay = Replay::new(controller).unwrap_or_else(|error| panic!("{controller:?}: {error}"));
        // With a configured capacity, an estimated one, and no link record.
        for (with_link, estimated) in [(true, false), (true, true), (false, false)] {
            let mut random = Pcg64Mcg::seed_from_u64(7);
            let mut now = 1_000_000;
            let fresh = FlowState { mss: 1448, cwnd: 10, ssthresh: control::INFINITE, header: 52, ..FlowState::default() };
            let capacity = if estimated { 0 } else { 1_250_000 };
            let (mut native, mut link) = (fresh, LinkRecord { capacity, overhead: 14, ..LinkRecord::default() });
            link.estimate.enabled = estimated.into();
            let mut state = None;
            for at in 0..5_000 {
                let event = step(&mut random, &mut native, &mut link, &mut now, at);
                let (mut flow, mut other) = (native, link);
                match &mut state {
                    None => state = Some(controller.begin(&mut native, with_link.then_some(&mut link), now)),
                    Some(state) => state.step(&mut native, with_link.then_some(&mut link), &event),
                }
                replay.step(&mut flow, with_link.then_some(&mut other), &event).unwrap();
                assert_eq!(flow, native, "{controller:?} at event {at}, {event:?}");
                assert_eq!(other, link, "{controller:?} at event {at}, {event:?}");
                assert_eq!(replay.words(), state.as_ref().unwrap().words(), "{controller:?} at event {at}, {event:?}");
                native.cwnd = native.cwnd.clamp(1, 1 << 20);
            }
            println!("{controller:?}, link {with_link}, estimated {estimated}: ends at cwnd {}", native.cwnd);
        }
    }
}
