//! The proxy beside plain forwarding and other proxies.

use crate::{
    load,
    results::{ComparisonResults, ComparisonTest},
    rival::Rival,
};
use anyhow::{Context as _, Result, bail};
use std::{path::PathBuf, time::Duration};
use testbed::ThreeHosts;

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
    /// Writes every figure into this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn measure(arguments: &ProxyComparison) -> Result<()> {
    let mut results = ComparisonResults::default();
    let outcome = rounds(arguments, &mut results);
    // Print what was measured even if a later measurement failed.
    print!("{results}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&results.json())?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    outcome
}

fn rounds(arguments: &ProxyComparison, results: &mut ComparisonResults) -> Result<()> {
    let tandem = testbed::resolve_program(&arguments.tandem);
    let rivals = Rival::all(&tandem, &arguments.tandem_flags);
    let is_rival = |name: &&String| rivals.iter().any(|rival| rival.name() == **name);
    if let Some(name) = arguments.rivals.iter().flatten().find(|name| !is_rival(name)) {
        let names: Vec<&str> = rivals.iter().map(Rival::name).collect();
        bail!("cannot measure {name:?}: there is no rival of that name here; the rivals are {}", names.join(", "));
    }
    let network = ThreeHosts::new(&arguments.control)?;
    let servers = load::LoadServers::start(&network)?;
    let wanted = |rival: &Rival| arguments.rivals.as_ref().is_none_or(|names| names.iter().any(|name| rival.name() == *name));
    let length = Duration::from_secs_f64(arguments.seconds);
    // Memory first: what short connections leave in the kernel (TIME_WAIT) remains for a minute.
    let (memory, speed): (Vec<ComparisonTest>, Vec<ComparisonTest>) =
        arguments.tests.iter().copied().partition(|test| *test == ComparisonTest::Idle);
    for tests in [memory, speed] {
        for round in 0..if tests.is_empty() { 0 } else { arguments.runs } {
            for rival in rivals.iter().filter(|rival| wanted(rival)) {
                if rival.is_spared() && tests.contains(&ComparisonTest::Idle) {
                    continue;
                }
                let running = rival.start(&network).with_context(|| format!("cannot start {}", rival.name()))?;
                for &test in &tests {
                    let measure = || match test {
                        ComparisonTest::Bulk1 => load::bulk(&network, &running, &servers, 1, length),
                        ComparisonTest::Bulk8 => load::bulk(&network, &running, &servers, 8, length),
                        ComparisonTest::Short => load::short(&network, &running, &servers, 64, length),
                        ComparisonTest::Exchange => load::exchange(&network, &running, &servers, 20_000),
                        ComparisonTest::Idle => load::idle(&network, &running, &servers, 6_000),
                    };
                    let mut measures;
                    let mut tries = 0;
                    loop {
                        measures = measure().with_context(|| format!("{}: {test:?}", rival.name()))?;
                        eprintln!("round {}, {:22} {test:?}: {measures}", round + 1, rival.name());
                        tries += 1;
                        if measures.is_valid() || tries >= arguments.tries {
                            break;
                        }
                    }
                    results.add(round, test, rival.name(), &measures);
                }
            }
        }
    }
    Ok(())
}
