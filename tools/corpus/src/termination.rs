//! What comes to the server when the client aborts a download, as a table.

use anyhow::Result;
use detect::CloseKind;
use measurements::{SampleColumn, SampleTable, measure};
use middleboxes::{AbortedDownload, Termination};
use std::path::PathBuf;

/// Aborts downloads through each middlebox: what comes to the server, and when
#[derive(Debug, clap::Args)]
pub struct TerminationTable {
    #[command(flatten)]
    termination: Termination,
    /// Writes the table and circumstances into this directory, as termination.json
    #[arg(long, value_name = "DIRECTORY")]
    record: Option<PathBuf>,
}

const WHAT: &str = "arrives at the server as";
const AFTER: &str = "after";
const WENT_ON: &str = "the server continues to send for";
const GRACEFULLY: &str = "gracefully";

impl TerminationTable {
    /// Runs the command.
    ///
    /// # Errors
    /// A download could not be aborted (see [`Termination::aborted_downloads`]), or the record not
    /// be written.
    pub fn run(&self) -> Result<()> {
        measure("termination", self.record.as_deref(), |record| {
            let aborted = self.termination.aborted_downloads()?;
            record.rounds = 1;
            record.tables = vec![table(&aborted)];
            Ok(())
        })
    }
}

fn table(aborted: &[AbortedDownload]) -> SampleTable {
    let columns = vec![
        SampleColumn::text(WHAT),
        SampleColumn::new(AFTER, "s", 3),
        SampleColumn::new(WENT_ON, "s", 3),
        SampleColumn::text(GRACEFULLY),
    ];
    let mut table = SampleTable::new("ends", "middlebox", columns);
    for AbortedDownload { middle, ending } in aborted {
        let row = table.row(middle);
        // The traces do not show how it ended.
        let Some(ending) = ending else { continue };
        row.set(WHAT, ending.sender.map_or("nothing", |kind| if kind == CloseKind::Reset { "a reset" } else { "a close" }));
        [(AFTER, ending.later_s), (WENT_ON, ending.went_on_s)]
            .into_iter()
            .filter_map(|(column, span)| Some((column, span?)))
            .for_each(|(column, span)| row.add(column, 0, span));
        row.set(GRACEFULLY, ending.graceful().map_or("–", |graceful| if graceful { "yes" } else { "no" }));
    }
    table
}
