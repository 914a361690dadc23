//! Faults injected into the proxy and into both ends of a bond: each of their system calls fails, with
//! each of several errors, the first time, the second, and so on; once, or for a while.
//!
//! Where the faults come from: `faults/layer` is a seccomp filter with user notification between the
//! unchanged program and the kernel, answered by a thread of this one. Calls are found, not listed: a
//! round of transfers without faults tells which calls the program makes, and how often; each is then
//! tried. `faults/stage` is the network around the program, `faults/ends` plays and judges transfers,
//! `faults/calls` has the names.

use crate::{
    environment::{self as stage, Descriptors, Program, Setup, Stage},
    interposer::Fault,
    syscalls::{self as calls, error_name, errors},
};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// Makes each system call of the proxy and of a bond's ends fail in turn while transfers run, and tells
/// what became of them. Exit code 1 if a flow got stuck or lost a byte, the program panicked, leaked a
/// descriptor, or splits no new connection afterwards
#[derive(Debug, clap::Parser)]
pub(crate) struct Faults {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// What is tried
    #[arg(long, value_enum, value_delimiter = ',', default_value = "proxy,connect,serve")]
    setups: Vec<Setup>,
    /// When calls fail
    #[arg(long, value_enum, value_delimiter = ',', default_value = "run,start,stop")]
    phases: Vec<Phase>,
    /// Only these calls, by name; absent: all that are made
    #[arg(long, value_delimiter = ',')]
    calls: Option<Vec<String>>,
    /// Only these errors, by name (ENOMEM)
    #[arg(long, value_delimiter = ',')]
    errors: Option<Vec<String>>,
    /// How many places of each call are tried at most: the 1st, 2nd, 3rd, 5th, 8th, 13th and so on
    #[arg(long, default_value_t = 12)]
    places: usize,
    /// Ends after so many seconds, with what is done by then
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Results go here, a line of JSON a case; cases that it has are not tried again
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

/// When calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Phase {
    /// While transfers run
    Run,
    /// From when the program has read its configuration until it splits connections
    Start,
    /// From the signal that ends it
    Stop,
}

/// A fault, and where it was injected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Case {
    setup: Setup,
    phase: Phase,
    call: String,
    error: String,
    nth: u64,
    lasts_ms: u64,
}

/// What came of it, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// There were fewer calls.
    NotReached,
    /// Every transfer was complete.
    Unaffected,
    /// At least one flow was reset, at both ends.
    Reset,
    /// The program ended with an error that says why.
    Ended,
    /// What must not be.
    Bad,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Came {
    #[serde(flatten)]
    case: Case,
    outcome: Outcome,
    detail: String,
}

/// How long a failure lasts that does not pass at once.
const LASTING: Duration = Duration::from_millis(300);

impl Faults {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        let mut all = self.known()?;
        let begun = Instant::now();
        for setup in &self.setups {
            let stage = Stage::new(*setup, &tandem)?;
            for phase in &self.phases {
                let mut trial = Trial { faults: self, stage: &stage, setup: *setup, phase: *phase, program: None, begun, all: &mut all };
                trial.run()?;
            }
        }
        let wanted = |came: &&Came| self.setups.contains(&came.case.setup) && self.phases.contains(&came.case.phase);
        let came: Vec<&Came> = all.values().filter(wanted).collect();
        print!("{}", table(&came));
        let bad: Vec<&&Came> = came.iter().filter(|came| came.outcome == Outcome::Bad).collect();
        for came in &bad {
            println!("BAD {:?}: {}", came.case, came.detail);
        }
        Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn known(&self) -> Result<BTreeMap<Case, Came>> {
        let Some(path) = self.resume.as_ref().filter(|path| path.exists()) else { return Ok(BTreeMap::new()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parse = |line: &str| {
            let came: Came = serde_json::from_str(line).with_context(|| format!("{}: {line:?}", path.display()))?;
            Ok((came.case.clone(), came))
        };
        text.lines().map(parse).collect()
    }

    fn is_wanted(&self, call: i32, errno: i32) -> bool {
        let among = |list: &Option<Vec<String>>, name: &str| list.as_ref().is_none_or(|list| list.iter().any(|one| one == name));
        among(&self.calls, &calls::name(call)) && among(&self.errors, error_name(errno))
    }

    /// The places of a call that is made so often: 1, 2, 3, 5, 8, …
    fn places(&self, count: u64) -> Vec<u64> {
        let numbers = std::iter::successors(Some((1, 2)), |(one, next)| Some((*next, one + next)));
        numbers.map(|(one, _)| one).take(self.places).take_while(|place| *place <= count).collect()
    }

    /// How many lasting failures an error has: what passes at once by its nature has none.
    fn lasting(errno: i32) -> &'static [Duration] {
        if matches!(errno, libc::ENOMEM | libc::EMFILE | libc::ENOBUFS | libc::ENOSPC | libc::ENFILE) {
            &[Duration::ZERO, LASTING]
        } else {
            &[Duration::ZERO]
        }
    }
}

/// The cases of one phase of one program.
struct Trial<'a> {
    faults: &'a Faults,
    stage: &'a Stage,
    setup: Setup,
    phase: Phase,
    /// It serves many cases, until one ends it.
    program: Option<(Program, Descriptors)>,
    begun: Instant,
    all: &'a mut BTreeMap<Case, Came>,
}

impl Trial<'_> {
    fn run(&mut self) -> Result<()> {
        let counts = self.counts()?;
        let after = (self.phase == Phase::Start).then_some(calls::SERVES);
        for (call, count) in counts {
            for errno in errors(call) {
                for lasts in Faults::lasting(errno) {
                    let places = if lasts.is_zero() { self.faults.places(count) } else { vec![1] };
                    for nth in places {
                        if !self.faults.is_wanted(call, errno) || self.is_over() {
                            continue;
                        }
                        if self.case(Fault { call, errno, nth, lasts: *lasts, after })? == Outcome::NotReached {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.faults.seconds.is_some_and(|seconds| self.begun.elapsed().as_secs_f64() > seconds)
    }

    /// The calls of this phase without faults, and how often they are made.
    fn counts(&mut self) -> Result<BTreeMap<i32, u64>> {
        if self.phase == Phase::Start {
            let mut program = self.stage.start(None)?;
            self.stage.await_start(&mut program)?;
            return Ok(program.layer.counts());
        }
        self.running()?;
        let Some((program, _)) = &mut self.program else { return Ok(BTreeMap::new()) };
        program.layer.arm(None);
        if self.phase == Phase::Stop {
            program.terminate()?;
            program.await_end()?;
        } else {
            let sum = self.stage.round();
            anyhow::ensure!(sum.bad.is_empty() && sum.reset == 0, "without faults: {sum:?}\n{}", program.said());
        }
        let counts = program.layer.counts();
        if self.phase == Phase::Stop {
            self.program = None;
        }
        Ok(counts)
    }

    /// Sees to it that the program runs, and what descriptors it has then.
    fn running(&mut self) -> Result<()> {
        if self.program.is_none() {
            let mut program = self.stage.start(None)?;
            self.stage.await_start(&mut program)?;
            // Whatever comes with the first connections.
            for _ in 0..2 {
                self.stage.round();
            }
            thread::sleep(Duration::from_millis(200));
            let descriptors = program.descriptors();
            self.program = Some((program, descriptors));
        }
        Ok(())
    }

    fn case(&mut self, fault: Fault) -> Result<Outcome> {
        let case = Case {
            setup: self.setup,
            phase: self.phase,
            call: calls::name(fault.call),
            error: error_name(fault.errno).into(),
            nth: fault.nth,
            lasts_ms: fault.lasts.as_millis() as u64,
        };
        if let Some(known) = self.all.get(&case) {
            return Ok(known.outcome);
        }
        let (outcome, detail) = match self.phase {
            Phase::Run => self.while_running(fault)?,
            Phase::Start => self.at_start(fault)?,
            Phase::Stop => self.at_stop(fault)?,
        };
        if outcome >= Outcome::Ended {
            eprintln!("{outcome:?} {case:?}: {detail}");
        }
        let came = Came { case: case.clone(), outcome, detail };
        if let Some(path) = &self.faults.resume {
            stage::append(path, &serde_json::to_string(&came)?)?;
        }
        self.all.insert(case, came);
        Ok(outcome)
    }

    fn while_running(&mut self, fault: Fault) -> Result<(Outcome, String)> {
        self.running()?;
        let Some((mut program, before)) = self.program.take() else { return Ok((Outcome::NotReached, String::new())) };
        program.layer.arm(Some(fault));
        let sum = self.stage.round();
        if program.layer.disarm() == 0 && sum.bad.is_empty() && program.status()?.is_none() {
            self.program = Some((program, before));
            return Ok((Outcome::NotReached, String::new()));
        }
        if !sum.bad.is_empty() {
            return Ok((Outcome::Bad, format!("{:?}; {}", sum.bad, tail(&program.said()))));
        }
        let recovered = self.stage.await_recovery(&mut program, before);
        if let Some(status) = program.status()? {
            return Ok(judge_end(status, &program.said()));
        }
        let said = program.said();
        if panicked(&said) {
            return Ok((Outcome::Bad, tail(&said)));
        }
        if let Err(why) = recovered {
            return Ok((Outcome::Bad, format!("{why:#}; {}", tail(&said))));
        }
        self.program = Some((program, before));
        Ok(if sum.reset == 0 { (Outcome::Unaffected, String::new()) } else { (Outcome::Reset, format!("{} flows", sum.reset)) })
    }

    fn at_start(&mut self, fault: Fault) -> Result<(Outcome, String)> {
        let mut program = self.stage.start(Some(fault))?;
        let started = self.stage.await_start(&mut program);
        let fired = program.layer.disarm();
        if let Some(status) = program.status()? {
            return Ok(if fired == 0 { (Outcome::Bad, "it ended without a fault".into()) } else { judge_end(status, &program.said()) });
        }
        if let Err(why) = started {
            return Ok((Outcome::Bad, format!("{why:#}")));
        }
        if fired == 0 {
            return Ok((Outcome::NotReached, String::new()));
        }
        let sum = self.stage.round();
        let said = program.said();
        // It may split connections for a moment before its start fails.
        if let Some(status) = program.status()? {
            return Ok(judge_end(status, &said));
        }
        let fine = sum.bad.is_empty() && sum.reset == 0 && !panicked(&said);
        Ok(if fine { (Outcome::Unaffected, String::new()) } else { (Outcome::Bad, format!("{sum:?}; {}", tail(&said))) })
    }

    fn at_stop(&mut self, fault: Fault) -> Result<(Outcome, String)> {
        self.running()?;
        let Some((mut program, _)) = self.program.take() else { return Ok((Outcome::NotReached, String::new())) };
        program.layer.arm(Some(fault));
        program.terminate()?;
        let status = program.await_end()?;
        let fired = program.layer.fired();
        let Some(status) = status else { return Ok((Outcome::Bad, format!("it does not end; {}", tail(&program.said())))) };
        if self.stage.leaves_rules()? {
            return Ok((Outcome::Bad, "its rules are still there".into()));
        }
        if fired == 0 {
            return Ok((Outcome::NotReached, String::new()));
        }
        let said = program.said();
        if status.success() && !panicked(&said) {
            return Ok((Outcome::Unaffected, String::new()));
        }
        Ok(judge_end(status, &said))
    }
}

/// Whether a program that ended did so in order: with an exit code, and a word about why.
fn judge_end(status: ExitStatus, said: &str) -> (Outcome, String) {
    let last = tail(said);
    let is_fine = matches!(status.code(), Some(1..=127)) && !panicked(said) && !last.trim().is_empty();
    (if is_fine { Outcome::Ended } else { Outcome::Bad }, format!("{status}: {last}"))
}

/// Whether a part of the program panicked by itself. Panics at places in the standard library cannot be
/// avoided, and have no cause outside of tests: reading what a child says, or whether its exec failed, is
/// only ever interrupted, and the kernel never lacks random numbers once it has begun to give them.
fn panicked(said: &str) -> bool {
    said.lines().filter(|line| line.contains("panicked at")).any(|line| !line.contains("/library/std/src/"))
}

/// The last words.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// The outcomes, counted by call.
fn table(all: &[&Came]) -> String {
    let mut rows: BTreeMap<(Setup, Phase, &str), [usize; 5]> = BTreeMap::new();
    let mut tried: BTreeMap<(Setup, Phase, &str), BTreeSet<&str>> = BTreeMap::new();
    for came in all.iter().filter(|came| came.outcome != Outcome::NotReached) {
        for call in [&came.case.call, "all calls"] {
            let key = (came.case.setup, came.case.phase, call);
            rows.entry(key).or_default()[came.outcome as usize] += 1;
            tried.entry(key).or_default().insert(&came.case.error);
        }
    }
    let mut text = format!(
        "{:<13} {:<6} {:<18} {:>6} {:>6} {:>11} {:>11} {:>10} {:>4}\n",
        "program", "phase", "call", "errors", "cases", "unaffected", "flow reset", "ended", "bad"
    );
    for (key, counts) in rows {
        let (setup, phase, call) = key;
        let [_, unaffected, reset, ended, bad] = counts;
        let cases: usize = counts.iter().sum();
        let errors = tried.get(&key).map_or(0, BTreeSet::len);
        let (setup, phase) = (setup.to_string(), format!("{phase:?}").to_lowercase());
        text += &format!("{setup:<13} {phase:<6} {call:<18} {errors:>6} {cases:>6} {unaffected:>11} {reset:>11} {ended:>10} {bad:>4}\n");
    }
    text
}
