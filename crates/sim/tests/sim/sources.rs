//! Sources that are not always on.

use crate::common::{near, run};

const LINK: &str = "duration = \"100s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nqueue = \"500kB\"\n";

#[test]
fn cross_traffic_takes_what_its_laws_say() {
    for (more, expected) in [
        ("", 4e6),
        ("arrivals = \"poisson\"\n", 4e6),
        ("on = \"500ms\"\noff = \"500ms\"\n", 2e6),
        ("on = { law = \"exponential\", mean = \"100ms\" }\noff = { law = \"exponential\", mean = \"100ms\" }\n", 2e6),
        ("arrivals = \"poisson\"\non = { law = \"pareto\", exponent = 3, mean = \"50ms\" }\noff = \"50ms\"\n", 2e6),
    ] {
        let outcome = run(&format!("{LINK}[[flow]]\n[[cross]]\nlink = 1\nrate = \"4Mbit\"\n{more}"));
        // What the flow leaves, the other sources have taken.
        near(outcome.goodput_bps, (10e6 - expected) * 1448.0 / 1500.0, 0.04);
    }
}

#[test]
fn the_same_seed_has_the_same_traffic_and_another_has_other() {
    let text = format!(
        "{LINK}[[flow]]\ncount = 20\nbytes = {{ law = \"pareto\", exponent = 1.5, mean = \"300kB\" }}\nstart = {{ poisson = \"2s\" }}\n\
         [[cross]]\nlink = 1\nrate = \"2Mbit\"\narrivals = \"poisson\"\non = {{ law = \"exponential\", mean = \"1s\" }}\noff = \"1s\"\n"
    );
    let play = |seed| format!("{:?}", crate::common::play(&text, seed, sim::TcpSettings::default()).0);
    assert_eq!(play(7), play(7));
    assert_ne!(play(7), play(8));
}

#[test]
fn an_application_offers_what_its_laws_say() {
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
fn a_stream_of_transfers_comes_and_goes() {
    let text = "[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nqueue = \"100kB\"\n[[flow]]\ncount = 300\nbytes = { law = \"exponential\", mean = \"250kB\" }\n\
        start = { poisson = \"400ms\" }\n";
    let outcome = run(text);
    assert!(outcome.flows.iter().all(|flow| Some(flow.bytes) == flow.asked_bytes && flow.end_s.is_some()));
    // A load of one half: shared as processors are, a transfer takes its 0.2 s twice over, and its round trips.
    let mean = outcome.mean_flow_s().unwrap();
    assert!(mean > 0.3 && mean < 0.9, "{mean}");
}
