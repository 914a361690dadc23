//! The segments of a path, each as a scenario of its own.

use scenario::{Control, Draw, FlowDirection, FlowGroup, FlowSpec, LegLinks, Scenario, Shape, SizeLaw};

/// A part of a path between two ends of TCP connections, played alone.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSegment {
    /// Its links, in the whole path.
    pub links: LegLinks,
    /// The segment as a scenario: one leg, with its links, its controller, and the flows.
    pub scenario: Scenario,
    /// Its seed. Segments have different ones, so that they do not lose the same packets.
    pub seed: u64,
}

/// Distance between the seeds of two segments: the odd number nearest to 2⁶⁴ divided by the golden
/// ratio, which keeps them apart from the small seeds of other runs.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Cuts a scenario at its proxies, from the sender on. Starts and sizes of flows are drawn from
/// `seed`, the same for all segments. What belongs to the sender (its send buffer, what its
/// application offers, the access delay) stays with the first segment, the receiver's window with
/// the last.
pub fn segments(scenario: &Scenario, seed: u64) -> Vec<PathSegment> {
    let legs = scenario.legs();
    if let [whole] = legs[..] {
        return vec![PathSegment { links: whole, scenario: scenario.clone(), seed }];
    }
    let specs = scenario.flow_specs(seed);
    let segment = |leg: usize| PathSegment {
        links: legs[leg],
        scenario: alone(scenario, &specs, leg),
        seed: seed.wrapping_add(SEED_STEP.wrapping_mul(leg as u64)),
    };
    (0..legs.len()).map(segment).collect()
}

/// Leg number `leg` as a scenario without proxies, with these flows.
fn alone(scenario: &Scenario, specs: &[FlowSpec], leg: usize) -> Scenario {
    let legs = scenario.legs();
    let links = legs[leg];
    let is_inside = |link: usize| (links.first..links.end).contains(&(link - 1));
    let mut part = Scenario {
        links: scenario.links[links.first..links.end].to_vec(),
        splits: Vec::new(),
        control: Control { sender: scenario.leg_settings()[leg].to_string(), ..scenario.control.clone() },
        flows: specs.iter().map(|spec| flow(scenario, spec, leg, legs.len() - 1)).collect(),
        cross: scenario.cross.iter().filter(|cross| is_inside(cross.link)).cloned().collect(),
        agents: scenario.agents.iter().filter(|agent| is_inside(agent.after)).cloned().collect(),
        ..scenario.clone()
    };
    part.cross.iter_mut().for_each(|cross| cross.link -= links.first);
    part.agents.iter_mut().for_each(|agent| agent.after -= links.first);
    part
}

/// One flow on leg `leg`; the receiver is at the end of leg `last`.
fn flow(scenario: &Scenario, spec: &FlowSpec, leg: usize, last: usize) -> FlowGroup {
    let at_sender = leg == 0;
    FlowGroup {
        count: 1,
        direction: FlowDirection::Forward,
        bytes: spec.bytes.map(|mean| SizeLaw { shape: Shape::Deterministic, mean }),
        start: Draw::Fixed(spec.start),
        opens: spec.opens,
        access_delay: if at_sender { Draw::Fixed(spec.access_delay) } else { Draw::default() },
        window: spec.window.filter(|_| leg == last),
        send_buffer: spec.send_buffer.filter(|_| at_sender),
        fast_open: scenario.has_fast_open(spec, &scenario.legs_of(spec.path)[leg]),
        offers: spec.offers.filter(|_| at_sender),
        control: scenario.flows[spec.group].control.clone().filter(|_| at_sender),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;
    use units::{Bytes, Span};

    const CHAIN: &str = r#"
        name = "t"
        [control]
        sender = "reno"
        proxy = ["cubic", "bbr"]
        [[link]]
        rate = "1Gbit"
        delay = "1ms"
        [[link]]
        rate = "20Mbit"
        delay = "10ms"
        queue = "2BDP"
        [[link]]
        rate = "30Mbit"
        delay = "10ms"
        [[link]]
        rate = "10Mbit"
        delay = "50ms"
        [[split]]
        after = 1
        fast_open = true
        [[split]]
        after = 3
        [[cross]]
        link = 3
        rate = "5Mbit"
        [[agent]]
        after = 2
        kind = "snoop"
        [[flow]]
        count = 2
        bytes = { law = "exponential", mean = "1MB" }
        access_delay = "3ms"
        window = "64KiB"
        send_buffer = "1MB"
        control = "hybla"
    "#;

    #[test]
    fn a_chain_is_cut_at_its_proxies() {
        let whole = ScenarioFile::parse(CHAIN, "t").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let parts = segments(&whole, 7);
        let links: Vec<_> = parts.iter().map(|part| (part.links.first, part.links.end)).collect();
        assert_eq!(links, [(0, 1), (1, 3), (3, 4)]);
        let middle = &parts[1].scenario;
        assert_eq!((middle.cross[0].link, middle.agents[0].after), (2, 1));
        assert!([0, 2].iter().all(|at| parts[*at].scenario.cross.is_empty() && parts[*at].scenario.agents.is_empty()));
        // A queue in BDP keeps its size: it is that of the leg.
        assert_eq!(middle.queue_size(0), whole.queue_size(1));
        assert_eq!(parts.iter().map(|part| part.scenario.leg_controls()[0].to_owned()).collect::<Vec<_>>(), ["reno", "cubic", "bbr"]);
        assert!(parts.iter().all(|part| part.scenario.splits.is_empty()));
    }

    #[test]
    fn each_end_keeps_its_own_limits_and_all_segments_have_the_same_flows() {
        let whole = ScenarioFile::parse(CHAIN, "t").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let parts = segments(&whole, 7);
        let specs: Vec<Vec<FlowSpec>> = parts.iter().map(|part| part.scenario.flow_specs(part.seed)).collect();
        let of = |get: &dyn Fn(&FlowSpec) -> Option<u64>| specs.iter().map(|flows| get(&flows[1])).collect::<Vec<_>>();
        assert_eq!(of(&|flow| flow.window.map(|window| window.0)), [None, None, Some(65_536)]);
        assert_eq!(of(&|flow| flow.send_buffer.map(|buffer| buffer.0)), [Some(1_000_000), None, None]);
        assert_eq!(specs.iter().map(|flows| flows[0].access_delay).collect::<Vec<_>>(), [Span(3_000_000), Span::ZERO, Span::ZERO]);
        assert_eq!(specs.iter().map(|flows| flows[0].fast_open).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(parts.iter().map(|part| part.scenario.flows[0].control.as_deref()).collect::<Vec<_>>(), [Some("hybla"), None, None]);
        let sizes: Vec<Vec<Option<Bytes>>> = specs.iter().map(|flows| flows.iter().map(|flow| flow.bytes).collect()).collect();
        assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]) && sizes[0][0] != sizes[0][1], "{sizes:?}");
        // They do not lose the same packets.
        assert!(parts[0].seed == 7 && parts[1].seed != parts[0].seed && parts[2].seed != parts[1].seed);
    }
}
