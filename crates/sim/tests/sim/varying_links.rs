//! Links that follow a trace or a table of steps.

use crate::common::{near, run};
use outcome::{Engine as _, Outcome};
use scenario::ScenarioFile;
use sim::Sim;
use std::{
    io::{self, BufRead},
    sync::Arc,
};

/// Runs a scenario that names one file, with these contents.
fn run_with(text: &str, contents: String) -> Outcome {
    let open = move |_: &str| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(contents.clone()))) };
    let file = ScenarioFile::parse_with(&format!("name = \"test\"\n{text}"), "test", Arc::new(open)).unwrap();
    Sim::default().run(&file.variants(&[]).unwrap()[0].scenario, 1, &()).unwrap()
}

/// 10 packets at once every 20 ms, nothing for 300 ms, then a packet every millisecond until 1 s:
/// 6.5 Mbit/s on average.
fn jagged_trace() -> String {
    let bursts = (0..10).flat_map(|burst| [20 * burst; 10]);
    bursts.chain(500..=1000).map(|at| format!("{at}\n")).collect()
}

const TRACE: &str = "duration = \"20s\"\n[[link]]\ntrace = { down = \"f\", up = \"f\" }\ndelay = \"20ms\"\nqueue = \"200kB\"\n";

#[test]
fn a_trace_that_is_never_idle_carries_all_of_its_bytes() {
    let outcome = run_with(&format!("{TRACE}[[flow]]\n[[cross]]\nlink = 1\nrate = \"30Mbit\"\n"), jagged_trace());
    near(outcome.utilization, 1.0, 2e-4);
    assert!(outcome.links[0].queue_drops > 0);
}

#[test]
fn a_flow_over_a_trace_has_most_of_its_rate_and_never_more() {
    let outcome = run_with(&format!("{TRACE}[[flow]]\n"), jagged_trace());
    let most = 601.0 * 1500.0 * 8.0 * 1448.0 / 1500.0;
    assert!(outcome.goodput_bps < most && outcome.goodput_bps > 0.9 * most, "{} of {most}", outcome.goodput_bps);
}

#[test]
fn acknowledgements_wait_for_the_other_direction() {
    // ACKs leave every 400 ms only.
    let text = TRACE.replace("up = \"f\"", "up = \"g\"") + "[[flow]]\nbytes = \"5kB\"\n";
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        let every_ms: String = (1..=1000).map(|at| format!("{at}\n")).collect();
        Ok(Box::new(io::Cursor::new(if name == "f" { every_ms } else { "400\n".repeat(50) })))
    };
    let file = ScenarioFile::parse_with(&format!("name = \"test\"\n{text}"), "test", Arc::new(open)).unwrap();
    let outcome = Sim::default().run(&file.variants(&[]).unwrap()[0].scenario, 1, &()).unwrap();
    // The SYN-ACK leaves at 400 ms; the data needs 20 ms, and the SYN-ACK as much.
    let end = outcome.flows[0].end_s.unwrap();
    assert!((0.44..0.46).contains(&end), "{end}");
}

const STEPS: &str = "duration = \"60s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = \"60pkt\"\nsteps = \"f\"\n";

#[test]
fn rates_of_steps_come_again() {
    let text = format!("{STEPS}repeat = \"2s\"\n[[flow]]\n[[cross]]\nlink = 1\nrate = \"30Mbit\"\n");
    let outcome = run_with(&text, "time,rate\n0s,20Mbit\n1s,4Mbit\n".into());
    near(outcome.utilization, 1.0, 1e-3);
    let text = format!("{STEPS}repeat = \"2s\"\n[[flow]]\n");
    let outcome = run_with(&text, "time,rate\n0s,20Mbit\n1s,4Mbit\n".into());
    assert!(outcome.goodput_bps > 0.8 * 12e6 && outcome.goodput_bps < 12e6, "{}", outcome.goodput_bps);
}

#[test]
fn an_outage_carries_nothing_and_ends() {
    let text = format!("{STEPS}[[flow]]\n[[interval]]\nfrom = \"21s\"\nto = \"29s\"\n[[interval]]\nfrom = \"40s\"\nto = \"60s\"\n");
    for file in ["time,rate\n20s,0bit\n30s,10Mbit\n", "time,loss\n20s,100%\n30s,0\n"] {
        let outcome = run_with(&text, file.into());
        let goodputs: Vec<f64> = outcome.intervals.iter().map(|interval| interval.goodput_bps).collect();
        assert_eq!(goodputs[0], 0.0, "{file}");
        assert!(goodputs[1] > 8e6, "{file}: {goodputs:?}");
    }
}

#[test]
fn a_shorter_delay_shows_in_the_round_trip() {
    // A window without a queue, so that round trips are those of the links.
    let text = format!("{STEPS}[[flow]]\nwindow = \"6kB\"\n");
    let least = |file: &str| run_with(&text, file.into()).flows[0].legs[0].min_rtt_s;
    let (long, short) = (least("time,delay\n30s,40ms\n"), least("time,delay\n30s,5ms\n"));
    assert!((0.040..0.042).contains(&long) && (0.010..0.013).contains(&short), "{long} {short}");
}

/// A scenario: a link of 1 ms, a proxy that sends with `control`, and a second link, which `link`
/// describes.
fn split(link: &str, control: &str) -> String {
    let first = "duration = \"60s\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n";
    format!("{first}[[link]]\n{link}\n[[split]]\nafter = 1\n{control}\n[[flow]]\ncount = 5\n")
}

const ESTIMATED: &str = "capacity = \"auto\"\n[control]\nproxy = \"share\"";

#[test]
fn share_estimates_a_trace_that_it_is_not_told() {
    let link = "trace = { down = \"f\", up = \"f\" }\ndelay = \"20ms\"\nqueue = \"800kB\"";
    let [estimated, bbr] = [ESTIMATED, "[control]\nproxy = \"bbr\""].map(|control| run_with(&split(link, control), jagged_trace()));
    assert!(estimated.goodput_bps > 0.9 * bbr.goodput_bps, "{} of {}", estimated.goodput_bps, bbr.goodput_bps);
    let wait = |outcome: &Outcome| outcome.links[1].queue_delay_p95_s.unwrap();
    assert!(wait(&estimated) < wait(&bbr), "{} of {}", wait(&estimated), wait(&bbr));
    assert!(estimated.jain.unwrap() > 0.98, "{:?}", estimated.jain);
}

#[test]
fn share_estimates_a_constant_rate_as_if_it_were_told() {
    for delay in ["20ms", "300ms"] {
        // At the start an estimate may exceed the rate twice, and its windows a seventh more.
        let link = format!("rate = \"10Mbit\"\ndelay = \"{delay}\"\nqueue = \"1500kB\"");
        let [estimated, told] = [ESTIMATED, "[control]\nproxy = \"share\""].map(|control| run_with(&split(&link, control), String::new()));
        assert!(estimated.goodput_bps > 0.92 * told.goodput_bps, "{delay}: {} of {}", estimated.goodput_bps, told.goodput_bps);
        assert!(estimated.jain.unwrap() > 0.98, "{delay}: {:?}", estimated.jain);
        assert!(estimated.links[1].queue_drops < 100, "{delay}: {}", estimated.links[1].queue_drops);
    }
}

#[test]
fn a_rate_that_a_cellular_link_does_not_have_is_soon_given_up() {
    // 3 to 27 Mbit/s with jitter. One download of 20 MB.
    let steps = include_str!("../../../../scenarios/lte-steps.csv");
    let link = "rate = \"15Mbit\"\ndelay = \"25ms\"\nqueue = \"200pkt\"\nsteps = \"f\"\nrepeat = \"30s\"\n\
                jitter = { delay = { law = \"exponential\", mean = \"2ms\" } }";
    let seconds = |capacity: &str| {
        let control = format!("capacity = \"{capacity}\"\n[control]\nproxy = \"share\"");
        let text = split(link, &control).replace("count = 5", "bytes = \"20MB\"\nopens = \"receiver\"");
        run_with(&text, steps.into()).mean_flow_s().unwrap()
    };
    let estimated = seconds("auto");
    for told in ["4Mbit", "8Mbit", "15Mbit", "30Mbit"] {
        assert!(estimated / seconds(told) > 0.9, "told {told}: {} s, estimated {estimated} s", seconds(told));
    }
}

#[test]
fn an_estimate_makes_no_page_slower() {
    let page = |connections: &str| {
        format!(
            "[[page]]\nloads = 1\nrequest = \"500B\"\nservice = \"10ms\"\n{connections}\n[[page.object]]\nname = \"html\"\n\
             size = \"60kB\"\n[[page.object]]\nsize = \"33kB\"\ncount = 59\nneeds = [\"html\"]\n"
        )
    };
    let links = [
        // Six initial windows at once are more than a round trip of it.
        "rate = \"16Mbit\"\ndelay = \"15ms\"\nqueue = \"400kB\"",
        // Each connection has another least round trip.
        "rate = \"15Mbit\"\ndelay = \"25ms\"\nqueue = \"200pkt\"\njitter = { delay = { law = \"exponential\", mean = \"2ms\" } }",
        "rate = \"200Mbit\"\ndelay = \"39ms\"\nqueue = \"1BDP\"",
        "rate = \"50Mbit\"\ndelay = \"295ms\"\nqueue = \"1BDP\"",
    ];
    for link in links {
        for connections in ["connections = 6", "multiplexed = true"] {
            let seconds = |control: &str| {
                let text = format!(
                    "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\n{link}\n{control}[tcp]\n\
                     receive_buffers = {{ first = \"128KiB\", most = \"6MiB\" }}\n{}",
                    page(connections)
                );
                run(&text).page_load_s.unwrap().mean
            };
            let unsplit = seconds("[control]\nsender = \"cubic\"\n");
            let estimated = seconds("[[split]]\nafter = 1\ncapacity = \"auto\"\n[control]\nsender = \"cubic\"\nproxy = \"share\"\n");
            assert!(estimated < 1.04 * unsplit, "{link}, {connections}: {estimated} s, unsplit {unsplit} s");
        }
    }
}

#[test]
fn an_upload_takes_nothing_from_downloads() {
    let links = "[[link]]\nrate = \"1Gbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"30Mbit\"\ndelay = \"320ms\"\nqueue = \"1MB\"\n\
                 reverse = { rate = \"5Mbit\", queue = \"200kB\" }\n";
    let downloads = "[[flow]]\nopens = \"receiver\"\nbytes = \"20MB\"\ncount = 3\n";
    let upload = "[[flow]]\ndirection = \"reverse\"\nbytes = \"10MB\"\n";
    for capacity in ["30Mbit", "auto"] {
        let seconds = |uploads: &str| {
            let split = format!("[[split]]\nafter = 1\ncapacity = \"{capacity}\"\n[control]\nsender = \"cubic\"\nproxy = \"share\"\n");
            let outcome = run(&format!("{links}{split}{downloads}{uploads}"));
            outcome.flows[..3].iter().filter_map(|flow| flow.end_s).fold(0.0, f64::max)
        };
        let (alone, beside) = (seconds(""), seconds(upload));
        // Their acknowledgements need some of the time.
        assert!(beside < 1.15 * alone, "{capacity}: {beside} s beside an upload, {alone} s alone");
    }
}
