//! Split connections: what the proxy holds, its backpressure, and its controllers.

use crate::common::{near, play, refused, run};
use outcome::Outcome;
use sim::TcpSettings;

const TWO: &str = "[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"40ms\"\n";

fn split(buffer: &str, more: &str) -> String {
    format!("{TWO}[[split]]\nafter = 1\nbuffer = \"{buffer}\"\n{more}")
}

#[test]
fn the_legs_are_opened_one_after_the_other() {
    // A segment of an upload arrives with the ACK of the first handshake, and waits in the proxy
    // for the second leg. For a download the proxy opens the first leg when the handshake of the
    // second one is complete.
    let up = 0.02 + 0.01 + 0.08 + 0.04;
    let down = 0.12 + 0.03 + 0.01 + 0.04;
    for (opens, expected) in [("sender", up), ("receiver", down)] {
        let outcome = run(&format!("{}[[flow]]\nbytes = \"1448B\"\nopens = \"{opens}\"\n", split("auto", "")));
        near(outcome.flows[0].end_s.unwrap(), expected, 0.02);
        assert_eq!(outcome.flows[0].legs.len(), 2);
    }
}

#[test]
fn a_file_is_transferred_at_the_slower_legs_rate() {
    let outcome = run(&format!("{}[[flow]]\nbytes = \"15MB\"\n", split("auto", "")));
    assert_eq!(outcome.flows[0].bytes, 15_000_000);
    let least = 15e6 / 1448.0 * 0.001;
    let end = outcome.flows[0].end_s.unwrap();
    assert!(end > least && end < 1.12 * least + 0.5, "{end} {least}");
    let proxy = outcome.proxy.unwrap();
    // The first leg is faster: the proxy is full, except for what is in flight to it.
    let under_way = 0.02 * 12e6 / 8.0;
    assert!(proxy.buffer_bytes.p50 > 262_144.0 - 2.0 * under_way && proxy.phases.starvation < 0.01, "{proxy:?}");
    near(proxy.phases.free + proxy.phases.starvation + proxy.phases.backpressure, 1.0, 1e-9);
}

#[test]
fn the_advertised_window_limits_what_the_proxy_holds() {
    for packets in [1, 2, 5, 20, 100] {
        let outcome = run(&format!("duration = \"20s\"\n{}[[flow]]\n", split(&format!("{packets}pkt"), "")));
        let proxy = outcome.proxy.as_ref().unwrap();
        assert!(proxy.buffer_bytes.max <= f64::from(packets) * 1500.0, "{packets}: {:?}", proxy.buffer_bytes);
        // What may be in flight to the proxy is its free buffer: B an RTT of the first leg.
        let most = f64::from(packets) * 1500.0 * 8.0 / 0.02;
        assert!(outcome.goodput_bps <= 1.1 * most.min(12e6), "{packets}: {}", outcome.goodput_bps);
        assert!(outcome.goodput_bps >= 0.4 * most.min(12e6), "{packets}: {} of {most}", outcome.goodput_bps);
    }
}

#[test]
fn a_fluid_proxy_holds_back_only_while_it_is_full() {
    let text = |more: &str| format!("duration = \"30s\"\n{}[[flow]]\n", split("20pkt", more));
    let (window, fluid) = (run(&text("")), run(&text("backpressure = \"fluid\"\n")));
    // The buffer is nearly always full: arriving data finds room, except for what the next leg does
    // not take during recovery.
    let held = fluid.proxy.unwrap().buffer_bytes;
    near(held.mean, 30_000.0, 0.05);
    assert!(held.p99 < 40_000.0, "{held:?}");
    assert!(fluid.goodput_bps >= 0.98 * window.goodput_bps, "{} {}", fluid.goodput_bps, window.goodput_bps);
    assert!(fluid.utilization > 0.9);
}

#[test]
fn a_full_fluid_proxy_receives_at_its_drain_rate() {
    // Five packets last for half of the time in which data of a sender that had stopped would
    // arrive again.
    let text = format!("duration = \"30s\"\n{}[[flow]]\n", split("5pkt", "backpressure = \"fluid\"\n"));
    let outcome = run(&text);
    let phases = outcome.proxy.as_ref().unwrap().phases;
    assert!(phases.starvation < 0.02 && phases.backpressure > 0.9, "{phases:?}");
    assert!(outcome.utilization > 0.95, "{}", outcome.utilization);
}

#[test]
fn when_room_is_free_decides_what_a_bounded_window_carries() {
    // Two legs without losses: a window of 10 packets per round trip of what frees the room.
    let text = |way: &str| {
        let links = "[[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"30ms\"\n";
        format!("duration = \"30s\"\n{links}[[split]]\nafter = 1\nbuffer = \"10pkt\"\nbackpressure = \"{way}\"\n[[flow]]\n")
    };
    let rate = |way: &str| run(&text(way)).goodput_bps / (10.0 * 1500.0 * 8.0);
    // Read at once: a round trip of the first leg. Acknowledged by the next leg: both round trips.
    near(rate("window-read") * 0.040, 1.0, 0.1);
    near(rate("window-acked") * 0.100, 1.0, 0.2);
}

#[test]
fn a_proxy_without_backpressure_drops_what_finds_it_full() {
    let text = |buffer: &str, way: &str| format!("duration = \"30s\"\n{}[[flow]]\n", split(buffer, &format!("backpressure = \"{way}\"\n")));
    let dropping = run(&text("20pkt", "drop"));
    // Without a limit there are the losses of slow start at the link's queue.
    let lost = |outcome: &Outcome| outcome.flows[0].legs[0].retransmits;
    let unlimited = run(&text("unlimited", "drop"));
    assert!(lost(&dropping) > lost(&unlimited) + 100, "{} and {}", lost(&dropping), lost(&unlimited));
    let read = run(&text("50pkt", "window-read"));
    assert!(read.proxy.unwrap().buffer_bytes.max > 100.0 * 1500.0, "what was read has a store without a limit");
}

#[test]
fn store_mode_forwards_complete_flows() {
    let outcome = run(&format!("{}[[flow]]\nbytes = \"3MB\"\n", split("unlimited", "mode = \"store\"\n")));
    let proxy = outcome.proxy.as_ref().unwrap();
    near(proxy.buffer_bytes.max, 3e6, 0.05);
    let second = 3e6 / 1448.0 * 0.001;
    assert!(outcome.flows[0].end_s.unwrap() > second + 3e6 * 8.0 / 100e6, "{:?}", outcome.flows[0].end_s);
}

#[test]
fn two_splits_make_a_chain() {
    let text = "[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"100ms\"\nloss = { per_packet = 0.002 }\n\
        [[link]]\nrate = \"50Mbit\"\ndelay = \"10ms\"\n[[split]]\nafter = 1\n[[split]]\nafter = 2\nbuffer = \"20pkt\"\n\
        [control]\nsender = \"reno\"\nproxy = [\"hybla\", \"cubic\"]\n[[flow]]\ncount = 3\nbytes = \"2MB\"\n[[flow]]\nbytes = \"500kB\"\nopens = \"receiver\"\n";
    let outcome = run(text);
    assert!(outcome.flows.iter().all(|flow| flow.end_s.is_some() && Some(flow.bytes) == flow.asked_bytes));
    let controls: Vec<&str> = outcome.flows[0].legs.iter().map(|leg| leg.control.as_str()).collect();
    assert_eq!(controls, ["reno", "hybla", "cubic"]);
    assert!(outcome.flows[0].legs[0].min_rtt_s < 0.02 && outcome.flows[0].legs[1].min_rtt_s > 0.2);
}

#[test]
fn splitting_helps_where_the_far_leg_loses() {
    let text = |split: &str, control: &str| {
        format!(
            "[control]\nsender = \"{control}\"\nproxy = \"{control}\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\n\
             [[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\nloss = {{ per_packet = 0.01 }}\n{split}[[flow]]\nbytes = \"5MB\"\n"
        )
    };
    for control in ["reno", "vegas", "westwood"] {
        let whole = run(&text("", control)).completion_s().unwrap();
        let parts = run(&text("[[split]]\nafter = 1\n", control)).completion_s().unwrap();
        assert!(parts < 0.6 * whole, "{control}: {parts} {whole}");
    }
}

#[test]
fn controllers_that_know_the_capacity_divide_it() {
    for (control, shaper) in [("share", false), ("share", true), ("xcp", false), ("xcp", true), ("mpcp", false), ("mpcp", true)] {
        let text = format!(
            "[control]\nsender = \"cubic\"\nproxy = \"{control}\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"2ms\"\n\
             [[link]]\nrate = \"20Mbit\"\ndelay = \"250ms\"\nloss = {{ per_packet = 0.005 }}\n\
             [[split]]\nafter = 1\nbuffer = \"4MB\"\nshaper = {shaper}\nduration_less = 0\n[[flow]]\ncount = 4\nbytes = \"8MB\"\nstart = {{ uniform = [\"0s\", \"1s\"] }}\n"
        );
        let text = text.replace("duration_less = 0\n", "");
        let outcome = run(&text);
        let floor = match control {
            "share" => 0.85,
            "xcp" => 0.6,
            _ => 0.4,
        };
        assert!(outcome.utilization > floor, "{control} {shaper}: {}", outcome.utilization);
        assert_eq!(outcome.proxy.unwrap().shaper.is_some(), shaper);
    }
}

#[test]
fn an_unsupported_proxy_is_refused_by_key() {
    assert_eq!(refused(&format!("{}[[flow]]\nbytes = \"1MB\"\n", split("20pkt", "mode = \"store\"\n"))), "split[1].buffer");
}

#[test]
fn a_rate_change_reaches_the_proxy() {
    let text = "duration = \"40s\"\n[control]\nsender = \"cubic\"\nproxy = \"share\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"2ms\"\n\
        [[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\nchanges = [ { at = \"10s\", rate = \"5Mbit\" }, { at = \"25s\", rate = \"20Mbit\" } ]\n\
        [[split]]\nafter = 1\n[[flow]]\ncount = 2\n";
    let (outcome, _) = play(text, 1, TcpSettings::default());
    assert!(outcome.utilization > 0.9 && outcome.queue_drops() < 50, "{} {}", outcome.utilization, outcome.queue_drops());
}
