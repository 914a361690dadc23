//! The bound that fair sharing sets: how soon files can pass a bottleneck if the packets of all
//! flows take turns, a lost packet is known exactly one round trip after it was sent and is
//! retransmitted first, and a sender waits for nothing else than the handshake and the receiver's
//! first window. No congestion controller is fair and faster.
//!
//! Unfair ones can have a lower mean: equal files one after the other end a third sooner in the
//! mean than all at once, and the last one at the same time. Means are therefore compared together
//! with the end of the last file and with fairness.
//!
//! [`FairShareBound`] is an engine. It knows one bottleneck and its losses, no queues and no
//! buffers.

use link::{LossProcess, Time};
use outcome::{Engine, EngineError, FlowOutcome, Outcome, Progress};
use scenario::{FlowSpec, Link, Purpose, Scenario, stream};
use std::collections::VecDeque;
use units::{PKT, Span};

/// Headers of a full packet: IPv4, and TCP with timestamps.
const HEADERS: u64 = 52;
/// The window of a SYN is not scaled (RFC 7323 §2.2), so that no receiver can advertise more for
/// the first round trip.
const FIRST_WINDOW: u64 = 65_535;

/// The engine that computes the bound of a scenario with one bottleneck.
#[derive(Debug, Default, Clone, Copy)]
pub struct FairShareBound;

impl Engine for FairShareBound {
    fn name(&self) -> &'static str {
        "bound"
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        if scenario.parallel().is_some() {
            return EngineError::cannot(
                "bound",
                "network",
                "it has one bottleneck; for the ideal split ask theory (--on theory) with scheduler = \"fluid\"",
            );
        }
        if !scenario.cross.is_empty() {
            return EngineError::cannot("bound", "cross", "it has no traffic but the flows");
        }
        if let Some(key) = scenario.beyond_forward_flows() {
            return EngineError::cannot(
                "bound",
                key,
                "it has data from the first link to the last only; the simulator has other traffic: --on sim",
            );
        }
        if !scenario.agents.is_empty() {
            return EngineError::cannot("bound", "agent", "its senders repair all losses; the simulator has agents: --on sim");
        }
        if scenario.flows.iter().any(|flow| flow.bytes.is_none()) {
            return EngineError::cannot("bound", "flow.bytes", "it computes when flows end, and a flow without a size does not end");
        }
        if scenario.flows.iter().any(|flow| flow.window.is_some()) {
            return EngineError::cannot("bound", "flow.window", "it has no receive window but the first");
        }
        if scenario.flows.iter().any(|flow| flow.send_buffer.is_some()) {
            return EngineError::cannot("bound", "flow.send_buffer", "its senders have unlimited buffers");
        }
        if scenario.flows.iter().any(|flow| flow.fast_open) || scenario.splits.iter().any(|split| split.fast_open) {
            return EngineError::cannot("bound", "flow.fast_open", "its flows begin with a handshake over the whole path");
        }
        if scenario.flows.iter().any(|flow| flow.offers.is_some()) {
            return EngineError::cannot("bound", "flow.offers", "its flows have all of their data at the start");
        }
        if scenario.links.iter().any(|link| link.demand.is_some()) {
            return EngineError::cannot(
                "bound",
                "link.demand",
                "its links have one rate; the simulator has rates that follow demand: --on sim",
            );
        }
        if scenario.links.iter().any(|link| !link.changes.is_empty()) {
            return EngineError::cannot("bound", "link.changes", "its links do not change");
        }
        if let Some(key) = scenario.links.iter().find_map(Link::beyond_rate_and_loss) {
            let why = "its links have a rate, a delay and losses of data; the simulator has the others: --on sim";
            return EngineError::cannot("bound", format!("link.{key}"), why);
        }
        let bottleneck = scenario.bottleneck();
        if (0..).zip(&scenario.links).any(|(index, link)| index != bottleneck && link.loss.forward.is_some()) {
            return EngineError::cannot("bound", "link.loss", "it has losses on the slowest link only");
        }
        Ok(())
    }

    fn run(&self, scenario: &Scenario, seed: u64, _: &dyn Progress) -> Result<Outcome, EngineError> {
        self.can_answer(scenario)?;
        let mut bottleneck = Bottleneck::new(scenario, seed);
        bottleneck.play();
        Ok(bottleneck.outcome(scenario, seed))
    }
}

/// A flow through the bottleneck.
#[derive(Debug)]
struct SharedFlow {
    spec: FlowSpec,
    /// Round trip of the leg that the bottleneck lies on.
    round_trip: Span,
    /// When its first byte can reach the bottleneck.
    ready: Time,
    /// Payload that has not been sent yet, bytes.
    left: u64,
    /// Payload sent in the first round trip, bytes.
    first_flight: u64,
    /// When the first acknowledgement of data arrives; none before data was sent.
    first_ack: Option<Time>,
    /// Lost packets: when each loss is known, and the payload, bytes.
    lost: VecDeque<(Time, u64)>,
    /// When the last byte so far reaches the receiver.
    end: Time,
}

#[derive(Debug)]
struct Bottleneck {
    flows: Vec<SharedFlow>,
    losses: LossProcess,
    rate: units::Rate,
    /// Delay from the bottleneck's queue to the receiver.
    onward: Span,
    /// When it can send the next packet.
    free: Time,
    /// Index of the flow that sends next.
    turn: usize,
    /// IP bytes sent so far.
    carried: u64,
}

impl Bottleneck {
    fn new(scenario: &Scenario, seed: u64) -> Self {
        let index = scenario.bottleneck();
        let (link, leg) = (&scenario.links[index], scenario.leg_of_link(index));
        let path = scenario.base_rtt(scenario::LegLinks { first: 0, end: scenario.links.len() });
        let flow = |spec: FlowSpec| {
            let access = spec.access_delay * 2;
            let round_trip = Span(scenario.base_rtt(leg).0 + if leg.first == 0 { access.0 } else { 0 });
            SharedFlow {
                spec,
                round_trip,
                // After the handshake.
                ready: Time::default() + spec.start + path + access,
                left: spec.bytes.map_or(0, |bytes| bytes.0),
                first_flight: 0,
                first_ack: None,
                lost: VecDeque::new(),
                end: Time::default(),
            }
        };
        Bottleneck {
            flows: scenario.flow_specs(seed).into_iter().map(flow).collect(),
            losses: LossProcess::new(link.loss.forward, stream(seed, Purpose::Losses, index as u64)),
            rate: link.rate,
            onward: Span(scenario.links[index..].iter().map(|link| link.delay.0).sum()),
            free: Time::default(),
            turn: 0,
            carried: 0,
        }
    }

    fn play(&mut self) {
        while let Some(when) = self.flows.iter().filter_map(SharedFlow::next).min() {
            let now = self.free.max(when);
            let count = self.flows.len();
            let due = (self.turn..self.turn + count).map(|at| at % count);
            let Some(at) = due.into_iter().find(|&at| self.flows[at].next().is_some_and(|when| when <= now)) else { return };
            self.turn = at + 1;
            self.send(at, now);
        }
    }

    fn send(&mut self, at: usize, now: Time) {
        let flow = &mut self.flows[at];
        let payload = flow.take(now);
        let wire = payload + HEADERS;
        let left = now + self.rate.time_for(units::Bytes(wire));
        self.free = left;
        self.carried += wire;
        if self.losses.drops(left) {
            flow.lost.push_back((left + flow.round_trip, payload));
        } else {
            flow.end = flow.end.max(left + self.onward);
        }
        flow.first_ack.get_or_insert(left + flow.round_trip);
    }

    fn outcome(self, scenario: &Scenario, seed: u64) -> Outcome {
        let flows: Vec<FlowOutcome> = self.flows.iter().map(SharedFlow::outcome).collect();
        let first = flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let last = flows.iter().filter_map(|flow| flow.end_s).fold(0.0, f64::max);
        let span = (last - first).max(1e-9);
        Outcome {
            scenario: scenario.name.clone(),
            engine: "bound".into(),
            seed,
            valid: true,
            goodput_bps: flows.iter().map(|flow| flow.bytes).sum::<u64>() as f64 * 8.0 / span,
            utilization: self.carried as f64 * 8.0 / (self.rate.bits_per_s() as f64 * span),
            flows,
            ..Outcome::default()
        }
    }
}

impl SharedFlow {
    /// When it next has a packet to send; none if everything has been sent and nothing is lost.
    fn next(&self) -> Option<Time> {
        let retransmission = self.lost.front().map(|(known, _)| *known);
        let new_data = (self.left > 0).then(|| match self.first_ack {
            Some(ack) if self.first_flight + PKT.0 - HEADERS > FIRST_WINDOW => ack,
            _ => self.ready,
        });
        retransmission.into_iter().chain(new_data).min()
    }

    /// Takes the payload of the next packet: retransmissions go first.
    fn take(&mut self, now: Time) -> u64 {
        if self.lost.front().is_some_and(|(known, _)| *known <= now) {
            return self.lost.pop_front().map_or(0, |(_, payload)| payload);
        }
        let payload = self.left.min(PKT.0 - HEADERS);
        self.left -= payload;
        self.first_flight += payload;
        payload
    }

    fn outcome(&self) -> FlowOutcome {
        let (bytes, start_s, end_s) = (self.spec.bytes.map_or(0, |bytes| bytes.0), self.spec.start.secs(), self.end.0 as f64 / 1e9);
        FlowOutcome {
            id: self.spec.id,
            asked_bytes: Some(bytes),
            bytes,
            start_s,
            end_s: Some(end_s),
            goodput_bps: bytes as f64 * 8.0 / (end_s - start_s),
            ..FlowOutcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use scenario::ScenarioFile;

    fn play(flows: &str, loss: &str) -> Outcome {
        let text = format!(
            "name = \"t\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"400ms\"\n{loss}\n\
             [[split]]\nafter = 1\n[[flow]]\n{flows}\n"
        );
        let scenario = &ScenarioFile::parse(&text, "t").unwrap().variants(&[]).unwrap()[0].scenario;
        FairShareBound.run(scenario, 1, &()).unwrap()
    }

    /// Payload of a full packet, which takes 1 ms at 12 Mbit/s.
    const SEGMENT: u64 = 1448;

    #[test]
    fn one_flow_waits_for_its_first_window_and_then_only_for_the_link() {
        let end = |segments: u64| play(&format!("bytes = \"{}B\"", segments * SEGMENT), "").flows[0].end_s.unwrap();
        // Handshake 0.802 s, one packet, 0.4 s on the way.
        assert!((end(1) - 1.203).abs() < 1e-9, "{}", end(1));
        assert!((end(45) - 1.247).abs() < 1e-9, "{}", end(45));
        // The 46th has to wait until the first is acknowledged, 0.8 s after it left.
        assert!((end(46) - (0.802 + 0.001 + 0.8 + 0.001 + 0.4)).abs() < 1e-9, "{}", end(46));
        assert!((end(1045) - (0.802 + 0.001 + 0.8 + 1.0 + 0.4)).abs() < 1e-9, "{}", end(1045));
    }

    #[test]
    fn flows_take_turns() {
        let outcome = play(&format!("count = 4\nbytes = \"{}B\"", 1000 * SEGMENT), "");
        let ends: Vec<f64> = outcome.flows.iter().map(|flow| flow.end_s.unwrap()).collect();
        // One packet after each other.
        assert!(ends.windows(2).all(|pair| (pair[1] - pair[0] - 0.001).abs() < 1e-9), "{ends:?}");
        // Four first windows of 45 packets, a pause until the first ACK, then 3820 packets.
        assert!((ends[3] - (0.802 + 0.001 + 0.8 + 3.82 + 0.4)).abs() < 1e-9, "{ends:?}");
    }

    #[test]
    fn a_loss_costs_a_packet_and_the_last_one_a_round_trip() {
        let clean = play(&format!("bytes = \"{}B\"", 5000 * SEGMENT), "");
        let lossy = play(&format!("bytes = \"{}B\"", 5000 * SEGMENT), "loss = { per_packet = 0.01 }");
        let later = lossy.completion_s().unwrap() - clean.completion_s().unwrap();
        assert!((0.02..1.8).contains(&later), "{later}");
    }

    #[test]
    fn a_flow_without_a_size_is_refused() {
        let text = "name = \"t\"\nduration = \"1s\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[flow]]\n";
        let scenario = &ScenarioFile::parse(text, "t").unwrap().variants(&[]).unwrap()[0].scenario;
        assert!(matches!(FairShareBound.can_answer(scenario), Err(EngineError::CannotAnswer { .. })));
    }

    proptest! {
        /// It sends no more than the link carries, and every byte arrives.
        #[test]
        fn it_never_sends_more_than_the_link_carries(count in 1..20_u32, segments in 1..400_u64, p in 0.0..0.3) {
            let outcome = play(&format!("count = {count}\nbytes = \"{}B\"", segments * SEGMENT), &format!("loss = {{ per_packet = {p:.3} }}"));
            prop_assert!(outcome.utilization <= 1.0);
            let least = 0.802 + 0.001 * (u64::from(count) * segments) as f64 + 0.4;
            prop_assert!(outcome.completion_s().unwrap() >= least - 1e-9);
        }
    }
}
