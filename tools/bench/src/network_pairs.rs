//! Compares a bond with the better of its networks alone. Pairs of networks are drawn at random;
//! one transfer runs over both, and over each alone, with the same losses.

use crate::workers::in_parallel;
use anyhow::{Context as _, Result};
use lab::Lab;
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use outcome::{Engine, Outcome, half_width};
use rand::RngExt as _;
use scenario::{Purpose, Scenario, ScenarioFile, stream};
use sim::Sim;
use std::fmt;

/// Compares a bond with the better of its networks alone, over random pairs of networks: rates of 1
/// to 50 Mbit/s and round trips of 5 to 700 ms, uniform on a logarithmic scale, without loss or
/// with up to 1 %
#[derive(Debug, clap::Args)]
pub(crate) struct NetworkPairs {
    /// Number of pairs
    #[arg(long, default_value_t = 30)]
    count: u64,
    /// Runs of each pair, each with other losses
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Engine that plays them
    #[arg(long, default_value = "lab")]
    on: PairEngine,
    /// Runs in parallel
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Seed of the pairs
    #[arg(long, default_value_t = 1)]
    draw: u64,
    /// The bond's scheduler
    #[arg(long, default_value = "score")]
    scheduler: String,
    /// Approximate duration of a transfer over the faster network
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PairEngine {
    /// The real kernel and the real bond
    Lab,
    /// Packets in virtual time
    Sim,
}

/// A random network.
#[derive(Debug, Clone, Copy)]
struct RandomNetwork {
    kbit: u64,
    rtt_ms: f64,
    loss: f64,
}

impl fmt::Display for RandomNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} Mbit/s, {:.0} ms, {:.2} %", self.kbit as f64 / 1e3, self.rtt_ms, self.loss * 100.0)
    }
}

/// Result of a pair: gain of the bond over the better network alone, %, for each seed.
#[derive(Debug)]
struct PairResult {
    networks: [RandomNetwork; 2],
    gains: Vec<f64>,
    /// Runs in which the machine was too slow.
    invalid: usize,
}

/// The column of both tables.
const GAIN: &str = "gain";

impl NetworkPairs {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.seeds;
        let pairs: Vec<[RandomNetwork; 2]> = (0..self.count).map(|pair| draw(self.draw, pair)).collect();
        let mut came = in_parallel(self.jobs, &pairs, |networks| {
            let pair = self.play(*networks).with_context(|| format!("{} and {}", networks[0], networks[1]))?;
            eprintln!("{pair}");
            Ok(pair)
        })?;
        // Pairs whose gain is least certain come first.
        came.sort_by(|one, other| one.least().total_cmp(&other.least()));
        let gain = SampleColumn::new(GAIN, "%", 1).signed();
        let mut pairs = SampleTable::new("pairs", "networks", vec![gain.clone().with(SampleStatistic::Mean)]);
        let mut all = SampleTable::new("all", "", vec![gain.with(SampleStatistic::Spread)]);
        for (at, pair) in came.iter().enumerate() {
            let [one, other] = &pair.networks;
            let row = pairs.row(&format!("{one}; {other}"));
            pair.gains.iter().enumerate().for_each(|(seed, gain)| row.add(GAIN, seed, *gain));
            all.row("means of the pairs").add(GAIN, at, pair.mean());
        }
        let invalid: usize = came.iter().map(|pair| pair.invalid).sum();
        if invalid > 0 {
            record.notes.push(format!("In {invalid} runs the machine was too slow."));
        }
        record.tables = vec![pairs, all];
        Ok(())
    }

    fn play(&self, mut networks: [RandomNetwork; 2]) -> Result<PairResult> {
        networks.sort_by_key(|network| std::cmp::Reverse(network.kbit));
        let bytes = (networks.iter().map(|network| network.kbit).max().unwrap_or(0) as f64 * 125.0 * self.seconds) as u64;
        let (mut gains, mut invalid) = (Vec::new(), 0);
        for seed in 1..=self.seeds {
            let mut time = |networks: &[RandomNetwork], scheduler: &str| -> Result<f64> {
                let scenario = scenario(networks, bytes, scheduler)?;
                // Repeat runs in which the machine was too slow.
                let mut outcome = self.once(&scenario, seed)?;
                for _ in 0..2 {
                    outcome = if outcome.valid { outcome } else { self.once(&scenario, seed)? };
                }
                invalid += usize::from(!outcome.valid);
                outcome.completion_s().with_context(|| format!("the transfer did not end: {:?}", outcome.warnings))
            };
            let bond = time(&networks, &self.scheduler)?;
            let alone = time(&networks[..1], "single")?;
            // The slower network need not be tried if its rate alone makes it take longer.
            let least = bytes as f64 * 8.0 / (networks[1].kbit as f64 * 1e3);
            let alone = if least < alone { alone.min(time(&networks[1..], "single")?) } else { alone };
            gains.push((alone / bond - 1.0) * 100.0);
        }
        Ok(PairResult { networks, gains, invalid })
    }

    fn once(&self, scenario: &Scenario, seed: u64) -> Result<Outcome> {
        Ok(match self.on {
            PairEngine::Lab => Lab::default().run(scenario, seed, &())?,
            PairEngine::Sim => Sim::default().run(scenario, seed, &())?,
        })
    }
}

impl PairResult {
    fn mean(&self) -> f64 {
        self.gains.iter().sum::<f64>() / self.gains.len() as f64
    }

    /// Lower end of the interval; the gain itself, of a single seed.
    fn least(&self) -> f64 {
        if self.gains.len() > 1 { self.mean() - half_width(&self.gains) } else { self.mean() }
    }
}

impl fmt::Display for PairResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.networks.map(|network| network.to_string());
        write!(f, "{one:28} | {other:28} | {:+6.1} ± {:.1} %", self.mean(), half_width(&self.gains))?;
        if self.invalid > 0 { write!(f, " ({} runs invalid)", self.invalid) } else { Ok(()) }
    }
}

fn draw(which: u64, pair: u64) -> [RandomNetwork; 2] {
    let mut random = stream(which, Purpose::Sizes, pair);
    let mut log = |least: f64, most: f64| least * (most / least).powf(random.random::<f64>());
    [0, 1].map(|_| {
        let (rate, rtt_ms, loss) = (log(1.0, 50.0), log(5.0, 700.0), log(0.0001, 0.01));
        // Half of the networks lose nothing.
        RandomNetwork { kbit: (rate * 1e3) as u64, rtt_ms, loss: if log(1.0, 4.0) < 2.0 { 0.0 } else { loss } }
    })
}

fn scenario(networks: &[RandomNetwork], bytes: u64, scheduler: &str) -> Result<Scenario> {
    let network = |network: &RandomNetwork| {
        let loss = if network.loss > 0.0 { format!("loss = {{ per_packet = {:.5} }}\n", network.loss) } else { String::new() };
        format!("[[network]]\nrate = \"{}kbit\"\ndelay = \"{:.2}ms\"\n{loss}", network.kbit, network.rtt_ms / 2.0)
    };
    let networks: String = networks.iter().map(network).collect();
    let text = format!("name = \"pair\"\n{networks}[[flow]]\nbytes = \"{bytes}B\"\n[bond]\nscheduler = {scheduler:?}\n");
    Ok(ScenarioFile::parse(&text, "pair")?.variants(&[])?.remove(0).scenario)
}
