//! The proxy beside plain forwarding and other proxies.

use crate::{
    load::{self, LoadServers},
    measurement::{BenchMetric, Measurement, note_given_up, undisturbed},
    other_program,
    rival::{Rival, RunningRival},
};
use anyhow::{Context as _, Result, bail};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};
use testbed::ThreeHosts;

/// Measures the proxy beside plain forwarding and other proxies
#[derive(Debug, clap::Args)]
pub(crate) struct ProxyComparison {
    /// Rounds; each rival is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// What to measure: bulk1, bulk8, short, exchange, idle
    #[arg(long, value_delimiter = ',', default_value = "bulk1,bulk8,short,exchange,idle")]
    tests: Vec<ComparisonTest>,
    /// Which rivals to measure; absent: all
    #[arg(long, value_delimiter = ',')]
    rivals: Option<Vec<String>>,
    /// Duration of a measurement, where it has one
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// How often a measurement is repeated if other programs disturb it
    #[arg(long, default_value_t = 5)]
    tries: usize,
    /// Congestion controller of every leg: one that every network namespace may use (reno), or the
    /// machine's default
    #[arg(long, default_value = "reno")]
    control: String,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Further flags of `tandem proxy`, such as its buffer
    #[arg(long, default_value = "", value_name = "FLAGS")]
    tandem_flags: String,
}

/// A kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum ComparisonTest {
    /// One flow at full speed
    Bulk1,
    /// Eight flows
    Bulk8,
    /// Short connections, 64 in parallel
    Short,
    /// Exchanges in turn on one connection
    Exchange,
    /// Memory of idle connections
    Idle,
}

/// The rival to which ratios are computed.
const BASELINE: &str = "haproxy-1";

impl ComparisonTest {
    /// Name of its table.
    fn name(self) -> &'static str {
        match self {
            ComparisonTest::Bulk1 => "bulk1",
            ComparisonTest::Bulk8 => "bulk8",
            ComparisonTest::Short => "short",
            ComparisonTest::Exchange => "exchange",
            ComparisonTest::Idle => "idle",
        }
    }

    /// Its table, without rows.
    fn table(self) -> SampleTable {
        use BenchMetric::{
            Connections, CpuPerConnection, CpuPerGigabyte, ExchangeP50, ExchangeP99, MemoryPerIdle, ProxyCpuPerConnection,
            ProxyCpuPerGigabyte, Throughput,
        };
        let metrics: &[BenchMetric] = match self {
            ComparisonTest::Bulk1 | ComparisonTest::Bulk8 => &[CpuPerGigabyte, ProxyCpuPerGigabyte, Throughput],
            ComparisonTest::Short => &[Connections, CpuPerConnection, ProxyCpuPerConnection],
            ComparisonTest::Exchange => &[ExchangeP50, ExchangeP99],
            ComparisonTest::Idle => &[MemoryPerIdle],
        };
        let columns = metrics.iter().map(|metric| metric.column());
        let columns = columns.flat_map(|column| [column.clone(), SampleColumn::times(&column.head, BASELINE)]);
        SampleTable::new(self.name(), "", columns.collect())
    }
}

impl ProxyComparison {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs as u64;
        record.tables = self.tests.iter().map(|test| test.table()).collect();
        let rivals = self.rivals(record)?;
        let network = ThreeHosts::new(&self.control)?;
        let servers = load::LoadServers::start(&network)?;
        // Memory first: short connections leave state in the kernel for a minute (TIME_WAIT).
        let (memory, speed): (Vec<ComparisonTest>, Vec<ComparisonTest>) =
            self.tests.iter().copied().partition(|test| *test == ComparisonTest::Idle);
        let mut given_up = 0;
        for tests in [memory, speed] {
            for round in 0..if tests.is_empty() { 0 } else { self.runs } {
                for rival in &rivals {
                    if rival.is_spared() && tests.contains(&ComparisonTest::Idle) {
                        continue;
                    }
                    let running = rival.start(&network).with_context(|| format!("cannot start {}", rival.name()))?;
                    for &test in &tests {
                        let measures = undisturbed(self.tries, || {
                            let measures = self.one(test, &network, &running, &servers)?;
                            eprintln!("round {}, {:22} {test:?}: {measures}", round + 1, rival.name());
                            Ok((measures.clone(), measures))
                        });
                        let measures = match measures {
                            Ok(measures) => measures,
                            Err(why) => {
                                // The rest of this round may suffer from the same: the rival starts
                                // anew in the next one.
                                let what = format!("round {}, {}, {}: {why:#}", round + 1, rival.name(), test.name());
                                eprintln!("{what}");
                                record.notes.push(format!("Failed in {what}."));
                                break;
                            }
                        };
                        given_up += usize::from(measures.is_none());
                        let of_test = |table: &&mut SampleTable| table.name == test.name();
                        let row = record.tables.iter_mut().find(of_test).expect("each test has a table").row(rival.name());
                        // Plain forwarding has no processes.
                        let is_there = |metric: BenchMetric| !metric.is_of_proxy() || !running.processes().is_empty();
                        for &(metric, figure) in measures.iter().flat_map(Measurement::figures).filter(|(metric, _)| is_there(*metric)) {
                            row.add(&metric.column().head, round, figure);
                        }
                    }
                }
            }
        }
        note_given_up(record, given_up);
        Ok(())
    }

    /// The rivals to measure. Those whose program this machine lacks are left out with a note.
    fn rivals(&self, record: &mut MeasurementRecord) -> Result<Vec<Rival>> {
        let mut rivals = Rival::all(&testbed::resolve_program(&self.tandem), &self.tandem_flags);
        if let Some(names) = &self.rivals {
            if let Some(name) = names.iter().find(|name| !rivals.iter().any(|rival| rival.name() == **name)) {
                let names: Vec<&str> = rivals.iter().map(Rival::name).collect();
                bail!("cannot measure {name:?}: there is no rival of that name here; the rivals are {}", names.join(", "));
            }
            rivals.retain(|rival| names.iter().any(|name| rival.name() == *name));
        }
        let mut versions: BTreeMap<String, Result<String>> = BTreeMap::new();
        for (program, flag) in rivals.iter().filter_map(Rival::program) {
            versions.entry(program.into()).or_insert_with(|| other_program::version(Path::new(program), &[flag]));
        }
        rivals.retain(|rival| rival.program().is_none_or(|(program, _)| versions[program].is_ok()));
        record.notes.extend(versions.into_iter().map(|(program, version)| match version {
            Ok(version) => format!("{version}."),
            Err(why) => format!("{program} is left out: {why:#}."),
        }));
        Ok(rivals)
    }

    fn one(&self, test: ComparisonTest, network: &ThreeHosts, running: &RunningRival, servers: &LoadServers) -> Result<Measurement> {
        let length = Duration::from_secs_f64(self.seconds);
        match test {
            ComparisonTest::Bulk1 => load::bulk(network, running, servers, 1, length),
            ComparisonTest::Bulk8 => load::bulk(network, running, servers, 8, length),
            ComparisonTest::Short => load::short(network, running, servers, 64, length),
            ComparisonTest::Exchange => load::exchange(network, running, servers, 20_000),
            ComparisonTest::Idle => load::idle(network, running, servers, 6_000),
        }
    }
}
