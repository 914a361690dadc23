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
        Arc, Mutex, MutexGuard,
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
    /// Its place among the runs.
    index: usize,
    tries_left: u32,
    run: PlannedRun<'a>,
    /// The outcome of the try before, which was not valid.
    earlier: Option<Outcome>,
}

/// Executes every run and returns the answers in the order of `runs`. Runs whose outcome is not
/// valid are tried again after all others, since what disturbs a machine often passes. After SIGINT
/// or SIGTERM no run starts; those without an answer are [`EngineError::Cancelled`].
pub fn run_all(runs: Vec<PlannedRun<'_>>, options: RunOptions) -> Vec<Result<Outcome, RunError>> {
    run_all_until(runs, options, &interrupt_flag())
}

/// As [`run_all`], until `interrupted` is set in place of a signal.
pub fn run_all_until(runs: Vec<PlannedRun<'_>>, options: RunOptions, interrupted: &Arc<AtomicBool>) -> Vec<Result<Outcome, RunError>> {
    let cases: Vec<String> = runs.iter().map(|run| run.variant.case.clone()).collect();
    let answers: Vec<Mutex<Option<Result<Outcome, RunError>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    run_each(runs, options, interrupted, &|index, answer| {
        *answers[index].lock().expect("no thread panics while it stores an answer") = Some(answer);
    });
    let answers = answers.into_iter().map(|answer| answer.into_inner().ok().flatten());
    answers.zip(cases).map(|(answer, case)| answer.unwrap_or(Err(RunError { case, error: EngineError::Cancelled }))).collect()
}

/// Executes every run, as [`run_all`], and passes each answer to `on_answer`, with the place of its
/// run in `runs`, on the thread that has found it. Nothing is kept, so that a caller can play more
/// runs than outcomes fit into memory. Once `interrupted` is set no run starts; those that have not
/// started get no answer.
pub fn run_each(
    runs: Vec<PlannedRun<'_>>,
    options: RunOptions,
    interrupted: &Arc<AtomicBool>,
    on_answer: &(dyn Fn(usize, Result<Outcome, RunError>) + Sync),
) {
    let scenarios: Vec<&Scenario> = runs.iter().map(|run| &run.variant.scenario).collect();
    let in_real_time = runs.iter().any(|run| run.engine.runs_in_real_time());
    let by_default = || if in_real_time { parallel_runs(&scenarios) } else { thread::available_parallelism().map_or(1, usize::from) };
    let jobs = options.jobs.unwrap_or_else(by_default).clamp(1, runs.len().max(1));
    let cores = if in_real_time { usable_cores() } else { Vec::new() };
    let offset = if in_real_time { start_offset(&scenarios, jobs) } else { Duration::ZERO };
    let bars = Bars::new(options.progress, &runs);
    let pool = RunPool::new(runs, options.tries);
    let work = |worker: usize| {
        if jobs >= 2 * cores.len() {
            pin_to_core(&cores, worker);
        }
        let started = Instant::now();
        while started.elapsed() < offset * worker as u32 && !interrupted.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        while let Some(waiting) = pool.next(interrupted) {
            let answer = execute(&waiting.run, &bars.add(&waiting.run, interrupted.clone()));
            if let Some((index, answer)) = pool.finish(waiting, answer) {
                on_answer(index, answer);
            }
        }
    };
    if jobs == 1 && !in_real_time {
        work(0);
    } else {
        thread::scope(|scope| {
            for worker in 0..jobs {
                let work = &work;
                scope.spawn(move || work(worker));
            }
        });
    }
    pool.earlier_outcomes().for_each(|(index, outcome)| on_answer(index, Ok(outcome)));
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

/// The runs that wait.
struct RunPool<'a> {
    waiting: Mutex<VecDeque<WaitingRun<'a>>>,
}

impl<'a> RunPool<'a> {
    fn new(runs: Vec<PlannedRun<'a>>, tries: u32) -> Self {
        let waiting = runs.into_iter().enumerate().map(|(index, run)| WaitingRun { index, tries_left: tries, run, earlier: None });
        RunPool { waiting: Mutex::new(waiting.collect()) }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<WaitingRun<'a>>> {
        self.waiting.lock().expect("no thread panics while it holds the queue")
    }

    /// The next run to execute; none after an interrupt.
    fn next(&self, interrupted: &AtomicBool) -> Option<WaitingRun<'a>> {
        if interrupted.load(Relaxed) { None } else { self.queue().pop_front() }
    }

    /// The place and the answer of a run that is done. Queues the run again if its outcome is not
    /// valid and tries are left.
    fn finish(&self, mut waiting: WaitingRun<'a>, answer: Result<Outcome, EngineError>) -> Option<(usize, Result<Outcome, RunError>)> {
        let answer = match answer {
            Ok(outcome) if waiting.tries_left > 1 && !outcome.valid => {
                let again = WaitingRun { tries_left: waiting.tries_left - 1, earlier: Some(outcome), ..waiting };
                self.queue().push_back(again);
                return None;
            }
            // An interrupted second try leaves the answer of the first.
            Err(EngineError::Cancelled) if waiting.earlier.is_some() => waiting.earlier.take().ok_or(EngineError::Cancelled),
            answer => answer,
        };
        let case = || waiting.run.variant.case.clone();
        Some((waiting.index, answer.map_err(|error| RunError { case: case(), error })))
    }

    /// The outcomes of runs that an interrupt kept from being tried again.
    fn earlier_outcomes(self) -> impl Iterator<Item = (usize, Outcome)> {
        let waiting = self.waiting.into_inner().unwrap_or_default();
        waiting.into_iter().filter_map(|waiting| Some((waiting.index, waiting.earlier?)))
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

    #[test]
    fn an_interrupted_second_try_leaves_the_outcome_of_the_first() {
        let counts: Vec<AtomicU32> = (0..2).map(|_| AtomicU32::new(0)).collect();
        let (variant, interrupted) = (variant(), Arc::new(AtomicBool::new(false)));
        let planned = (0..2).map(|seed| PlannedRun { engine: Box::new(Busy { runs: &counts }), variant: &variant, seed }).collect();
        let answers = Mutex::new(Vec::new());
        let options = RunOptions { jobs: Some(1), tries: 2, progress: false };
        // The first run of seed 0 is not valid and waits; the second seed is valid at its first try
        // and sets the flag.
        counts[1].store(1, Relaxed);
        run_each(planned, options, &interrupted, &|index, answer| {
            interrupted.store(true, Relaxed);
            answers.lock().unwrap().push((index, answer.unwrap().valid));
        });
        assert_eq!(answers.into_inner().unwrap(), [(1, true), (0, false)]);
    }
}
