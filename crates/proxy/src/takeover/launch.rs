//! How the next proxy is started: from the program and with the arguments of the present one.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// How a process like this one is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Path of the program. After an upgrade another file is there.
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launch {
    /// Starts the process, which takes over.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(super) fn start(&self) -> Result<Child, String> {
        self.command("--take-over").spawn().map_err(|why| format!("cannot run {}: {why}", self.program.display()))
    }

    /// As this process was started. To be called early: the path of a program that was replaced
    /// since cannot be found.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Launch { program: std::env::current_exe()?, arguments: std::env::args_os().skip(1).collect() })
    }

    fn command(&self, more: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if !self.arguments.iter().any(|argument| argument == more) {
            command.arg(more);
        }
        // The watchdog's variable names the process that it was set for.
        command.env_remove("WATCHDOG_PID").stdin(Stdio::null());
        command
    }

    /// Lets a process like the next one check its configuration.
    pub(super) fn check(&self) -> Result<(), String> {
        let cannot = |why: &dyn std::fmt::Display| format!("cannot run {}: {why}", self.program.display());
        let output = self.command("--check=config").output().map_err(|why| cannot(&why))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().rev().find_map(|line| line.strip_prefix("tandem: ")).map_or_else(|| said.trim().to_owned(), str::to_owned);
        Err(if said.is_empty() { cannot(&output.status) } else { said })
    }
}
