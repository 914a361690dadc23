//! TCP Fast Open (RFC 7413): what the saved round trip is worth, on which leg, and what happens
//! when the SYN with data is lost.

use crate::common::{near, play, run};
use sim::TcpSettings;

const TWO: &str = "[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"40ms\"\n";
const SPLIT: &str = "[[split]]\nafter = 1\n";

fn end(text: &str) -> f64 {
    run(text).flows[0].end_s.unwrap()
}

#[test]
fn a_syn_with_data_saves_an_rtt() {
    let flow = |more: &str| format!("{TWO}[[flow]]\nbytes = \"1400B\"\n{more}");
    near(end(&flow("")), 0.15, 0.02);
    near(end(&flow("fast_open = true\n")), 0.05, 0.05);
    // For a download the SYN carries the request, which has no bytes here. The sender answers after
    // its SYN-ACK.
    near(end(&flow("opens = \"receiver\"\n")), 0.2, 0.02);
    near(end(&flow("opens = \"receiver\"\nfast_open = true\n")), 0.1, 0.03);
}

#[test]
fn each_leg_saves_its_own_rtt() {
    // The near leg of an upload is the sender's with 10 ms, that of a download the receiver's with
    // 40 ms. The payload for the proxy's own SYN is there with the first data of the near leg.
    for (opens, none, near_leg, far_leg, both) in [("sender", 0.15, 0.13, 0.07, 0.05), ("receiver", 0.2, 0.12, 0.18, 0.1)] {
        let text = |flow: bool, split: bool| {
            format!("{TWO}{SPLIT}fast_open = {split}\n[[flow]]\nbytes = \"1400B\"\nopens = \"{opens}\"\nfast_open = {flow}\n")
        };
        near(end(&text(false, false)), none, 0.02);
        near(end(&text(true, false)), near_leg, 0.02);
        near(end(&text(false, true)), far_leg, 0.03);
        near(end(&text(true, true)), both, 0.04);
    }
}

#[test]
fn data_after_the_syn_is_sent_as_without_fast_open() {
    for opens in ["sender", "receiver"] {
        for split in ["", SPLIT, "[[split]]\nafter = 1\nbuffer = \"1pkt\"\nfast_open = true\n"] {
            let text = |fast: bool| format!("{TWO}{split}[[flow]]\nbytes = \"300kB\"\nopens = \"{opens}\"\nfast_open = {fast}\n");
            let (slow, fast) = (run(&text(false)), run(&text(true)));
            assert_eq!((fast.flows[0].bytes, fast.retransmits(), slow.retransmits()), (300_000, 0, 0), "{opens} {split}");
            let saved = slow.flows[0].end_s.unwrap() - fast.flows[0].end_s.unwrap();
            // An upload of several windows gains a segment, for which it waits for the SYN-ACK, and
            // a proxy that connects earlier. A download gains an RTT.
            let expected = if opens == "sender" && split.is_empty() { -0.002..0.002 } else { 0.009..0.11 };
            assert!(expected.contains(&saved), "{opens} {split}: {saved}");
        }
    }
}

#[test]
fn a_lost_syn_with_data_is_retransmitted_without_it() {
    let text =
        "[[link]]\nrate = \"12Mbit\"\ndelay = \"50ms\"\nloss = { per_packet = 0.3 }\n[[flow]]\nbytes = \"1400B\"\nfast_open = true\n";
    let mut repeated = 0;
    for seed in 0..200 {
        let (outcome, _) = play(text, seed, TcpSettings::default());
        let (flow, lost) = (&outcome.flows[0], outcome.links[0].losses);
        let end = flow.end_s.unwrap();
        assert_eq!(flow.bytes, 1400);
        if lost == 0 {
            near(end, 0.05, 0.05);
        } else if lost == 1 && outcome.retransmits() == 1 && end < 1.2 {
            // The SYN is retransmitted after a second, and the data is sent an RTT later.
            near(end, 1.15, 0.01);
            repeated += 1;
        }
    }
    // Expected for one seed in ten: 0.3 × 0.7³.
    assert!((8..40).contains(&repeated), "{repeated}");
}
