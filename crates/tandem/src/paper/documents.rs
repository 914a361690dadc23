//! Makes the tables of the documentation's pages of recorded outcomes.

use crate::CommandError;
use papers::{ComputedTable, Paper, PaperEntry, Record};
use report::{PaperAnswer, PaperResult};
use std::{fs, path::PathBuf};

/// Rewrites the tables of these pages.
pub(super) fn render(pages: &[PathBuf]) -> Result<(), CommandError> {
    let selected = Paper::select("")?;
    let results = selected.iter().map(|(paper, entry)| recorded(paper, entry)).collect::<Result<Vec<_>, _>>()?;
    for path in pages {
        let failed = |why: String| CommandError::Failed(format!("cannot make the tables of {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|why| failed(why.to_string()))?;
        let rendered = report::render_document(&text, &results).map_err(|why| failed(why.to_string()))?;
        fs::write(path, rendered).map_err(|why| failed(why.to_string()))?;
    }
    Ok(())
}

/// The recorded result of an entry; one without runs if nothing is recorded.
fn recorded(paper: &Paper, entry: &PaperEntry) -> Result<PaperResult, CommandError> {
    let id = paper.identifier(entry.id());
    let record = Record::embedded(&id)?.unwrap_or_default();
    let (title, answer) = match entry {
        PaperEntry::Experiment(experiment) => {
            let plans = paper.plans(experiment, &experiment.on)?;
            let mut outcomes = record.outcomes;
            outcome::add_ci95(&mut outcomes);
            (&experiment.title, PaperAnswer::Played { experiment: Box::new(experiment.clone()), plans, runs: record.runs, outcomes })
        }
        PaperEntry::Equations(table) => {
            let run = record.runs.first().cloned();
            let figure = record.figure().unwrap_or_else(|| ComputedTable::new(&[], Vec::new(), Vec::new()).into());
            let answer = PaperAnswer::Computed { figure, run };
            (&table.title, answer)
        }
    };
    let title = title.clone();
    Ok(PaperResult { id, title, paper: paper.title.clone(), authors: paper.authors.clone(), answer, notes: Vec::new() })
}
