//! A table of many settings: what a change of the simulator changes shows here, as a reviewed difference. And what no change may break is asked of
//! every cell.

use crate::common::run;
use control::Controller;
use outcome::Outcome;
use scenario::Explicit;
use std::{fmt::Write as _, thread};

/// The far leg's rate, bits a second, and what it brings of payload.
const RATE: f64 = 20e6;
const MOST: f64 = RATE * 1448.0 / 1500.0;
/// What is sent: two files, the second of which starts a little later.
const FILE: u64 = 3_000_000;

/// A path of two links, the first with a fifth of the round trip and the second with the losses.
#[derive(Clone, Copy)]
struct Path {
    rtt_ms: u32,
    loss: f64,
}

/// What lies between the two links.
#[derive(Clone, Copy)]
enum Between {
    /// A hop: nothing is split.
    Hop,
    /// A proxy that holds so many bytes.
    Proxy(u64),
    /// One that holds whatever comes.
    Boundless,
}

impl Path {
    fn all() -> impl Iterator<Item = Path> {
        [10, 100, 600].into_iter().flat_map(|rtt_ms| [0.0, 0.001, 0.01].map(|loss| Path { rtt_ms, loss }))
    }

    /// What is under way on it, bytes.
    fn bdp(self) -> u64 {
        (RATE / 8e3) as u64 * u64::from(self.rtt_ms)
    }

    /// The columns of the table.
    fn betweens(self) -> [Between; 4] {
        [Between::Hop, Between::Proxy(64_000), Between::Proxy(self.bdp()), Between::Boundless]
    }

    /// What comes of the files under this controller; those that need a proxy have CUBIC before it, and no answer without one.
    fn play(self, control: &str, between: Between) -> Option<Outcome> {
        let shares = Controller::named(control).is_some_and(Controller::needs_capacity);
        if shares && matches!(between, Between::Hop) {
            return None;
        }
        // Those that are told what to send have their routers at both links, and so has the one that heeds marks.
        let kind = match Explicit::named(control) {
            Some(explicit) => format!("{:?}", explicit.routers).to_lowercase(),
            None if control == "dctcp" => "ecn".into(),
            None => "droptail".into(),
        };
        let split = match between {
            Between::Hop => String::new(),
            Between::Proxy(bytes) => format!("[[split]]\nafter = 1\nbuffer = \"{bytes}B\"\n"),
            Between::Boundless => "[[split]]\nafter = 1\nbuffer = \"unlimited\"\n".into(),
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

    /// What holds whatever a controller does. `whose` says what of the table there is already.
    fn check(self, outcome: &Outcome, between: Between, whose: &str) {
        let done = outcome.completion_s().unwrap_or_else(|| panic!("{whose}: it never ended"));
        assert!(outcome.flows.iter().all(|flow| flow.bytes == FILE), "{whose}");
        // The handshake and half of a round trip, and the bytes.
        let least = 1.5e-3 * f64::from(self.rtt_ms) + 16.0 * FILE as f64 / MOST;
        assert!(done >= least && outcome.goodput_bps <= MOST, "{whose}: {} in {done}, at least {least}", outcome.goodput_bps);
        // What is lost is sent again, and nothing else: no packet overtakes another here, and no acknowledgement is lost.
        let lost: u64 = outcome.links.iter().map(|link| link.queue_drops + link.losses).sum();
        assert_eq!(outcome.retransmits(), lost, "{whose}");
        if let (Between::Proxy(bytes), Some(proxy)) = (between, &outcome.proxy) {
            // What it holds is told of both flows together.
            assert!(proxy.buffer_bytes.max <= 2.0 * bytes as f64, "{whose}: {:?}", proxy.buffer_bytes);
        }
    }

    /// The row of a controller.
    fn row(self, control: &str) -> String {
        let mut row = format!("{control:14} {:>7} {:>7}", self.rtt_ms, 100.0 * self.loss);
        for between in self.betweens() {
            let Some(outcome) = self.play(control, between) else {
                let _ = write!(row, " | {:>22}", "-");
                continue;
            };
            self.check(&outcome, between, &row);
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
            controls.iter().map(|control| scope.spawn(|| Path::all().map(|path| path.row(control)).collect::<String>())).collect();
        for row in rows {
            table += &row.join().expect("its assertions hold");
        }
    });
    insta::assert_snapshot!(table);
}
