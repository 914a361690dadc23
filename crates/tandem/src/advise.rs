//! `tandem advise`: split this path?

use crate::{
    Failure,
    answer::{self, Manner, Question},
    run,
};
use advise::{Advice, Advisor, Aim, Bound, Finding, Verdict, Way};
use clap::Args;
use outcome::{Engine, Outcome};
use scenario::{Assignment, Variant};
use std::path::PathBuf;
use units::Bytes;

/// Split this path? Where, with which controller, how much buffer, and what is gained
///
/// Plays the scenario as it is, end to end with other controllers, and split at each place with each controller, all with the same seeds, by the simulator; beside
/// it what the equations say, where they hold. A path is two links at least: a proxy stands between them.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// The scenario: the path, and who sends what over it
    file: PathBuf,
    /// Changes a key: link.2.loss.per_packet=0.01
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
    /// With how many seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    manner: Manner,
}

impl Advise {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut variants = run::read(&self.file, &self.sets)?;
        if variants.len() > 1 {
            let names: Vec<String> = variants.iter().map(|variant| format!("{:?}", variant.case)).collect();
            let (first, file) = (&names[0], self.file.display());
            eprintln!("tandem: {file} has {} cases: this is of {first}, its first ({})", names.len(), names.join(", "));
        }
        let scenario = variants.remove(0).scenario;
        let advisor = Advisor::new(&scenario).map_err(|why| Failure::Usage(format!("{}: {why}", self.file.display())))?;
        let candidates = advisor.candidates();
        let outcomes = self.ask(&candidates)?;
        let advice = advisor.advice(&outcomes, &by_equations(&candidates)).map_err(|why| Failure::CannotTell(why.to_string()))?;
        let bounds = match advice.verdict {
            Verdict::Split => advisor.bounds(advice.aim, &self.ask(&advisor.buffers(&advice.split.way))?),
            Verdict::DoesNotPay | Verdict::CannotTell => Vec::new(),
        };
        let enough = advise::enough(&bounds).map(|bound| bound.buffer_bytes);
        if self.json {
            let said = serde_json::json!({ "advice": advice, "enough_bytes": enough, "buffers": bounds });
            outln!("{said:#}");
        } else {
            out!("{}", text(&advice, &bounds));
        }
        Ok(())
    }

    /// What the simulator says of each, with every seed.
    fn ask(&self, variants: &[Variant]) -> Result<Vec<Outcome>, Failure> {
        let mut questions = Vec::new();
        for variant in variants {
            let first = variant.scenario.seed;
            for seed in first..first + self.seeds {
                questions.push(Question { engine: Box::new(sim::Sim::default()), variant, seed });
            }
        }
        // Virtual time is not late: as many as there are processors.
        let jobs = self.manner.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
        let (outcomes, failure) =
            answer::part(answer::ask(questions, Manner { jobs, quiet: self.manner.quiet || self.json, ..self.manner }));
        failure.map_or(Ok(outcomes), Err)
    }
}

/// What the equations say of those that they can answer.
fn by_equations(candidates: &[Variant]) -> Vec<Outcome> {
    let answer = |variant: &Variant| {
        let outcome = theory::Theory.run(&variant.scenario, variant.scenario.seed, &()).ok()?;
        Some(Outcome { case: variant.case.clone(), ..outcome })
    };
    candidates.iter().filter_map(answer).collect()
}

/// The advice in words, and what is behind it.
fn text(advice: &Advice, bounds: &[Bound]) -> String {
    let mut out = headline(advice, bounds) + "\n\n";
    let mut header = vec!["way", "gain", value_name(advice.aim), "Jain", "drops", "peak queue, kB"];
    let equations = advice.findings.iter().any(|finding| finding.by_equations.is_some());
    if equations {
        header.push("gain by equations");
    }
    let row = |finding: &Finding| {
        let mut row = vec![
            name(&finding.way, &advice.now.way),
            gain(finding),
            format!("{:.2}", shown(advice.aim, finding.value)),
            finding.jain.map_or("–".into(), |jain| format!("{jain:.3}")),
            format!("{:.0}", finding.drops),
            format!("{:.0}", finding.queue_max_bytes / 1e3),
        ];
        if equations {
            row.push(finding.by_equations.map_or("–".into(), |gain| format!("{gain:.2}")));
        }
        row
    };
    out += &report::words_table(&header, &advice.findings.iter().map(row).collect::<Vec<_>>());
    if !bounds.is_empty() {
        let row = |bound: &Bound| vec![Bytes(bound.buffer_bytes).to_string(), format!("{:.3} ± {:.3}", bound.leaves, bound.half)];
        out += &format!("\n{}", report::words_table(&["buffer", "of what none bounds"], &bounds.iter().map(row).collect::<Vec<_>>()));
    }
    out
}

fn headline(advice: &Advice, bounds: &[Bound]) -> String {
    let split = &advice.split;
    // What changes nothing on the way comes first where it does as much.
    let sender = advice.sender.as_ref().filter(|sender| sender.pays());
    let (instead, besides): (Vec<&Finding>, Vec<&Finding>) = sender.into_iter().partition(|sender| sender.gain >= split.gain);
    let mut said = String::new();
    if let Some(sender) = instead.first() {
        said += &format!("No proxy is needed if the sender can have {}: {}. If it can not: ", sender.way.control, compared(advice, sender));
    }
    said += &match advice.verdict {
        Verdict::Split => {
            let told = split.way.capacity.map_or(String::new(), |rate| format!(", told that the next link carries {rate}"));
            let buffer = match advise::enough(bounds) {
                Some(bound) => format!("a buffer of {} in each direction is enough", Bytes(bound.buffer_bytes)),
                None => "no buffer that was tried is enough".into(),
            };
            format!(
                "split it after link {}, with {} at the proxy{told}; {buffer}. {}. It takes away that acknowledgements are the receiver's, and that a \
                 flow outlives what is in its middle (RFC 3135 §4).",
                split.way.after.unwrap_or(0),
                split.way.control,
                compared(advice, split)
            )
        }
        Verdict::DoesNotPay => format!("do not split it: that does not pay. The best way to split: {}.", compared(advice, split)),
        Verdict::CannotTell => format!(
            "do not split it: that it pays can't be told from chance. The best way to split: {}; more seeds (--seeds) tell more.",
            compared(advice, split)
        ),
    };
    if let Some(sender) = besides.first() {
        said += &format!(" Without a proxy, with {} at the sender: {}.", sender.way.control, compared(advice, sender));
    }
    let first = said.chars().next().into_iter().flat_map(char::to_uppercase);
    first.chain(said.chars().skip(1)).collect()
}

/// What a finding is beside what there is now.
fn compared(advice: &Advice, finding: &Finding) -> String {
    let (now, then) = (shown(advice.aim, advice.now.value), shown(advice.aim, finding.value));
    let what = match advice.aim {
        Aim::MeanFlowS => format!("a flow takes {then:.2} s instead of {now:.2} s in the mean"),
        Aim::GoodputBps => format!("{then:.2} Mbit/s instead of {now:.2}"),
    };
    // Seeds that all say the same have drawn nothing.
    let seeds = if finding.half > 0.0 { format!("{} seeds", advice.seeds) } else { "nothing here is drawn at random".into() };
    format!("{what}, {} times as good ({seeds})", gain(finding))
}

fn name(way: &Way, now: &Way) -> String {
    match way.after {
        Some(after) => format!("split after link {after}, {}", way.control),
        None if way == now => format!("as it is: end to end, {}", way.control),
        None => format!("end to end, {}", way.control),
    }
}

fn gain(finding: &Finding) -> String {
    if finding.half > 0.0 { format!("{:.2} ± {:.2}", finding.gain, finding.half) } else { format!("{:.2}", finding.gain) }
}

fn value_name(aim: Aim) -> &'static str {
    match aim {
        Aim::MeanFlowS => "mean flow, s",
        Aim::GoodputBps => "goodput, Mbit/s",
    }
}

fn shown(aim: Aim, value: f64) -> f64 {
    match aim {
        Aim::MeanFlowS => value,
        Aim::GoodputBps => value / 1e6,
    }
}
