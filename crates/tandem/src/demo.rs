//! `tandem demo`: one satellite link, with and without the proxy, and what the difference is made of.

use crate::{
    Failure,
    answer::{self, Manner, Question},
};
use clap::Args;
use outcome::Outcome;
use scenario::{Assignment, ScenarioFile, Variant};
use serde::Serialize;
use std::path::PathBuf;
use units::Bytes;

/// The scenario, which is also a file that `tandem run` plays.
pub(crate) const SCENARIO: &str = include_str!("../../../scenarios/demo.toml");

/// Sends files over an emulated satellite link, end to end and through the split proxy, and shows them side by side.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Prints JSON: {"rows": [{"case": …, "outcome": {…}}, …], "left_out": [{"cases": […], "why": …}, …]}
    #[arg(long)]
    json: bool,
    /// Where the page with plots goes
    #[arg(long, value_name = "FILE", default_value = "tandem-demo.html")]
    page: PathBuf,
    /// Size of each of the three files, instead of 2MB
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Bytes>,
    /// Seed of every random number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Rows {
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

/// Rows that this kernel cannot play.
#[derive(Debug, Serialize)]
struct LeftOut {
    cases: Vec<String>,
    why: String,
}

#[derive(Debug, Serialize)]
struct Row {
    case: String,
    outcome: Outcome,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let bytes = self.bytes.map(|bytes| format!("flow.1.bytes={bytes}").parse::<Assignment>()).transpose().map_err(Failure::Usage)?;
        let variants = ScenarioFile::parse(SCENARIO, "demo.toml")
            .and_then(|file| file.variants(bytes.as_slice()))
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let (variants, left_out) = playable(variants);
        let questions =
            variants.iter().map(|variant| Question { engine: Box::new(lab::Lab::default()), variant, seed: self.seed }).collect::<Vec<_>>();
        let (outcomes, failure) = answer::part(answer::ask(questions, Manner { jobs: Some(variants.len()), tries: 2, quiet: self.json }));
        if let Some(failure) = failure {
            return Err(failure);
        }
        let mut notes = findings(&outcomes);
        notes.extend(left_out.iter().map(|left| format!("Left out: {}. {}", left.cases.join(", "), left.why)));
        let scenario = &variants[0].scenario;
        answer::write_page(&self.page, &report::page("Tandem: a satellite link, split and not", &scenario.about, &notes, &outcomes))?;
        if self.json {
            let rows =
                outcomes.into_iter().map(|outcome| Row { case: outcome.case.clone(), outcome: Outcome { series: vec![], ..outcome } });
            let text =
                serde_json::to_string_pretty(&Rows { rows: rows.collect(), left_out }).map_err(|why| Failure::Failed(why.to_string()))?;
            outln!("{text}");
        } else {
            outln!("{}\n", scenario.about.trim());
            out!("{}", report::table(&outcomes));
            outln!();
            for note in &notes {
                outln!("* {note}");
            }
            outln!("\nplots: {}", self.page.display());
        }
        Ok(())
    }
}

/// The rows that this kernel can play, and why others are left out.
fn playable(variants: Vec<Variant>) -> (Vec<Variant>, Vec<LeftOut>) {
    let (mut rest, mut left_out) = (Vec::new(), Vec::<LeftOut>::new());
    for variant in variants {
        let own = variant.scenario.leg_controls().into_iter().filter_map(kernel::resolve);
        let Some(why) = own.map(try_controller).find_map(Result::err).map(|why| why.to_string()) else {
            rest.push(variant);
            continue;
        };
        match left_out.iter_mut().find(|left| left.why == why) {
            Some(left) => left.cases.push(variant.case),
            None => left_out.push(LeftOut { cases: vec![variant.case], why }),
        }
    }
    (rest, left_out)
}

/// Puts a controller into the kernel, with the monitor where it needs that, and takes it out.
fn try_controller(controller: kernel::Controller) -> kernel::Result<()> {
    let _held = kernel::load(controller.name(), &[])?;
    if controller.needs_capacity() { kernel::Monitor::new().map(drop) } else { Ok(()) }
}

/// A sentence for each difference: what the split gives, what the controller gives.
fn findings(outcomes: &[Outcome]) -> Vec<String> {
    let time = |case: &str| outcomes.iter().find(|outcome| outcome.case == case).and_then(Outcome::completion_s);
    let (Some(cubic), Some(split_cubic), Some(bbr), Some(split_bbr)) =
        (time("end-to-end cubic"), time("split cubic/cubic"), time("end-to-end bbr"), time("split cubic/bbr"))
    else {
        return vec!["A row did not finish, so there is nothing to compare.".into()];
    };
    let mut notes = vec![
        format!(
            "What the split alone gives (CUBIC on both legs against CUBIC end to end): {}. {}",
            compared(cubic, split_cubic),
            "The far leg still has nearly the whole round trip and every loss, and CUBIC halves its rate for each of them."
        ),
        format!(
            "What the controller alone gives (BBR against CUBIC, nothing split): {}. {}",
            compared(cubic, bbr),
            "BBR does not take a random loss for congestion. But it takes every sender to run it."
        ),
        format!(
            "What both give (split CUBIC/BBR against CUBIC end to end): {}. {}",
            compared(cubic, split_bbr),
            "The sender still runs plain CUBIC: the split lets the satellite leg have its own controller without touching an end."
        ),
        format!(
            "What the split gives to those who run BBR already (split CUBIC/BBR against BBR end to end): {}. {}",
            compared(bbr, split_bbr),
            "Both have the same controller on the same long leg; where the short leg loses nothing there is little left to win."
        ),
    ];
    if let Some(share) = time("split cubic/share") {
        notes.push(format!(
            "What it gives to know what the satellite carries (split CUBIC/share against split CUBIC/BBR): {}. {}",
            compared(split_bbr, share),
            "BBR has to find the rate out, and every flow for itself; the proxy is told, and allots each flow its share from the first round \
             trip on."
        ));
    }
    notes
}

/// How much sooner `new` is than `old`, in words.
fn compared(old: f64, new: f64) -> String {
    let ratio = old / new;
    let times = format!("{new:.1} s against {old:.1} s");
    if ratio > 1.1 {
        format!("{ratio:.1} times sooner ({times})")
    } else if ratio < 1.0 / 1.1 {
        format!("{:.1} times later ({times})", 1.0 / ratio)
    } else {
        format!("no difference to speak of ({times})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenario_has_the_rows_that_are_compared() {
        let variants = ScenarioFile::parse(SCENARIO, "demo.toml").unwrap().variants(&[]).unwrap();
        let names: Vec<&str> = variants.iter().map(|variant| variant.case.as_str()).collect();
        assert_eq!(names[..4], ["end-to-end cubic", "split cubic/cubic", "end-to-end bbr", "split cubic/bbr"]);
        assert_eq!(names[4..], ["split cubic/hybla", "split cubic/xcp", "split cubic/mpcp", "split cubic/share"]);
        let control = |index: usize| variants[index].scenario.leg_controls();
        assert_eq!([control(0), control(2)], [vec!["cubic"], vec!["bbr"]]);
        assert_eq!([control(1), control(3)], [vec!["cubic", "cubic"], vec!["cubic", "bbr"]]);
    }

    #[test]
    fn differences_are_put_into_words() {
        assert_eq!(compared(40.0, 10.0), "4.0 times sooner (10.0 s against 40.0 s)");
        assert_eq!(compared(10.0, 20.0), "2.0 times later (20.0 s against 10.0 s)");
        assert_eq!(compared(10.0, 10.5), "no difference to speak of (10.5 s against 10.0 s)");
    }
}
