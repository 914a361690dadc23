//! Asks engines for answers: several variants and seeds side by side, with a progress bar each.

use crate::Failure;
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use outcome::{Engine, EngineError, Outcome, Progress};
use rustix::thread::CpuSet;
use scenario::{Scenario, Variant};
use std::{
    collections::VecDeque,
    io::IsTerminal,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Packets a second and link that a machine of two cores carries without falling behind, with room to spare.
const PACKETS_PER_S: f64 = 60_000.0;
/// More bars than this nobody reads.
const MOST_AT_ONCE: usize = 8;

/// One thing to ask.
pub(crate) struct Question<'a> {
    pub(crate) engine: Box<dyn Engine + Send + 'a>,
    pub(crate) variant: &'a Variant,
    pub(crate) seed: u64,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// The variant's name; empty if the file has no cases.
    pub(crate) case: String,
    pub(crate) why: EngineError,
}

/// How to ask.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Manner {
    /// How many runs side by side (default: what two cores carry)
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// How often a run is played, at most, until the machine keeps up with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) tries: u32,
    /// Draws no progress bars
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Asks every question and returns the answers in order. Answers that are not valid are asked for again, after
/// all the others: disturbances of a machine often pass.
pub(crate) fn ask(questions: Vec<Question<'_>>, manner: Manner) -> Vec<Result<Outcome, Unanswered>> {
    let cases: Vec<String> = questions.iter().map(|question| question.variant.case.clone()).collect();
    let scenarios: Vec<&Scenario> = questions.iter().map(|question| &question.variant.scenario).collect();
    let in_real_time = questions.iter().any(|question| question.engine.runs_in_real_time());
    let many = || if in_real_time { side_by_side(&scenarios) } else { thread::available_parallelism().map_or(1, usize::from) };
    let jobs = manner.jobs.unwrap_or_else(many).clamp(1, questions.len().max(1));
    let interrupted = interruption();
    let bars = (!manner.quiet && std::io::stderr().is_terminal()).then(MultiProgress::new);
    let answers: Vec<Mutex<Option<Result<Outcome, EngineError>>>> = questions.iter().map(|_| Mutex::new(None)).collect();
    let questions = questions.into_iter().enumerate().map(|(index, question)| (index, manner.tries, question));
    let waiting: Mutex<VecDeque<(usize, u32, Question<'_>)>> = Mutex::new(questions.collect());
    let queue = || waiting.lock().expect("no worker panics while it takes a question");
    // Who is interrupted begins nothing more.
    let next = || queue().pop_front().filter(|_| !interrupted.load(Relaxed));
    let homes = if in_real_time { processors() } else { Vec::new() };
    let apart = if in_real_time { apart(&scenarios, jobs) } else { Duration::ZERO };
    thread::scope(|scope| {
        for worker in 0..jobs {
            let (next, queue, answers, bars, interrupted, homes) = (&next, &queue, &answers, bars.as_ref(), &interrupted, &homes);
            scope.spawn(move || {
                if jobs >= 2 * homes.len() {
                    stay_on(homes, worker);
                }
                let begun = Instant::now();
                while begun.elapsed() < apart * worker as u32 && !interrupted.load(Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                while let Some((index, tries, question)) = next() {
                    let bar = Bar::new(bars, &question, interrupted.clone());
                    let answer = question
                        .engine
                        .run(&question.variant.scenario, question.seed, &bar)
                        .map(|outcome| Outcome { case: question.variant.case.clone(), ..outcome })
                        .map(|outcome| beside_the_ideal(&question.variant.scenario, outcome));
                    let again = tries > 1 && answer.as_ref().is_ok_and(|outcome| !outcome.valid);
                    let mut slot = answers[index].lock().expect("nobody else has this answer");
                    // Who is interrupted has what there was before.
                    if slot.is_none() || !matches!(answer, Err(EngineError::Cancelled)) {
                        *slot = Some(answer);
                    }
                    drop(slot);
                    if again {
                        queue().push_back((index, tries - 1, question));
                    }
                }
            });
        }
    });
    let answers = answers.into_iter().map(|answer| answer.into_inner().ok().flatten());
    let answers = answers.map(|answer| answer.unwrap_or(Err(EngineError::Cancelled)));
    answers.zip(cases).map(|(answer, case)| answer.map_err(|why| Unanswered { case, why })).collect()
}

/// How long after the one before it each of so many runs side by side begins. Transfers that come by chance come at the same times under the same seed:
/// runs that begin together would be busy together, each time with more than the machine carries.
fn apart(scenarios: &[&Scenario], jobs: usize) -> Duration {
    let between =
        |scenario: &&Scenario| scenario.parallel().map(|parallel| parallel.arrivals_per_s(0)).filter(|rate| *rate > 0.0).map(f64::recip);
    Duration::from_secs_f64(scenarios.iter().filter_map(between).fold(0.0, f64::max) / jobs as f64)
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
}

/// Keeps the calling thread, and those that it begins, on the processor whose turn it is. Runs in real time are made of threads that wake each other
/// for every packet: side by side on a guest's processors, where to wake somebody on another one is costly, 28 runs took 1.6 times the
/// processing that they take when each stays on one.
fn stay_on(processors: &[usize], turn: usize) {
    let Some(processor) = processors.get(turn % processors.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(*processor);
    // Where it is not allowed, all is as slow as it was.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Of transfers over networks in parallel it is told how much longer they took than the ideal.
fn beside_the_ideal(scenario: &Scenario, outcome: Outcome) -> Outcome {
    let Some(parallel) = scenario.parallel().filter(|_| !outcome.sojourn_jobs.is_empty()) else { return outcome };
    let ideal = theory::ideal(&parallel, outcome.seed);
    let over = |(took, ideal): (&Option<f64>, Option<f64>)| Some((*took)? / ideal?);
    Outcome { sojourn_over_can: outcome.sojourn_s.iter().zip(ideal).map(over).collect(), ..outcome }
}

/// How many of these a machine can play at once.
fn side_by_side(scenarios: &[&Scenario]) -> usize {
    let load = |scenario: &Scenario| {
        let slowest = scenario.links.iter().map(|link| link.rate.bits_per_s()).min().unwrap_or(0);
        let beside: u64 = scenario.networks.iter().map(|network| network.rate.bits_per_s()).sum();
        (slowest as f64 * scenario.links.len() as f64 + beside as f64) / 12_000.0
    };
    let heaviest = scenarios.iter().map(|scenario| load(scenario)).fold(1.0, f64::max);
    ((PACKETS_PER_S / heaviest) as usize).clamp(1, MOST_AT_ONCE)
}

/// Set when the user asks for the end.
pub(crate) fn interruption() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second one ends the process at once; what it leaves behind goes with it or is cleared by the next start.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone());
        let _ = signal_hook::flag::register(signal, flag.clone());
    }
    flag
}

/// A progress bar on a terminal; silence elsewhere.
struct Bar {
    bar: Option<ProgressBar>,
    interrupted: Arc<AtomicBool>,
}

impl Bar {
    fn new(bars: Option<&MultiProgress>, question: &Question<'_>, interrupted: Arc<AtomicBool>) -> Self {
        let bar = bars.map(|bars| {
            let style = ProgressStyle::with_template("{prefix:>28} {bar:40.cyan/blue} {percent:>3} %  {msg} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let case = &question.variant.case;
            let name = if case.is_empty() { &question.variant.scenario.name } else { case };
            bars.add(ProgressBar::new(1000).with_style(style).with_prefix(format!("{name} #{}", question.seed)))
        });
        Bar { bar, interrupted }
    }
}

impl Progress for Bar {
    fn at(&self, done: f64, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position((done * 1000.0) as u64);
            bar.set_message(what.to_string());
        }
    }

    fn cancelled(&self) -> bool {
        self.interrupted.load(Relaxed)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Separates answers from failures. All failures but the first are printed to stderr, each once with
/// the cases that it is about; the first is left for the caller to print.
pub(crate) fn part(answers: Vec<Result<Outcome, Unanswered>>) -> (Vec<Outcome>, Option<Failure>) {
    let asked = answers.len();
    let (mut outcomes, mut failures) = (Vec::new(), Vec::<(String, Vec<Unanswered>)>::new());
    for answer in answers {
        match answer {
            Ok(outcome) => outcomes.push(outcome),
            Err(unanswered) => {
                let text = unanswered.why.to_string();
                match failures.iter_mut().find(|(other, _)| *other == text) {
                    Some((_, alike)) => alike.push(unanswered),
                    None => failures.push((text, vec![unanswered])),
                }
            }
        }
    }
    let mut failures = failures.into_iter().map(|(text, alike)| failure(&text, &alike, asked));
    let first = failures.next();
    failures.for_each(|failure| eprintln!("tandem: {failure}"));
    (outcomes, first)
}

/// The failure of questions with the same error, out of all that were asked.
fn failure(text: &str, alike: &[Unanswered], asked: usize) -> Failure {
    let mut cases: Vec<String> = Vec::new();
    for case in alike.iter().filter(|unanswered| !unanswered.case.is_empty()).map(|unanswered| format!("{:?}", unanswered.case)) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let of = match &cases[..] {
        [] => String::new(),
        [one] => format!("case {one}: "),
        many => format!("cases {}: ", many.join(", ")),
    };
    match &alike[0].why {
        EngineError::CannotAnswer { .. } => Failure::CannotTell(of + text),
        EngineError::WrongScenario { .. } => Failure::Usage(of + text),
        // What fails for all cases is not about a case.
        EngineError::Failed(_) | EngineError::Cancelled if alike.len() == asked => Failure::Failed(text.into()),
        EngineError::Failed(_) | EngineError::Cancelled => Failure::Failed(of + text),
    }
}

/// Writes a page, with an error that says what to do.
pub(crate) fn write_page(path: &std::path::Path, page: &str) -> Result<(), Failure> {
    if let Some(parent) = path.parent() {
        // A missing directory is made; if it can't be, writing says why.
        let _ = std::fs::create_dir_all(parent);
    }
    std::fs::write(path, page)
        .map_err(|why| Failure::Failed(format!("cannot write the page {}: {why}; choose another place with --page FILE", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unanswered(case: &str, key: &str) -> Result<Outcome, Unanswered> {
        let why = EngineError::CannotAnswer { engine: "sim", key: key.into(), why: "it has none".into() };
        Err(Unanswered { case: case.into(), why })
    }

    #[test]
    fn a_failure_names_its_cases() {
        let text = |answers| part(answers).1.unwrap().to_string();
        assert_eq!(text(vec![unanswered("", "tcp")]), "sim cannot answer tcp: it has none");
        assert_eq!(text(vec![Ok(Outcome::default()), unanswered("a", "tcp")]), "case \"a\": sim cannot answer tcp: it has none");
        let several = vec![unanswered("a", "tcp"), unanswered("b", "tcp"), unanswered("a", "tcp"), unanswered("c", "link[1]")];
        assert_eq!(text(several), "cases \"a\", \"b\": sim cannot answer tcp: it has none");
    }
}
