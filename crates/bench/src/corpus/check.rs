//! The detector on the corpus: false alarms, misses, what it can't tell and why, and what each of the paper's methods sees by itself.

use super::{
    Label, files,
    plan::{Condition, word},
};
use anyhow::{Context as _, Result, ensure};
use detect::{CaptureFile, ConnectionFinding, FindingOptions, Indication, Method, SplitVerdict, Strength, TraceConditions, findings};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Holds the detector to a corpus's labels: exit status 1 on a false alarm, a miss, or more than 5 % of which it can't tell
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The corpus
    directory: PathBuf,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Prints what is said of each pair that is not as its label has it, with all evidence
    #[arg(long, short)]
    verbose: bool,
}

/// How well the two clocks of a pair of the corpus agree that were one, s: what time stamps of one machine can be wrong.
const ONE_CLOCK: f64 = 0.001;
/// What may remain untold.
const UNTOLD: f64 = 0.05;

/// The paper's methods, each alone.
const METHODS: [(&str, Method); 3] =
    [("method 1", Method::SynchronisedClocks), ("method 2", Method::FixedOffset), ("method 3", Method::DelayedAcks)];

/// What was said of a pair.
#[derive(Debug, Serialize)]
struct Case {
    name: String,
    label: Label,
    verdict: String,
    reason: String,
    /// Of each of the paper's methods: it says split, it says nothing, or it had nothing to look at.
    methods: [Seen; 3],
    #[serde(skip)]
    told: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Seen {
    Split,
    No,
    NotUsable,
}

impl Case {
    fn is_split(&self) -> bool {
        self.label.expected != SplitVerdict::EndToEnd.to_string()
    }

    fn is_untold(&self) -> bool {
        self.verdict == SplitVerdict::CannotTell.to_string()
    }

    fn is_false_alarm(&self) -> bool {
        !self.is_split() && !self.is_untold() && self.verdict != self.label.expected
    }

    fn is_miss(&self) -> bool {
        self.is_split() && self.verdict == SplitVerdict::EndToEnd.to_string()
    }

    fn is_wrong_kind(&self) -> bool {
        self.is_split() && !self.is_miss() && !self.is_untold() && self.verdict != self.label.expected
    }
}

impl Check {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let cases = self.cases()?;
        let count = |is: fn(&Case) -> bool| cases.iter().filter(|case| is(case)).count();
        let (alarms, misses, untold, kinds) =
            (count(Case::is_false_alarm), count(Case::is_miss), count(Case::is_untold), count(Case::is_wrong_kind));
        if self.json {
            let all = serde_json::json!({
                "pairs": cases.len(), "false_alarms": alarms, "misses": misses, "cannot_tell": untold, "other_kind": kinds,
                "verdicts": verdicts(&cases), "methods": METHODS.iter().enumerate().map(|(at, (name, _))| (*name, matrix(&cases, at))).collect::<BTreeMap<_, _>>(),
                "cases": cases,
            });
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            print!("{}", self.text(&cases));
            println!(
                "\n{} pairs: {alarms} false alarms, {misses} misses, {untold} untold ({:.1} %), {kinds} of the other kind",
                cases.len(),
                100.0 * untold as f64 / cases.len() as f64
            );
        }
        let few = |count: usize| count as f64 <= UNTOLD * cases.len() as f64;
        let good = alarms == 0 && misses == 0 && few(untold) && few(kinds);
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn cases(&self) -> Result<Vec<Case>> {
        let reading = || format!("cannot read the corpus {}", self.directory.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(reading)? {
            let name = entry.with_context(reading)?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".json").map(String::from));
        }
        names.sort();
        ensure!(!names.is_empty(), "{} has no labels: make a corpus there with tandem-bench corpus --out", self.directory.display());
        names.iter().map(|name| look(&self.directory, name).with_context(|| format!("pair {name}"))).collect()
    }

    fn text(&self, cases: &[Case]) -> String {
        let mut out = "| labelled | end-to-end | split-tcp | tcp-proxy | cannot tell |\n|---|---|---|---|---|\n".to_string();
        for (label, said) in verdicts(cases) {
            let of = |verdict: SplitVerdict| said.get(&verdict.to_string()).copied().unwrap_or(0);
            let [whole, split, proxy, untold] =
                [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::CannotTell].map(of);
            out += &format!("| {label} | {whole} | {split} | {proxy} | {untold} |\n");
        }
        out += "\nThe paper's methods, each alone: said split, of those on which it could be used.\n\n| labelled |";
        METHODS.iter().for_each(|(name, _)| out += &format!(" {name} |"));
        out += "\n|---|---|---|---|\n";
        let matrices: Vec<Matrix> = (0..METHODS.len()).map(|method| matrix(cases, method)).collect();
        let rows: BTreeSet<&String> = matrices.iter().flat_map(BTreeMap::keys).collect();
        for row in rows {
            out += &format!("| {row} |");
            for matrix in &matrices {
                let [said, silent] = matrix.get(row).copied().unwrap_or_default();
                out += &if said + silent == 0 { " – |".into() } else { format!(" {said} of {} |", said + silent) };
            }
            out += "\n";
        }
        let mut listed = |what: &str, is: fn(&Case) -> bool| {
            for case in cases.iter().filter(|case| is(case)) {
                out += &format!("\n{what}: {} is {}, said {}: {}", case.name, case.label.expected, case.verdict, case.reason);
                if self.verbose {
                    out += &format!("\n{}", case.told);
                }
            }
        };
        listed("FALSE ALARM", Case::is_false_alarm);
        listed("MISS", Case::is_miss);
        listed("untold", Case::is_untold);
        listed("other kind", Case::is_wrong_kind);
        out + "\n"
    }
}

/// How often each verdict was said of each label.
fn verdicts(cases: &[Case]) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for case in cases {
        *counts.entry(case.label.expected.clone()).or_default().entry(case.verdict.clone()).or_default() += 1;
    }
    counts
}

/// One method alone, over the pairs that it can be used on: how often it said split, and how often not, by what the pair is.
type Matrix = BTreeMap<String, [usize; 2]>;

fn matrix(cases: &[Case], method: usize) -> Matrix {
    let mut matrix = Matrix::default();
    for case in cases.iter().filter(|case| case.methods[method] != Seen::NotUsable) {
        let held = if case.label.condition == Condition::LateAcks { ", ACKs held" } else { "" };
        let row = format!("{}, {}{held}", case.label.expected, word(case.label.way));
        matrix.entry(row).or_default()[usize::from(case.methods[method] == Seen::No)] += 1;
    }
    matrix
}

/// Looks at one pair.
fn look(directory: &Path, name: &str) -> Result<Case> {
    let [sender, receiver, label] = files(directory, name);
    let label: Label = serde_json::from_str(&fs::read_to_string(&label)?).with_context(|| format!("in {}", label.display()))?;
    let (sender, receiver) = (CaptureFile::read(&sender)?, CaptureFile::read(&receiver)?);
    // The verdict is of the traces alone; the methods are told what each needs to be told.
    let plain = findings(Some(&sender), Some(&receiver), &FindingOptions::default());
    let known = TraceConditions { synchronised_s: label.one_clock.then_some(ONE_CLOCK), ack_delay_s: label.ack_delay_s };
    let informed = findings(Some(&sender), Some(&receiver), &FindingOptions { known, series: false });
    // Who sends most may be another in a trace that begins late.
    let is_meant =
        |finding: &ConnectionFinding| finding.sender.iter().chain(&finding.receiver).flatten().any(|end| end.port() == label.client_port);
    let meant = |found: &[ConnectionFinding]| found.iter().position(is_meant);
    let finding = &plain[meant(&plain).context("its connection is in neither trace")?];
    let told = &informed[meant(&informed).context("its connection is in neither trace")?];
    let methods = METHODS.map(|(_, method)| seen(told, method));
    let mut listing = String::new();
    for piece in &finding.evidence {
        listing +=
            &format!("    {:?} {:?} {:?} {:.4} {}: {}\n", piece.says, piece.strength, piece.method, piece.value, piece.unit, piece.text);
    }
    let (verdict, reason) = (finding.verdict.to_string(), finding.reason.clone());
    Ok(Case { name: name.into(), label, verdict, reason, methods, told: listing })
}

fn seen(finding: &ConnectionFinding, method: Method) -> Seen {
    let mut pieces = finding.evidence.iter().filter(|piece| piece.method == method).peekable();
    if pieces.peek().is_none() {
        return Seen::NotUsable;
    }
    if pieces.any(|piece| piece.says == Indication::Split && piece.strength == Strength::Strong) { Seen::Split } else { Seen::No }
}
