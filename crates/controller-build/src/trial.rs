//! Tries a controller on random events, before anything else uses it: its program must not fail.

use control::{Controller, Event, EventKind, FlowState, LinkRecord, TunedController};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Events of each trial.
const EVENTS: u32 = 2000;
/// Payload of a full segment, bytes, and the headers of it.
const MSS: u32 = 1448;
const HEADER: u32 = 52;

/// Tries a controller with its defaults, and with each tunable at either end of its range: with and
/// without the record of a link.
///
/// # Errors
/// What it did.
pub(crate) fn run(controller: Controller) -> Result<(), String> {
    let ends = controller.tunables().flat_map(|tunable| [(tunable.name, *tunable.range.start()), (tunable.name, *tunable.range.end())]);
    let tuned = ends.map(|end| controller.tuned(&[end]).map_err(|error| error.to_string()));
    for tuned in std::iter::once(Ok(controller.untuned())).chain(tuned) {
        let tuned = tuned?;
        for has_link in [false, true] {
            connection(&tuned, has_link)?;
        }
    }
    Ok(())
}

/// A random connection.
fn connection(tuned: &TunedController, has_link: bool) -> Result<(), String> {
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let mut flow = FlowState { mss: MSS, cwnd: 10, ssthresh: control::INFINITE, header: HEADER, ..FlowState::default() };
    let mut link = LinkRecord { capacity: 1_250_000, overhead: 14, ..LinkRecord::default() };
    let mut now_us = 1_000_000;
    let mut state = tuned.try_begin(&mut flow, has_link.then_some(&mut link), now_us).map_err(|error| error.to_string())?;
    for _ in 0..EVENTS {
        let event = next(&mut random, &mut flow, &mut link, &mut now_us);
        state.try_step(&mut flow, has_link.then_some(&mut link), &event).map_err(|error| error.to_string())?;
        // What TCP allows: an empty window counts as one segment.
        flow.cwnd = flow.cwnd.clamp(1, 1 << 20);
    }
    Ok(())
}

/// The next event: mostly acknowledgements, with some losses, timeouts and pauses. Also changes
/// what TCP and the monitor report.
fn next(random: &mut Pcg64Mcg, flow: &mut FlowState, link: &mut LinkRecord, now_us: &mut u64) -> Event {
    *now_us += random.random_range(50..20_000);
    let acked = random.random_range(0..64);
    let lost = if random.random_bool(0.02) { 3 } else { 0 };
    // Zero until it is measured.
    flow.srtt_us = if random.random_bool(0.98) { random.random_range(1..900_000) } else { 0 };
    flow.min_rtt_us = flow.srtt_us / 2;
    flow.in_flight = random.random_range(0..=flow.cwnd);
    flow.una = flow.una.wrapping_add(acked * flow.mss);
    flow.nxt = flow.una.wrapping_add(flow.in_flight.wrapping_mul(flow.mss));
    flow.sent += u64::from(acked * flow.mss);
    flow.unsent = if random.random_bool(0.8) { random.random_range(0..1 << 20) } else { 0 };
    flow.snd_wnd = random.random_range(60_000..6_000_000);
    flow.delivered = flow.delivered.wrapping_add(acked);
    flow.lost = flow.lost.wrapping_add(lost);
    flow.app_limited = random.random_range(0..2);
    link.egress += u64::from(acked) * 1514;
    link.backlog = random.random_range(0..100_000);
    link.queue = link.backlog / 2;
    link.measured_us = *now_us;
    let kind = match random.random_range(0..100) {
        0 => EventKind::Loss,
        1 => EventKind::Timeout,
        2 => EventKind::Recovered,
        3 => EventKind::Undo,
        4 => EventKind::Restart,
        5..35 => EventKind::Sample,
        _ => EventKind::Ack,
    };
    if kind == EventKind::Loss {
        flow.prior_cwnd = flow.cwnd;
    }
    let sampled = random.random_range(0..400);
    Event {
        now_us: *now_us,
        kind,
        flags: random.random_range(0..64),
        acked,
        marked: acked / 3,
        rtt_us: flow.srtt_us,
        lost,
        interval_us: flow.srtt_us,
        sampled,
        prior_delivered: flow.delivered.wrapping_sub(sampled),
        prior_in_flight: flow.in_flight.wrapping_add(acked),
        random: random.random(),
        reserved: 0,
    }
}
