//! Starts the next proxy from the program and with the arguments of the present one, for
//! `tandem restart`.

use super::present::{Phase, Takeovers};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time limit for a restart: longer than the time limits of a takeover together.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How a process like this one is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Path of the program. After an upgrade another file is there.
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// What a restart has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReport {
    /// The process that is in charge.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The process that drains.
    pub earlier_pid: u32,
    /// Its version.
    pub earlier_version: String,
    /// Flows that end at the earlier process.
    pub flows: u64,
}

impl Launch {
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
    fn check(&self) -> Result<(), String> {
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

impl Takeovers {
    /// Starts the next proxy, and waits until it is in charge.
    ///
    /// # Errors
    /// Why it is not. This proxy then goes on.
    pub(crate) fn restart(&self) -> Result<RestartReport, String> {
        let launch = self.launch.as_ref().ok_or("this proxy does not know how it was started (is /proc mounted?)")?;
        let Ok(_one_at_a_time) = self.restarting.try_lock() else { return Err("another restart is in progress".into()) };
        if let Phase::Left(_) = *self.phase() {
            return Err("this proxy drains: another process is in charge already".into());
        }
        launch.check()?;
        self.forget_failure();
        let mut next = launch.command("--take-over").spawn().map_err(|why| format!("cannot run {}: {why}", launch.program.display()))?;
        let outcome = self.wait_for(&mut next);
        if outcome.is_err() {
            let _ = next.kill();
            let _ = next.wait();
        }
        outcome
    }

    fn wait_for(&self, next: &mut Child) -> Result<RestartReport, String> {
        let begun = Instant::now();
        loop {
            let ended = next.try_wait().map_err(|why| format!("cannot wait for the new process: {why}"))?;
            if let Phase::Left(report) = &*self.phase() {
                return Ok(report.clone());
            }
            if let Some(status) = ended {
                let why = self.failure().unwrap_or_else(|| format!("the new process ended before it was ready ({status}): see the log"));
                return Err(why);
            }
            if begun.elapsed() > RESTART_TIMEOUT {
                return Err(format!("the new process was not in charge after {} s", RESTART_TIMEOUT.as_secs()));
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}
