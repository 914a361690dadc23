//! Tables, figures and lemmas that equations answer without a scenario: what the paper prints or
//! says, what comes out here, and whether the two agree.

mod can;
mod packets_vs_equations;
mod paired_run;
mod parallel_map;
mod simulated_buffer;
mod split_lemmas;
mod startup;
mod table;
mod tails;
mod windows;

use crate::error::PaperError;
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
    /// The CAN model beside the best assignment of whole files.
    Assignment,
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
    /// Baccelli's open questions (i).
    Buffer,
}

impl EquationTable {
    /// Computes the table. Some take minutes.
    ///
    /// # Errors
    /// If the paper's data are wrong or the equations have no answer.
    pub fn compute(&self) -> Result<ComputedTable, PaperError> {
        match &self.answer {
            Computation::CanTable(number) => can::table(number),
            Computation::Wlan => can::wlan(),
            Computation::CanLab(which) => can::lab(which),
            Computation::Assignment => can::assignment(),
            Computation::StartUp => startup::table(),
            Computation::TailByTime => tails::by_time(),
            Computation::HillBands => tails::hill_bands(),
            Computation::TailPerPacket => tails::per_packet(),
            Computation::Windows => windows::table(),
            Computation::Alone => packets_vs_equations::alone(),
            Computation::Split => packets_vs_equations::split(),
            Computation::CycleTail => tails::cycle(),
            Computation::BelowBothLegs => split_lemmas::below_both_legs(),
            Computation::Stability => split_lemmas::stability(),
            Computation::Buffer => split_lemmas::buffer(),
        }
    }
}
