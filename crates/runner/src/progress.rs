//! Progress bars on stderr.

use crate::plan::PlannedRun;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use outcome::Progress;
use scenario::short_case;
use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The most characters of a run's name beside its bar: a third of a line of 80.
const MAX_NAME: usize = 28;

/// The bars of all runs; none where stderr is not a terminal.
pub(crate) struct Bars {
    bars: Option<MultiProgress>,
    style: ProgressStyle,
}

impl Bars {
    pub(crate) fn new(wanted: bool, runs: &[PlannedRun<'_>]) -> Self {
        let bars = (wanted && std::io::stderr().is_terminal()).then(MultiProgress::new);
        let widest = runs.iter().map(|run| name(run).chars().count()).max().unwrap_or(0);
        // The bar takes the space that is left, so that a line never wraps.
        let template = format!("{{prefix:>{widest}}} {{wide_bar:.cyan/blue}} {{percent:>3}} %  {{msg}} {{elapsed}}");
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Bars { bars, style }
    }

    /// Progress of a run: a bar where there are bars. Reports cancellation once `interrupted` is set.
    pub(crate) fn add(&self, run: &PlannedRun<'_>, interrupted: Arc<AtomicBool>) -> RunProgress {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = ProgressBar::new(1000).with_style(self.style.clone()).with_prefix(name(run));
            bars.add(bar)
        });
        RunProgress { bar, interrupted }
    }
}

/// The name of a run beside its bar: the case and the seed.
fn name(run: &PlannedRun<'_>) -> String {
    let case = &run.variant.case;
    let name = if case.is_empty() { run.variant.scenario.name.clone() } else { short_case(case) };
    let seed = format!(" #{}", run.seed);
    shortened(&name, MAX_NAME.saturating_sub(seed.len())) + &seed
}

/// `text`, cut after a word if it is longer than `most` characters. A word that is longer by itself
/// keeps its beginning.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let mut kept = String::new();
    for word in text.split(' ') {
        let candidate = if kept.is_empty() { word.to_owned() } else { format!("{kept} {word}") };
        if candidate.trim_end_matches(',').chars().count() > room {
            break;
        }
        kept = candidate;
    }
    if kept.is_empty() {
        kept = text.chars().take(room).collect();
    }
    format!("{}…", kept.trim_end_matches(','))
}

/// The progress of one run.
pub(crate) struct RunProgress {
    bar: Option<ProgressBar>,
    interrupted: Arc<AtomicBool>,
}

impl Progress for RunProgress {
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

impl Drop for RunProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_after_a_word() {
        assert_eq!(shortened("split cubic/bbr", 20), "split cubic/bbr");
        assert_eq!(shortened("split, per_packet=0.01, buffer=64kB", 24), "split, per_packet=0.01…");
        assert_eq!(shortened("a_name_without_any_blank", 10), "a_name_wi…");
    }
}
