//! The links of networks in parallel: each does to packets what a link in a series does, and a bond
//! uses what they carry.

use crate::common::{near, refused};
use outcome::{Engine as _, Outcome};
use scenario::ScenarioFile;
use sim::Sim;
use std::{
    io::{self, BufRead, Cursor},
    sync::Arc,
};

/// A cellular downlink: 400 ms at 12 Mbit/s, 200 ms at 1.2 Mbit/s, a gap of 100 ms, in turns. The
/// uplink has 2.4 Mbit/s.
fn lte_trace(name: &str) -> String {
    let times: Vec<u32> = match name {
        "down" => (1..=400).chain((410..=600).step_by(10)).chain([700]).collect(),
        _ => (5..=700).step_by(5).collect(),
    };
    times.iter().map(|at| format!("{at}\n")).collect()
}

/// Rate and delay of a satellite network that assigns satellites anew every 15 s, and a burst of
/// losses at each change.
const SATELLITE_STEPS: &str = "time,rate,delay,loss\n0s,20Mbit,25ms,0\n14.9s,,,30%\n15s,12Mbit,40ms,30%\n15.1s,,,0\n29.9s,,,30%\n";

fn play(text: &str) -> Outcome {
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        let contents = if name == "steps" { SATELLITE_STEPS.into() } else { lte_trace(name) };
        Ok(Box::new(Cursor::new(contents)))
    };
    let file = ScenarioFile::parse_with(&format!("name = \"test\"\n{text}"), "test", Arc::new(open)).unwrap();
    Sim::default().run(&file.variants(&[]).unwrap()[0].scenario, 1, &()).unwrap()
}

/// When a transfer has ended over a link with these keys, and over a network with the same ones.
fn times(keys: &str) -> [f64; 2] {
    let flow = "[[flow]]\nbytes = \"3MB\"\n";
    let rates = if keys.contains("trace") { ["", ""] } else { ["rate = \"15Mbit\"", "rate = \"14.48Mbit\""] };
    // Rates of a network count payload: 1448 of 1500 bytes.
    let link = play(&format!("{flow}[[link]]\ndelay = \"20ms\"\n{}\n{keys}", rates[0]));
    let keys = keys.replace("7.5Mbit", "7.24Mbit").replace("0.75Mbit", "0.724Mbit");
    let network = play(&format!("{flow}[bond]\nscheduler = \"single\"\n[[network]]\ndelay = \"20ms\"\n{}\n{keys}", rates[1]));
    [link, network].map(|outcome| outcome.flows[0].end_s.expect("it ends"))
}

#[test]
fn a_network_does_to_packets_what_a_link_does() {
    let plain = times("");
    near(plain[1], plain[0], 1e-9);
    for keys in [
        "loss = { per_packet = 0.01 }",
        "loss = { reverse = { per_packet = 0.7 } }",
        "bit_errors = 1e-6",
        "outages = { every = \"500ms\", last = \"100ms\" }",
        "jitter = { delay = { law = \"exponential\", mean = \"3ms\" }, reorders = true }",
        "reordering = { share = \"5%\", by = \"40ms\" }",
        "duplication = \"10%\"",
        "changes = [{ at = \"300ms\", rate = \"7.5Mbit\" }, { at = \"600ms\", delay = \"60ms\", loss = 0.05 }]\nrepeat = \"900ms\"",
        "demand = { least = \"0.75Mbit\", above = \"6kB\", every = \"100ms\" }",
        "trace = { down = \"down\", up = \"up\" }",
        "queue = { limit = \"20pkt\", kind = \"codel\", target = \"2ms\", interval = \"20ms\" }",
        "queue = { limit = \"20pkt\", kind = \"fq_codel\", target = \"2ms\", interval = \"20ms\" }",
        "queue = { limit = \"100pkt\", kind = \"pie\", target = \"2ms\" }",
        "queue = { limit = \"20pkt\", kind = \"ecn\", mark_above = \"5pkt\" }",
        "queue = { limit = \"100pkt\", kind = \"dualpi2\", target = \"2ms\" }",
    ] {
        let [link, network] = times(keys);
        near(network, link, 1e-9);
        // What arrives twice is of no use to TCP, and costs the link nothing.
        let has_effect = (network - plain[1]).abs() > 1e-6;
        assert_eq!(has_effect, !keys.contains("duplication"), "{keys}: {network}, {} without", plain[1]);
    }
}

#[test]
fn a_network_carries_what_its_trace_and_its_steps_say() {
    let network = |keys: &str| {
        play(&format!(
            "duration = \"28s\"\n[[flow]]\n[bond]\nscheduler = \"single\"\n[[network]]\nqueue = \"200pkt\"\ndelay = \"20ms\"\n{keys}"
        ))
    };
    // 421 opportunities of 1500 bytes in 700 ms.
    let lte = network("trace = { down = \"down\", up = \"up\" }");
    near(lte.networks[0].utilization, 1.0, 0.03);
    near(lte.goodput_bps, 421.0 * 1448.0 * 8.0 / 0.7, 0.05);
    // 15 s at 8 Mbit/s and 13 s at 4: of payload.
    let steps = network("rate = \"8Mbit\"\nchanges = [{ at = \"15s\", rate = \"4Mbit\" }]");
    near(steps.networks[0].utilization, 1.0, 0.03);
    near(steps.goodput_bps, (15.0 * 8e6 + 13.0 * 4e6) / 28.0, 0.05);
}

#[test]
fn a_bond_over_a_cellular_and_a_satellite_network_adds_them_up() {
    const LTE: &str = "[[network]]\nqueue = \"100pkt\"\ndelay = \"20ms\"\ntrace = { down = \"down\", up = \"up\" }\n";
    const SATELLITE: &str = "[[network]]\nrate = \"20Mbit\"\nqueue = \"100pkt\"\ndelay = \"25ms\"\nsteps = \"steps\"\nrepeat = \"30s\"\n";
    let goodput = |networks: &str, scheduler: &str| {
        play(&format!("duration = \"60s\"\n[control]\nsender = \"bbr\"\n[[flow]]\n[bond]\nscheduler = \"{scheduler}\"\n{networks}"))
            .goodput_bps
    };
    let [lte, satellite] = [LTE, SATELLITE].map(|network| goodput(network, "single"));
    let bond = goodput(&[LTE, SATELLITE].concat(), "score");
    assert!(bond <= 1.01 * (lte + satellite), "{bond} of {lte} and {satellite}");
    assert!(bond >= 0.8 * (lte + satellite) && bond > 1.1 * lte.max(satellite), "{bond} of {lte} and {satellite}");
}

/// The goodput of a download over a link of 20 ms and one of these networks or both.
fn goodput_behind_a_link(split: &str, control: &str, bond: &str) -> f64 {
    let near = "[[network]]\nrate = \"10Mbit\"\ndelay = \"10ms\"\nqueue = \"50pkt\"\nloss = { per_packet = 0.002 }\n";
    let far = "[[network]]\nrate = \"20Mbit\"\ndelay = \"25ms\"\nqueue = \"80pkt\"\nloss = { per_packet = 0.001 }\n";
    let link = "[[link]]\nrate = \"200Mbit\"\ndelay = \"40ms\"\n";
    let outcome = play(&format!("duration = \"60s\"\n[control]\n{control}\n[[flow]]\n[bond]\n{bond}\n{link}{split}{near}{far}"));
    outcome.goodput_bps
}

const SPLIT: &str = "[[split]]\nafter = 1\n";

#[test]
fn a_proxy_before_the_networks_helps_where_they_lose_and_so_does_a_bond() {
    let alone = ["scheduler = \"static\"\nfractions = [1, 0]", "scheduler = \"static\"\nfractions = [0, 1]"];
    let of = |split: &str, bond: &str| goodput_behind_a_link(split, "sender = \"reno\"\nproxy = \"reno\"", bond);
    let [end_to_end, split] = ["", SPLIT].map(|split| alone.map(|bond| of(split, bond)));
    // Reno's rate is inversely proportional to the RTT: 100 ms against 20, and 130 against 50.
    assert!(split[0] > 2.0 * end_to_end[0] && split[1] > 1.5 * end_to_end[1], "{end_to_end:?} {split:?}");
    for (how, single) in [("", end_to_end), (SPLIT, split)] {
        let (bond, sum) = (of(how, "scheduler = \"score\""), single[0] + single[1]);
        assert!(bond <= 1.03 * sum && bond >= 0.85 * sum, "{how}: {bond} of {sum}");
    }
}

/// The example: bursts of losses at each change of the satellites, which CUBIC takes for congestion.
#[test]
fn a_split_and_a_bond_each_help_a_user_with_lte_and_satellites() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let open = move |name: &str| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(Cursor::new(std::fs::read(format!("{folder}/{name}"))?))) };
    let text = std::fs::read_to_string(format!("{folder}/lte-starlink.toml")).unwrap();
    let file = ScenarioFile::parse_with(&text, "lte-starlink.toml", Arc::new(open)).unwrap();
    let of: Vec<f64> =
        file.variants(&[]).unwrap().iter().map(|variant| Sim::default().run(&variant.scenario, 1, &()).unwrap().goodput_bps).collect();
    let [lte, lte_split, satellites, satellites_split, bond, bond_split] = of[..] else { panic!("{of:?}") };
    // LTE carries 14.8 Mbit/s on average.
    assert!(lte > 12e6 && lte_split > lte && lte_split < 14.9e6, "{of:?}");
    assert!(satellites_split > 1.2 * satellites, "{of:?}");
    assert!((0.9..1.02).contains(&(bond / (lte + satellites))), "{of:?}");
    assert!((0.9..1.02).contains(&(bond_split / (lte_split + satellites_split))), "{of:?}");
}

#[test]
fn every_byte_crosses_a_proxy_before_the_networks_once() {
    let networks = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\nloss = { per_packet = 0.02 }\n\
                    [[network]]\nrate = \"9Mbit\"\ndelay = \"30ms\"\nqueue = \"20pkt\"\n";
    let link =
        "[[link]]\nrate = \"50Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\nloss = { per_packet = 0.005 }\n";
    for bond in
        ["score\"", "score-paper\"", "redundant\"", "tiers\"", "fluid\"", "round-robin\"", "single\"", "static\"\nfractions = [0.3, 0.7]"]
    {
        for split in ["", "[[split]]\nafter = 2\nbuffer = \"30kB\"\n"] {
            for opens in ["sender", "receiver"] {
                let outcome = play(&format!(
                    "[[flow]]\nbytes = \"400kB\"\nopens = \"{opens}\"\n[[flow]]\nbytes = \"7B\"\nstart = \"1s\"\n[bond]\nscheduler = \"{bond}\n{link}{split}{networks}"
                ));
                let bytes: Vec<u64> = outcome.flows.iter().map(|flow| flow.bytes).collect();
                assert_eq!(bytes, [400_000, 7], "{bond} {split} {opens}");
                assert!(outcome.flows.iter().all(|flow| flow.end_s.is_some()), "{bond} {split} {opens}");
            }
        }
    }
}

#[test]
fn a_slow_network_holds_the_sender_back_through_the_proxys_buffer() {
    let of = |buffer: &str| {
        let networks = "[[network]]\nrate = \"1Mbit\"\ndelay = \"5ms\"\nqueue = \"30pkt\"\n";
        let link = "[[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\n";
        let split = format!("[[split]]\nafter = 1\nbuffer = \"{buffer}\"\n");
        play(&format!("duration = \"20s\"\n[[flow]]\n[bond]\nscheduler = \"score\"\n{link}{split}{networks}")).goodput_bps
    };
    near(of("64KiB"), 1e6, 0.05);
    // Two packets per RTT of 40 ms before the proxy.
    assert!(of("3000B") < 0.9e6, "{}", of("3000B"));
}

#[test]
fn what_the_proxy_before_the_networks_lacks_is_refused_by_key() {
    let networks = "[[flow]]\nbytes = \"1MB\"\n[bond]\nscheduler = \"score\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[[network]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n";
    let of = |keys: &str| refused(&format!("{keys}{networks}"));
    assert_eq!(of(&format!("{SPLIT}mode = \"semi\"\n")), "split[1].mode");
    assert_eq!(of(&format!("{SPLIT}backpressure = \"fluid\"\n")), "split[1].backpressure");
    assert_eq!(of(&format!("[control]\nproxy = \"share\"\n{SPLIT}")), "control.proxy");
}

#[test]
fn routers_that_talk_to_senders_are_for_links_in_series() {
    let text = "[[flow]]\nbytes = \"1MB\"\n[bond]\nscheduler = \"score\"\n[[network]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\nqueue = { kind = \"xcp\" }\n";
    assert_eq!(refused(text), "network[1].queue.kind");
}
