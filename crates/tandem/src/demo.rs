//! `tandem demo`: transfers over one satellite link, with and without the proxy.

use crate::{
    CommandError, output,
    runs::{self, EngineName},
};
use clap::Args;
use outcome::Outcome;
use runner::{RunOptions, RunOrder, SeedRange};
use scenario::{Assignment, ScenarioFile};
use serde_json::json;
use std::path::PathBuf;
use units::Bytes;

/// The scenario, a file for `tandem run`.
pub(crate) const SCENARIO: &str = include_str!("../../../scenarios/demo.toml");

/// Compare transfers over an emulated satellite link with and without the proxy
#[derive(Debug, Args)]
pub(crate) struct DemoCommand {
    /// Print JSON: {"rows": [{"case": …, "outcome": {…}}, …], "left_out": [{"cases": […], "why":
    /// …}, …]}
    #[arg(long)]
    json: bool,
    /// File for the web page with plots
    #[arg(long, value_name = "FILE", default_value = "tandem-demo.html")]
    page: PathBuf,
    /// Size of each of the three files [default: 2MB]
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Bytes>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl DemoCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let bytes =
            self.bytes.map(|bytes| format!("flow.1.bytes={bytes}").parse::<Assignment>()).transpose().map_err(CommandError::Usage)?;
        let variants = ScenarioFile::parse(SCENARIO, "demo.toml")
            .and_then(|file| file.variants(bytes.as_slice()))
            .map_err(|error| CommandError::Failed(error.to_string()))?;
        let (variants, left_out) = lab::playable(variants);
        let seeds = SeedRange { first: Some(self.seed), count: 1 };
        let planned = runner::plan(&variants, seeds, RunOrder::ByVariant, |_, _| EngineName::Lab.engine(None));
        let options = RunOptions { jobs: Some(variants.len()), tries: 2, progress: !self.json };
        let (outcomes, failure) = runs::run_all(planned, options);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let mut findings = report::demo_findings(&outcomes);
        findings.extend(left_out.iter().map(|left| format!("Left out: {}. {}", left.cases.join(", "), left.why)));
        let scenario = &variants[0].scenario;
        output::write_page(
            &self.page,
            &report::page("Tandem: a satellite link, end to end and split", &scenario.about, &findings, &outcomes),
        )?;
        if self.json {
            let row = |outcome: Outcome| json!({ "case": outcome.case, "outcome": Outcome { series: vec![], ..outcome } });
            let left_out: Vec<_> = left_out.iter().map(|left| json!({ "cases": left.cases, "why": left.why })).collect();
            outln!("{:#}", json!({ "rows": outcomes.into_iter().map(row).collect::<Vec<_>>(), "left_out": left_out }));
        } else {
            let width = output::width();
            outln!("{}\n", report::reflow(scenario.about.trim(), width));
            out!("{}\n{}", report::table(&outcomes, width), report::accounts_table(&outcomes, width));
            outln!();
            for finding in &findings {
                outln!("{}", report::wrap(&format!("* {finding}"), width));
            }
            outln!("\nplots: {}", self.page.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenario_has_the_expected_cases() {
        let variants = ScenarioFile::parse(SCENARIO, "demo.toml").unwrap().variants(&[]).unwrap();
        let names: Vec<&str> = variants.iter().map(|variant| variant.case.as_str()).collect();
        assert_eq!(names[..4], ["end-to-end cubic", "split cubic/cubic", "end-to-end bbr", "split cubic/bbr"]);
        assert_eq!(names[4..], ["split cubic/hybla", "split cubic/xcp", "split cubic/mpcp", "split cubic/share"]);
        let control = |index: usize| variants[index].scenario.leg_controls();
        assert_eq!([control(0), control(2)], [vec!["cubic"], vec!["bbr"]]);
        assert_eq!([control(1), control(3)], [vec!["cubic", "cubic"], vec!["cubic", "bbr"]]);
    }
}
