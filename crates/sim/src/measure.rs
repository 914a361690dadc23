//! From what happened to an [`Outcome`]: the same figures, with the same meanings, as the lab's.
//!
//! Everything is looked at at equal distances of time, which double whenever there are too many looks: memory is flat in simulated time.

use crate::{net::forward, relay::Relay, settings::Settings, world::World};
use scenario::{
    Backpressure, Dist, FlowOutcome, Leg, LegOutcome, LinkOutcome, Outcome, Phases, ProxyOutcome, Scenario, Series, ShaperOutcome, Span,
};

/// Points of a flow at which a byte's delay is measured.
const DELAY_POINTS: usize = 400;
/// Of more flows than this nobody reads the curves one by one.
const MOST_FLOW_CURVES: usize = 16;
/// And of more than this there are none.
const MOST_CURVES: usize = 100;
/// Goodput over time is a mean over this long, in seconds.
const GOODPUT_WINDOW: f64 = 0.5;
/// From one look to the next at first, ns; longer where there are many connections, by one for each two hundred.
const FIRST_INTERVAL: u64 = 1_000_000;
/// Looks at single connections that are kept, all together, and of each at least.
const MOST_LOOKS: usize = 4_000_000;
const LEAST_LOOKS: usize = 200;

/// What a proxy was doing for a flow (Baccelli et al. §19.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Free,
    Starvation,
    Backpressure,
}

/// A look at a leg.
#[derive(Debug, Clone, Copy)]
struct LegLook {
    srtt_us: u32,
    cwnd: u32,
    packets_out: u32,
    retransmits: u32,
    /// It was connected and had something to send.
    busy: bool,
    /// Of the proxy before it: what it was doing, held, and had sent on.
    doing: Doing,
    held: u64,
    moved: u64,
}

/// A look at everything but the flows.
#[derive(Debug, Clone, Copy)]
struct Look {
    t: f64,
    /// IP bytes that had left the bottleneck, and in its queue.
    left: f64,
    queued: f64,
    /// What all proxies held, and what waited before their shapers.
    held: f64,
    shaped: f64,
}

/// All looks.
#[derive(Debug)]
pub(crate) struct Looks {
    interval: u64,
    most: usize,
    all: Vec<Look>,
    /// By flow: what was read.
    read: Vec<Vec<u64>>,
    /// By connection.
    legs: Vec<Vec<LegLook>>,
    mss: u32,
}

/// Keeps every second.
fn thin<T: Copy>(list: &mut Vec<T>) {
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
        let (read, by_leg) = (vec![Vec::new(); flows], vec![Vec::new(); flows * legs]);
        let interval = FIRST_INTERVAL * (flows as u64 * legs as u64 / 200).max(1);
        Looks { interval, most, all: Vec::new(), read, legs: by_leg, mss: settings.mss }
    }

    /// From one look to the next, ns.
    pub(crate) fn interval(&self) -> u64 {
        self.interval
    }

    /// Looks once at everything.
    pub(crate) fn look(&mut self, world: &mut World<'_>) {
        if self.all.len() >= self.most {
            self.interval *= 2;
            thin(&mut self.all);
            self.read.iter_mut().for_each(thin);
            self.legs.iter_mut().for_each(thin);
        }
        let mut held = 0;
        for flow in 0..world.flows.len() {
            self.read[flow].push(world.read(flow));
            for leg in 0..world.legs {
                let look = leg_look(world, flow, leg);
                held += look.held;
                self.legs[flow * world.legs + leg].push(look);
            }
        }
        let line = forward(world.scenario.bottleneck());
        let (left, queued) = (world.net.counts(line).left_bytes.0, world.net.queued(line));
        let shapers: Vec<usize> = world.shapers.iter().flatten().copied().collect();
        let shaped: u64 = shapers.into_iter().map(|line| world.net.queued(line)).sum();
        let t = world.net.now as f64 / 1e9;
        self.all.push(Look { t, left: left as f64, queued: queued as f64, held: held as f64, shaped: shaped as f64 });
    }

    /// A curve of all.
    fn curve(&self, of: impl Fn(&Look) -> f64) -> Vec<(f64, f64)> {
        self.all.iter().map(|look| (look.t, of(look))).collect()
    }

    /// What a flow's receiver had read.
    fn read(&self, flow: usize) -> Vec<(f64, f64)> {
        self.all.iter().zip(&self.read[flow]).map(|(look, read)| (look.t, *read as f64)).collect()
    }
}

fn leg_look(world: &World<'_>, flow: usize, leg: usize) -> LegLook {
    let conn = &world.conns[flow * world.legs + leg];
    let sender = &conn.sender;
    let mut look = LegLook {
        srtt_us: sender.rtt.smoothed(),
        cwnd: sender.cwnd(),
        packets_out: sender.packets_out(),
        retransmits: sender.tally.retransmits as u32,
        busy: sender.is_up() && (sender.packets_out() > 0 || sender.unsent() > 0),
        doing: Doing::Free,
        held: 0,
        moved: sender.nxt,
    };
    if let Some(split) = leg.checked_sub(1) {
        look.held = world.held(flow, split);
        let source = &world.conns[flow * world.legs + split].receiver;
        let holds_back = is_held_back(&world.relays[split], look.held, source.holds_back());
        look.doing = match look.held {
            _ if holds_back => Doing::Backpressure,
            0 => Doing::Starvation,
            _ => Doing::Free,
        };
    }
    look
}

/// Whether a proxy holds the sender back: by a window of less than two segments, as its meter has it, or because it is full.
fn is_held_back(relay: &Relay, held: u64, window_closed: bool) -> bool {
    match relay.backpressure {
        Backpressure::Window => window_closed,
        Backpressure::Fluid => relay.is_full(held),
    }
}

/// Makes an outcome of a run that has ended.
pub(crate) fn outcome(world: &mut World<'_>, seed: u64, mut looks: Looks) -> Outcome {
    // The last state is one more look.
    if looks.all.last().is_none_or(|look| look.t < world.net.now as f64 / 1e9) {
        looks.look(world);
    }
    let end_s = world.net.now as f64 / 1e9;
    let scenario = world.scenario;
    let flows: Vec<FlowOutcome> = (0..world.flows.len()).map(|flow| flow_outcome(world, flow, &looks, end_s)).collect();
    let first = flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
    let last = flows.iter().map(|flow| flow.end_s.unwrap_or(end_s)).fold(0.0, f64::max);
    let span = (last - first).max(1e-9);
    let total: u64 = flows.iter().map(|flow| flow.bytes).sum();
    let left = looks.curve(|look| look.left);
    let carried = value_at(&left, last) - value_at(&left, first);
    let within = looks.all.iter().filter(|look| (first..=last).contains(&look.t));
    let delay_s = delays(world, &looks);
    let queue_bytes = Some(Dist::of(&mut within.map(|look| look.queued + look.shaped).collect::<Vec<_>>()));
    Outcome {
        scenario: scenario.name.clone(),
        engine: "sim".into(),
        seed,
        valid: true,
        warnings: Vec::new(),
        goodput_bps: total as f64 * 8.0 / span,
        utilization: carried / scenario.links[scenario.bottleneck()].capacity_between(first, first + span),
        jain: jain(scenario, seed, &looks, &flows, end_s),
        converge_s: converge(&looks, &flows, end_s),
        queue_bytes,
        delay_s,
        proxy: (!scenario.splits.is_empty()).then(|| proxy_outcome(world, &looks, &flows, delay_s.unwrap_or_default(), [first, last])),
        links: (0..scenario.links.len()).map(|index| link_outcome(world, index)).collect(),
        series: all_series(&looks, world.legs, scenario.bottleneck()),
        flows,
        ..Outcome::default()
    }
}

fn flow_outcome(world: &World<'_>, flow: usize, looks: &Looks, end_s: f64) -> FlowOutcome {
    let of = &world.flows[flow];
    let start_s = of.spec.start.secs();
    let (bytes, ended) = (world.read(flow), of.ended.map(|at| at as f64 / 1e9));
    let time = ended.unwrap_or(end_s) - start_s;
    let controls = world.scenario.leg_controls();
    let legs = controls.iter().enumerate().map(|(leg, control)| leg_outcome(world, flow * world.legs + leg, control, looks));
    FlowOutcome {
        id: of.spec.id,
        asked_bytes: of.spec.bytes.map(|bytes| bytes.0),
        bytes,
        // A flow that the run's end came before has started never, and gets nothing.
        start_s,
        end_s: ended,
        goodput_bps: if time > 0.0 { bytes as f64 * 8.0 / time } else { 0.0 },
        error: None,
        legs: legs.collect(),
    }
}

fn leg_outcome(world: &World<'_>, conn: usize, control: &str, looks: &Looks) -> LegOutcome {
    let looks = &looks.legs[conn];
    let busy: Vec<&LegLook> = looks.iter().filter(|look| look.busy).collect();
    // A flow that was over between two looks is known by its last state alone.
    let seen: Vec<&LegLook> = if busy.is_empty() { looks.last().into_iter().collect() } else { busy };
    let mean = |value: fn(&LegLook) -> u32| match seen.len() {
        0 => 0.0,
        count => seen.iter().map(|look| f64::from(value(look))).sum::<f64>() / count as f64,
    };
    let sender = &world.conns[conn].sender;
    LegOutcome {
        control: control.into(),
        mean_rtt_s: mean(|look| look.srtt_us) / 1e6,
        min_rtt_s: f64::from(sender.rtt.least()) / 1e6,
        retransmits: sender.tally.retransmits,
        mean_cwnd_pkt: mean(|look| look.cwnd),
    }
}

/// From a byte's leaving the sender's TCP to its being read, over the bytes of all flows; absent where none was read.
fn delays(world: &World<'_>, looks: &Looks) -> Option<Dist> {
    let of = |flow: usize| {
        let sent = looks.all.iter().zip(&looks.legs[flow * world.legs]).map(|(look, leg)| (look.t, leg.moved as f64));
        byte_delays(&sent.collect::<Vec<_>>(), &looks.read(flow))
    };
    let mut delays: Vec<f64> = (0..world.flows.len()).flat_map(of).collect();
    (!delays.is_empty()).then(|| Dist::of(&mut delays))
}

fn proxy_outcome(world: &mut World<'_>, looks: &Looks, flows: &[FlowOutcome], delays: Dist, [first, last]: [f64; 2]) -> ProxyOutcome {
    let mut held: Vec<f64> = looks.all.iter().filter(|look| (first..=last).contains(&look.t)).map(|look| look.held).collect();
    let (mut free, mut starvation, mut backpressure) = (0.0, 0.0, 0.0);
    for (number, flow) in flows.iter().enumerate() {
        for leg in 1..world.legs {
            let seen = &looks.legs[number * world.legs + leg];
            // Phases are of the time from the first byte that came to the last that went.
            for (pair, look) in looks.all.windows(2).zip(seen) {
                let time = pair[1].t - pair[0].t;
                if (look.moved == 0 && look.held == 0) || (flow.end_s.is_some() && look.moved >= flow.bytes && look.held == 0) {
                    continue;
                }
                match look.doing {
                    Doing::Backpressure => backpressure += time,
                    Doing::Starvation => starvation += time,
                    Doing::Free => free += time,
                }
            }
        }
    }
    let all = free + starvation + backpressure;
    let share = |time: f64| if all > 0.0 { time / all } else { 0.0 };
    let lines: Vec<usize> = world.shapers.iter().flatten().copied().collect();
    let shaper = (!lines.is_empty()).then(|| {
        let counts: Vec<link::Counts> = lines.iter().map(|line| world.net.counts(*line)).collect();
        let (drops, most) = (counts.iter().map(|counts| counts.queue_drops), counts.iter().map(|counts| counts.most_queued.0));
        ShaperOutcome { queue_drops: drops.sum(), queue_max_bytes: most.max().unwrap_or(0) }
    });
    ProxyOutcome {
        buffer_bytes: Dist::of(&mut held),
        delay_s: delays,
        phases: Phases { free: share(free), starvation: share(starvation), backpressure: share(backpressure) },
        shaper,
    }
}

/// How alike the flows fared while all were under way; the first round trips after a start are no measure of a share.
fn jain(scenario: &Scenario, seed: u64, looks: &Looks, flows: &[FlowOutcome], end_s: f64) -> Option<f64> {
    let whole = Leg { first: 0, end: scenario.links.len() };
    let slowest = scenario.flow_specs(seed).iter().map(|flow| flow.access_delay).max().unwrap_or(Span::ZERO);
    let round_trip = scenario.base_rtt(whole).secs() + 2.0 * slowest.secs();
    let from = flows.iter().map(|flow| flow.start_s).fold(0.0, f64::max) + 4.0 * round_trip;
    let to = flows.iter().map(|flow| flow.end_s.unwrap_or(end_s)).fold(f64::INFINITY, f64::min);
    if to <= from || flows.len() < 2 {
        return None;
    }
    let read = (0..flows.len()).map(|flow| {
        let read = looks.read(flow);
        value_at(&read, to) - value_at(&read, from)
    });
    scenario::jain(&read.collect::<Vec<f64>>())
}

/// The longest that it took after a start until the flows under way fared alike.
fn converge(looks: &Looks, flows: &[FlowOutcome], end_s: f64) -> Option<f64> {
    const ALIKE: f64 = 0.99;
    if !(2..=MOST_CURVES).contains(&flows.len()) {
        return None;
    }
    let read: Vec<Vec<(f64, f64)>> = (0..flows.len()).map(|flow| looks.read(flow)).collect();
    let mut starts: Vec<f64> = flows.iter().map(|flow| flow.start_s).collect();
    starts.sort_unstable_by(f64::total_cmp);
    let mut longest: Option<f64> = None;
    for (at, start) in starts.iter().enumerate().skip(1) {
        let until = starts.get(at + 1).copied().unwrap_or(end_s);
        let alike = |look: &&Look| {
            let under_way = flows.iter().zip(&read).filter(|(flow, _)| flow.start_s <= look.t && flow.end_s.is_none_or(|end| end > look.t));
            let read = under_way.map(|(_, read)| value_at(read, look.t) - value_at(read, look.t - GOODPUT_WINDOW));
            scenario::jain(&read.collect::<Vec<_>>()).is_some_and(|jain| jain >= ALIKE)
        };
        let when = looks.all.iter().filter(|look| (*start..until).contains(&look.t)).find(alike)?.t;
        longest = Some(longest.map_or(when - start, |longest| longest.max(when - start)));
    }
    longest
}

/// How long bytes took from their first sending to their being read, at equal steps of the flow.
fn byte_delays(sent: &[(f64, f64)], read: &[(f64, f64)]) -> Vec<f64> {
    let most = read.last().map_or(0.0, |(_, bytes)| *bytes).min(sent.last().map_or(0.0, |(_, bytes)| *bytes));
    (1..DELAY_POINTS)
        .filter(|_| most > 0.0)
        .filter_map(|step| {
            let bytes = most * step as f64 / DELAY_POINTS as f64;
            Some(time_of(read, bytes)? - time_of(sent, bytes)?)
        })
        .collect()
}

/// When a rising curve passes `value`, by linear interpolation.
fn time_of(curve: &[(f64, f64)], value: f64) -> Option<f64> {
    let after = curve.partition_point(|(_, v)| *v < value);
    let (t1, v1) = *curve.get(after)?;
    let (t0, v0) = *curve.get(after.checked_sub(1)?)?;
    Some(t0 + (t1 - t0) * (value - v0) / (v1 - v0))
}

/// The value of a curve at `t`, by linear interpolation; its first and last values before and after it.
fn value_at(curve: &[(f64, f64)], t: f64) -> f64 {
    let after = curve.partition_point(|(at, _)| *at < t);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after)) {
        (Some((t0, v0)), Some(&(t1, v1))) => v0 + (v1 - v0) * (t - t0) / (t1 - t0),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

fn link_outcome(world: &mut World<'_>, index: usize) -> LinkOutcome {
    let link = &world.scenario.links[index];
    let counts = world.net.counts(forward(index));
    let rate = link.rate.bits_per_s() as f64;
    LinkOutcome {
        link: index + 1,
        rate_bps: rate,
        delivered_rate_bps: (counts.most_queued.0 > 0).then_some(rate),
        delay_s: link.delay.secs(),
        delivered_delay_s: (counts.delivered > 0).then(|| link.delay.secs()),
        late_p99_s: 0.0,
        packets: counts.arrived,
        queue_drops: counts.queue_drops,
        losses: counts.losses,
        loss_asked: link.loss.map_or(Some(0.0), link::mean_loss),
        queue_max_bytes: counts.most_queued.0,
    }
}

/// Every series of a run. Times and values are rounded as the lab's are.
fn all_series(looks: &Looks, legs: usize, bottleneck: usize) -> Vec<Series> {
    let total: Vec<(f64, f64)> =
        looks.all.iter().enumerate().map(|(at, look)| (look.t, looks.read.iter().map(|read| read[at] as f64).sum())).collect();
    let mut all = vec![
        series("goodput", "all", "bit/s", rate(&total)),
        series("queue", &format!("link {}", bottleneck + 1), "B", looks.curve(|look| look.queued)),
    ];
    let flows = looks.read.len();
    if (2..=MOST_FLOW_CURVES).contains(&flows) {
        all.extend((0..flows).map(|id| series("flow_goodput", &format!("flow {id}"), "bit/s", rate(&looks.read(id)))));
    }
    if legs > 1 {
        all.push(series("held", "all", "B", looks.curve(|look| look.held)));
    }
    for (number, seen) in looks.legs.iter().enumerate().take(MOST_CURVES) {
        let (id, leg) = (number / legs, number % legs);
        let whose = if legs > 1 { format!("flow {id} leg {}", leg + 1) } else { format!("flow {id}") };
        let mut of = |what: &str, unit: &str, value: &dyn Fn(&LegLook) -> f64| {
            // Before the handshake there is nothing to show.
            let connected = looks.all.iter().zip(seen).filter(|(_, leg)| leg.srtt_us > 0);
            all.push(series(what, &whose, unit, connected.map(|(look, leg)| (look.t, value(leg)))));
        };
        of("cwnd", "pkt", &|leg| f64::from(leg.cwnd));
        of("rtt", "s", &|leg| f64::from(leg.srtt_us) / 1e6);
        of("in_flight", "B", &|leg| f64::from(leg.packets_out) * f64::from(looks.mss));
        of("retransmits", "pkt", &|leg| f64::from(leg.retransmits));
    }
    all
}

fn series(what: &str, whose: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    let (t, v) = points.into_iter().map(|(t, v)| ((t * 1e4).round() / 1e4, (v * 1e6).round() / 1e6)).unzip();
    Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
}

/// What a curve of bytes rises by, in bits a second, over a sliding window.
fn rate(bytes: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let at = |(t, now): &(f64, f64)| {
        let since = (t - GOODPUT_WINDOW).max(0.0);
        let span = t - since;
        (*t, if span > 0.0 { (now - value_at(bytes, since)) * 8.0 / span } else { 0.0 })
    };
    bytes.iter().map(at).collect()
}
