//! Tables, figures and lemmas that are answered without a scenario, by equations or by a
//! measurement of real connections: what the paper prints or says, what comes out here, and whether
//! the two agree.

mod assignment;
mod can;
mod delays;
mod far_tail;
mod measured;
mod packets_vs_equations;
mod paired_run;
mod parallel_map;
mod plot;
mod segment_paths;
mod settings_count;
mod simulated_buffer;
mod split_lemmas;
mod startup;
mod table;
mod tails;
mod two_segments;
mod two_segments_simulated;
mod windows;
mod wlan;

use crate::error::PaperError;
pub use plot::{ComputedFigure, ComputedLine, ComputedPlot};
use serde::Deserialize;
pub use table::{ComputedRow, ComputedTable};

/// A table, figure or lemma that equations answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EquationTable {
    /// Its name within the paper: `table-1`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What is computed for it.
    pub answer: Computation,
}

/// What can be computed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Computation {
    /// Hoekstra's Tables I to III, by their number.
    CanTable(String),
    /// Hoekstra's Table IV.
    Wlan,
    /// Hoekstra's Tables V and VI: the sojourn times with these names.
    CanLab(Vec<String>),
    /// The CAN model beside the optimum of fair shares and of whole files.
    Assignment,
    /// Wei's start-up.
    StartUp,
    /// Wei's Table I, measured.
    Operators,
    /// The picture of Wei's §IV-B, measured.
    Picture,
    /// Wei's Figure 3, measured.
    Characteristics,
    /// Wei's §III-D, measured.
    Termination,
    /// Baccelli's Figure 19.6.
    TailByTime,
    /// Baccelli's Figure 19.7.
    HillBands,
    /// Baccelli's Figure 19.8.
    TailPerPacket,
    /// Baccelli's Figure 19.9.
    Windows,
    /// Baccelli's §19.4.2 and (19.3), compared with packets.
    Alone,
    /// Baccelli's (19.4) to (19.7), compared with packets.
    Split,
    /// Baccelli's Lemma 19.6.
    BelowBothLegs,
    /// Baccelli's Lemma 19.7.
    Stability,
    /// Baccelli's Lemma 19.8.
    CycleTail,
    /// Baccelli's open question (ii)(a).
    FarTailPerPacket,
    /// Baccelli's remark on limited windows, §19.4.6.
    ClippedWindow,
    /// Baccelli's (19.16) and the antibuffer, §19.4.7.
    Delays,
    /// Baccelli's open questions (i)(b) and (ii)(b): rate and buffer as functions of B.
    RateOfBuffer,
    /// Baccelli's open questions (i).
    Buffer,
    /// Yuan's Table 3, by the heuristic.
    TwoSegments,
    /// The same settings with packets over both segments.
    TwoSegmentsSimulated,
}

impl EquationTable {
    /// Whether the table is measured on emulated networks, in real time, which needs root.
    pub fn is_measured(&self) -> bool {
        use Computation::{Characteristics, Operators, Picture, Termination};
        matches!(self.answer, Operators | Picture | Characteristics | Termination)
    }

    /// Computes the table, or measures it ([`Self::is_measured`]). Some take minutes.
    ///
    /// # Errors
    /// If the paper's data are wrong, the equations have no answer, or a measurement fails.
    pub fn compute(&self) -> Result<ComputedTable, PaperError> {
        Ok(self.figure(None)?.table)
    }

    /// The number of seeds of its simulated packets; absent if it has none, or a path of one seed.
    pub fn default_seeds(&self) -> Option<u64> {
        match self.answer {
            Computation::Alone | Computation::Split => Some(packets_vs_equations::SEEDS),
            Computation::Windows => Some(windows::SEEDS),
            Computation::TailByTime | Computation::TailPerPacket => Some(simulated_buffer::SEEDS),
            Computation::TwoSegments => Some(two_segments::SEEDS),
            _ => None,
        }
    }

    /// Computes the table and its plots, with this number of seeds (absent:
    /// [`default_seeds`](Self::default_seeds)) if it is over seeds.
    ///
    /// # Errors
    /// If the paper's data are wrong or the equations have no answer.
    pub fn figure(&self, seeds: Option<u64>) -> Result<ComputedFigure, PaperError> {
        let seeds = seeds.or(self.default_seeds()).unwrap_or(1);
        Ok(match &self.answer {
            Computation::CanTable(number) => can::table(number)?.into(),
            Computation::Wlan => wlan::table()?.into(),
            Computation::CanLab(which) => can::lab(which)?.into(),
            Computation::Assignment => assignment::table()?.into(),
            Computation::StartUp => startup::table()?.into(),
            Computation::Operators => measured::operators()?.into(),
            Computation::Picture => measured::picture()?.into(),
            Computation::Characteristics => measured::characteristics()?.into(),
            Computation::Termination => measured::termination()?.into(),
            Computation::TailByTime => tails::by_time(seeds)?,
            Computation::HillBands => tails::hill_bands()?,
            Computation::TailPerPacket => tails::per_packet(seeds)?,
            Computation::Windows => windows::table(seeds)?,
            Computation::Alone => packets_vs_equations::alone(seeds)?.into(),
            Computation::Split => packets_vs_equations::split(seeds)?.into(),
            Computation::CycleTail => tails::cycle()?,
            Computation::BelowBothLegs => split_lemmas::below_both_legs()?.into(),
            Computation::Stability => split_lemmas::stability()?.into(),
            Computation::FarTailPerPacket => far_tail::per_packet()?,
            Computation::ClippedWindow => far_tail::clipped_window()?,
            Computation::Delays => delays::table()?.into(),
            Computation::RateOfBuffer => split_lemmas::rate_of_buffer()?.into(),
            Computation::Buffer => split_lemmas::buffer()?.into(),
            Computation::TwoSegments => two_segments::table(seeds)?.into(),
            Computation::TwoSegmentsSimulated => two_segments_simulated::table()?.into(),
        })
    }
}
