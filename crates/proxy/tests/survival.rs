//! Many parallel transfers over loopback: whatever their endpoints do, a clean end means delivered.
//! The laws and the transfers are in `common/transfers.rs`. The lab's tests run the same over links
//! that lose packets.
//!
//! `TANDEM_TRANSFERS=10000 cargo test -p tandem-proxy --test survival -- --nocapture` runs more of
//! them.

mod common;
#[path = "common/transfers.rs"]
mod transfers;

use common::{ForwardBench, wait_until};
use std::net::TcpStream;
use transfers::{Slot, Summary, asked, run};
use units::Bytes;

/// Transfers at a time.
const SLOTS: usize = 32;

#[test]
fn a_clean_end_means_delivered() {
    let count = asked(2000);
    let mut summary = Summary::default();
    let buffers = [Some(Bytes(64 << 10)), Some(Bytes(256 << 10)), Some(Bytes(1 << 20)), None];
    for (turn, buffer) in (0..).zip(buffers) {
        let benches: Vec<ForwardBench> = (0..SLOTS).map(|_| ForwardBench::new(buffer)).collect();
        let slot = |bench: &ForwardBench| {
            let at = bench.at;
            Slot { connect: Box::new(move || TcpStream::connect(at)), listener: bench.server.try_clone().unwrap() }
        };
        let part = run(count * turn / 4..count * (turn + 1) / 4, benches.iter().map(slot).collect(), false);
        eprintln!("B = {buffer:?}: {part}");
        // A flow ends when both endpoints have gone.
        wait_until(|| benches.iter().all(|bench| bench.proxy.flows().is_empty()));
        summary = summary.and(part);
    }
    eprintln!("{summary}");
    summary.assert_lawful();
}
