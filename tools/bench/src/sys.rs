//! The one call that says of a single child what it took.
#![allow(unsafe_code)]

use std::{io, process::Child};

/// What a process took until its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildUsage {
    /// Of processors' time, the kernel's for it included, s.
    pub(crate) cpu_s: f64,
    /// The most memory that it had at a time, bytes.
    pub(crate) most_memory: u64,
    /// What it ended with, if it ended by itself.
    pub(crate) status: Option<i32>,
}

impl ChildUsage {
    /// It ended by itself, and said that all went well.
    pub(crate) fn success(&self) -> bool {
        self.status == Some(0)
    }
}

/// Waits for a child's end. Whoever reads from its pipes must have done so.
pub(crate) fn wait(child: &Child) -> io::Result<ChildUsage> {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    loop {
        // SAFETY: both places are ours to write for the time of the call; the process is our child, and nobody else waits for it.
        let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
        if waited >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: it is plain numbers, for which zeroes, which it began as, are values too.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(ChildUsage {
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        most_memory: usage.ru_maxrss.unsigned_abs() * 1024,
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
    })
}
