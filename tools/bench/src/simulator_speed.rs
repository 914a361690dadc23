//! How fast the simulator is: data packets that cross a link, a second, with different controllers
//! and links.

use anyhow::{Context as _, Result};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use outcome::Engine as _;
use scenario::{Scenario, ScenarioFile};
use sim::Sim;
use std::{
    fmt::Write as _,
    io::{BufRead, Cursor},
    sync::Arc,
    time::Instant,
};
use testbed::SplitMix64;

/// Measures how many packets cross a link in a second of the simulator's time on one processor
#[derive(Debug, clap::Args)]
pub(crate) struct SimulatorSpeed {
    /// Rounds, in each of which every setting is played once
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Simulated time of each run
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    seconds: f64,
}

/// The path: four flows through a proxy, or from end to end.
const PATH: &str = "[[link]]\nrate = \"500Mbit\"\ndelay = \"5ms\"\n[[link]]\nRATE\ndelay = \"30ms\"\n\
    [[split]]\nafter = 1\nbuffer = \"1MB\"\n[[flow]]\ncount = 4\n";
/// The rate of its second link: constant, or by a trace.
const CONSTANT: &str = "rate = \"100Mbit\"";
const TRACE: &str = "trace = { up = \"made\", down = \"made\" }";
/// The settings: a name, the second link's rate, and the changes that they make to the path.
const SETTINGS: [(&str, &str, &[&str]); 7] = [
    ("cubic, split", CONSTANT, &[]),
    ("cubic, end to end", CONSTANT, &["split=[]"]),
    ("bbr, split", CONSTANT, &["control.sender=bbr", "control.proxy=bbr"]),
    ("bbr3, split", CONSTANT, &["control.sender=bbr3", "control.proxy=bbr3"]),
    ("cubic, split, FQ-CoDel", CONSTANT, &["link.2.queue={ kind = \"fq_codel\" }"]),
    ("cubic, split, a trace", TRACE, &[]),
    ("bbr, split, a trace", TRACE, &["control.sender=bbr", "control.proxy=bbr"]),
];
const SPEED: &str = "data packets across a link";

impl SimulatorSpeed {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let column = SampleColumn::new(SPEED, "million a second", 2);
        let times = SampleColumn { head: "× of the first".into(), ..SampleColumn::times(SPEED, SETTINGS[0].0) };
        let mut table = SampleTable::new("speed", "setting", vec![column, times.with(SampleStatistic::Median)]);
        let scenarios = SETTINGS.map(|(name, rate, sets)| self.scenario(rate, sets).with_context(|| name.to_owned()));
        let scenarios: Vec<Scenario> = scenarios.into_iter().collect::<Result<_>>()?;
        for round in 0..self.runs as usize {
            for ((name, _, _), scenario) in SETTINGS.iter().zip(&scenarios) {
                let begun = Instant::now();
                let outcome = Sim::default().run(scenario, 1, &())?;
                let packets: u64 = outcome.links.iter().map(|link| link.packets).sum();
                table.row(name).add(SPEED, round, packets as f64 / begun.elapsed().as_secs_f64() / 1e6);
            }
        }
        record.tables = vec![table];
        Ok(())
    }

    fn scenario(&self, rate: &str, sets: &[&str]) -> Result<Scenario> {
        // Keys of the file stand before its tables.
        let text = format!("name = \"speed\"\nduration = \"{}s\"\n{}", self.seconds, PATH.replace("RATE", rate));
        let open = |_: &str| Ok(Box::new(Cursor::new(trace())) as Box<dyn BufRead>);
        let sets = sets.iter().map(|set| set.parse()).collect::<Result<Vec<_>, String>>().map_err(anyhow::Error::msg)?;
        Ok(ScenarioFile::parse_with(&text, "speed", Arc::new(open))?.variants(&sets)?.remove(0).scenario)
    }
}

/// A made trace of ten seconds, in mahimahi's format: each millisecond of it delivers up to 16
/// packets, 8 in the mean, which are 96 Mbit/s.
fn trace() -> String {
    let mut random = SplitMix64::new(1);
    let mut text = String::new();
    for ms in 1..=10_000 {
        for _ in 0..random.uniform(0, 16) {
            let _ = writeln!(text, "{ms}");
        }
    }
    text
}
