//! The threads that execute runs.

use crate::{
    answers::RunError,
    cores::{parallel_runs, pin_to_core, start_offset, usable_cores},
    interrupt::interrupt_flag,
    plan::PlannedRun,
    progress::{Bars, RunProgress},
};
use outcome::{EngineError, Outcome};
use scenario::Scenario;
use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// How to execute runs.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// How many runs side by side; absent: what the machine carries.
    pub jobs: Option<usize>,
    /// How often a run is executed at most, until its outcome is valid.
    pub tries: u32,
    /// Whether progress bars are drawn if stderr is a terminal.
    pub progress: bool,
}

/// A run that waits for a thread.
struct WaitingRun<'a> {
    /// Its place among the answers.
    index: usize,
    tries_left: u32,
    run: PlannedRun<'a>,
}

/// Executes every run and returns the answers in the order of `runs`. Runs whose outcome is not
/// valid are tried again after all others, since what disturbs a machine often passes. After SIGINT
/// or SIGTERM no run starts; those without an answer are [`EngineError::Cancelled`].
pub fn run_all(runs: Vec<PlannedRun<'_>>, options: RunOptions) -> Vec<Result<Outcome, RunError>> {
    let cases: Vec<String> = runs.iter().map(|run| run.variant.case.clone()).collect();
    let scenarios: Vec<&Scenario> = runs.iter().map(|run| &run.variant.scenario).collect();
    let in_real_time = runs.iter().any(|run| run.engine.runs_in_real_time());
    let by_default = || if in_real_time { parallel_runs(&scenarios) } else { thread::available_parallelism().map_or(1, usize::from) };
    let jobs = options.jobs.unwrap_or_else(by_default).clamp(1, runs.len().max(1));
    let cores = if in_real_time { usable_cores() } else { Vec::new() };
    let offset = if in_real_time { start_offset(&scenarios, jobs) } else { Duration::ZERO };
    let interrupted = interrupt_flag();
    let bars = Bars::new(options.progress, &runs);
    let pool = RunPool::new(runs, options.tries);
    thread::scope(|scope| {
        for worker in 0..jobs {
            let (pool, bars, interrupted, cores) = (&pool, &bars, &interrupted, &cores);
            scope.spawn(move || {
                if jobs >= 2 * cores.len() {
                    pin_to_core(cores, worker);
                }
                let started = Instant::now();
                while started.elapsed() < offset * worker as u32 && !interrupted.load(Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                while let Some(waiting) = pool.next(interrupted) {
                    let answer = execute(&waiting.run, &bars.add(&waiting.run, interrupted.clone()));
                    pool.finish(waiting, answer);
                }
            });
        }
    });
    pool.answers().into_iter().zip(cases).map(|(answer, case)| answer.map_err(|error| RunError { case, error })).collect()
}

fn execute(run: &PlannedRun<'_>, progress: &RunProgress) -> Result<Outcome, EngineError> {
    let scenario = &run.variant.scenario;
    let outcome = run.engine.run(scenario, run.seed, progress)?;
    Ok(compared_with_ideal(scenario, Outcome { case: run.variant.case.clone(), set: run.variant.set.clone(), ..outcome }))
}

/// Adds to an outcome of transfers over parallel networks how much longer they took than the ideal
/// ([`theory::ideal`]).
fn compared_with_ideal(scenario: &Scenario, outcome: Outcome) -> Outcome {
    let Some(parallel) = scenario.parallel().filter(|_| !outcome.sojourn_jobs.is_empty()) else { return outcome };
    let ideal = theory::ideal(&parallel, outcome.seed);
    let ratio = |(took, ideal): (&Option<f64>, Option<f64>)| Some((*took)? / ideal?);
    Outcome { sojourn_over_can: outcome.sojourn_s.iter().zip(ideal).map(ratio).collect(), ..outcome }
}

/// The runs that wait, and the answers so far.
struct RunPool<'a> {
    waiting: Mutex<VecDeque<WaitingRun<'a>>>,
    answers: Vec<Mutex<Option<Result<Outcome, EngineError>>>>,
}

impl<'a> RunPool<'a> {
    fn new(runs: Vec<PlannedRun<'a>>, tries: u32) -> Self {
        let answers = runs.iter().map(|_| Mutex::new(None)).collect();
        let waiting = runs.into_iter().enumerate().map(|(index, run)| WaitingRun { index, tries_left: tries, run });
        RunPool { waiting: Mutex::new(waiting.collect()), answers }
    }

    /// The next run to execute; none after an interrupt.
    fn next(&self, interrupted: &AtomicBool) -> Option<WaitingRun<'a>> {
        let next = self.waiting.lock().expect("no thread panics while it holds the queue").pop_front();
        next.filter(|_| !interrupted.load(Relaxed))
    }

    /// Stores an answer, and queues the run again if its outcome is not valid and tries are left.
    fn finish(&self, waiting: WaitingRun<'a>, answer: Result<Outcome, EngineError>) {
        let again = waiting.tries_left > 1 && answer.as_ref().is_ok_and(|outcome| !outcome.valid);
        let mut slot = self.answers[waiting.index].lock().expect("no thread panics while it stores an answer");
        // An interrupted second try leaves the answer of the first.
        if slot.is_none() || !matches!(answer, Err(EngineError::Cancelled)) {
            *slot = Some(answer);
        }
        drop(slot);
        if again {
            let again = WaitingRun { tries_left: waiting.tries_left - 1, ..waiting };
            self.waiting.lock().expect("no thread panics while it holds the queue").push_back(again);
        }
    }

    fn answers(self) -> Vec<Result<Outcome, EngineError>> {
        let answers = self.answers.into_iter().map(|answer| answer.into_inner().ok().flatten());
        answers.map(|answer| answer.unwrap_or(Err(EngineError::Cancelled))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::{Engine, Progress};
    use scenario::{ScenarioFile, Variant};
    use std::sync::atomic::AtomicU32;

    /// An engine whose outcomes are valid from the second try of a seed on.
    struct Busy<'a> {
        runs: &'a [AtomicU32],
    }

    impl Engine for Busy<'_> {
        fn name(&self) -> &'static str {
            "busy"
        }

        fn can_answer(&self, _: &Scenario) -> Result<(), EngineError> {
            Ok(())
        }

        fn run(&self, _: &Scenario, seed: u64, _: &dyn Progress) -> Result<Outcome, EngineError> {
            let earlier = self.runs[seed as usize].fetch_add(1, Relaxed);
            Ok(Outcome { seed, valid: earlier > 0, ..Outcome::default() })
        }
    }

    fn variant() -> Variant {
        let text = "name = \"x\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[[flow]]\nbytes = \"1kB\"\n";
        ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0)
    }

    #[test]
    fn answers_come_in_order_and_invalid_runs_are_tried_again() {
        let runs: Vec<AtomicU32> = (0..20).map(|_| AtomicU32::new(0)).collect();
        let variant = variant();
        for (tries, executed) in [(1, 1), (3, 2)] {
            runs.iter().for_each(|run| run.store(0, Relaxed));
            let planned = (0..20).map(|seed| PlannedRun { engine: Box::new(Busy { runs: &runs }), variant: &variant, seed }).collect();
            let answers = run_all(planned, RunOptions { jobs: Some(4), tries, progress: false });
            let seeds: Vec<u64> = answers.iter().map(|answer| answer.as_ref().unwrap().seed).collect();
            assert_eq!(seeds, (0..20).collect::<Vec<u64>>());
            assert!(answers.iter().all(|answer| answer.as_ref().unwrap().valid == (tries > 1)));
            assert!(runs.iter().all(|run| run.load(Relaxed) == executed));
        }
    }
}
