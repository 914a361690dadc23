//! Tries a controller on random events, before anything else uses it: its program must not fail.

use control::{Controller, Event, EventKind, FlowState, LinkRecord, TunedController};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Events of each trial, before the last one.
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

/// A random connection, from the first event to the last.
fn connection(tuned: &TunedController, has_link: bool) -> Result<(), String> {
    let mut at = RandomConnection::new(7);
    let now_us = at.now_us;
    let mut state = tuned.try_begin(&mut at.flow, has_link.then_some(&mut at.link), now_us).map_err(|error| error.to_string())?;
    for number in 0..=EVENTS {
        let event = if number < EVENTS { at.next_event() } else { at.last_event() };
        state.try_step(&mut at.flow, has_link.then_some(&mut at.link), &event).map_err(|error| error.to_string())?;
        at.bound_window();
    }
    Ok(())
}

/// A connection with random events, on which controllers are tried and compared.
///
/// The caller passes the flow, and perhaps the link, to [`Controller::begin`] at the time `now_us`,
/// and then with each event to the controller's step. After each step it calls
/// [`bound_window`](Self::bound_window).
#[derive(Debug)]
pub struct RandomConnection {
    random: Pcg64Mcg,
    /// The flow, with what the controller has decided.
    pub flow: FlowState,
    /// The record of its link.
    pub link: LinkRecord,
    /// The time of the last event, µs.
    pub now_us: u64,
}

impl RandomConnection {
    /// A connection that has just been established. Equal seeds give equal events as long as the
    /// controller decides alike.
    pub fn new(seed: u64) -> Self {
        let flow = FlowState { mss: MSS, cwnd: 10, ssthresh: control::INFINITE, header: HEADER, ..FlowState::default() };
        let link = LinkRecord { capacity: 1_250_000, overhead: 14, ..LinkRecord::default() };
        RandomConnection { random: Pcg64Mcg::seed_from_u64(seed), flow, link, now_us: 1_000_000 }
    }

    /// The next event: mostly acknowledgements, with some losses, timeouts and pauses. Also changes
    /// what TCP and the monitor report.
    pub fn next_event(&mut self) -> Event {
        let random = &mut self.random;
        let kind = match random.random_range(0..100) {
            0 => EventKind::Loss,
            // Seldom, so that windows grow between them.
            1 if random.random_bool(0.2) => EventKind::Timeout,
            2 => EventKind::Recovered,
            3 if random.random_bool(0.2) => EventKind::Undo,
            4 => EventKind::Restart,
            5..40 => EventKind::Sample,
            _ => EventKind::Ack,
        };
        self.event(kind)
    }

    /// The last event: the connection ends.
    pub fn last_event(&mut self) -> Event {
        self.event(EventKind::Close)
    }

    /// Bounds the window that the controller has decided on as TCP does.
    pub fn bound_window(&mut self) {
        // An empty window counts as one segment.
        self.flow.cwnd = self.flow.cwnd.clamp(1, 1 << 20);
    }

    fn event(&mut self, kind: EventKind) -> Event {
        let RandomConnection { random, flow, link, now_us } = self;
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
        flow.ca_state = random.random_range(0..5);
        flow.app_limited = random.random_range(0..2);
        link.egress += u64::from(acked) * 1514;
        link.backlog = random.random_range(0..100_000);
        link.queue = link.backlog / 2;
        link.measured_us = *now_us;
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
            return_ms: self.random.random(),
        }
    }
}
