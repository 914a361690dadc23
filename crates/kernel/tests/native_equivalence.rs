//! What the kernel's build of a controller decides is what the native one decides, bit for bit.

mod common;

use control::{Controller, Event, Flow, Kind, Link};
use kernel::Replay;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A connection's life, told event by event: acknowledgements in the main, losses, timeouts and pauses now and then. Each step
/// changes what TCP says of the flow, and hands on what the controller decided in the last.
fn step(random: &mut Pcg64Mcg, flow: &mut Flow, link: &mut Link, now: &mut u64, at: u32) -> Event {
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
    link.egress += u64::from(acked) * 1514;
    link.foreign += if random.random_bool(0.1) { 1514 } else { 0 };
    link.backlog = random.random_range(0..100_000);
    link.queue = link.backlog / 2;
    link.local = random.random_range(0..2);
    link.seen_us = *now;
    let kind = match random.random_range(0..100) {
        _ if at == 0 => Kind::Init,
        0 => Kind::Loss,
        1 if random.random_bool(0.2) => Kind::Timeout,
        2 => Kind::Recovered,
        3 if random.random_bool(0.2) => Kind::Undo,
        4 => Kind::Restart,
        5 if random.random_bool(0.1) => Kind::Close,
        6..40 => Kind::Sample,
        _ => Kind::Ack,
    };
    if kind == Kind::Loss {
        flow.prior_cwnd = flow.cwnd;
    }
    let flags = if random.random_bool(0.8) { control::LIMITED } else { 0 } | if random.random_bool(0.3) { control::HELD } else { 0 };
    let rtt_us = if random.random_bool(0.9) { flow.srtt_us } else { 0 };
    let lost = if random.random_bool(0.02) { 3 } else { 0 };
    Event { now_us: *now, kind, flags, acked, marked: acked / 3, rtt_us, lost }
}

#[test]
fn the_kernel_decides_as_the_native_build_does() {
    if common::skip("the_kernel_decides_as_the_native_build_does") {
        return;
    }
    for controller in Controller::all() {
        let mut replay = Replay::new(controller).unwrap_or_else(|error| panic!("{controller:?}: {error}"));
        for with_link in [true, false] {
            let mut random = Pcg64Mcg::seed_from_u64(7);
            let mut now = 1_000_000;
            let fresh = Flow { mss: 1448, cwnd: 10, ssthresh: control::INFINITE, header: 52, ..Flow::default() };
            let (mut native, mut link) = (fresh, Link { capacity: 1_250_000, overhead: 14, ..Link::default() });
            let mut state = None;
            for at in 0..20_000 {
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
            println!("{controller:?}, link {with_link}: ends at cwnd {}", native.cwnd);
        }
    }
}
