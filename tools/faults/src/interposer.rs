//! Intercepts a program's system calls: counts them, and makes some of them fail.
//!
//! It uses seccomp user notification (seccomp_unotify(2)), which needs no special build of the
//! program, also intercepts calls that bypass the C library, and costs some microseconds for each
//! call.

use crate::sys;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd as _, OwnedFd},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    process::{Child, Command},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A failure to inject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyscallFault {
    pub(crate) call: i32,
    pub(crate) errno: i32,
    /// Which of the following calls fails, counted from 1.
    pub(crate) nth: u64,
    /// How long later calls fail as well.
    pub(crate) lasts: Duration,
    /// Start counting at the first call of this kind.
    pub(crate) after: Option<i32>,
}

#[derive(Debug, Default)]
struct InterposerState {
    fault: Option<SyscallFault>,
    /// When the first call failed.
    since: Option<Instant>,
    /// How many calls have failed.
    fired: u64,
    /// Whether the call that starts the counting has been made.
    begun: bool,
    counts: BTreeMap<i32, u64>,
}

impl InterposerState {
    fn judge(&mut self, call: i32) -> Option<i32> {
        if let Some(after) = self.fault.and_then(|fault| fault.after).filter(|_| !self.begun) {
            self.begun = call == after;
            return None;
        }
        let count = self.counts.entry(call).or_default();
        *count += 1;
        let fault = self.fault.filter(|fault| fault.call == call && *count >= fault.nth)?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.fired > 0 && since.elapsed() >= fault.lasts {
            return None;
        }
        self.fired += 1;
        Some(fault.errno)
    }
}

/// Intercepts the calls of one program.
#[derive(Debug)]
pub(crate) struct Interposer(Arc<Mutex<InterposerState>>);

impl Interposer {
    /// Starts a program that has `fault` from its first call on. Only the program's own calls are
    /// counted and made to fail, not those of its children.
    pub(crate) fn start(command: &mut Command, fault: Option<SyscallFault>) -> io::Result<(Child, Self)> {
        let state = Arc::new(Mutex::new(InterposerState { fault, ..InterposerState::default() }));
        let (child, listener) = sys::spawn(command)?;
        let (shared, process) = (state.clone(), child.id());
        thread::Builder::new().name("faults".into()).spawn(move || {
            if let Err(why) = serve(&listener, process, &shared) {
                eprintln!("interception of process {process} ended: {why}");
            }
        })?;
        Ok((child, Interposer(state)))
    }

    fn state(&self) -> MutexGuard<'_, InterposerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts the counts at 0, with this fault from now on.
    pub(crate) fn arm(&self, fault: Option<SyscallFault>) {
        *self.state() = InterposerState { fault, ..InterposerState::default() };
    }

    /// Removes the fault. Returns how many calls failed.
    pub(crate) fn disarm(&self) -> u64 {
        let mut state = self.state();
        state.fault = None;
        state.fired
    }

    /// How many calls have failed so far.
    pub(crate) fn fired(&self) -> u64 {
        self.state().fired
    }

    /// Number of calls since [`Interposer::arm`], by system call.
    pub(crate) fn counts(&self) -> BTreeMap<i32, u64> {
        self.state().counts.clone()
    }
}

/// Answers notifications until all processes with the filter have ended.
fn serve(listener: &OwnedFd, process: u32, state: &Mutex<InterposerState>) -> io::Result<()> {
    let mut is_own = HashMap::new();
    loop {
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        if let Err(errno) = poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))
            && errno != rustix::io::Errno::INTR
        {
            return Err(errno.into());
        }
        let events = polled[0].revents();
        if events.contains(PollFlags::HUP) {
            return Ok(());
        }
        if !events.contains(PollFlags::IN) {
            continue;
        }
        let Some(notification) = sys::receive(listener.as_fd())? else { continue };
        let own = *is_own.entry(notification.thread).or_insert_with(|| group_of(notification.thread) == Some(process));
        let errno = if own { state.lock().unwrap_or_else(PoisonError::into_inner).judge(notification.call) } else { None };
        sys::answer(listener.as_fd(), notification, errno)?;
    }
}

/// The process to which a thread belongs.
fn group_of(thread: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}
