//! Tables, figures and lemmas that equations answer without a scenario: what was printed, what comes out here, and whether the one is the other.

mod can;
mod packets;
mod paired;
mod split;
mod startup;
mod tails;
mod together;
mod windows;

use crate::{PaperError, index::PAPERS};
use outcome::half_width;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};
use theory::Mean;

/// A table, figure or lemma.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name within the paper: `table-1`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What answers it.
    pub answer: Question,
}

/// What equations can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Hoekstra's Tables I to III, by their number.
    CanTable(String),
    /// Hoekstra's Table IV.
    Wlan,
    /// Hoekstra's Tables V and VI: of these sojourn times.
    CanLab(Vec<String>),
    /// Wei's start-up.
    StartUp,
    /// Baccelli's Figure 19.6.
    TailByTime,
    /// Baccelli's Figure 19.7.
    HillBands,
    /// Baccelli's Figure 19.8.
    TailPerPacket,
    /// Baccelli's Figure 19.9.
    Windows,
    /// Baccelli's §19.4.2 and (19.3), from packets.
    Alone,
    /// Baccelli's (19.4) to (19.7), from packets.
    Split,
    /// Baccelli's Lemma 19.6.
    BelowBothLegs,
    /// Baccelli's Lemma 19.7.
    Stability,
    /// Baccelli's Lemma 19.8.
    CycleTail,
    /// Baccelli's open questions (i).
    Buffer,
}

/// An answer: a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// What the first columns say.
    pub head: Vec<&'static str>,
    /// Its lines.
    pub lines: Vec<Line>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// A line of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Of what: the first columns.
    pub of: Vec<String>,
    /// What the paper prints, or says, in its own digits.
    pub printed: Option<String>,
    /// What comes out here.
    pub here: Mean,
    /// How many decimals of that are shown.
    pub decimals: usize,
    /// Whether the one is the other; absent where nothing is claimed.
    pub holds: Option<bool>,
    /// Why not, or what it is.
    pub why: String,
}

impl Line {
    fn new(of: Vec<String>, here: Mean, decimals: usize) -> Self {
        Line { of, printed: None, here, decimals, holds: None, why: String::new() }
    }

    /// Beside a printed number: it holds where the number here rounds to it, or may by its interval.
    fn beside(self, printed: &str) -> Self {
        let decimals = printed.split_once('.').map_or(0, |(_, digits)| digits.len());
        let value: f64 = printed.parse().unwrap_or(f64::NAN);
        // A little more than half a unit: what ends in 5 may be rounded either way.
        let room = 0.500_001 * 0.1f64.powi(decimals as i32) + self.here.half;
        let holds = (self.here.mean - value).abs() <= room;
        Line { printed: Some(printed.into()), holds: Some(holds), ..self }
    }

    /// Beside a statement.
    fn claimed(self, says: &str, holds: bool) -> Self {
        Line { printed: Some(says.into()), holds: Some(holds), ..self }
    }

    fn because(self, why: impl Into<String>) -> Self {
        Line { why: why.into(), ..self }
    }

    /// By how much it differs from what is printed, in percent of that; absent where no number is.
    pub fn differs_percent(&self) -> Option<f64> {
        let printed: f64 = self.printed.as_ref()?.parse().ok()?;
        (printed != 0.0).then(|| (self.here.mean / printed - 1.0) * 100.0)
    }
}

/// A number without an error worth speaking of.
fn exact(mean: f64) -> Mean {
    Mean { mean, half: 0.0 }
}

/// A mean over seeds, with its interval.
fn over_seeds(values: &[f64]) -> Mean {
    Mean { mean: values.iter().sum::<f64>() / values.len() as f64, half: half_width(values) }
}

impl Model {
    /// Answers it.
    pub fn answer(&self) -> Result<Sheet, PaperError> {
        match &self.answer {
            Question::CanTable(number) => can::table(number),
            Question::Wlan => can::wlan(),
            Question::CanLab(which) => can::lab(which),
            Question::StartUp => startup::sheet(),
            Question::TailByTime => tails::by_time(),
            Question::HillBands => tails::hill_bands(),
            Question::TailPerPacket => tails::per_packet(),
            Question::Windows => windows::sheet(),
            Question::Alone => together::alone(),
            Question::Split => together::split(),
            Question::CycleTail => tails::cycle(),
            Question::BelowBothLegs => split::below_both_legs(),
            Question::Stability => split::stability(),
            Question::Buffer => split::buffer(),
        }
    }
}

/// The rows of a CSV file under `papers/`.
fn rows<Row: DeserializeOwned>(path: &str) -> Result<Vec<Row>, PaperError> {
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let file = PAPERS.get_file(path).ok_or_else(|| wrong("there is no such file".into()))?;
    csv::Reader::from_reader(file.contents()).deserialize().collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))
}

/// `of` of each, on all processors; in order.
fn side_by_side<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, R)> = thread::scope(|scope| {
        let work = || {
            let mut mine = Vec::new();
            loop {
                let place = next.fetch_add(1, Relaxed);
                let Some(item) = items.get(place) else { return mine };
                mine.push((place, of(item)));
            }
        };
        let workers: Vec<_> = (0..thread::available_parallelism().map_or(1, usize::from)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_holds_where_it_rounds_to_what_is_printed() {
        let line = |value: f64, half: f64| Line::new(vec![], Mean { mean: value, half }, 3).beside("0.57");
        assert_eq!(line(0.5749, 0.0).holds, Some(true));
        assert_eq!(line(0.5761, 0.0).holds, Some(false));
        assert_eq!(line(0.5761, 0.002).holds, Some(true));
        assert!((line(0.5757, 0.0).differs_percent().unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn work_side_by_side_comes_back_in_order() {
        assert_eq!(side_by_side(&[3, 1, 2], |n| n * n), [9, 1, 4]);
    }
}
