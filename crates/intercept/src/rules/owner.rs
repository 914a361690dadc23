//! The process that owns the nftables table, and does what it is told with it.
//!
//! The table must go when the proxy goes, however it goes. Linux 5.12 and later tie a table to the
//! process that made it (flag `owner`): that process is `nft -i`, which reads commands from a pipe.
//! On other kernels a shell waits for `nft` to end and then deletes the table. Should the shell be
//! killed too, the table stays, and does no harm: without a listener `tproxy` passes connections
//! on, and the next start replaces the table. A listening socket (`runtime_dir`) then tells whether
//! a table has a living proxy.

use super::{RulesError, TABLE, nft};
use crate::runtime_dir::{Access, ClaimError, ClaimedSocket, RuntimeDirs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    io::{self, PipeReader, Read as _, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long the owner of the table may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the table of a proxy that was killed a moment ago may still be there.
const DYING: Duration = Duration::from_millis(500);
/// The socket that a proxy listens on while it has a table without an owner. Proxies of all users
/// must see it: the table is one of the network namespace.
const LOCK: &str = "table";

/// The process that keeps the table: it lives as long as this end of its input, and answers what it
/// is told.
#[derive(Debug)]
pub(super) struct Owner {
    process: Child,
    answers: PipeReader,
    /// Where the kernel does not know owners.
    lock: Option<ClaimedSocket>,
    /// Why it is of no use any more though its process may be there: it did not answer.
    silent: Option<String>,
}

impl Owner {
    /// Makes the table, still empty, and starts the process that keeps it. At most one proxy of a
    /// network namespace can.
    pub(super) fn claim() -> Result<Self, RulesError> {
        let mut owner = Owner::start(Command::new("nft").arg("-i"), None)?;
        let (begun, mut gone) = (Instant::now(), 0);
        loop {
            let Err(error) = owner.tell(&[format!("create table inet {TABLE} {{ flags owner; }}")]) else { return Ok(owner) };
            if nft::run(&["list", "table", "inet", TABLE])?.0 {
                if begun.elapsed() > DYING {
                    // One without an owner may have been left behind.
                    return if knows_no_owners(&error) { Owner::claim_by_lock(&error) } else { Err(RulesError::Taken) };
                }
            } else if knows_no_owners(&error) {
                return Owner::claim_by_lock(&error);
            } else if gone > 0 {
                return Err(error);
            } else {
                // It may have gone between the two commands.
                gone += 1;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The same where the kernel, or `nft`, does not know owners, for which it gave `reason`.
    fn claim_by_lock(reason: &RulesError) -> Result<Self, RulesError> {
        let lock = lock()?;
        tracing::debug!("a shell keeps the table ({reason})");
        let run = |arguments: &[&str]| {
            let (fine, said) = nft::run(arguments)?;
            if fine { Ok(said) } else { Err(RulesError::Refused { cure: nft::cure(&said), said }) }
        };
        // With the lock held, a table that is there has no proxy.
        if run(&["list", "table", "inet", TABLE]).is_ok() {
            run(&["delete", "table", "inet", TABLE])?;
        }
        run(&["create", "table", "inet", TABLE])?;
        let listed = run(&["-a", "list", "table", "inet", TABLE])?;
        let handle = listed.lines().find_map(|line| line.split_once("# handle ")).map(|(_, handle)| handle.trim().to_owned());
        let lost = || RulesError::Lost { why: "it has no handle".into() };
        // By its handle, lest it be the table of the next proxy.
        let script = format!("nft -i; exec nft delete table inet handle {}", handle.ok_or_else(lost)?);
        Owner::start(Command::new("sh").args(["-c", &script]), Some(lock))
    }

    fn start(command: &mut Command, lock: Option<ClaimedSocket>) -> Result<Self, RulesError> {
        let (answers, end) = io::pipe().map_err(RulesError::Missing)?;
        let errors = end.try_clone().map_err(RulesError::Missing)?;
        let process = command
            // What a terminal signals to all in the foreground (Ctrl-C) is not for it: flows still
            // need its rules.
            .process_group(0)
            // It would keep a history of its commands there.
            .env("HOME", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(end)
            .stderr(errors)
            .spawn()
            .map_err(RulesError::Missing)?;
        Ok(Owner { process, answers, lock, silent: None })
    }

    /// Has it do `commands`, all or none, and returns what it says.
    pub(super) fn tell(&mut self, commands: &[String]) -> Result<String, RulesError> {
        let said = self.ask(commands);
        if let Err(RulesError::Lost { why }) = &said {
            self.silent = Some(why.clone());
        }
        said
    }

    fn ask(&mut self, commands: &[String]) -> Result<String, RulesError> {
        // It answers in order: what it says of a command it can't know ends the answer.
        const END: &str = "end-of-answer";
        let lost = |why: &dyn fmt::Display| RulesError::Lost { why: why.to_string() };
        let text = format!("{}\n{END}\n", commands.join("; "));
        let input = self.process.stdin.as_mut().ok_or_else(|| lost(&"it was let go"))?;
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).map_err(|why| lost(&why))?;
        let (begun, mut said) = (Instant::now(), String::new());
        while !said.contains(&format!("\n{END}\n")) {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&timeout)).map_err(|why| lost(&why))?;
            let mut part = [0; 4096];
            match if ready == 0 { Ok(0) } else { self.answers.read(&mut part) } {
                Ok(0) => return Err(lost(&if ready == 0 { "it does not answer" } else { "it has ended" })),
                Ok(count) => said += &String::from_utf8_lossy(&part[..count]),
                Err(why) => return Err(lost(&why)),
            }
        }
        // The last error is about the end mark itself.
        let answer = said.rfind("Error:").map_or(said.as_str(), |end| &said[..end]);
        match answer.find("Error:") {
            Some(at) => {
                let said = answer[at..].lines().next().unwrap_or_default().trim_start_matches("Error: ").to_string();
                Err(RulesError::Refused { cure: nft::cure(&said), said })
            }
            None => Ok(answer.to_string()),
        }
    }

    /// How the process has ended, or no longer serves, where that is so: the table is gone then, or
    /// cannot be changed and would outlive this proxy.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.process.try_wait() {
            Ok(Some(status)) => Some(format!("the nft process that owns the table inet {TABLE} has ended ({status})")),
            _ => self.silent.as_ref().map(|why| format!("the nft process that owns the table inet {TABLE} does not answer: {why}")),
        }
    }

    /// Stops the process, and lets go of what keeps another owner from taking its place.
    pub(super) fn let_go(&mut self) {
        self.stop();
        self.lock = None;
    }

    /// Lets go of it, and so of the table; returns when that is gone.
    pub(super) fn stop(&mut self) {
        drop(self.process.stdin.take());
        // The end of its input ends it; one that does not see it is made to.
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if begun.elapsed() > Duration::from_secs(2) {
                let _ = self.process.kill();
                let _ = self.process.wait();
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a refusal is about the flag, of which older kernels (Invalid argument, Not supported)
/// and older `nft` (the others) know nothing.
fn knows_no_owners(error: &RulesError) -> bool {
    let about_the_flag = ["Invalid argument", "not supported", "unknown table option", "syntax error"];
    matches!(error, RulesError::Refused { said, .. } if about_the_flag.iter().any(|words| said.contains(words)))
}

/// Shows that this proxy has the table and lives, unless another proxy of this network namespace
/// does.
fn lock() -> Result<ClaimedSocket, RulesError> {
    let lost = |why: io::Error| RulesError::Lost { why: why.to_string() };
    RuntimeDirs::of_thread().map_err(lost)?.claim(LOCK, Access::Everyone).map_err(|error| match error {
        ClaimError::Taken => RulesError::Taken,
        ClaimError::NoDirectory(at, why) => RulesError::NoSocket { at, why },
        ClaimError::System(why) => lost(why),
    })
}
