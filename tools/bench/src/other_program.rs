//! Programs that Tandem is compared with.

use anyhow::{Context as _, Result};
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
