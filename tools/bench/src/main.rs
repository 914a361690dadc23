//! Measures the proxy against plain forwarding and against other proxies: the same hosts, the same ends, the same congestion
//! control on every leg, turn by turn, and prints the tables of `docs/benchmarks.md`.
//!
//! `tandem-bench control` measures what congestion controllers cost (`control`), `tandem-bench equations` how fast models are answered, and
//! `tandem-bench ns2` holds the simulator against ns-2 (`ns2`), `tandem-bench pairs` a bond against the better of its networks (`pairs`), and
//! `tandem-bench bond` what a bond costs (`bonded`), `tandem-bench paths` tries the data path over rates, round trips and buffers (`paths`);
//! `tandem-bench faults` makes system calls of the proxy and of a bond fail (`faults`).
//! `tandem-bench soak` is something else: a long run in which everything goes wrong now and then (`soak`). `tandem-bench corpus` makes traces of
//! which is known whether they are split, and `tandem-bench corpus-check` holds the detector to them (`corpus`); `tandem-bench large-trace`
//! measures how fast it is (`large`). `operators`, `image`, `characteristics` and `termination` do again what Wei et al. measured (`corpus`).
//!
//! `network` makes the three hosts, `rival` starts what stands in the middle, `load` is the ends, `machine` counts the
//! processors' time.

mod bare;
mod bonded;
mod control;
mod corpus;
mod equations;
mod faults;
mod large;
mod load;
mod machine;
mod network;
mod ns2;
mod pairs;
mod paths;
mod rival;
mod soak;
mod table;

use anyhow::{Context as _, Result};
use clap::Parser;
use network::Network;
use rival::Rival;
use std::{path::PathBuf, process::ExitCode, time::Duration};
use table::Results;

/// Measures the proxy against plain forwarding and against other proxies.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(hide = true)]
    Bare(bare::Bare),
    Bond(bonded::Bonded),
    #[command(hide = true)]
    Copy(bonded::Copying),
    Characteristics(corpus::Characteristics),
    Control(control::Control),
    Corpus(corpus::Corpus),
    CorpusCheck(corpus::Check),
    Equations(equations::Equations),
    Faults(faults::Faults),
    Image(corpus::Image),
    LargeTrace(large::LargeTrace),
    Ns2(ns2::Ns2),
    Operators(corpus::Operators),
    Pairs(pairs::Pairs),
    Paths(paths::Paths),
    Soak(soak::Soak),
    Termination(corpus::Termination),
}

#[derive(Debug, clap::Args)]
struct Bench {
    /// Rounds; each rival has its turn in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// What to measure: bulk1, bulk8, short, exchange, idle
    #[arg(long, value_delimiter = ',', default_value = "bulk1,bulk8,short,exchange,idle")]
    tests: Vec<Test>,
    /// Whom to measure; absent: all
    #[arg(long, value_delimiter = ',')]
    rivals: Option<Vec<String>>,
    /// Length of a measurement that has one
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// How often a measurement is tried that somebody else's work on the machine disturbs
    #[arg(long, default_value_t = 5)]
    tries: usize,
    /// Congestion control of every leg: one that any network namespace may take (reno), or the machine's own default
    #[arg(long, default_value = "reno")]
    control: String,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// B of tandem, and its other flags
    #[arg(long, default_value = "", value_name = "FLAGS")]
    tandem_flags: String,
    /// Writes every single figure here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Test {
    /// One flow, as fast as it goes
    Bulk1,
    /// Eight flows
    Bulk8,
    /// Short connections, 64 at a time
    Short,
    /// One exchange after the other on one connection
    Exchange,
    /// Memory of idle connections
    Idle,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Bare(bare)) => bare.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Bond(bonded)) => bonded.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Copy(copying)) => copying.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Characteristics(characteristics)) => characteristics.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Control(control)) => control.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Corpus(corpus)) => corpus.run().map(|()| ExitCode::SUCCESS),
        Some(Command::CorpusCheck(check)) => check.run(),
        Some(Command::Equations(equations)) => equations.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Faults(faults)) => faults.run(),
        Some(Command::Image(image)) => image.run().map(|()| ExitCode::SUCCESS),
        Some(Command::LargeTrace(large)) => large.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Ns2(ns2)) => ns2.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Operators(operators)) => operators.run(),
        Some(Command::Pairs(pairs)) => pairs.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Paths(paths)) => paths.run(),
        Some(Command::Soak(soak)) => soak.run(),
        Some(Command::Termination(termination)) => termination.run().map(|()| ExitCode::SUCCESS),
        None => measure(&arguments.bench).map(|()| ExitCode::SUCCESS),
    }
}

fn measure(arguments: &Bench) -> Result<()> {
    let mut results = Results::default();
    let outcome = rounds(arguments, &mut results);
    // What was measured before something failed is not lost.
    print!("{results}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&results.json())?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    outcome
}

fn rounds(arguments: &Bench, results: &mut Results) -> Result<()> {
    let network = Network::new(&arguments.control)?;
    let servers = load::Servers::start(&network)?;
    // A name without a directory is looked for in PATH.
    let tandem = std::fs::canonicalize(&arguments.tandem).unwrap_or_else(|_| arguments.tandem.clone());
    let rivals = Rival::all(&tandem, &arguments.tandem_flags);
    let wanted = |rival: &Rival| arguments.rivals.as_ref().is_none_or(|names| names.iter().any(|name| rival.name() == *name));
    let length = Duration::from_secs_f64(arguments.seconds);
    // Memory first: what short connections leave behind in the kernel (TIME_WAIT) goes only after a minute.
    let (memory, speed): (Vec<Test>, Vec<Test>) = arguments.tests.iter().copied().partition(|test| *test == Test::Idle);
    for tests in [memory, speed] {
        for round in 0..if tests.is_empty() { 0 } else { arguments.runs } {
            for rival in rivals.iter().filter(|rival| wanted(rival)) {
                if rival.is_spared() && tests.contains(&Test::Idle) {
                    continue;
                }
                let running = rival.start(&network).with_context(|| format!("cannot start {}", rival.name()))?;
                for &test in &tests {
                    let measure = || match test {
                        Test::Bulk1 => load::bulk(&network, &running, &servers, 1, length),
                        Test::Bulk8 => load::bulk(&network, &running, &servers, 8, length),
                        Test::Short => load::short(&network, &running, &servers, 64, length),
                        Test::Exchange => load::exchange(&network, &running, &servers, 20_000),
                        Test::Idle => load::idle(&network, &running, &servers, 6_000),
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
