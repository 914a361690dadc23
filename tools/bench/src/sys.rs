//! A call that returns the resource usage of a single child.
#![allow(unsafe_code)]

use std::{io, process::Child};

/// Resources that a child process used until its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildUsage {
    /// Processor time in user and kernel mode, s.
    pub(crate) cpu_s: f64,
    /// Peak of resident memory, bytes.
    pub(crate) most_memory: u64,
    /// Exit code; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
}

impl ChildUsage {
    /// Whether it exited with code 0.
    pub(crate) fn success(&self) -> bool {
        self.status == Some(0)
    }
}

/// Waits for a child's end. Its pipes must have been read to the end.
pub(crate) fn wait(child: &Child) -> io::Result<ChildUsage> {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    loop {
        // SAFETY: both pointers are valid for writes during the call. The process is our child, and
        // no other thread waits for it.
        let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
        if waited >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: the struct consists of numbers, and it was initialised with zeroes.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(ChildUsage {
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        most_memory: usage.ru_maxrss.unsigned_abs() * 1024,
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
    })
}
