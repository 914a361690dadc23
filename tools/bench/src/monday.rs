//! What an operator's users get, with no proxy and with the settings that Tandem writes itself:
//! short and long transfers, pages, many clients, both directions; over five kinds of link, with
//! the socket buffers that hosts have by default.
//!
//! Every setting is a configuration file of a `tandem proxy` of its own on the lab's proxy host.
//! The proxy stands before the long link, as on an operator's gateway: it sends downloads into it,
//! and receives uploads from it.

mod links;
mod settings;
mod tables;

use crate::{other_program, resume_file::ResumeFile, workers::in_parallel};
use advise::{USAGES, Usage};
use anyhow::{Context as _, Result, ensure};
use lab::OtherProxy;
use links::{ENDS, Ends, LINKS, LongLink, lab, scenario};
use measurements::MeasurementRecord;
use outcome::Engine as _;
use scenario::Scenario;
use serde::{Deserialize, Serialize};
use settings::{Deployment, SETTINGS, advised_live, start};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    slice,
};

/// Measures what users get without a proxy and with the settings that Tandem writes itself, over
/// five kinds of link: seconds, less is better
#[derive(Debug, clap::Args)]
pub(crate) struct MondaySuite {
    /// Rounds; everything is measured once in each
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Measure only the links, ends, uses and settings that one of these words names, such as GEO,
    /// whole or in part. All of a kind are measured if no word names one of it
    #[arg(long, value_delimiter = ',', value_name = "WORD,…")]
    only: Vec<String>,
    /// After the first round, repeat only rows in which a quotient is above its limit, or at most
    /// .02 below it
    #[arg(long)]
    near_limits: bool,
    /// Runs at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    #[command(flatten)]
    resume: ResumeFile,
    /// The program under test
    #[arg(long, default_value = "tandem", value_name = "PROGRAM")]
    tandem: PathBuf,
}

/// A run, as a line of the file of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredRun {
    link: String,
    ends: String,
    usage: String,
    setting: String,
    round: u64,
    seconds: f64,
}

/// The configuration of each link with advice on the running proxy.
type LiveFiles = BTreeMap<&'static str, String>;

/// What is measured once.
#[derive(Debug, Clone, Copy)]
struct Cell {
    link: &'static LongLink,
    ends: &'static Ends,
    usage: &'static Usage,
    setting: &'static (&'static str, Deployment),
    round: u64,
}

impl MondaySuite {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        let program = testbed::resolve_program(&self.tandem);
        record.notes.push(format!("{}.", other_program::version(&program, &["--version"])?));
        let mut runs: Vec<StoredRun> = self.resume.runs()?;
        let mut cells = Vec::new();
        let live = self.live_advice(&program)?;
        for round in 1..=self.runs {
            let of_round =
                self.cells(round).into_iter().filter(|cell| !self.near_limits || round == 1 || tables::is_near_limit(&record.tables, cell));
            let of_round: Vec<Cell> = of_round.collect();
            let missing: Vec<Cell> = of_round.iter().copied().filter(|cell| !runs.iter().any(|run| cell.is(run))).collect();
            let played = in_parallel(self.jobs, &missing, |cell| self.play(cell, &program, &live))?;
            cells.extend(of_round);
            let failed: Vec<&String> = played.iter().filter_map(|run| run.as_ref().err()).collect();
            ensure!(failed.is_empty(), "{} runs have no result, the first: {}", failed.len(), failed[0]);
            runs.extend(played.into_iter().flatten());
            record.tables = tables::tables(&cells, &runs);
        }
        Ok(())
    }

    /// Plays and stores a run. Inner errors are those of the run.
    fn play(&self, cell: &Cell, program: &Path, live: &LiveFiles) -> Result<Result<StoredRun, String>> {
        let seconds = match cell.play(program, live) {
            Ok(seconds) => seconds,
            Err(why) => return Ok(Err(format!("{cell}: {why:#}"))),
        };
        eprintln!("{cell}: {seconds:.2} s");
        let run = cell.run(seconds);
        self.resume.append(slice::from_ref(&run))?;
        Ok(Ok(run))
    }

    /// The configuration that `tandem advise --live --apply` produces on each link; empty if that
    /// setting is not measured.
    fn live_advice(&self, program: &Path) -> Result<LiveFiles> {
        let is_measured = self.chosen(&SETTINGS, |setting| setting.0).iter().any(|setting| matches!(setting.1, Deployment::LiveAdvice));
        let links = if is_measured { self.chosen(&LINKS, |link| link.name) } else { Vec::new() };
        let files = in_parallel(self.jobs, &links, |link| {
            let kept = self.resume.beside(&format!("{}.toml", link.name));
            if let Some(file) = kept.as_ref().filter(|file| file.exists()) {
                return fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
            }
            let text = advised_live(link, program).with_context(|| format!("cannot advise on {}", link.name))?;
            if let Some(file) = kept {
                fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
            }
            Ok(text)
        })?;
        Ok(links.iter().map(|link| link.name).zip(files).collect())
    }

    /// Everything that is to be measured in a round.
    fn cells(&self, round: u64) -> Vec<Cell> {
        let mut cells = Vec::new();
        for link in self.chosen(&LINKS, |link| link.name) {
            for ends in self.chosen(&ENDS, |ends| ends.name) {
                for usage in self.chosen(&USAGES, |usage| usage.name) {
                    let settings = self.chosen(&SETTINGS, |setting| setting.0);
                    cells.extend(settings.into_iter().map(|setting| Cell { link, ends, usage, setting, round }));
                }
            }
        }
        cells
    }

    fn chosen<T>(&self, all: &'static [T], name: fn(&T) -> &'static str) -> Vec<&'static T> {
        let is_whole = |word: &str| all.iter().any(|one| name(one) == word);
        let is_meant = |one: &&T, word: &str| if is_whole(word) { name(one) == word } else { name(one).contains(word) };
        let named: Vec<&T> = all.iter().filter(|one| self.only.iter().any(|word| is_meant(one, word))).collect();
        if named.is_empty() { all.iter().collect() } else { named }
    }
}

impl Cell {
    fn is(&self, run: &StoredRun) -> bool {
        self.run(run.seconds) == *run
    }

    fn run(&self, seconds: f64) -> StoredRun {
        StoredRun {
            link: self.link.name.into(),
            ends: self.ends.name.into(),
            usage: self.usage.name.into(),
            setting: self.setting.0.into(),
            round: self.round,
            seconds,
        }
    }

    fn scenario(&self) -> Result<Scenario> {
        scenario(self.link, self.ends, self.usage.tables)
    }

    /// Seconds of one run. It is repeated while the machine cannot keep up with it.
    fn play(&self, program: &Path, live: &LiveFiles) -> Result<f64> {
        let scenario = self.scenario()?;
        let directory = tempfile::tempdir()?;
        let (file, program) = (directory.path().join("proxy.toml"), program.to_owned());
        let (deployment, link, live) = (&self.setting.1, self.link, live.get(self.link.name).cloned());
        let other = OtherProxy::new(move |host| start((deployment, live.as_deref()), link, &program, &file, host));
        let lab = lab(self.ends, other);
        let mut last = None;
        for _ in 0..3 {
            let outcome = lab.run(&scenario, self.round, &())?;
            if outcome.valid {
                return self.usage.objective.value(&outcome).context("not all of it has ended");
            }
            last = outcome.warnings.into_iter().next();
        }
        anyhow::bail!("the machine did not keep up in three runs: {}", last.unwrap_or_default())
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}, {}, round {}", self.link.name, self.ends.name, self.usage.name, self.setting.0, self.round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::NO_PROXY;

    pub(super) fn suite(only: &[&str]) -> MondaySuite {
        MondaySuite {
            runs: 2,
            near_limits: false,
            only: only.iter().map(ToString::to_string).collect(),
            jobs: 1,
            resume: ResumeFile::default(),
            tandem: "tandem".into(),
        }
    }

    #[test]
    fn a_whole_name_names_nothing_else() {
        let settings = |only: &[&str]| suite(only).chosen(&SETTINGS, |setting| setting.0).len();
        assert_eq!((settings(&["advise"]), settings(&["advise --"]), settings(&["share"]), settings(&["none"])), (1, 1, 3, SETTINGS.len()));
    }

    #[test]
    fn every_cell_has_a_scenario() {
        let cells = suite(&[]).cells(1);
        assert_eq!(cells.len(), LINKS.len() * ENDS.len() * USAGES.len() * SETTINGS.len());
        for cell in cells.iter().filter(|cell| cell.setting.0 == NO_PROXY) {
            let scenario = cell.scenario().unwrap_or_else(|why| panic!("{cell}: {why:#}"));
            assert_eq!((scenario.links.len(), scenario.splits.len()), (2, 1), "{cell}");
        }
    }
}
