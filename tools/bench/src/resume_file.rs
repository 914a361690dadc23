//! The runs of a measurement in a file, so that an interrupted measurement goes on.

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
};

/// A file with one line of JSON for each run, if the user names one.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ResumeFile {
    /// Appends each run to this file, as a line of JSON; runs that it already has are not repeated
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

impl ResumeFile {
    /// The runs that the file has.
    pub(crate) fn runs<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let Some(path) = self.resume.as_ref().filter(|path| path.exists()) else { return Ok(Vec::new()) };
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let parse = |(at, line)| {
            serde_json::from_str(line).with_context(|| format!("{name}, line {at} is no run of this measurement: remove the line"))
        };
        (1..).zip(text.lines()).map(parse).collect()
    }

    /// A file of this name for what else is needed to go on, beside the runs.
    pub(crate) fn beside(&self, name: &str) -> Option<PathBuf> {
        let mut path = self.resume.clone()?.into_os_string();
        path.push(format!(".{name}"));
        Some(path.into())
    }

    /// Appends runs, in one write: the file has all of them or none if the program is killed, and
    /// several threads may append.
    pub(crate) fn append<T: Serialize>(&self, runs: &[T]) -> Result<()> {
        let Some(path) = &self.resume else { return Ok(()) };
        let mut lines = String::new();
        for run in runs {
            lines += &serde_json::to_string(run)?;
            lines.push('\n');
        }
        let append = || OpenOptions::new().create(true).append(true).open(path)?.write_all(lines.as_bytes());
        append().with_context(|| format!("cannot append to {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_runs_are_read_and_other_lines_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs");
        let file = ResumeFile { resume: Some(path.clone()) };
        assert_eq!(file.runs::<u64>().unwrap(), [0; 0]);
        file.append(&[1, 2]).unwrap();
        file.append(&[3]).unwrap();
        assert_eq!(file.runs::<u64>().unwrap(), [1, 2, 3]);
        fs::write(path, "1\n{\n").unwrap();
        let error = file.runs::<u64>().unwrap_err().to_string();
        assert!(error.ends_with("runs, line 2 is no run of this measurement: remove the line"), "{error}");
        let none = ResumeFile::default();
        none.append(&[1]).unwrap();
        assert_eq!(none.runs::<u64>().unwrap(), [0; 0]);
    }
}
