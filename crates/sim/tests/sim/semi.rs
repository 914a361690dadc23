//! Semi-Split TCP: the sender knows of delivery what is true, and its window follows the proxy all the same.

use crate::common::{near, run};
use outcome::Outcome;

const TWO: &str = "[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"40ms\"\n";

fn text(mode: &str, more: &str) -> String {
    let split = if mode.is_empty() { String::new() } else { format!("[[split]]\nafter = 1\nbuffer = \"400kB\"\nmode = \"{mode}\"\n") };
    format!("{TWO}{split}[[flow]]\nbytes = \"6MB\"\n{more}")
}

fn times(outcome: &Outcome) -> (f64, f64) {
    (outcome.flows[0].end_s.unwrap(), outcome.flows[0].acked_s.unwrap())
}

#[test]
fn the_sender_never_knows_before_the_receiver_has_it() {
    for (mode, more) in [("", ""), ("semi", ""), ("semi", "opens = \"receiver\"\n"), ("semi", "window = \"60kB\"\n")] {
        let (end, acked) = times(&run(&text(mode, more)));
        // The way back, with what a delayed acknowledgement takes.
        let back = acked - end;
        assert!((0.05..0.1).contains(&back), "{mode} {more}: {back}");
    }
    // A proxy that acknowledges what it has lets the sender believe in a clean close long before.
    let (end, acked) = times(&run(&text("stream", "")));
    assert!(acked < end - 0.2, "{acked} {end}");
}

#[test]
fn the_price_is_a_larger_send_buffer_not_goodput() {
    let (stream, semi) = (run(&text("stream", "")), run(&text("semi", "")));
    near(semi.goodput_bps, stream.goodput_bps, 0.01);
    near(semi.flows[0].legs[0].min_rtt_s, 0.02, 0.02);
    let kept = |outcome: &Outcome| outcome.flows[0].kept_max_bytes.unwrap() as f64;
    // What the proxy holds, and what is on its way to the receiver and back.
    let beyond = semi.proxy.as_ref().unwrap().buffer_bytes.max + 0.09 * 12e6 / 8.0;
    assert!(kept(&semi) > 0.9 * beyond && kept(&semi) > 1.2 * kept(&stream), "{} {} {beyond}", kept(&semi), kept(&stream));
}

#[test]
fn a_send_buffer_bounds_it_by_the_whole_round_trip() {
    // 60 kB a round trip: 20 ms to a proxy that acknowledges, 100 ms to the far end.
    let goodput = |mode: &str| {
        let outcome = run(&text(mode, "send_buffer = \"60kB\"\n"));
        assert!(outcome.flows[0].kept_max_bytes.unwrap() <= 60_000, "{mode}");
        outcome.goodput_bps
    };
    let most = 60e3 * 8.0 / 0.1;
    for mode in ["", "semi"] {
        assert!(goodput(mode) < most && goodput(mode) > 0.8 * most, "{mode}: {} of {most}", goodput(mode));
    }
    assert!(goodput("stream") > 1.8 * most, "{}", goodput("stream"));
}

#[test]
fn in_a_chain_it_takes_all_to_know_all() {
    let three = |modes: [&str; 2]| {
        format!(
            "{TWO}[[link]]\nrate = \"50Mbit\"\ndelay = \"30ms\"\n[[split]]\nafter = 1\nmode = \"{}\"\n\
             [[split]]\nafter = 2\nmode = \"{}\"\n[[flow]]\nbytes = \"3MB\"\n",
            modes[0], modes[1]
        )
    };
    let (end, acked) = times(&run(&three(["semi", "semi"])));
    assert!(acked > end + 0.08, "{acked} {end}");
    // The second proxy's word counts, 30 ms before the receiver has it; and it takes 50 ms to come back.
    let (end, acked) = times(&run(&three(["semi", "stream"])));
    assert!(acked > end && acked < end + 0.08, "{acked} {end}");
    let (end, acked) = times(&run(&three(["stream", "semi"])));
    assert!(acked < end - 0.1, "{acked} {end}");
}

#[test]
fn losses_on_the_far_leg_stay_there() {
    let lossy = |mode: &str| text(mode, "").replace("delay = \"40ms\"\n", "delay = \"40ms\"\nloss = { per_packet = 0.01 }\n");
    let [whole, stream, semi] = ["", "stream", "semi"].map(|mode| run(&lossy(mode)));
    assert_eq!(semi.flows[0].legs[0].retransmits, 0);
    near(semi.goodput_bps, stream.goodput_bps, 0.02);
    assert!(whole.goodput_bps < semi.goodput_bps, "{} {}", whole.goodput_bps, semi.goodput_bps);
}

#[test]
fn receipts_that_are_lost_are_asked_for() {
    // The near leg's queues hold one packet, on the way back, too, where six flows' acknowledgements and receipts meet.
    let text = "[[link]]\nrate = \"100kbit\"\ndelay = \"5ms\"\nqueue = \"1pkt\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"1ms\"\n\
        [[split]]\nafter = 1\nmode = \"semi\"\n[[flow]]\ncount = 6\nbytes = \"20kB\"\n";
    let outcome = run(text);
    assert!(outcome.flows.iter().all(|flow| flow.acked_s.unwrap() > flow.end_s.unwrap()));
}
