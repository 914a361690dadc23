//! A table of many settings: what a change of the simulator changes shows here, as a reviewed difference.

use crate::common::run;
use std::fmt::Write as _;

/// Two files of 3 MB over two links of 20 Mbit/s, the first with 10 ms of delay and the second with a round trip and losses, split between them
/// or not.
fn scenario(control: &str, rtt_ms: u32, loss: f64, buffer: Option<&str>) -> String {
    // Those that are told what to send have their routers at both links.
    let kind = control.strip_suffix("-e2e").unwrap_or("droptail");
    let split = buffer.map_or(String::new(), |buffer| format!("[[split]]\nafter = 1\nbuffer = \"{buffer}\"\n"));
    format!(
        "duration = \"600s\"\n[control]\nsender = \"{control}\"\nproxy = \"{control}\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\nqueue.kind = \"{kind}\"\n\
         [[link]]\nrate = \"20Mbit\"\ndelay = \"{}ms\"\nqueue.kind = \"{kind}\"\nloss = {{ per_packet = {loss} }}\n{split}[[flow]]\ncount = 2\nbytes = \"3MB\"\n",
        rtt_ms / 2
    )
}

#[test]
fn the_table_is_what_it_was() {
    let mut table = String::from("control   RTT, ms  loss, %  buffer   done, s  Mbit/s  again  held, kB\n");
    for control in ["reno", "cubic", "vegas", "hybla", "westwood", "xcp-e2e", "vcp-e2e", "mpcp-e2e"] {
        for (rtt, loss) in [(20, 0.0), (20, 0.01), (200, 0.0), (200, 0.01)] {
            for buffer in [None, Some("10pkt"), Some("auto")] {
                let outcome = run(&scenario(control, rtt, loss, buffer));
                let held = outcome.proxy.as_ref().map_or("-".into(), |proxy| format!("{:.0}", proxy.buffer_bytes.mean / 1e3));
                let (done, goodput) = (outcome.completion_s().unwrap_or(f64::NAN), outcome.goodput_bps / 1e6);
                let (again, buffer, loss) = (outcome.retransmits(), buffer.unwrap_or("-"), loss * 100.0);
                let _ = writeln!(table, "{control:8} {rtt:>8} {loss:>8} {buffer:>7} {done:>9.2} {goodput:>7.2} {again:>6} {held:>9}");
            }
        }
    }
    insta::assert_snapshot!(table);
}
