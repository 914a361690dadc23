//! The simulator beside ns-2 (2.35, the Debian package `ns2`): goodput and congestion windows in
//! the same settings with the same losses, speed and memory.
//!
//! `setting` describes a setting for both simulators, `play` runs it, `play.tcl` is the script for
//! ns-2, `speed` compares their cost, `plot` draws.

mod play;
mod plot;
mod setting;
pub(crate) mod speed;

use anyhow::{Context as _, Result};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use outcome::Engine as _;
use setting::{Ns2Leg, Ns2Loss, Ns2Sender, Ns2Setting};
use sim::Sim;
use std::path::PathBuf;

/// Compares the simulator with ns-2: goodput, windows, speed, memory
#[derive(Debug, clap::Args)]
pub(crate) struct CompareWithNs2 {
    /// The ns-2 program
    #[arg(long, default_value = "ns", value_name = "PROGRAM")]
    ns: String,
    /// What to compare
    #[arg(long, value_delimiter = ',', default_value = "goodput,speed,memory,flows")]
    what: Vec<Ns2Comparison>,
    /// Only settings whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Seeds of each setting
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Rounds of measurements of speed
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Draws the plots into this directory
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Plays this setting in the simulator and does nothing else, so that the process can be
    /// measured
    #[arg(long, hide = true, value_name = "WHAT")]
    play: Option<String>,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Ns2Comparison {
    /// Goodput, and windows over time
    Goodput,
    /// Packets per second of processor time
    Speed,
    /// Memory over simulated time
    Memory,
    /// Processor time per packet, over the number of flows
    Flows,
}

/// Columns of the tables.
const TANDEM: &str = "tandem";
const NS2: &str = "ns-2";
const WITHIN: &str = "within 3 %";

impl CompareWithNs2 {
    /// The setting that this process shall play instead of comparing anything.
    pub(crate) fn play(&self) -> Option<&str> {
        self.play.as_deref()
    }

    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        if let Some(directory) = &self.plots {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        record.rounds = self.runs as u64;
        let version = play::version(&self.ns);
        let ns = version.is_ok().then_some(self.ns.as_str());
        record
            .notes
            .push(version.map_or_else(|why| format!("ns-2 is left out: {why:#}."), |version| format!("ns-2 is version {version}.")));
        for what in &self.what {
            record.tables.push(match what {
                Ns2Comparison::Goodput => self.goodput(ns)?,
                Ns2Comparison::Speed => speed::speed(ns, self.runs)?,
                Ns2Comparison::Memory => speed::memory(ns)?,
                Ns2Comparison::Flows => speed::flows(ns, self.runs, self.plots.as_deref())?,
            });
        }
        Ok(())
    }

    /// Compares goodput in each setting, and plots windows over time.
    fn goodput(&self, ns: Option<&str>) -> Result<SampleTable> {
        let rates = [TANDEM, NS2].map(|who| SampleColumn::new(who, "Mbit/s", 3).with(SampleStatistic::Mean));
        let ratio = SampleColumn::quotient("ratio", TANDEM, NS2, 4).with(SampleStatistic::Mean);
        let mut table = SampleTable::new("goodput", "setting", [&rates[..], &[ratio, SampleColumn::text(WITHIN)]].concat());
        let mut panels = Vec::new();
        for setting in settings().into_iter().filter(|setting| setting.name.contains(&self.only)) {
            if let Err(why) = Sim::default().can_answer(&setting.scenario()?) {
                table.row(setting.name).set(WITHIN, why.to_string());
                continue;
            }
            let mut ratios = Vec::new();
            for seed in 1..=self.seeds {
                let (here, row) = (play::here(&setting, seed)?.goodput_bps / 1e6, table.row(setting.name));
                row.add(TANDEM, seed as usize - 1, here);
                if let Some(ns) = ns {
                    let there = play::by_ns2(ns, &setting, seed)?.0.goodput_bps / 1e6;
                    eprintln!("{}, seed {seed}: {here:.4} and {there:.4} Mbit/s", setting.name);
                    row.add(NS2, seed as usize - 1, there);
                    ratios.push(here / there);
                }
            }
            if ratios.is_empty() {
                continue;
            }
            let is_within = (ratios.iter().sum::<f64>() / ratios.len() as f64 - 1.0).abs() <= 0.03;
            table.row(setting.name).set(WITHIN, setting.differs.unwrap_or(if is_within { "✓" } else { "✗" }));
            if let Some(ns) = ns.filter(|_| self.plots.is_some() && setting.differs.is_none()) {
                panels.push(windows(ns, setting)?);
            }
        }
        if let Some(directory) = self.plots.as_ref().filter(|_| !panels.is_empty()) {
            plot::write(&directory.join("ns2-cwnd.svg"), &plot::windows(&panels))?;
        }
        Ok(table)
    }
}

/// Windows over time of the first seed, in both simulators.
fn windows(ns: &str, setting: Ns2Setting) -> Result<plot::CwndPanel> {
    const SECONDS: u64 = 60;
    let setting = Ns2Setting { seconds: SECONDS, samples: 6 * SECONDS, ..setting };
    let (here, (there, _)) = (play::here(&setting, 1)?, play::by_ns2(ns, &setting, 1)?);
    Ok(plot::CwndPanel { title: setting.name.into(), end_s: SECONDS as f64, ours: here.cwnd, theirs: there.cwnd })
}

/// All settings.
fn settings() -> Vec<Ns2Setting> {
    use Ns2Loss::{Nothing, PerPacket, PerSecond};
    use Ns2Sender::{NewReno, Vegas, Xcp};
    // The BDP of 100 Mbit/s and 40 ms is 333 packets, and so is the queue.
    let one = |loses| vec![Ns2Leg::new(100, 20, 333, loses)];
    let narrow = |loses| vec![Ns2Leg::new(10, 20, 33, loses)];
    let two = |near_ms, far_ms, near, far| vec![Ns2Leg::new(100, near_ms, 333, near), Ns2Leg::new(100, far_ms, 333, far)];
    let sharing = |setting: Ns2Setting, flows, access_ms| Ns2Setting { flows, starts_ms: 1000, access_ms, ..setting };
    let held_back = |setting: Ns2Setting| Ns2Setting { delayed_acks: true, ..setting };
    vec![
        Ns2Setting::new("NewReno, RI 0.4/s", NewReno, 400, one(PerSecond(0.4))),
        Ns2Setting::new("NewReno, RI 2/s", NewReno, 1000, one(PerSecond(2.0))),
        Ns2Setting::new("NewReno, RD 0.0001", NewReno, 400, one(PerPacket(1e-4))),
        Ns2Setting::new("NewReno, RD 0.001", NewReno, 1000, one(PerPacket(1e-3))),
        Ns2Setting::new("NewReno, drop-tail", NewReno, 300, narrow(Nothing)),
        sharing(Ns2Setting::new("5 NewReno flows share a drop-tail queue, 40 to 80 ms", NewReno, 300, narrow(Nothing)), 5, 20),
        sharing(Ns2Setting::new("20 NewReno flows share 100 Mbit/s, 40 to 80 ms", NewReno, 100, one(Nothing)), 20, 20),
        Ns2Setting::new("Vegas, drop-tail", Vegas, 100, narrow(Nothing)),
        sharing(Ns2Setting::new("4 Vegas flows share a drop-tail queue", Vegas, 300, vec![Ns2Leg::new(10, 20, 66, Nothing)]), 4, 0),
        Ns2Setting::new("XCP", Xcp, 100, narrow(Nothing)),
        sharing(Ns2Setting::new("4 XCP flows share a link", Xcp, 100, vec![Ns2Leg::new(10, 20, 66, Nothing)]), 4, 0),
        Ns2Setting::new("split, RI 2/s on 40 and 20 ms", NewReno, 1000, two(20, 10, PerSecond(2.0), PerSecond(2.0))),
        Ns2Setting::new("split, RI 2/s on 20 and 40 ms", NewReno, 1000, two(10, 20, PerSecond(2.0), PerSecond(2.0))),
        Ns2Setting::new("split, RD 0.001 on 40 and 20 ms", NewReno, 1000, two(20, 10, PerPacket(1e-3), PerPacket(1e-3))),
        Ns2Setting::new("split, RD 0.001 on 20 and 40 ms", NewReno, 1000, two(10, 20, PerPacket(1e-3), PerPacket(1e-3))),
        Ns2Setting { ns2_growth: 2, ..held_back(Ns2Setting::new("NewReno, RD 0.001, delayed ACKs", NewReno, 1000, one(PerPacket(1e-3)))) },
        Ns2Setting {
            differs: Some("no: ns-2 counts acknowledgements, not acknowledged bytes"),
            ..held_back(Ns2Setting::new("the same, ns-2's growth as it comes", NewReno, 1000, one(PerPacket(1e-3))))
        },
    ]
}
