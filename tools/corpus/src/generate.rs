//! Generates the corpus: plays its runs and writes two pairs of traces and two labels for each.

use crate::{
    label::{CorpusLabel, files},
    plan,
    trace_edits::{TRACE_EDITS, TraceEdit},
};
use anyhow::{Context as _, Result};
use middleboxes::{GroundTruth, LATE, Middlebox, MiddleboxRun, NetworkCondition, play};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use testbed::SplitMix64;

/// Generates a corpus in the lab: pairs of traces of connections, each with a label that says how
/// the connection was split. Runs that are already in the directory are skipped, as are middleboxes
/// whose programs are not installed
#[derive(Debug, clap::Args)]
pub struct GenerateCorpus {
    /// Directory of the corpus
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A few runs of each kind, for a test
    #[arg(long)]
    small: bool,
    /// Only the first N runs; each makes two pairs of traces
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Only middleboxes whose name begins with this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How often a run is tried: a busy machine, or the middlebox, may make it fail.
const TRIES: usize = 3;

impl GenerateCorpus {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<()> {
        let tandem = testbed::resolve_program(&self.tandem);
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make the directory {}", self.out.display()))?;
        let mut runs = if self.small { plan::small(self.seed) } else { plan::all(self.seed) };
        runs.retain(|run| self.only.is_empty() || self.only.iter().any(|name| run.middle.name().starts_with(name)));
        runs.truncate(self.runs.unwrap_or(usize::MAX));
        let (mut lacks, begun, count): (BTreeMap<Middlebox, bool>, _, _) = (BTreeMap::new(), Instant::now(), runs.len());
        let mut made = 0;
        for (index, run) in runs.iter().enumerate() {
            // Printed once for each middlebox.
            let lacking = lacks.entry(run.middle).or_insert_with(|| {
                let why = run.middle.missing_requirement(&tandem);
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

    /// Plays a run and writes its two pairs: as captured, and edited.
    fn make(&self, run: &MiddleboxRun, tandem: &Path) -> Result<()> {
        let [sender, receiver, label] = files(&self.out, &pair_name(run, TraceEdit::AsTaken));
        let mut tries = 0;
        let port = loop {
            tries += 1;
            match play(run, tandem, &sender, &receiver) {
                Ok(port) => break port,
                Err(error) if tries < TRIES => eprintln!("again, {}: {error:#}", run.name()),
                Err(error) => return Err(error),
            }
        };
        let mut random = SplitMix64::new(run.seed ^ 0xca);
        for change in [TraceEdit::AsTaken, change_of(run)] {
            let to = files(&self.out, &pair_name(run, change));
            if change != TraceEdit::AsTaken {
                for (end, from) in [&sender, &receiver].into_iter().enumerate() {
                    change.apply(end, from, &to[end], &mut random)?;
                }
            }
            let expected = match run.middle.truth(run.direction) {
                GroundTruth::EndToEnd => detect::SplitVerdict::EndToEnd,
                GroundTruth::SplitTcp => detect::SplitVerdict::SplitTcp,
                GroundTruth::TcpProxy => detect::SplitVerdict::TcpProxy,
            };
            let text = serde_json::to_string_pretty(&CorpusLabel {
                expected: expected.to_string(),
                middle: run.middle.name(),
                direction: run.direction,
                condition: run.condition,
                change,
                run: run.number,
                seed: self.seed,
                client_port: port,
                one_clock: change.keeps_clocks(),
                ack_delay_s: (run.condition == NetworkCondition::LateAcks).then_some(LATE),
                path: run.path,
            })?;
            // The label comes last: a pair with a label is complete.
            fs::write(&to[2], text).with_context(|| format!("cannot write {}", label.display()))?;
        }
        Ok(())
    }
}

fn change_of(run: &MiddleboxRun) -> TraceEdit {
    TRACE_EDITS[run.number % TRACE_EDITS.len()]
}

fn pair_name(run: &MiddleboxRun, change: TraceEdit) -> String {
    format!("{}-{}", run.name(), change.name())
}
