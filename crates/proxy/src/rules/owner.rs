//! The process that owns the nftables table, and does what it is told with it.

use super::{RulesError, TABLE, cure, run};
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

/// The process that owns the table: it lives as long as this end of its input, and answers what it is told.
#[derive(Debug)]
pub(super) struct Owner {
    process: Child,
    answers: PipeReader,
}

impl Owner {
    pub(super) fn start() -> Result<Self, RulesError> {
        let missing = |why| RulesError::Missing { program: "nft", why, package: "nftables" };
        let (answers, end) = io::pipe().map_err(missing)?;
        let errors = end.try_clone().map_err(missing)?;
        let process = Command::new("nft")
            .arg("-i")
            // What a terminal signals to all in the foreground (Ctrl-C) is not for it: flows still need its rules.
            .process_group(0)
            // It would keep a history of its commands there.
            .env("HOME", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(end)
            .stderr(errors)
            .spawn()
            .map_err(missing)?;
        Ok(Owner { process, answers })
    }

    /// Has it do `commands`, all or none, and returns what it says.
    pub(super) fn tell(&mut self, commands: &[String]) -> Result<String, RulesError> {
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
                Err(RulesError::Refused { what: "nftables rules", cure: cure(&said), said })
            }
            None => Ok(answer.to_string()),
        }
    }

    /// Makes the table, still empty: at most one process can.
    pub(super) fn claim(&mut self) -> Result<(), RulesError> {
        let (begun, mut gone) = (Instant::now(), 0);
        loop {
            let Err(error) = self.tell(&[format!("create table inet {TABLE} {{ flags owner; }}")]) else { return Ok(()) };
            if run("nft", "nftables", &["list", "table", "inet", TABLE])?.0 {
                if begun.elapsed() > DYING {
                    return Err(RulesError::Taken);
                }
            } else if gone > 0 {
                return Err(error);
            } else {
                // It may have gone between the two commands.
                gone += 1;
            }
            thread::sleep(Duration::from_millis(20));
        }
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
