//! The record of a measurement: its tables and its circumstances, as a file.

use crate::{
    machine::{busy_percent, machine, revision},
    table::SampleTable,
};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Significant digits of recorded samples.
const DIGITS: usize = 6;
/// How long a line of a recorded file may be, characters.
const LINE: usize = 140;
/// Above this share of the processors that other programs use, %, the figures cannot be used.
const MOST_BUSY_PERCENT: f64 = 10.0;

/// What a program measured, and in which circumstances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementRecord {
    /// Version of the program.
    pub version: String,
    /// Commit of its sources; with "+" if they differed from it.
    pub revision: String,
    /// Processors and kernel.
    pub machine: String,
    /// Share of the processors that other programs used before, %.
    pub busy_percent: f64,
    /// The day on which it ended (ISO 8601).
    pub date: String,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Rounds, in each of which everything is measured once.
    pub rounds: u64,
    /// Versions of other programs, what was left out and why: sentences.
    pub notes: Vec<String>,
    /// The tables.
    pub tables: Vec<SampleTable>,
}

/// Measures, prints the tables, and writes the record into `directory`, if there is one, as
/// `NAME.json`. A measurement that fails is not recorded; what it measured until then is printed.
///
/// # Errors
/// `measure` fails, or the file cannot be written.
pub fn measure(name: &str, directory: Option<&Path>, measure: impl FnOnce(&mut MeasurementRecord) -> Result<()>) -> Result<()> {
    let mut record = MeasurementRecord::default();
    if directory.is_some() {
        record = MeasurementRecord {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: revision(),
            machine: machine(),
            busy_percent: busy_percent()?,
            ..record
        };
        if record.busy_percent > MOST_BUSY_PERCENT {
            eprintln!("{:.0} % of the processors are busy with other programs: do not use these figures.", record.busy_percent);
        }
    }
    let begun = Instant::now();
    let outcome = measure(&mut record);
    print!("{}", record.text());
    outcome?;
    let Some(directory) = directory else { return Ok(()) };
    record.seconds = begun.elapsed().as_secs_f64();
    record.date = time::OffsetDateTime::now_utc().date().to_string();
    let path = record.store(directory, name)?;
    eprintln!("recorded in {}", path.display());
    Ok(())
}

impl MeasurementRecord {
    /// The record `NAME.json` in a directory; none if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a record.
    pub fn load(directory: &Path, name: &str) -> Result<Option<Self>> {
        let path = directory.join(format!("{name}.json"));
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("{} is not a record of a measurement", path.display()))?))
    }

    /// Writes the record into a directory as `NAME.json`. Returns the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, directory: &Path, name: &str) -> Result<PathBuf> {
        let path = directory.join(format!("{name}.json"));
        let mut value = serde_json::to_value(self)?;
        round(&mut value);
        let text = json(&value, 0) + "\n";
        fs::create_dir_all(directory).and_then(|()| fs::write(&path, text)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The table of this name.
    pub fn table(&self, name: &str) -> Option<&SampleTable> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// All tables and notes, as printed.
    fn text(&self) -> String {
        let mut out = String::new();
        for table in &self.tables {
            let _ = writeln!(out, "\n{}:\n\n{}", table.name, table.markdown());
        }
        self.notes.iter().for_each(|note| out += &format!("{note}\n"));
        out
    }

    /// The circumstances and notes, as a paragraph.
    pub(crate) fn circumstances(&self) -> String {
        let MeasurementRecord { version, revision, machine, busy_percent, date, seconds, rounds, notes, .. } = self;
        let rounds = if *rounds == 1 { "one round".into() } else { format!("{rounds} rounds") };
        let about = format!(
            "Measured in {rounds} ({}) by Tandem {version} ({revision}) on {machine}, {date}; {busy_percent:.0} % of the processors were busy before.",
            report::duration(*seconds)
        );
        std::iter::once(&about).chain(notes).cloned().collect::<Vec<_>>().join(" ")
    }
}

/// Rounds every number that is not an integer.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().and_then(|number| format!("{number:.*e}", DIGITS - 1).parse::<f64>().ok());
            if let Some(rounded) = rounded.and_then(serde_json::Number::from_f64) {
                *number = rounded;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

/// JSON in which whatever fits in a line stands in one: a row of samples is a line of a diff.
fn json(value: &Value, depth: usize) -> String {
    let line = value.to_string();
    let inner = "  ".repeat(depth + 1);
    let parts: Vec<String> = match value {
        _ if line.chars().count() + inner.len() <= LINE => return line,
        Value::Array(values) => values.iter().map(|value| format!("{inner}{}", json(value, depth + 1))).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| format!("{inner}{}: {}", Value::from(key.as_str()), json(value, depth + 1))).collect()
        }
        _ => return line,
    };
    let [open, close] = if value.is_array() { ['[', ']'] } else { ['{', '}'] };
    format!("{open}\n{}\n{}{close}", parts.join(",\n"), "  ".repeat(depth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleColumn;

    fn record() -> MeasurementRecord {
        let mut table = SampleTable::new("cost", "", vec![SampleColumn::new("time", "s", 2)]);
        for round in 0..3 {
            table.row("a").add("time", round, 1.0 / 3.0);
            table.row("b").add("time", 2 * round, round as f64);
        }
        MeasurementRecord { rounds: 3, notes: vec!["x is left out.".into()], tables: vec![table; 4], ..MeasurementRecord::default() }
    }

    #[test]
    fn a_record_is_read_as_it_was_stored() {
        let folder = tempfile::tempdir().unwrap();
        let path = record().store(folder.path(), "m").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= LINE + 10) && text.lines().count() > 10, "{text}");
        assert!(text.contains("{\"name\":\"b\",\"cells\":{\"time\":[0.0,null,1.0,null,2.0]}}"), "{text}");
        let read = MeasurementRecord::load(folder.path(), "m").unwrap().unwrap();
        assert_eq!(read.tables[0].samples("a", "time"), [Some(0.333_333); 3]);
        assert_eq!(read.store(folder.path(), "n").map(|path| fs::read_to_string(path).unwrap()).unwrap(), text);
        assert_eq!(MeasurementRecord::load(folder.path(), "absent").unwrap(), None);
    }

    #[test]
    fn a_measurement_that_fails_is_not_recorded() {
        let folder = tempfile::tempdir().unwrap();
        assert!(measure("m", Some(folder.path()), |_| anyhow::bail!("no")).is_err());
        assert_eq!(MeasurementRecord::load(folder.path(), "m").unwrap(), None);
        measure("m", Some(folder.path()), |to| {
            to.tables = record().tables;
            Ok(())
        })
        .unwrap();
        let read = MeasurementRecord::load(folder.path(), "m").unwrap().unwrap();
        assert!(read.machine.contains('×') && read.date.len() == 10 && read.table("cost").is_some(), "{read:?}");
    }
}
