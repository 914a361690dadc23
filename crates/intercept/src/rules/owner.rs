//! The process that owns the nftables table, and runs commands on it.
//!
//! The table must be removed when the proxy ends, in whatever way. Linux 5.12 and later bind a
//! table to the process that created it (flag `owner`): that process is `nft -i`, which reads
//! commands from a pipe. On other kernels a shell waits for `nft` to end and then deletes the
//! table. If the shell is killed too, the table stays, but does no harm: without a listener
//! `tproxy` lets connections pass, and the next start replaces the table. There a listening socket
//! (`runtime_dir`) shows whether a table belongs to a running proxy.
//!
//! On a hot restart the process stays: the next proxy gets the two pipes to it, and its pidfd
//! ([`Owner::hand_over`], [`Owner::take_over`]).

use super::{RulesError, TABLE, nft};
use crate::runtime_dir::{Access, ClaimError, ClaimedSocket, RuntimeDirs};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time limit for an answer of the owner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the table of a proxy that was just killed may continue to exist.
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(500);
/// The name of the socket on which a proxy listens while it has a table without an owner. Proxies
/// of all users must find it, since the table belongs to the network namespace.
const LOCK: &str = "table";

/// The process that owns the table. It ends when its input is closed, and the table is removed
/// then.
#[derive(Debug)]
pub(super) struct Owner {
    process: OwnerProcess,
    /// `None`: closed.
    input: Option<File>,
    answers: File,
    /// The socket that shows that this proxy runs, on kernels without owners.
    lock: Option<ClaimedSocket>,
    /// Why it cannot be used any more although its process may still run: it did not answer.
    failure: Option<String>,
    /// Whether this process ends the owner when it drops this. Otherwise it belongs to another
    /// proxy.
    is_mine: bool,
}

#[derive(Debug)]
enum OwnerProcess {
    /// A child of this process.
    Child(Child),
    /// A child of an earlier proxy, known by its pidfd.
    Inherited(OwnedFd),
}

impl OwnerProcess {
    /// The exit status, as text, if it has ended.
    fn ended(&mut self) -> Option<String> {
        match self {
            OwnerProcess::Child(child) => child.try_wait().ok().flatten().map(|status| status.to_string()),
            OwnerProcess::Inherited(process) => {
                let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
                ended.is_ok_and(|ended| ended > 0).then(|| "its status is unknown".into())
            }
        }
    }

    fn kill(&mut self) {
        match self {
            OwnerProcess::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            OwnerProcess::Inherited(process) => drop(pidfd_send_signal(process, Signal::KILL)),
        }
    }

    /// A descriptor by which another process knows it.
    fn pidfd(&self) -> io::Result<OwnedFd> {
        match self {
            OwnerProcess::Child(child) => {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
                Ok(pidfd_open(pid, PidfdFlags::empty())?)
            }
            OwnerProcess::Inherited(process) => process.try_clone(),
        }
    }
}

/// An owner on its way to another process.
#[derive(Debug)]
pub(super) struct OwnerParts {
    /// Input, output, pidfd; and the socket and the lock of the claim, if there is one.
    pub(super) descriptors: Vec<OwnedFd>,
    /// The path of the claimed socket.
    pub(super) lock: Option<PathBuf>,
}

impl Owner {
    /// Copies of the descriptors by which another process can use the owner.
    ///
    /// # Errors
    /// The owner has ended, or no descriptor is left.
    pub(super) fn hand_over(&self) -> io::Result<OwnerParts> {
        let input = self.input.as_ref().ok_or_else(|| io::Error::other("its input was closed"))?;
        let mut descriptors = vec![input.try_clone()?.into(), self.answers.try_clone()?.into(), self.process.pidfd()?];
        let lock = self.lock.as_ref().map(ClaimedSocket::parts).transpose()?;
        let lock = lock.map(|(path, more)| {
            descriptors.extend(more);
            path
        });
        Ok(OwnerParts { descriptors, lock })
    }

    /// The owner that another process has handed over. Call [`resume`](Self::resume) before
    /// anything else. It belongs to the other process until [`keep`](Self::keep).
    ///
    /// # Errors
    /// Descriptors are missing.
    pub(super) fn take_over(parts: OwnerParts) -> Result<Self, RulesError> {
        let incomplete = |_| RulesError::OwnerLost { why: "it was handed over without its descriptors".into() };
        let (owner, lock) = match parts.lock {
            None => (parts.descriptors.try_into().map_err(incomplete)?, None),
            Some(path) => {
                let [input, answers, process, socket, lock] = parts.descriptors.try_into().map_err(incomplete)?;
                ([input, answers, process], Some(ClaimedSocket::from_parts(path, [socket, lock])))
            }
        };
        let [input, answers, process]: [OwnedFd; 3] = owner;
        Ok(Owner {
            process: OwnerProcess::Inherited(process),
            input: Some(input.into()),
            answers: answers.into(),
            lock,
            failure: None,
            is_mine: false,
        })
    }

    /// Makes the owner belong to this process: the one that handed it over has left it.
    pub(super) fn keep(&mut self) {
        self.is_mine = true;
        if let Some(lock) = &self.lock {
            lock.keep();
        }
    }

    /// Whether it belongs to this process.
    pub(super) fn is_mine(&self) -> bool {
        self.is_mine
    }

    /// Makes input and output of the owner begin anew, after another process may have used them: it
    /// may have been killed after half a command, or before it read the answer.
    ///
    /// # Errors
    /// The owner does not answer.
    pub(super) fn resume(&mut self) -> Result<(), RulesError> {
        // An unknown command. The line end before it ends half a command, which cannot be valid:
        // each line is written at once, and ends with a line end.
        const BEGIN: &str = "begin-after-handover";
        let answered = self.exchange_text(&format!("\n{BEGIN}\n"), BEGIN);
        if let Err(RulesError::OwnerLost { why }) = &answered {
            self.failure = Some(why.clone());
        }
        answered.map(drop)
    }

    /// Leaves the owner to the process to which it was handed over.
    pub(super) fn leave(&mut self) {
        self.is_mine = false;
        self.input = None;
        if let Some(lock) = self.lock.take() {
            lock.leave();
        }
    }

    /// Starts the process, and creates the table, which is still empty. Only one proxy at a time
    /// can do so in a network namespace.
    ///
    /// # Errors
    /// Another process has a table of this name, nft cannot be run, or the kernel refuses the
    /// table.
    pub(super) fn claim() -> Result<Self, RulesError> {
        let mut owner = Owner::start(Command::new("nft").arg("-i"), None)?;
        let (begun, mut gone) = (Instant::now(), 0);
        loop {
            let Err(error) = owner.run(&[format!("create table inet {TABLE} {{ flags owner; }}")]) else { return Ok(owner) };
            if nft::run(&["list", "table", "inet", TABLE])?.0 {
                if begun.elapsed() > REMOVAL_TIMEOUT {
                    // A killed proxy may have left a table without an owner.
                    return if is_about_owners(&error) { Owner::claim_by_lock(&error) } else { Err(RulesError::TableInUse) };
                }
            } else if is_about_owners(&error) {
                return Owner::claim_by_lock(&error);
            } else if gone > 0 {
                return Err(error);
            } else {
                // The table may have been removed between the two commands.
                gone += 1;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Like [`claim`](Self::claim), if the kernel or `nft` does not support owners, as `reason`
    /// says.
    fn claim_by_lock(reason: &RulesError) -> Result<Self, RulesError> {
        let lock = lock()?;
        tracing::debug!("a shell will remove the table, which has no owner ({reason})");
        let run = |arguments: &[&str]| {
            let (fine, said) = nft::run(arguments)?;
            if fine { Ok(said) } else { Err(RulesError::Refused { cure: nft::cure(&said), said }) }
        };
        // This proxy holds the lock, so that an existing table belongs to no running proxy.
        if run(&["list", "table", "inet", TABLE]).is_ok() {
            run(&["delete", "table", "inet", TABLE])?;
        }
        run(&["create", "table", "inet", TABLE])?;
        let listed = run(&["-a", "list", "table", "inet", TABLE])?;
        let handle = listed.lines().find_map(|line| line.split_once("# handle ")).map(|(_, handle)| handle.trim().to_owned());
        let no_handle = || RulesError::Refused { said: "nft lists no handle of the table".into(), cure: "see `tandem doctor`" };
        // By its handle: the shell must not delete the table of the next proxy.
        let script = format!("nft -i; exec nft delete table inet handle {}", handle.ok_or_else(no_handle)?);
        Owner::start(Command::new("sh").args(["-c", &script]), Some(lock))
    }

    fn start(command: &mut Command, lock: Option<ClaimedSocket>) -> Result<Self, RulesError> {
        let (answers, end) = io::pipe().map_err(RulesError::RunNft)?;
        let errors = end.try_clone().map_err(RulesError::RunNft)?;
        let mut process = command
            // In a process group of its own, so that Ctrl-C in a terminal does not end it: flows
            // still need the rules.
            .process_group(0)
            // nft would write a history of its commands there.
            .env("HOME", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(end)
            .stderr(errors)
            .spawn()
            .map_err(RulesError::RunNft)?;
        let input = process.stdin.take().map(|input| OwnedFd::from(input).into());
        Ok(Owner {
            process: OwnerProcess::Child(process),
            input,
            answers: OwnedFd::from(answers).into(),
            lock,
            failure: None,
            is_mine: true,
        })
    }

    /// Runs `commands`, all or none, and returns the output.
    ///
    /// # Errors
    /// nft or the kernel refuses a command, or the process does not answer.
    pub(super) fn run(&mut self, commands: &[String]) -> Result<String, RulesError> {
        let said = self.exchange(commands);
        if let Err(RulesError::OwnerLost { why }) = &said {
            self.failure = Some(why.clone());
        }
        said
    }

    fn exchange(&mut self, commands: &[String]) -> Result<String, RulesError> {
        // nft answers in order, so that its error message about this unknown command ends the
        // answer.
        const END: &str = "end-of-answer";
        let said = self.exchange_text(&format!("{}\n{END}\n", commands.join("; ")), END)?;
        // The last error is about END itself.
        let answer = said.rfind("Error:").map_or(said.as_str(), |end| &said[..end]);
        match answer.find("Error:") {
            Some(at) => {
                let said = answer[at..].lines().next().unwrap_or_default().trim_start_matches("Error: ").to_string();
                Err(RulesError::Refused { cure: nft::cure(&said), said })
            }
            None => Ok(answer.to_string()),
        }
    }

    /// Writes `text`, and reads until the error message about its last line, `end`.
    fn exchange_text(&mut self, text: &str, end: &str) -> Result<String, RulesError> {
        let lost = |why: &dyn fmt::Display| RulesError::OwnerLost { why: why.to_string() };
        let input = self.input.as_mut().ok_or_else(|| lost(&"its input was closed"))?;
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).map_err(|why| lost(&why))?;
        let (begun, mut said) = (Instant::now(), String::new());
        while !said.contains(&format!("\n{end}\n")) {
            let left = ANSWER_TIMEOUT.saturating_sub(begun.elapsed());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let ready = match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&timeout)) {
                Err(Errno::INTR) => continue,
                ready => ready.map_err(|why| lost(&why))?,
            };
            let mut part = [0; 4096];
            match if ready == 0 { Ok(0) } else { self.answers.read(&mut part) } {
                Ok(0) => return Err(lost(&if ready == 0 { "it has not answered in time" } else { "it has ended" })),
                Ok(count) => said += &String::from_utf8_lossy(&part[..count]),
                Err(why) => return Err(lost(&why)),
            }
        }
        Ok(said)
    }

    /// Why the owner cannot be used any more: it has ended, and the table is gone, or it does not
    /// answer, and the table cannot be changed. `None` if it works.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.process.ended() {
            Some(status) => Some(format!("the nft process that owns the table inet {TABLE} has ended ({status})")),
            None => self.failure.as_ref().map(|why| format!("the nft process that owns the table inet {TABLE} failed: {why}")),
        }
    }

    /// Stops the process and releases the lock, so that another owner can be started.
    pub(super) fn release(&mut self) {
        self.stop();
        self.lock = None;
    }

    /// Stops the process. Returns when the table is removed.
    pub(super) fn stop(&mut self) {
        drop(self.input.take());
        if !self.is_mine {
            return;
        }
        // Its input is closed, which ends it. If it does not end in time, it is killed.
        let begun = Instant::now();
        while self.process.ended().is_none() {
            if begun.elapsed() > Duration::from_secs(2) {
                self.process.kill();
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

/// Whether an error is about the flag `owner`, which older kernels (Invalid argument, Not
/// supported) and older `nft` (the other messages) do not support.
fn is_about_owners(error: &RulesError) -> bool {
    let about_the_flag = ["Invalid argument", "not supported", "unknown table option", "syntax error"];
    matches!(error, RulesError::Refused { said, .. } if about_the_flag.iter().any(|words| said.contains(words)))
}

/// Listens on the socket that shows that this proxy runs and has the table.
///
/// # Errors
/// Another proxy of this network namespace has it, or it cannot be created.
fn lock() -> Result<ClaimedSocket, RulesError> {
    RuntimeDirs::of_thread().map_err(RulesError::Claim)?.claim(LOCK, Access::Everyone).map_err(|error| match error {
        ClaimError::Taken => RulesError::TableInUse,
        ClaimError::NoDirectory(at, why) => RulesError::NoSocket { at, why },
        ClaimError::System(why) => RulesError::Claim(why),
    })
}
