//! What is seen of a run: looks at equal distances of time, which double whenever there are too many, so that memory is flat in simulated
//! time. What they make of an [`Outcome`] is said in `scenario`, for every engine alike.

use super::{
    simulation::{Observer, World},
    split_node::Relay,
};
use crate::{connection::Conn, network::forward, settings::Settings};
use outcome::{FlowSeen, LegLook, LegSeen, LinkLook, LinkOutcome, Outcome, Seen, ShaperOutcome};
use scenario::Backpressure;
use units::Phase;

/// From one look to the next at first, ns; longer where there are many connections, by one for each two hundred.
const FIRST_INTERVAL: u64 = 1_000_000;
/// Looks at single connections that are kept, all together, and of each at least.
const MOST_LOOKS: usize = 4_000_000;
const LEAST_LOOKS: usize = 20;

/// All looks.
#[derive(Debug)]
pub(crate) struct Looks {
    interval: u64,
    most: usize,
    seen: Seen,
}

/// Keeps every second.
fn thin<T>(list: &mut Vec<T>) {
    let mut number = 0;
    list.retain(|_| {
        number += 1;
        number % 2 == 1
    });
}

impl Looks {
    /// None yet, of so many flows.
    pub(crate) fn new(flows: usize, legs: usize, settings: &Settings) -> Self {
        let most = (MOST_LOOKS / (flows * legs).max(1)).clamp(LEAST_LOOKS, settings.looks.max(LEAST_LOOKS));
        let interval = FIRST_INTERVAL * (flows as u64 * legs as u64 / 200).max(1);
        let flow = FlowSeen { legs: vec![LegSeen::default(); legs], ..FlowSeen::default() };
        Looks { interval, most, seen: Seen { flows: vec![flow; flows], ..Seen::default() } }
    }

    /// Keeps every second look.
    fn thin(&mut self) {
        thin(&mut self.seen.bottleneck);
        thin(&mut self.seen.held);
        thin(&mut self.seen.shaped);
        for flow in &mut self.seen.flows {
            thin(&mut flow.read);
            flow.legs.iter_mut().for_each(|leg| thin(&mut leg.looks));
        }
    }
}

impl Observer for Looks {
    fn interval(&self) -> u64 {
        self.interval
    }

    fn look(&mut self, world: &mut World<'_>) {
        if self.seen.bottleneck.len() >= self.most {
            self.interval *= 2;
            self.thin();
        }
        let t = seconds(world.net.now);
        let mut held = 0;
        for (flow, seen) in self.seen.flows.iter_mut().enumerate() {
            seen.read.push((t, world.read(flow) as f64));
            for (leg, seen) in seen.legs.iter_mut().enumerate() {
                let look = leg_look(world, flow, leg);
                held += look.held;
                seen.looks.push(look);
            }
        }
        let line = forward(world.scenario.bottleneck());
        let (left, queued) = (world.net.left_bytes(line), world.net.queued(line));
        self.seen.bottleneck.push(LinkLook { t, left, queued });
        self.seen.held.push((t, held as f64));
        let shaped: u64 = shapers(world).into_iter().map(|line| world.net.queued(line)).sum();
        self.seen.shaped.push((t, shaped as f64));
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The lines of the proxies' shapers.
fn shapers(world: &World<'_>) -> Vec<usize> {
    world.shapers.iter().flatten().copied().collect()
}

fn leg_look(world: &World<'_>, flow: usize, leg: usize) -> LegLook {
    let sender = &world.conns[flow * world.legs + leg].sender;
    let mut look = LegLook {
        t: seconds(world.net.now),
        sent: sender.nxt,
        held: 0,
        srtt_us: sender.rtt.smoothed(),
        cwnd: sender.cwnd(),
        in_flight: (sender.nxt - sender.una).min(u32::MAX.into()) as u32,
        retransmits: sender.tally.retransmits as u32,
        busy: sender.is_up() && (sender.packets_out() > 0 || sender.unsent() > 0),
        phase: Phase::Free,
    };
    if let Some(split) = leg.checked_sub(1) {
        look.held = world.held(flow, split);
        let source = &world.conns[flow * world.legs + split];
        look.phase = match look.held {
            _ if is_held_back(&world.relays[split], source) => Phase::Backpressure,
            0 => Phase::Starvation,
            _ => Phase::Free,
        };
    }
    look
}

/// Whether a proxy holds the sender back: by a window of less than two segments, as its meter has it, or, of a fluid, whatever it would send.
fn is_held_back(relay: &Relay, source: &Conn) -> bool {
    match relay.backpressure {
        Backpressure::Window => source.receiver.holds_back(),
        Backpressure::Fluid => source.sender.is_held(),
    }
}

/// Makes an outcome of a run that has ended.
pub(crate) fn outcome(world: &mut World<'_>, seed: u64, mut looks: Looks) -> Outcome {
    // The last state is one more look.
    if looks.seen.bottleneck.last().is_none_or(|look| look.t < seconds(world.net.now)) {
        looks.look(world);
    }
    let mut seen = looks.seen;
    seen.end_s = seconds(world.net.now);
    for (number, (flow, seen)) in world.flows.iter().zip(&mut seen.flows).enumerate() {
        // One that the run's end came before has started never, and got nothing.
        seen.start_s = flow.spec.start.secs();
        (seen.end_s, seen.bytes) = (flow.ended.map(seconds), world.read(number));
        seen.kept_max_bytes = Some(world.conns[number * world.legs].sender.tally.kept);
        for (leg, seen) in seen.legs.iter_mut().enumerate() {
            let sender = &world.conns[number * world.legs + leg].sender;
            (seen.min_rtt_us, seen.retransmits) = (sender.rtt.least(), sender.tally.retransmits);
        }
    }
    seen.shaper = shaper_outcome(world);
    seen.links = (0..world.scenario.links.len()).map(|index| link_outcome(world, index)).collect();
    seen.outcome("sim", world.scenario, seed)
}

fn shaper_outcome(world: &mut World<'_>) -> Option<ShaperOutcome> {
    let counts: Vec<link::LinkCounts> = shapers(world).into_iter().map(|line| world.net.counts(line)).collect();
    let queue_max_bytes = counts.iter().map(|counts| counts.max_queued.0).max()?;
    Some(ShaperOutcome { queue_drops: counts.iter().map(|counts| counts.queue_drops).sum(), queue_max_bytes })
}

fn link_outcome(world: &mut World<'_>, index: usize) -> LinkOutcome {
    let link = &world.scenario.links[index];
    let counts = world.net.counts(forward(index));
    let rate = link.rate.bits_per_s() as f64;
    LinkOutcome {
        link: index + 1,
        rate_bps: rate,
        delivered_rate_bps: (counts.max_queued.0 > 0).then_some(rate),
        delay_s: link.delay.secs(),
        delivered_delay_s: (counts.delivered > 0).then(|| link.delay.secs()),
        late_p99_s: 0.0,
        packets: counts.arrived,
        queue_drops: counts.queue_drops,
        losses: counts.losses,
        loss_asked: link.loss.map_or(Some(0.0), link::mean_loss),
        queue_max_bytes: counts.max_queued.0,
    }
}
