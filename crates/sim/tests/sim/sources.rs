//! Sources that are not always on.

use crate::common::{near, run};

const LINK: &str = "duration = \"100s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nqueue = \"500kB\"\n";

#[test]
fn cross_traffic_has_its_configured_rate() {
    for (more, expected) in [
        ("", 4e6),
        ("arrivals = \"poisson\"\n", 4e6),
        ("on = \"500ms\"\noff = \"500ms\"\n", 2e6),
        ("on = { law = \"exponential\", mean = \"100ms\" }\noff = { law = \"exponential\", mean = \"100ms\" }\n", 2e6),
        ("arrivals = \"poisson\"\non = { law = \"pareto\", exponent = 3, mean = \"50ms\" }\noff = \"50ms\"\n", 2e6),
    ] {
        let outcome = run(&format!("{LINK}[[flow]]\n[[cross]]\nlink = 1\nrate = \"4Mbit\"\n{more}"));
        // The flow gets what the cross traffic leaves.
        near(outcome.goodput_bps, (10e6 - expected) * 1448.0 / 1500.0, 0.04);
    }
}

#[test]
fn equal_seeds_have_equal_traffic_and_others_do_not() {
    let text = format!(
        "{LINK}[[flow]]\ncount = 20\nbytes = {{ law = \"pareto\", exponent = 1.5, mean = \"300kB\" }}\nstart = {{ poisson = \"2s\" }}\n\
         [[cross]]\nlink = 1\nrate = \"2Mbit\"\narrivals = \"poisson\"\non = {{ law = \"exponential\", mean = \"1s\" }}\noff = \"1s\"\n"
    );
    let play = |seed| format!("{:?}", crate::common::play(&text, seed, sim::TcpSettings::default()).0);
    assert_eq!(play(7), play(7));
    assert_ne!(play(7), play(8));
}

#[test]
fn an_application_writes_at_its_configured_rate() {
    // 10 kB every 20 ms, half of the time: 2 Mbit/s.
    let text = format!(
        "{}[[flow]]\noffers = {{ bytes = {{ law = \"exponential\", mean = \"10kB\" }}, every = {{ law = \"exponential\", mean = \"20ms\" }}, \
         on = {{ law = \"exponential\", mean = \"1s\" }}, off = {{ law = \"exponential\", mean = \"1s\" }} }}\n",
        LINK.replace("100s", "1000s")
    );
    let outcome = run(&text);
    near(outcome.goodput_bps, 2e6, 0.15);
}

#[test]
fn a_stream_of_transfers_arrives_and_completes() {
    let text = "[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nqueue = \"100kB\"\n[[flow]]\ncount = 300\nbytes = { law = \"exponential\", mean = \"250kB\" }\n\
        start = { poisson = \"400ms\" }\n";
    let outcome = run(text);
    assert!(outcome.flows.iter().all(|flow| Some(flow.bytes) == flow.asked_bytes && flow.end_s.is_some()));
    // At a load of one half, processor sharing doubles the 0.2 s of a transfer; RTTs add to that.
    let mean = outcome.mean_flow_s().unwrap();
    assert!(mean > 0.3 && mean < 0.9, "{mean}");
}
