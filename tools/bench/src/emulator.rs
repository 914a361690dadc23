//! The lab's link emulator: what links deliver against what was asked, measured from outside, and
//! the processor time of a link of 1 Gbit/s with 500 ms of delay.

use anyhow::{Context as _, Result};
use lab::Lab;
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use outcome::Engine as _;
use scenario::{Loss, ScenarioFile};
use std::{fs, thread, time::Duration};
use units::{Rate, Span};

/// Measures the lab's link emulator: what links deliver against what was asked, and the processor
/// time of a fast, long link
#[derive(Debug, clap::Args)]
pub(crate) struct EmulatorCost {
    /// Rounds; each link is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// The fast, long link.
const SCENARIO: &str = include_str!("../../../scenarios/bench-gigabit.toml");
/// Rates and delay of the other links, and their loss.
const MBITS: [u64; 4] = [1, 10, 100, 1000];
const DELAY: Span = Span(20_000_000);
const LOSS: f64 = 0.01;
/// For how long losses are measured.
const LOSSES: Duration = Duration::from_secs(2);
/// When the emulator's processor time is read first, and for how long: the link is full then.
const WARM_UP: Duration = Duration::from_secs(3);
const WATCHED: Duration = Duration::from_secs(5);

impl EmulatorCost {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs as u64;
        let sum = |head| SampleColumn::new(head, "", 0).with(SampleStatistic::Sum);
        let delivered = vec![
            SampleColumn::new("rate delivered over asked", "%", 3).signed(),
            SampleColumn::new("delay over 20 ms", "ms", 3).signed(),
            SampleColumn::new("jitter p99", "ms", 3),
            SampleColumn::new("lost of 1 %", "%", 2),
            sum("packets lost by the machine"),
        ];
        let gigabit = vec![
            SampleColumn::new("carried", "Mbit/s", 1),
            SampleColumn::new("late p99", "µs", 0),
            SampleColumn::new("emulator's share of one core", "%", 0),
            sum("dropped by the link's queue"),
            sum("valid runs"),
        ];
        record.tables = vec![SampleTable::new("delivered", "rate asked", delivered), SampleTable::new("gigabit", "", gigabit)];
        for round in 0..self.runs {
            for mbit in MBITS {
                let rate = Rate(mbit * 1_000_000);
                let found = lab::calibrate(rate, DELAY, Some(Loss::PerPacket(LOSS)), 1, LOSSES)?;
                eprintln!("round {}, {mbit} Mbit/s: {:.0} bit/s", round + 1, found.delivered_rate_bps);
                let row = record.tables[0].row(&format!("{mbit} Mbit/s"));
                row.add("rate delivered over asked", round, (found.delivered_rate_bps / rate.bits_per_s() as f64 - 1.0) * 100.0);
                row.add("delay over 20 ms", round, (found.delivered_delay_s - DELAY.secs()) * 1e3);
                row.add("jitter p99", round, found.jitter_p99_s * 1e3);
                row.add("lost of 1 %", round, found.lost as f64 / found.sent.max(1) as f64 * 100.0);
                row.add("packets lost by the machine", round, found.refused as f64);
            }
            let row = record.tables[1].row("1 Gbit/s, 500 ms");
            let (outcome, share) = gigabit_run()?;
            let link = outcome.links.first().context("the outcome has no link")?;
            eprintln!("round {}, 1 Gbit/s and 500 ms: {share:.0} % of a core", round + 1);
            row.add("carried", round, outcome.utilization * 1000.0);
            row.add("late p99", round, link.late_p99_s * 1e6);
            row.add("emulator's share of one core", round, share);
            row.add("dropped by the link's queue", round, link.queue_drops as f64);
            row.add("valid runs", round, f64::from(u8::from(outcome.valid)));
        }
        Ok(())
    }
}

/// Plays the scenario. Also returns the share of a core that the emulator's thread used, %.
fn gigabit_run() -> Result<(outcome::Outcome, f64)> {
    let scenario = ScenarioFile::parse(SCENARIO, "scenarios/bench-gigabit.toml")?.variants(&[])?.remove(0).scenario;
    thread::scope(|scope| {
        let run = scope.spawn(|| Lab::default().run(&scenario, 1, &()));
        thread::sleep(WARM_UP);
        let before = emulator_ticks()?;
        thread::sleep(WATCHED);
        let ticks = emulator_ticks()? - before;
        let outcome = run.join().expect("no run panics")?;
        Ok((outcome, ticks as f64 * 100.0 / (rustix::param::clock_ticks_per_second() as f64 * WATCHED.as_secs_f64())))
    })
}

/// Processor time of the emulator's thread, in clock ticks.
fn emulator_ticks() -> Result<u64> {
    for task in fs::read_dir("/proc/self/task")? {
        // utime and stime are the 14th and 15th field (proc(5)). A thread may have ended.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.split_once("(emulator) ") else { continue };
        return Ok(rest.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum());
    }
    anyhow::bail!("the emulator's thread has ended: the run failed, or its warm-up is too long")
}
