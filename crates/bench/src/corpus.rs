//! The detector's labelled corpus: traces of both ends of connections, taken in the lab, of which is known whether they are split and how. And how
//! the detector does on them.
//!
//! `plan` says which runs there are, `stage` makes the network of one, `middle` what stands in its middle, `ends` what is said; `traces` changes what
//! was taken; `check` holds the detector to the labels.
//!
//! Over the same stages what Wei et al. measured is measured again: `operators` (Table I), `image` (§IV-B), `characteristics` (Figure 3), `termination` (§III-D).

mod characteristics;
mod check;
mod ends;
mod image;
mod middle;
mod operators;
mod plan;
mod stage;
mod termination;
mod traces;

pub(crate) use characteristics::Characteristics;
pub(crate) use check::Check;
pub(crate) use image::Image;
pub(crate) use operators::Operators;
pub(crate) use termination::Termination;

use crate::soak::Dice;
use anyhow::{Context as _, Result, ensure};
use middle::{Middle, Truth};
use plan::{Condition, LATE, Path as Line, Run, Way};
use serde::{Deserialize, Serialize};
use stage::Stage;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use traces::{CHANGES, Change};

/// Makes traces, in the lab, of connections of which is known whether they are split: two traces and a label each. What is in the directory
/// already stays; what this machine has no program for is left out and named
#[derive(Debug, clap::Args)]
pub(crate) struct Corpus {
    /// Where they go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A few of everything, for a test
    #[arg(long)]
    small: bool,
    /// The first so many runs alone; each makes two pairs of traces
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Only runs whose middle's name begins so; more than once: with either
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// What chance begins with
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How often a run is tried that a busy machine, or the middle, lets fail.
const TRIES: usize = 3;

/// What is known of a pair of traces.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Label {
    /// `end-to-end`, `split-tcp` or `tcp-proxy`.
    expected: String,
    middle: String,
    way: Way,
    condition: Condition,
    change: Change,
    run: usize,
    seed: u64,
    /// The client's port, at its own end: which of the traces' connections is meant.
    client_port: u16,
    /// Both traces' times are of one clock.
    one_clock: bool,
    /// How long the receiver held each ACK, s.
    ack_delay_s: Option<f64>,
    path: Line,
}

/// The files of a pair.
fn files(directory: &Path, name: &str) -> [PathBuf; 3] {
    ["sender.pcap", "receiver.pcap", "json"].map(|end| directory.join(format!("{name}.{end}")))
}

impl Corpus {
    pub(crate) fn run(&self) -> Result<()> {
        // A name without a directory is looked for in PATH.
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make the directory {}", self.out.display()))?;
        let mut runs = if self.small { plan::small(self.seed) } else { plan::all(self.seed) };
        runs.retain(|run| self.only.is_empty() || self.only.iter().any(|name| run.middle.name().starts_with(name)));
        runs.truncate(self.runs.unwrap_or(usize::MAX));
        let (mut lacks, begun, count): (BTreeMap<Middle, bool>, _, _) = (BTreeMap::new(), Instant::now(), runs.len());
        let mut made = 0;
        for (index, run) in runs.iter().enumerate() {
            // Said once of each.
            let lacking = lacks.entry(run.middle).or_insert_with(|| {
                let why = run.middle.lacks(&tandem);
                why.iter().for_each(|why| eprintln!("without {}: {why}", run.middle.name()));
                why.is_some()
            });
            if *lacking {
                continue;
            }
            let last = files(&self.out, &pair_name(run, change_of(run)));
            if last[2].exists() {
                continue;
            }
            self.make(run, &tandem).with_context(|| format!("run {}", run.name()))?;
            made += 1;
            eprintln!("{:3} of {count}, {:5.0} s: {}", index + 1, begun.elapsed().as_secs_f64(), run.name());
        }
        println!("{made} runs, {} pairs of traces in {}", 2 * made, self.out.display());
        Ok(())
    }

    /// Plays a run, and writes its pairs: as it was taken, and changed.
    fn make(&self, run: &Run, tandem: &Path) -> Result<()> {
        let [sender, receiver, label] = files(&self.out, &pair_name(run, Change::AsTaken));
        let mut tries = 0;
        let port = loop {
            tries += 1;
            match play(run, tandem, &sender, &receiver) {
                Ok(port) => break port,
                Err(error) if tries < TRIES => eprintln!("again, {}: {error:#}", run.name()),
                Err(error) => return Err(error),
            }
        };
        let mut dice = Dice::new(run.seed ^ 0xca);
        for change in [Change::AsTaken, change_of(run)] {
            let to = files(&self.out, &pair_name(run, change));
            if change != Change::AsTaken {
                for (end, from) in [&sender, &receiver].into_iter().enumerate() {
                    change.apply(end, from, &to[end], &mut dice)?;
                }
            }
            let expected = match run.middle.truth(run.way) {
                Truth::Whole => detect::SplitVerdict::EndToEnd,
                Truth::Split => detect::SplitVerdict::SplitTcp,
                Truth::Proxy => detect::SplitVerdict::TcpProxy,
            };
            let text = serde_json::to_string_pretty(&Label {
                expected: expected.to_string(),
                middle: run.middle.name(),
                way: run.way,
                condition: run.condition,
                change,
                run: run.number,
                seed: self.seed,
                client_port: port,
                one_clock: change.keeps_clocks(),
                ack_delay_s: (run.condition == Condition::LateAcks).then_some(LATE),
                path: run.path,
            })?;
            // The label comes last: what has one is whole.
            fs::write(&to[2], text).with_context(|| format!("cannot write {}", label.display()))?;
        }
        Ok(())
    }
}

fn change_of(run: &Run) -> Change {
    CHANGES[run.number % CHANGES.len()]
}

fn pair_name(run: &Run, change: Change) -> String {
    format!("{}-{}", run.name(), change.name())
}

/// Plays a run with captures at both ends; returns the client's port.
fn play(run: &Run, tandem: &Path, sender: &Path, receiver: &Path) -> Result<u16> {
    let stage = Stage::build(run)?;
    let body = ends::body(run.seed, run.path.bytes);
    let server = ends::Server::start(stage.server(), stage.server_address(), body.clone())?;
    let mut running = run.middle.start(&stage, tandem, &run.path)?;
    let call = run.middle.call(&stage);
    let traces = stage.trace(sender, receiver)?;
    let exchange = || ends::exchange(stage.client(), call, run.way, &body);
    let mut outcome = exchange();
    if run.middle == Middle::SquidAgain && outcome.is_ok() {
        outcome = exchange();
        // A label must be true: what is said to come from a cache does.
        let asked = server.connections();
        ensure!(asked == 1, "the server was asked {asked} times, and the second answer should have come from the cache");
        // What no cache keeps: that it comes to the server shows that its trace ran on.
        ends::exchange(stage.client(), call, Way::Up, b"more")?;
    }
    traces.stop()?;
    // Past a transparent one that has ended connections go unsplit.
    running.still()?;
    outcome.context("the exchange failed")
}
