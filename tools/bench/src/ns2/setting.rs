//! A setting of the comparison, as a scenario for Tandem's simulator and as a list for the script
//! of ns-2.

use anyhow::Result;
use link::{LossProcess, Time};
use scenario::{Loss, Purpose, Scenario, ScenarioFile, stream};
use sim::{Recovery, TcpSettings};
use std::fmt::Write as _;
use units::PKT;

/// Payload and headers of a full segment, bytes, in both simulators.
const MSS: u64 = 1448;
const HEADER: u64 = 52;

/// The senders' congestion controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ns2Sender {
    NewReno,
    Vegas,
    Xcp,
}

/// Random losses of a link, in addition to drops of its queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ns2Loss {
    Nothing,
    /// Rate dependent.
    PerPacket(f64),
    /// Rate independent.
    PerSecond(f64),
}

/// A link. If there are several, each carries a connection of its own.
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
    /// Upper bounds of a flow's random start, and of its extra one-way delay.
    pub(super) starts_ms: u64,
    pub(super) access_ms: u64,
    pub(super) delayed_acks: bool,
    /// Segments by which ns-2's window grows per RTT if every segment is acknowledged.
    pub(super) ns2_growth: u64,
    /// Why the two simulators are expected to differ, if so.
    pub(super) differs: Option<&'static str>,
    /// Number of samples of the window over time.
    pub(super) samples: u64,
    /// ns-2's packets carry only the headers that are needed.
    pub(super) lean: bool,
}

impl Ns2Setting {
    /// A setting with one flow that starts at once.
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

    /// The scenario for Tandem's simulator.
    pub(super) fn scenario(&self) -> Result<Scenario> {
        let text = self.text();
        let mut variants = ScenarioFile::parse(&text, self.name)?.variants(&[])?;
        anyhow::ensure!(variants.len() == 1, "{}: one case, not {}", self.name, variants.len());
        Ok(variants.remove(0).scenario)
    }

    /// The text of the scenario file.
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

    /// Settings of TCP.
    pub(super) fn settings(&self) -> TcpSettings {
        let max_samples = (self.samples as usize).max(2);
        TcpSettings { recovery: Recovery::NewReno, delayed_acks: self.delayed_acks, mss: MSS as u32, max_samples, ..TcpSettings::default() }
    }

    /// The list for ns-2's script. It has the same losses that Tandem's simulator draws for this
    /// seed: the indices of lost packets (rate dependent), or the times of losses (rate
    /// independent). The times agree unless a pause of more than 0.1 s makes the simulator draw
    /// again.
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

    /// All losses on link `index` (from 0) within this time, as the script expects them.
    fn losses(&self, seconds: u64, seed: u64, index: u64) -> String {
        let process = |loss| LossProcess::new(Some(loss), stream(seed, Purpose::Losses, index));
        match self.loses {
            Ns2Loss::Nothing => "none".into(),
            Ns2Loss::PerPacket(p) => {
                let mut process = process(Loss::PerPacket(p));
                // The link carries no more packets than this.
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
