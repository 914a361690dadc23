//! Python programs of benchmarks, which print their results as JSON.

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use std::process::Command;

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
