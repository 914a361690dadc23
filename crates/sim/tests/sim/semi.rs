//! Semi-Split TCP: the sender learns of the true delivery, while its window follows the proxy.

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
fn the_sender_never_learns_of_delivery_before_the_receiver_has_it() {
    for (mode, more) in [("", ""), ("semi", ""), ("semi", "opens = \"receiver\"\n"), ("semi", "window = \"60kB\"\n")] {
        let (end, acked) = times(&run(&text(mode, more)));
        // The way back, and the delay of an acknowledgement.
        let back = acked - end;
        assert!((0.05..0.1).contains(&back), "{mode} {more}: {back}");
    }
    // With a proxy that acknowledges what it holds, the sender takes the close for clean long
    // before the delivery.
    let (end, acked) = times(&run(&text("stream", "")));
    assert!(acked < end - 0.2, "{acked} {end}");
}

#[test]
fn the_price_is_a_larger_send_buffer_and_not_goodput() {
    let (stream, semi) = (run(&text("stream", "")), run(&text("semi", "")));
    near(semi.goodput_bps, stream.goodput_bps, 0.01);
    near(semi.flows[0].legs[0].min_rtt_s, 0.02, 0.02);
    let kept = |outcome: &Outcome| outcome.flows[0].kept_max_bytes.unwrap() as f64;
    // What the proxy holds, and what is in flight to the receiver and back.
    let beyond = semi.proxy.as_ref().unwrap().buffer_bytes.max + 0.09 * 12e6 / 8.0;
    assert!(kept(&semi) > 0.9 * beyond && kept(&semi) > 1.2 * kept(&stream), "{} {} {beyond}", kept(&semi), kept(&stream));
}

#[test]
fn a_send_buffer_limits_by_the_whole_rtt() {
    // 60 kB an RTT: 20 ms to a proxy that acknowledges, 100 ms to the far end.
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
fn in_a_chain_all_proxies_must_acknowledge_end_to_end() {
    let three = |modes: [&str; 2]| {
        format!(
            "{TWO}[[link]]\nrate = \"50Mbit\"\ndelay = \"30ms\"\n[[split]]\nafter = 1\nmode = \"{}\"\n\
             [[split]]\nafter = 2\nmode = \"{}\"\n[[flow]]\nbytes = \"3MB\"\n",
            modes[0], modes[1]
        )
    };
    let (end, acked) = times(&run(&three(["semi", "semi"])));
    assert!(acked > end + 0.08, "{acked} {end}");
    // The second proxy acknowledges 30 ms before the receiver has the data, and its acknowledgement
    // takes 50 ms.
    let (end, acked) = times(&run(&three(["semi", "stream"])));
    assert!(acked > end && acked < end + 0.08, "{acked} {end}");
    let (end, acked) = times(&run(&three(["stream", "semi"])));
    assert!(acked < end - 0.1, "{acked} {end}");
}

#[test]
fn losses_on_the_far_leg_do_not_affect_the_near_leg() {
    let lossy = |mode: &str| text(mode, "").replace("delay = \"40ms\"\n", "delay = \"40ms\"\nloss = { per_packet = 0.01 }\n");
    let [whole, stream, semi] = ["", "stream", "semi"].map(|mode| run(&lossy(mode)));
    assert_eq!(semi.flows[0].legs[0].retransmits, 0);
    near(semi.goodput_bps, stream.goodput_bps, 0.02);
    assert!(whole.goodput_bps < semi.goodput_bps, "{} {}", whole.goodput_bps, semi.goodput_bps);
}

#[test]
fn lost_receipts_are_requested() {
    // The near leg's queues hold one packet, also in the direction of the acknowledgements and
    // receipts of six flows.
    let text = "[[link]]\nrate = \"100kbit\"\ndelay = \"5ms\"\nqueue = \"1pkt\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"1ms\"\n\
        [[split]]\nafter = 1\nmode = \"semi\"\n[[flow]]\ncount = 6\nbytes = \"20kB\"\n";
    let outcome = run(text);
    assert!(outcome.flows.iter().all(|flow| flow.acked_s.unwrap() > flow.end_s.unwrap()));
}
