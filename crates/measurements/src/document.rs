//! Pages with tables that are made of records. `<!-- recorded: proxy bulk1 -->` stands for the table
//! `bulk1` of `proxy.json`, `<!-- recorded: proxy -->` for the circumstances of that record.

use crate::record::MeasurementRecord;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Where lines of prose wrap.
const COLUMNS: usize = 100;

/// The text of a page with its tables made of the records in `directory`.
///
/// # Errors
/// A table names a record without that table, or does not end; a record cannot be read.
pub fn render(text: &str, directory: &Path) -> Result<String> {
    let content = |asked: &str| content(asked, directory).map_err(|why| format!("{why:#}"));
    Ok(report::fill_document(text, content)?)
}

/// What stands between the comments. Ends with a newline.
fn content(asked: &str, directory: &Path) -> Result<String> {
    let (name, table) = asked.split_once(' ').map_or((asked, None), |(name, table)| (name, Some(table)));
    let Some(record) = MeasurementRecord::load(directory, name)? else {
        return Ok(format!("Not recorded yet: there is no {name}.json.\n"));
    };
    let Some(table) = table else { return Ok(report::wrap(&record.circumstances(), Some(COLUMNS)) + "\n") };
    let known = || record.tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
    Ok(record.table(table).with_context(|| format!("{name}.json has no table {table:?}: it has {}", known()))?.markdown())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SampleColumn, SampleTable};

    #[test]
    fn tables_and_circumstances_are_filled_in() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = SampleTable::new("cost", "of", vec![SampleColumn::new("time", "s", 1)]);
        table.row("a").add("time", 0, 2.0);
        let record = MeasurementRecord {
            version: "1.2".into(),
            revision: "abc".into(),
            machine: "2 × P, Linux 6".into(),
            date: "2026-01-01".into(),
            seconds: 7.0,
            rounds: 5,
            notes: vec!["socat is left out.".into()],
            tables: vec![table],
            ..MeasurementRecord::default()
        };
        record.store(folder.path(), "m").unwrap();
        let text = "a\n<!-- recorded: m cost -->\nedited\n<!-- end of recorded -->\n<!-- recorded: m -->\n<!-- end of recorded -->\nb\n";
        let rendered = render(text, folder.path()).unwrap();
        assert!(
            rendered.contains("-->\n\n| of | time, s |\n| --- | --- |\n| a | 2.0 |\n\n<!--") && !rendered.contains("edited"),
            "{rendered}"
        );
        let sentence = "Measured in 5 rounds (7.0 s) by Tandem 1.2 (abc) on 2 × P, Linux 6, 2026-01-01;";
        assert!(rendered.contains(sentence) && rendered.contains("socat is left out."), "{rendered}");
        assert_eq!(render(&rendered, folder.path()).unwrap(), rendered);
        let error = |text: &str| render(text, folder.path()).unwrap_err().to_string();
        let wrong = error("<!-- recorded: m costs -->\n<!-- end of recorded -->\n");
        assert_eq!(wrong, "line 1: m.json has no table \"costs\": it has cost");
        assert!(render("<!-- recorded: n cost -->\n<!-- end of recorded -->\n", folder.path()).unwrap().contains("Not recorded yet"));
    }
}
