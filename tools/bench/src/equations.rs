//! How fast the models are evaluated: events per second of processor time of one core. Unlike wall
//! time it does not count what a hypervisor takes away.

use anyhow::{Context as _, Result};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use theory::{Aimd, Can, LossBasis, LossRate, SizeDistribution, TandemModel};

/// Measures how fast the equations are evaluated: the split connection, the CAN model
#[derive(Debug, clap::Args)]
pub(crate) struct Equations {
    /// Rounds; each model is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Losses of the split connection, and jobs of the CAN model, in each measurement
    #[arg(long, default_value_t = 4_000_000)]
    events: u64,
    /// A Python interpreter with SimPy, for the baseline of the CAN model
    #[arg(long, value_name = "PYTHON")]
    simpy: Option<String>,
}

/// The only column.
const SPEED: &str = "million a second and core";

impl Equations {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs as u64;
        record.tables = vec![SampleTable::new("speed", "model", vec![SampleColumn::new(SPEED, "", 3)])];
        if self.simpy.is_none() {
            record.notes.push("SimPy is left out: no interpreter with it was named by --simpy.".into());
        }
        for round in 0..self.runs {
            let mut note = |about: String, speed: f64| {
                eprintln!("{about}: {speed:.2} million a second");
                record.tables[0].row(&about).add(SPEED, round, speed);
            };
            for (name, split) in splits()? {
                let begun = spent_s();
                split.estimate(1, self.events)?;
                note(format!("split connection, losses: {name}"), self.events as f64 / (spent_s() - begun) / 1e6);
            }
            let laws = [
                ("exponential", SizeDistribution::EXPONENTIAL),
                ("deterministic", SizeDistribution::DETERMINISTIC),
                ("Lomax-3", SizeDistribution::lomax(3.0)?),
            ];
            for (name, sizes) in laws {
                let run = Can::new(0.1, &[0.7, 0.7])?.simulation().with_sizes(&sizes).on_threads(1);
                let begun = spent_s();
                let found = run.run(1, self.events / 15)?;
                note(format!("CAN (0.1; 0.7, 0.7), events: {name} sizes"), found.means.order as f64 / (spent_s() - begun) / 1e6);
            }
            if let Some(python) = &self.simpy {
                note("CAN (0.1; 0.7, 0.7), events: a plain SimPy model".into(), simpy(python)?);
            }
        }
        Ok(())
    }
}

/// Settings of the paper's figures: a slow sender with a fast forwarder and the reverse, with each
/// kind of loss.
fn splits() -> Result<Vec<(&'static str, TandemModel)>> {
    let ri = |rtt_s: f64, losses: f64| Aimd::new(rtt_s, LossRate::PerSecond(losses));
    let rd = |rtt_s: f64, losses: f64| Aimd::new(rtt_s, LossRate::PerPacket(losses));
    Ok(vec![
        ("RI, 40 and 20 ms, no bound", TandemModel::new(ri(0.04, 0.4)?, ri(0.02, 0.4)?)),
        ("RI, 40 and 20 ms, B = 100", TandemModel::new(ri(0.04, 0.4)?, ri(0.02, 0.4)?).with_buffer(100.0)?),
        ("RI, 40 and 80 ms, B = 20", TandemModel::new(ri(0.04, 0.4)?, ri(0.08, 0.2)?).with_buffer(20.0)?),
        ("RD by the window, 40 and 20 ms, B = 100", TandemModel::new(rd(0.04, 1e-4)?, rd(0.02, 1e-4)?).with_buffer(100.0)?),
        (
            "RD by what is sent, 40 and 20 ms, B = 100",
            TandemModel::new(rd(0.04, 1e-4)?, rd(0.02, 1e-4)?).with_buffer(100.0)?.with_loss_basis(LossBasis::Sending),
        ),
        ("RD and RI, 40 and 80 ms, B = 20", TandemModel::new(rd(0.04, 1e-4)?, ri(0.08, 0.2)?).with_buffer(20.0)?),
    ])
}

/// Processor time of this thread, s.
fn spent_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Million events per second of processor time of a plain SimPy model, which prints its speed last.
fn simpy(python: &str) -> Result<f64> {
    let arguments = ["-c", include_str!("can.py"), "0.1", "0.7", "0.7", "--jobs", "5000"];
    let output = Command::new(python).args(arguments).output().with_context(|| format!("cannot run {python}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let speed =
        text.trim().strip_suffix(" a second").and_then(|text| text.rsplit(' ').next()).and_then(|number| number.parse::<f64>().ok());
    let speed = speed.with_context(|| format!("{python} with SimPy printed {text:?} {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(speed / 1e6)
}
