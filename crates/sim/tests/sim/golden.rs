//! A table of results over many settings: a change of the simulator's results shows here as a
//! reviewed diff. Each cell is also checked for what must always hold.

use crate::common::run;
use control::Controller;
use outcome::Outcome;
use scenario::Explicit;
use std::{fmt::Write as _, thread};

/// Rate of the far leg, bit/s, and its payload rate.
const RATE: f64 = 20e6;
const MOST: f64 = RATE * 1448.0 / 1500.0;
/// Size of each of the two files, bytes. The second one starts 50 ms later.
const FILE: u64 = 3_000_000;

/// A path of two links: the first has a fifth of the RTT, the second has the losses.
#[derive(Clone, Copy)]
struct TwoLinkPath {
    rtt_ms: u32,
    loss: f64,
}

/// What is between the two links.
#[derive(Clone, Copy)]
enum PathMiddle {
    /// A router: nothing is split.
    Hop,
    /// A proxy with a buffer of this many bytes.
    Proxy(u64),
    /// A proxy with an unlimited buffer.
    Boundless,
}

impl TwoLinkPath {
    fn all() -> impl Iterator<Item = TwoLinkPath> {
        [10, 100, 600].into_iter().flat_map(|rtt_ms| [0.0, 0.001, 0.01].map(|loss| TwoLinkPath { rtt_ms, loss }))
    }

    /// The bandwidth-delay product, bytes.
    fn bdp(self) -> u64 {
        (RATE / 8e3) as u64 * u64::from(self.rtt_ms)
    }

    /// The columns of the table.
    fn middles(self) -> [PathMiddle; 4] {
        [PathMiddle::Hop, PathMiddle::Proxy(64_000), PathMiddle::Proxy(self.bdp()), PathMiddle::Boundless]
    }

    /// Transfers the files with this controller. Controllers that need a proxy have CUBIC at the
    /// sender, and no result without a proxy.
    fn play(self, control: &str, middle: PathMiddle) -> Option<Outcome> {
        let shares = Controller::named(control).is_some_and(Controller::needs_capacity);
        if shares && matches!(middle, PathMiddle::Hop) {
            return None;
        }
        // Controllers that need routers have them at both links, and DCTCP has queues that mark.
        let kind = match Explicit::named(control) {
            Some(explicit) => format!("{:?}", explicit.routers).to_lowercase(),
            None if control == "dctcp" => "ecn".into(),
            None => "droptail".into(),
        };
        let split = match middle {
            PathMiddle::Hop => String::new(),
            PathMiddle::Proxy(bytes) => format!("[[split]]\nafter = 1\nbuffer = \"{bytes}B\"\n"),
            PathMiddle::Boundless => "[[split]]\nafter = 1\nbuffer = \"unlimited\"\n".into(),
        };
        let (sender, rtt_us, loss) = (if shares { "cubic" } else { control }, 1000 * self.rtt_ms, self.loss);
        Some(run(&format!(
            "duration = \"1h\"\n[control]\nsender = \"{sender}\"\nproxy = \"{control}\"\n\
             [[link]]\nrate = \"100Mbit\"\ndelay = \"{}us\"\nqueue.kind = \"{kind}\"\n\
             [[link]]\nrate = \"20Mbit\"\ndelay = \"{}us\"\nqueue.kind = \"{kind}\"\nloss = {{ per_packet = {loss} }}\n\
             {split}[[flow]]\ncount = 2\nbytes = \"{FILE}B\"\nstart = {{ every = \"50ms\" }}\n",
            rtt_us / 10,
            rtt_us * 4 / 10,
        )))
    }

    /// Checks what holds for every controller. `whose` is the part of the row so far.
    fn check(self, outcome: &Outcome, middle: PathMiddle, whose: &str) {
        let done = outcome.completion_s().unwrap_or_else(|| panic!("{whose}: it never ended"));
        assert!(outcome.flows.iter().all(|flow| flow.bytes == FILE), "{whose}");
        // The handshake, half an RTT, and the transmission of the bytes.
        let least = 1.5e-3 * f64::from(self.rtt_ms) + 16.0 * FILE as f64 / MOST;
        assert!(done >= least && outcome.goodput_bps <= MOST, "{whose}: {} in {done}, at least {least}", outcome.goodput_bps);
        // Exactly the lost packets are retransmitted: packets are not reordered, and no
        // acknowledgement is lost.
        let lost: u64 = outcome.links.iter().map(|link| link.queue_drops + link.losses).sum();
        assert_eq!(outcome.retransmits(), lost, "{whose}");
        if let (PathMiddle::Proxy(bytes), Some(proxy)) = (middle, &outcome.proxy) {
            // The buffer is reported for both flows together.
            assert!(proxy.buffer_bytes.max <= 2.0 * bytes as f64, "{whose}: {:?}", proxy.buffer_bytes);
        }
    }

    /// The row of a controller.
    fn row(self, control: &str) -> String {
        let mut row = format!("{control:14} {:>7} {:>7}", self.rtt_ms, 100.0 * self.loss);
        for middle in self.middles() {
            let Some(outcome) = self.play(control, middle) else {
                let _ = write!(row, " | {:>22}", "-");
                continue;
            };
            self.check(&outcome, middle, &row);
            let done = outcome.completion_s().unwrap_or(f64::NAN);
            let _ = write!(row, " | {:>6.2} {done:>8.2} {:>6}", outcome.goodput_bps / 1e6, outcome.retransmits());
            if let Some(proxy) = &outcome.proxy {
                let _ = write!(row, " {:>9.0}", proxy.buffer_bytes.max / 1e3);
            }
        }
        row + "\n"
    }
}

#[test]
fn the_table_is_what_it_was() {
    let columns = "Mbit/s  done, s  again";
    let mut table = format!(
        "{:30} | {:22} | {:32} | {:32} | {}\n{:14} {:>7} {:>7} | {columns}{}\n",
        "",
        "end to end",
        "split, 64 kB",
        "split, BDP",
        "split, unlimited",
        "control",
        "RTT, ms",
        "loss, %",
        format!(" | {columns}  held, kB").repeat(3)
    );
    let controls: Vec<&str> = Controller::all().map(Controller::name).chain(Explicit::NAMES).collect();
    thread::scope(|scope| {
        let rows: Vec<_> =
            controls.iter().map(|control| scope.spawn(|| TwoLinkPath::all().map(|path| path.row(control)).collect::<String>())).collect();
        for row in rows {
            table += &row.join().expect("its assertions hold");
        }
    });
    insta::assert_snapshot!(table);
}
