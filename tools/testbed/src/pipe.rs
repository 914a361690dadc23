//! Programs that read their orders from standard input.

use anyhow::{Context as _, Result, bail};
use std::{
    io::Write as _,
    process::{Command, Stdio},
};

/// Runs a command with this input; an error if it fails.
pub fn pipe(command: &mut Command, input: &str) -> Result<()> {
    let mut child = command.stdin(Stdio::piped()).spawn().with_context(|| format!("cannot run {command:?}"))?;
    child.stdin.take().context("no pipe")?.write_all(input.as_bytes())?;
    if !child.wait()?.success() {
        bail!("{command:?} failed");
    }
    Ok(())
}
