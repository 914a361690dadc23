//! The bound that fair sharing sets: how soon files can pass a bottleneck if the packets of all
//! flows take turns, a lost packet is known exactly one round trip after it was sent and is
//! retransmitted first, and a sender waits for nothing else than the handshake and the receiver's
//! window. No congestion controller is fair and faster.
//!
//! The first window and one that is configured (`flow.window`) count, not how fast a window grows.
//! A configured one counts if the bottleneck is on the leg to the receiver: else the data waits
//! behind it. Lost acknowledgements cost nothing. Clients of pages and exchanges wait for the round
//! trip to where their connection ends, the way of a request over the whole path, and the server;
//! what arrives counts in any order.
//!
//! Unfair ones can have a lower mean: equal files one after the other end a third sooner in the
//! mean than all at once, and the last one at the same time. Means are therefore compared together
//! with the end of the last file and with fairness.
//!
//! [`FairShareBound`] is an engine. It knows one bottleneck and its losses, no queues and no
//! buffers.

mod bottleneck;
mod shared_flow;
mod web;

use bottleneck::Bottleneck;
use outcome::{Engine, EngineError, Outcome, Progress};
use scenario::{Link, Scenario};

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
        let reverse_clients = scenario.web_clients(scenario.seed).iter().any(|client| client.path().is_reverse || !client.has_end());
        let other = scenario.beyond_forward_flows().filter(|key| reverse_clients || Some(key.as_str()) != scenario.web_key());
        if let Some(key) = other {
            return EngineError::cannot(
                "bound",
                key,
                "it has data from the first link to the last only, and clients that end by themselves; the simulator has other traffic: --on sim",
            );
        }
        if !scenario.agents.is_empty() {
            return EngineError::cannot("bound", "agent", "its senders repair all losses; the simulator has agents: --on sim");
        }
        if scenario.flows.iter().any(|flow| flow.bytes.is_none()) {
            return EngineError::cannot("bound", "flow.bytes", "it computes when flows end, and a flow without a size does not end");
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
        if let Some(key) = scenario.links.iter().flat_map(Link::beyond_rate_and_loss).find(|key| *key != "loss.reverse") {
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
        Ok(Bottleneck::new(scenario, seed).play().outcome(scenario, seed))
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
    fn a_window_bounds_what_is_in_flight() {
        let play = |loss: &str| play(&format!("bytes = \"{}B\"\nwindow = \"{}B\"", 100 * SEGMENT, 10 * SEGMENT), loss);
        // Ten packets of 1 ms in each round trip of the leg, 0.8 s; the last ten are on the way.
        let end = play("").flows[0].end_s.unwrap();
        assert!((end - (0.802 + 9.0 * 0.801 + 0.010 + 0.4)).abs() < 1e-9, "{end}");
        assert_eq!(play("loss = { reverse = { per_packet = 0.1 } }").flows[0].end_s, Some(end), "acknowledgements");
    }

    #[test]
    fn a_page_takes_its_round_trips_and_its_bytes() {
        let object = |rest: &str| format!("[[page.object]]\nsize = \"{}B\"\n{rest}", 10 * SEGMENT);
        let page = |split: &str| {
            let text = format!(
                "name = \"t\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"400ms\"\n{split}\
                 [[page]]\nconnections = 4\nservice = \"50ms\"\n{}{}",
                object("name = \"html\"\n"),
                object("count = 8\nneeds = [\"html\"]\n")
            );
            let scenario = &ScenarioFile::parse(&text, "t").unwrap().variants(&[]).unwrap()[0].scenario;
            FairShareBound.run(scenario, 1, &()).unwrap().page_load_s.unwrap().max
        };
        // The first connection, its request over the path, the server, ten packets, and their way.
        let first = 0.802 + 0.401 + 0.05 + 0.010 + 0.4;
        // The first connection carries one object of four, the other three are opened; then four
        // more.
        let next = 0.401 + 0.05 + 0.030 + 0.4;
        assert!((page("") - (first + 0.802 + 2.0 * next)).abs() < 0.03, "{}", page(""));
        // A proxy ends the connections of its side.
        assert!((page("") - page("[[split]]\nafter = 1\n") - 0.004).abs() < 1e-9);
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
