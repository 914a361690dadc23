//! Checks the detector against the corpus: false alarms, misses, undecided pairs and their reasons,
//! and what each of the paper's methods finds by itself.

use crate::label::{CorpusLabel, files};
use anyhow::{Context as _, Result, ensure};
use detect::{CaptureFile, ConnectionFinding, FindingOptions, Indication, Method, SplitVerdict, Strength, TraceConditions, findings};
use measurements::{SampleColumn, SampleTable, measure};
use middleboxes::{NetworkCondition, label_text};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Checks the detector against the labels of a corpus. Exit code 1 on a false alarm, a miss, or
/// more than 5 % undecided
#[derive(Debug, clap::Args)]
pub struct CheckCorpus {
    /// Directory of the corpus
    directory: PathBuf,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Prints all evidence of each pair whose verdict differs from its label
    #[arg(long, short)]
    verbose: bool,
    /// Writes the tables and circumstances into this directory, as corpus.json
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "json")]
    record: Option<PathBuf>,
}

/// How far time stamps of one machine may differ, s.
const ONE_CLOCK: f64 = 0.001;
/// Share of pairs that may remain undecided.
const MOST_UNDECIDED: f64 = 0.05;

/// The paper's methods, each on its own.
const METHODS: [(&str, Method); 3] =
    [("method 1", Method::SynchronisedClocks), ("method 2", Method::FixedOffset), ("method 3", Method::DelayedAcks)];

/// The detector's verdict on a pair.
#[derive(Debug, Serialize)]
struct CheckedPair {
    name: String,
    label: CorpusLabel,
    verdict: String,
    reason: String,
    /// For each of the paper's methods: it finds a split, finds none, or is not applicable.
    methods: [MethodFinding; 3],
    #[serde(skip)]
    told: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum MethodFinding {
    Split,
    No,
    NotUsable,
}

impl CheckedPair {
    fn is_split(&self) -> bool {
        self.label.expected != SplitVerdict::EndToEnd.to_string()
    }

    fn is_undecided(&self) -> bool {
        self.verdict == SplitVerdict::CannotTell.to_string()
    }

    fn is_false_alarm(&self) -> bool {
        !self.is_split() && !self.is_undecided() && self.verdict != self.label.expected
    }

    fn is_miss(&self) -> bool {
        self.is_split() && self.verdict == SplitVerdict::EndToEnd.to_string()
    }

    fn is_wrong_kind(&self) -> bool {
        self.is_split() && !self.is_miss() && !self.is_undecided() && self.verdict != self.label.expected
    }
}

impl CheckCorpus {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<ExitCode> {
        let cases = self.cases()?;
        let count = |is: fn(&CheckedPair) -> bool| cases.iter().filter(|case| is(case)).count();
        let (alarms, misses, undecided, kinds) = (
            count(CheckedPair::is_false_alarm),
            count(CheckedPair::is_miss),
            count(CheckedPair::is_undecided),
            count(CheckedPair::is_wrong_kind),
        );
        if self.json {
            let all = serde_json::json!({
                "pairs": cases.len(), "false_alarms": alarms, "misses": misses, "cannot_tell": undecided, "other_kind": kinds,
                "verdicts": verdicts(&cases), "methods": METHODS.iter().enumerate().map(|(at, (name, _))| (*name, matrix(&cases, at))).collect::<BTreeMap<_, _>>(),
                "cases": cases,
            });
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            let summary = format!(
                "{} pairs: {alarms} false alarms, {misses} misses, {undecided} undecided ({:.1} %), {kinds} of the other kind.",
                cases.len(),
                100.0 * undecided as f64 / cases.len() as f64
            );
            measure("corpus", self.record.as_deref(), |record| {
                record.rounds = 1;
                record.tables = vec![verdicts_table(&cases), methods_table(&cases)];
                record.notes.push(summary);
                Ok(())
            })?;
            print!("{}", self.differing(&cases));
        }
        let few = |count: usize| count as f64 <= MOST_UNDECIDED * cases.len() as f64;
        let good = alarms == 0 && misses == 0 && few(undecided) && few(kinds);
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn cases(&self) -> Result<Vec<CheckedPair>> {
        let reading = || format!("cannot read the corpus {}", self.directory.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(reading)? {
            let name = entry.with_context(reading)?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".json").map(String::from));
        }
        names.sort();
        ensure!(!names.is_empty(), "{} has no labels; generate a corpus there with tandem-corpus corpus --out", self.directory.display());
        names.iter().map(|name| look(&self.directory, name).with_context(|| format!("pair {name}"))).collect()
    }

    /// The pairs whose verdict differs from the label.
    fn differing(&self, cases: &[CheckedPair]) -> String {
        let mut out = String::new();
        let mut listed = |what: &str, is: fn(&CheckedPair) -> bool| {
            for case in cases.iter().filter(|case| is(case)) {
                out += &format!("\n{what}: {} is {}, said {}: {}", case.name, case.label.expected, case.verdict, case.reason);
                if self.verbose {
                    out += &format!("\n{}", case.told);
                }
            }
        };
        listed("FALSE ALARM", CheckedPair::is_false_alarm);
        listed("MISS", CheckedPair::is_miss);
        listed("undecided", CheckedPair::is_undecided);
        listed("other kind", CheckedPair::is_wrong_kind);
        out + "\n"
    }
}

/// How often each verdict was given, a row for each label.
fn verdicts_table(cases: &[CheckedPair]) -> SampleTable {
    let all = [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::CannotTell].map(|one| one.to_string());
    let mut table = SampleTable::new("verdicts", "labelled", all.iter().map(|verdict| SampleColumn::new(verdict, "", 0)).collect());
    for (label, said) in verdicts(cases) {
        let row = table.row(&label);
        all.iter().for_each(|verdict| row.add(verdict, 0, said.get(verdict).copied().unwrap_or(0) as f64));
    }
    table
}

/// The paper's methods, each on its own: in how many of the pairs to which it applies it found a
/// split.
fn methods_table(cases: &[CheckedPair]) -> SampleTable {
    let columns = METHODS.map(|(name, _)| SampleColumn::text(name));
    let mut table = SampleTable::new("methods", "labelled", columns.to_vec());
    let matrices: Vec<MethodMatrix> = (0..METHODS.len()).map(|method| matrix(cases, method)).collect();
    let rows: BTreeSet<&String> = matrices.iter().flat_map(BTreeMap::keys).collect();
    for row in rows {
        for ((method, _), matrix) in METHODS.iter().zip(&matrices) {
            let [said, silent] = matrix.get(row).copied().unwrap_or_default();
            if said + silent > 0 {
                table.row(row).set(method, format!("{said} of {}", said + silent));
            }
        }
    }
    table
}

/// How often each verdict was given for each label.
fn verdicts(cases: &[CheckedPair]) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for case in cases {
        *counts.entry(case.label.expected.clone()).or_default().entry(case.verdict.clone()).or_default() += 1;
    }
    counts
}

/// Results of one method on the pairs to which it is applicable, by kind of pair: how often it
/// found a split, and how often not.
type MethodMatrix = BTreeMap<String, [usize; 2]>;

fn matrix(cases: &[CheckedPair], method: usize) -> MethodMatrix {
    let mut matrix = MethodMatrix::default();
    for case in cases.iter().filter(|case| case.methods[method] != MethodFinding::NotUsable) {
        let held = if case.label.condition == NetworkCondition::LateAcks { ", ACKs held" } else { "" };
        let row = format!("{}, {}{held}", case.label.expected, label_text(case.label.direction));
        matrix.entry(row).or_default()[usize::from(case.methods[method] == MethodFinding::No)] += 1;
    }
    matrix
}

/// Analyses one pair.
fn look(directory: &Path, name: &str) -> Result<CheckedPair> {
    let [sender, receiver, label] = files(directory, name);
    let label: CorpusLabel = serde_json::from_str(&fs::read_to_string(&label)?).with_context(|| format!("in {}", label.display()))?;
    let (sender, receiver) = (CaptureFile::read(&sender)?, CaptureFile::read(&receiver)?);
    // The verdict uses the traces alone. The methods also get what each of them has to know.
    let plain = findings(Some(&sender), Some(&receiver), &FindingOptions::default());
    let known = TraceConditions { synchronised_s: label.one_clock.then_some(ONE_CLOCK), ack_delay_s: label.ack_delay_s };
    let informed = findings(Some(&sender), Some(&receiver), &FindingOptions { known, series: false });
    // In a trace that begins late the roles of sender and receiver may be swapped.
    let is_meant =
        |finding: &ConnectionFinding| finding.sender.iter().chain(&finding.receiver).flatten().any(|end| end.port() == label.client_port);
    let meant = |found: &[ConnectionFinding]| found.iter().position(is_meant);
    let finding = &plain[meant(&plain).context("neither trace has the connection")?];
    let told = &informed[meant(&informed).context("neither trace has the connection")?];
    let methods = METHODS.map(|(_, method)| seen(told, method));
    let mut listing = String::new();
    for piece in &finding.evidence {
        listing +=
            &format!("    {:?} {:?} {:?} {:.4} {}: {}\n", piece.says, piece.strength, piece.method, piece.value, piece.unit, piece.text);
    }
    let (verdict, reason) = (finding.verdict.to_string(), finding.reason.clone());
    Ok(CheckedPair { name: name.into(), label, verdict, reason, methods, told: listing })
}

fn seen(finding: &ConnectionFinding, method: Method) -> MethodFinding {
    let mut pieces = finding.evidence.iter().filter(|piece| piece.method == method).peekable();
    if pieces.peek().is_none() {
        return MethodFinding::NotUsable;
    }
    if pieces.any(|piece| piece.says == Indication::Split && piece.strength == Strength::Strong) {
        MethodFinding::Split
    } else {
        MethodFinding::No
    }
}
