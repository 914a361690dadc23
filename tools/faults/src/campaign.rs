//! The fault injection campaign: each system call of a program fails with each of several errors,
//! at its first, second, … occurrence, once or for a while.
//!
//! A round of transfers without faults determines which calls the program makes, and how often.
//! Each of them is then made to fail.

use crate::{
    environment::{self, DescriptorCounts, InterposedProgram, ProgramKind, TestEnvironment},
    interposer::SyscallFault,
    syscalls::{self, error_name, errors},
};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// Makes each system call of the proxy, and of both ends of a bond, fail in turn while transfers
/// run, and reports the outcome. Exit code 1 if a flow got stuck or lost a byte, or if the program
/// panicked, leaked a descriptor, or split no new connection afterwards
#[derive(Debug, clap::Parser)]
pub(crate) struct FaultCampaign {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Programs to test
    #[arg(long, value_enum, value_delimiter = ',', default_value = "proxy,connect,serve")]
    setups: Vec<ProgramKind>,
    /// When calls fail
    #[arg(long, value_enum, value_delimiter = ',', default_value = "run,start,stop")]
    phases: Vec<FaultPhase>,
    /// Only these system calls, by name; absent: all that the program makes
    #[arg(long, value_delimiter = ',')]
    calls: Option<Vec<String>>,
    /// Only these errors, by name (ENOMEM)
    #[arg(long, value_delimiter = ',')]
    errors: Option<Vec<String>>,
    /// Maximum number of occurrences of each call that are tried: the 1st, 2nd, 3rd, 5th, 8th, 13th
    /// and so on
    #[arg(long, default_value_t = 12)]
    places: usize,
    /// Stops after this time and reports the cases so far
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Appends results to this file, one line of JSON for each case; cases that it already has are
    /// skipped
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

/// When calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FaultPhase {
    /// While transfers run
    Run,
    /// From reading the configuration until connections are split
    Start,
    /// After the signal to stop
    Stop,
}

/// A fault and where it was injected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct FaultCase {
    setup: ProgramKind,
    phase: FaultPhase,
    call: String,
    error: String,
    nth: u64,
    lasts_ms: u64,
}

/// The outcome of a case, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FaultOutcome {
    /// The program made fewer calls.
    NotReached,
    /// Every transfer was complete.
    Unaffected,
    /// At least one flow was reset, at both ends.
    Reset,
    /// The program ended with an error that says why.
    Ended,
    /// Must never happen.
    Bad,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CaseRecord {
    #[serde(flatten)]
    case: FaultCase,
    outcome: FaultOutcome,
    detail: String,
}

/// Duration of a lasting failure.
const LASTING: Duration = Duration::from_millis(300);

impl FaultCampaign {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let tandem = testbed::resolve_program(&self.tandem);
        let mut all = self.known()?;
        let begun = Instant::now();
        for setup in &self.setups {
            let environment = TestEnvironment::new(*setup, &tandem)?;
            for phase in &self.phases {
                let mut trial = PhaseTrial {
                    faults: self,
                    environment: &environment,
                    setup: *setup,
                    phase: *phase,
                    program: None,
                    begun,
                    all: &mut all,
                };
                trial.run()?;
            }
        }
        let wanted = |record: &&CaseRecord| self.setups.contains(&record.case.setup) && self.phases.contains(&record.case.phase);
        let record: Vec<&CaseRecord> = all.values().filter(wanted).collect();
        print!("{}", table(&record));
        let bad: Vec<&&CaseRecord> = record.iter().filter(|record| record.outcome == FaultOutcome::Bad).collect();
        for record in &bad {
            println!("BAD {:?}: {}", record.case, record.detail);
        }
        Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn known(&self) -> Result<BTreeMap<FaultCase, CaseRecord>> {
        let Some(path) = self.resume.as_ref().filter(|path| path.exists()) else { return Ok(BTreeMap::new()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parse = |line: &str| {
            let record: CaseRecord = serde_json::from_str(line).with_context(|| format!("{}: {line:?}", path.display()))?;
            Ok((record.case.clone(), record))
        };
        text.lines().map(parse).collect()
    }

    fn is_wanted(&self, call: i32, errno: i32) -> bool {
        let among = |list: &Option<Vec<String>>, name: &str| list.as_ref().is_none_or(|list| list.iter().any(|one| one == name));
        among(&self.calls, &syscalls::name(call)) && among(&self.errors, error_name(errno))
    }

    /// Occurrences of a call that are tried, up to `count`: 1, 2, 3, 5, 8, …
    fn places(&self, count: u64) -> Vec<u64> {
        let numbers = std::iter::successors(Some((1, 2)), |(one, next)| Some((*next, one + next)));
        numbers.map(|(one, _)| one).take(self.places).take_while(|place| *place <= count).collect()
    }

    /// Durations of failures with this error. Only a shortage lasts.
    fn lasting(errno: i32) -> &'static [Duration] {
        if matches!(errno, libc::ENOMEM | libc::EMFILE | libc::ENOBUFS | libc::ENOSPC | libc::ENFILE) {
            &[Duration::ZERO, LASTING]
        } else {
            &[Duration::ZERO]
        }
    }
}

/// The cases of one phase of one program.
struct PhaseTrial<'a> {
    faults: &'a FaultCampaign,
    environment: &'a TestEnvironment,
    setup: ProgramKind,
    phase: FaultPhase,
    /// The running program. It serves many cases, until one ends it.
    program: Option<(InterposedProgram, DescriptorCounts)>,
    begun: Instant,
    all: &'a mut BTreeMap<FaultCase, CaseRecord>,
}

impl PhaseTrial<'_> {
    fn run(&mut self) -> Result<()> {
        let counts = self.counts()?;
        let after = (self.phase == FaultPhase::Start).then_some(syscalls::SERVES);
        for (call, count) in counts {
            for errno in errors(call) {
                for lasts in FaultCampaign::lasting(errno) {
                    let places = if lasts.is_zero() { self.faults.places(count) } else { vec![1] };
                    for nth in places {
                        if !self.faults.is_wanted(call, errno) || self.is_over() {
                            continue;
                        }
                        if self.case(SyscallFault { call, errno, nth, lasts: *lasts, after })? == FaultOutcome::NotReached {
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

    /// Number of calls in this phase without faults, by system call.
    fn counts(&mut self) -> Result<BTreeMap<i32, u64>> {
        if self.phase == FaultPhase::Start {
            let mut program = self.environment.start(None)?;
            self.environment.await_start(&mut program)?;
            let counts = program.interposer.counts();
            // Otherwise the phase would pass without a case.
            anyhow::ensure!(counts.contains_key(&syscalls::SERVES), "the program's start was not recognised: correct SERVES");
            return Ok(counts);
        }
        self.running()?;
        let Some((program, _)) = &mut self.program else { return Ok(BTreeMap::new()) };
        program.interposer.arm(None);
        if self.phase == FaultPhase::Stop {
            program.terminate()?;
            program.await_end()?;
        } else {
            let sum = self.environment.round();
            anyhow::ensure!(sum.bad.is_empty() && sum.reset == 0, "without faults: {sum:?}\n{}", program.log_text());
        }
        let counts = program.interposer.counts();
        if self.phase == FaultPhase::Stop {
            self.program = None;
        }
        Ok(counts)
    }

    /// Makes sure that the program runs, and counts its descriptors.
    fn running(&mut self) -> Result<()> {
        if self.program.is_none() {
            let mut program = self.environment.start(None)?;
            self.environment.await_start(&mut program)?;
            // The first connections open descriptors that stay open.
            for _ in 0..2 {
                self.environment.round();
            }
            thread::sleep(Duration::from_millis(200));
            let descriptors = program.descriptors();
            self.program = Some((program, descriptors));
        }
        Ok(())
    }

    fn case(&mut self, fault: SyscallFault) -> Result<FaultOutcome> {
        let case = FaultCase {
            setup: self.setup,
            phase: self.phase,
            call: syscalls::name(fault.call),
            error: error_name(fault.errno).into(),
            nth: fault.nth,
            lasts_ms: fault.lasts.as_millis() as u64,
        };
        if let Some(known) = self.all.get(&case) {
            return Ok(known.outcome);
        }
        let (outcome, detail) = match self.phase {
            FaultPhase::Run => self.while_running(fault)?,
            FaultPhase::Start => self.at_start(fault)?,
            FaultPhase::Stop => self.at_stop(fault)?,
        };
        if outcome >= FaultOutcome::Ended {
            eprintln!("{outcome:?} {case:?}: {detail}");
        }
        let record = CaseRecord { case: case.clone(), outcome, detail };
        if let Some(path) = &self.faults.resume {
            environment::append(path, &serde_json::to_string(&record)?)?;
        }
        self.all.insert(case, record);
        Ok(outcome)
    }

    fn while_running(&mut self, fault: SyscallFault) -> Result<(FaultOutcome, String)> {
        self.running()?;
        let Some((mut program, before)) = self.program.take() else { return Ok((FaultOutcome::NotReached, String::new())) };
        program.interposer.arm(Some(fault));
        let sum = self.environment.round();
        if program.interposer.disarm() == 0 && sum.bad.is_empty() && program.status()?.is_none() {
            self.program = Some((program, before));
            return Ok((FaultOutcome::NotReached, String::new()));
        }
        if !sum.bad.is_empty() {
            return Ok((FaultOutcome::Bad, format!("{:?}; {}", sum.bad, tail(&program.log_text()))));
        }
        let recovered = self.environment.await_recovery(&mut program, before);
        if let Some(status) = program.status()? {
            return Ok(judge_end(status, &program.log_text()));
        }
        let said = program.log_text();
        if panicked(&said) {
            return Ok((FaultOutcome::Bad, tail(&said)));
        }
        if let Err(why) = recovered {
            return Ok((FaultOutcome::Bad, format!("{why:#}; {}", tail(&said))));
        }
        self.program = Some((program, before));
        Ok(if sum.reset == 0 { (FaultOutcome::Unaffected, String::new()) } else { (FaultOutcome::Reset, format!("{} flows", sum.reset)) })
    }

    fn at_start(&mut self, fault: SyscallFault) -> Result<(FaultOutcome, String)> {
        let mut program = self.environment.start(Some(fault))?;
        let started = self.environment.await_start(&mut program);
        let fired = program.interposer.disarm();
        if let Some(status) = program.status()? {
            return Ok(if fired == 0 {
                (FaultOutcome::Bad, "the program ended without a fault".into())
            } else {
                judge_end(status, &program.log_text())
            });
        }
        if let Err(why) = started {
            return Ok((FaultOutcome::Bad, format!("{why:#}")));
        }
        if fired == 0 {
            return Ok((FaultOutcome::NotReached, String::new()));
        }
        let sum = self.environment.round();
        let said = program.log_text();
        // The program may split connections for a moment before its start fails.
        if let Some(status) = program.status()? {
            return Ok(judge_end(status, &said));
        }
        if !sum.bad.is_empty() || panicked(&said) {
            return Ok((FaultOutcome::Bad, format!("{sum:?}; {}", tail(&said))));
        }
        if sum.reset == 0 {
            return Ok((FaultOutcome::Unaffected, String::new()));
        }
        // The rules may be lost and reinstalled while flows are in progress (docs/threat-model.md),
        // or the program is about to end and its listeners have gone.
        let recovered = self.environment.await_start(&mut program);
        if let Some(status) = program.status()? {
            return Ok(judge_end(status, &program.log_text()));
        }
        let after = self.environment.round();
        let outcome = if recovered.is_ok() && after.bad.is_empty() && after.reset == 0 { FaultOutcome::Reset } else { FaultOutcome::Bad };
        Ok((outcome, format!("{} flows; then {recovered:?}; the next round: {after:?}", sum.reset)))
    }

    fn at_stop(&mut self, fault: SyscallFault) -> Result<(FaultOutcome, String)> {
        self.running()?;
        let Some((mut program, _)) = self.program.take() else { return Ok((FaultOutcome::NotReached, String::new())) };
        program.interposer.arm(Some(fault));
        program.terminate()?;
        let status = program.await_end()?;
        let fired = program.interposer.fired();
        let Some(status) = status else {
            return Ok((FaultOutcome::Bad, format!("the program does not end; {}", tail(&program.log_text()))));
        };
        if self.environment.leaves_rules()? {
            return Ok((FaultOutcome::Bad, "its rules are still installed".into()));
        }
        if fired == 0 {
            return Ok((FaultOutcome::NotReached, String::new()));
        }
        let said = program.log_text();
        if status.success() && !panicked(&said) {
            return Ok((FaultOutcome::Unaffected, String::new()));
        }
        Ok(judge_end(status, &said))
    }
}

/// Whether a program ended in an orderly way: with an exit code and a message.
fn judge_end(status: ExitStatus, said: &str) -> (FaultOutcome, String) {
    let last = tail(said);
    // Rust's runtime aborts when it gets no memory, for an allocation or for a panic.
    let no_memory = status.signal() == Some(libc::SIGABRT)
        && ["memory allocation of ", "failed to initiate panic"].iter().any(|words| said.contains(words));
    let is_fine = no_memory || matches!(status.code(), Some(1..=127)) && !panicked(said) && !last.trim().is_empty();
    (if is_fine { FaultOutcome::Ended } else { FaultOutcome::Bad }, format!("{status}: {last}"))
}

/// Whether the program itself panicked. Panics inside the standard library cannot be avoided and
/// have no cause outside of tests: reading a child's output or the result of its exec is only ever
/// interrupted, and the kernel never lacks random numbers once it has any.
fn panicked(said: &str) -> bool {
    said.lines().filter(|line| line.contains("panicked at")).any(|line| !line.contains("/library/std/src/"))
}

/// The last lines of a log.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// Outcomes, counted by system call.
fn table(all: &[&CaseRecord]) -> String {
    let mut rows: BTreeMap<(ProgramKind, FaultPhase, &str), [usize; 5]> = BTreeMap::new();
    let mut tried: BTreeMap<(ProgramKind, FaultPhase, &str), BTreeSet<&str>> = BTreeMap::new();
    for record in all.iter().filter(|record| record.outcome != FaultOutcome::NotReached) {
        for call in [&record.case.call, "all calls"] {
            let key = (record.case.setup, record.case.phase, call);
            rows.entry(key).or_default()[record.outcome as usize] += 1;
            tried.entry(key).or_default().insert(&record.case.error);
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
