//! Programs that Tandem is compared with, and Python.

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// The line in which a program tells its version.
///
/// # Errors
///
/// It cannot be run, or tells none.
pub(crate) fn version(program: &Path, arguments: &[&str]) -> Result<String> {
    let name = program.display();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()));
    Ok(line.with_context(|| format!("{name} {} tells no version ({})", arguments.join(" "), output.status))?.trim().to_owned())
}

/// What a Python program prints: a line of JSON.
///
/// # Errors
///
/// The interpreter cannot be run, the program fails, or it prints something else.
pub(crate) fn python_output<T: DeserializeOwned>(python: &str, program: &str, arguments: impl IntoIterator<Item = String>) -> Result<T> {
    let output = Command::new(python).args(["-c", program]).args(arguments).output().with_context(|| format!("cannot run {python}"))?;
    if !output.status.success() {
        bail!("{python} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).with_context(|| format!("{python} printed {text:?}"))
}
