//! A setting of the comparison, in the words of both: a scenario for our simulator, and a list for the script that ns-2 plays.

use anyhow::Result;
use link::{Losses, Time};
use scenario::{Loss, PKT, Purpose, Scenario, ScenarioFile, stream};
use sim::{Recovery, Settings};
use std::fmt::Write as _;

/// Payload of a full segment, bytes, and the headers beside it: the same on both sides.
const MSS: u64 = 1448;
const HEADER: u64 = 52;

/// Under whose control the senders are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ns2Sender {
    NewReno,
    Vegas,
    Xcp,
}

/// Ns2Comparison a link loses, beside what its queue drops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ns2Loss {
    Nothing,
    /// RD.
    PerPacket(f64),
    /// RI.
    PerSecond(f64),
}

/// A link, with a connection of its own where there are several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ns2Leg {
    pub(super) mbit: u64,
    /// One way.
    pub(super) delay_ms: u64,
    pub(super) queue_pkt: u64,
    pub(super) loses: Ns2Loss,
}

/// A setting.
#[derive(Debug, Clone)]
pub(super) struct Ns2Setting {
    pub(super) name: &'static str,
    pub(super) sender: Ns2Sender,
    pub(super) seconds: u64,
    pub(super) legs: Vec<Ns2Leg>,
    pub(super) flows: u64,
    /// The most that a flow's start, and its extra delay one way, are drawn from.
    pub(super) starts_ms: u64,
    pub(super) access_ms: u64,
    pub(super) delayed_acks: bool,
    /// Segments that ns-2's window grows by in a round trip of acknowledgements for each segment.
    pub(super) ns2_growth: u64,
    /// Why they are not to agree, where they are not.
    pub(super) differs: Option<&'static str>,
    /// How many samples of the window over time there are to be.
    pub(super) samples: u64,
    /// ns-2's packets have only the headers that they need.
    pub(super) lean: bool,
}

impl Ns2Setting {
    /// One flow, which starts at once.
    pub(super) fn new(name: &'static str, sender: Ns2Sender, seconds: u64, legs: Vec<Ns2Leg>) -> Self {
        Ns2Setting {
            name,
            sender,
            seconds,
            legs,
            flows: 1,
            starts_ms: 0,
            access_ms: 0,
            delayed_acks: false,
            ns2_growth: 1,
            differs: None,
            samples: 0,
            lean: true,
        }
    }

    /// For our simulator.
    pub(super) fn scenario(&self) -> Result<Scenario> {
        let text = self.text();
        let mut variants = ScenarioFile::parse(&text, self.name)?.variants(&[])?;
        anyhow::ensure!(variants.len() == 1, "{}: one case, not {}", self.name, variants.len());
        Ok(variants.remove(0).scenario)
    }

    /// The scenario as a file has it.
    pub(super) fn text(&self) -> String {
        let control = match self.sender {
            Ns2Sender::NewReno => "reno",
            Ns2Sender::Vegas => "vegas",
            Ns2Sender::Xcp => "xcp-e2e",
        };
        let kind = if self.sender == Ns2Sender::Xcp { "xcp" } else { "droptail" };
        let mut text =
            format!("name = \"ns2\"\nduration = \"{}s\"\n[control]\nsender = \"{control}\"\nproxy = \"{control}\"\n", self.seconds);
        for leg in &self.legs {
            let _ = writeln!(
                text,
                "[[link]]\nrate = \"{}Mbit\"\ndelay = \"{}ms\"\nqueue = {{ limit = \"{}pkt\", kind = \"{kind}\" }}",
                leg.mbit, leg.delay_ms, leg.queue_pkt
            );
            let _ = match leg.loses {
                Ns2Loss::Nothing => Ok(()),
                Ns2Loss::PerPacket(p) => writeln!(text, "loss = {{ per_packet = {p} }}"),
                Ns2Loss::PerSecond(rate) => writeln!(text, "loss = {{ per_second = {rate} }}"),
            };
        }
        for after in 1..self.legs.len() {
            let _ = writeln!(text, "[[split]]\nafter = {after}\nbuffer = \"unlimited\"");
        }
        let _ = writeln!(text, "[[flow]]\ncount = {}", self.flows);
        for (key, most) in [("start", self.starts_ms), ("access_delay", self.access_ms)] {
            if most > 0 {
                let _ = writeln!(text, "{key} = {{ uniform = [\"0ms\", \"{most}ms\"] }}");
            }
        }
        text
    }

    /// Ns2Comparison TCP is like.
    pub(super) fn settings(&self) -> Settings {
        let looks = (self.samples as usize).max(2);
        Settings { recovery: Recovery::NewReno, delayed_acks: self.delayed_acks, mss: MSS as u32, looks, ..Settings::default() }
    }

    /// For ns-2's script, with the very losses that our simulator draws under this seed: their places in the packets that cross (RD), or
    /// their times (RI), which are the same as long as no silence of more than 0.1 s makes it draw anew.
    pub(super) fn list(&self, seed: u64) -> Result<String> {
        let scenario = self.scenario()?;
        let sender = match self.sender {
            Ns2Sender::NewReno => "newreno",
            Ns2Sender::Vegas => "vegas",
            Ns2Sender::Xcp => "xcp",
        };
        let (delack, window) = (u8::from(self.delayed_acks), self.settings().initial_window);
        let mut text = format!(
            "sender {sender}\nuntil {}\nmss {MSS}\nheader {HEADER}\nwindow {window}\ndelack {delack}\ngrowth {}\nlean {}\n",
            self.seconds,
            self.ns2_growth,
            u8::from(self.lean)
        );
        if self.samples > 0 {
            let _ = writeln!(text, "look {}", self.seconds as f64 / self.samples as f64);
        }
        for (index, leg) in self.legs.iter().enumerate() {
            let losses = leg.losses(self.seconds, seed, index as u64);
            let _ = writeln!(text, "leg {}e6 {} {} {{{losses}}}", leg.mbit, leg.delay_ms as f64 / 1e3, leg.queue_pkt);
        }
        for flow in scenario.flow_specs(seed) {
            let _ = writeln!(text, "flow {} {}", flow.start.secs(), flow.access_delay.secs());
        }
        Ok(text)
    }
}

impl Ns2Leg {
    pub(super) fn new(mbit: u64, delay_ms: u64, queue_pkt: u64, loses: Ns2Loss) -> Self {
        Ns2Leg { mbit, delay_ms, queue_pkt, loses }
    }

    /// Every loss on link `index` (from 0) within so many seconds, as the script wants it.
    fn losses(&self, seconds: u64, seed: u64, index: u64) -> String {
        let process = |loss| Losses::new(Some(loss), stream(seed, Purpose::Losses, index));
        match self.loses {
            Ns2Loss::Nothing => "none".into(),
            Ns2Loss::PerPacket(p) => {
                let mut process = process(Loss::PerPacket(p));
                // Acknowledged or not, the line carries no more.
                let most = self.mbit * 125_000 * seconds / PKT.0 + 1;
                let lost = (1..=most).filter(|_| process.drops(Time(0)));
                format!("packets {{{}}}", join(lost))
            }
            Ns2Loss::PerSecond(rate) => {
                const STEP_NS: u64 = 50_000;
                let mut process = process(Loss::PerSecond(rate));
                let hit = (0..seconds * 1_000_000_000 / STEP_NS).map(|step| step * STEP_NS).filter(|at| process.drops(Time(*at)));
                format!("times {{{}}}", join(hit.map(|at| at as f64 / 1e9)))
            }
        }
    }
}

fn join<T: ToString>(list: impl Iterator<Item = T>) -> String {
    list.map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}
