//! System calls of worker threads: wake-ups, and a descriptor table of their own.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    thread,
    time::Duration,
};

/// Wakes the thread that waits for an eventfd. The write does not block: the counter is far from
/// its maximum. If it fails nevertheless, it is repeated for a second, since a lost wake-up could
/// leave the thread waiting for ever.
pub(crate) fn signal(eventfd: &OwnedFd) {
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..200 {
        if rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Gives the calling thread a descriptor table of its own, which keeps only `keep` and the standard
/// streams. The limit of open files then counts for this thread alone, and descriptor lookups take
/// no shared lock. Returns the descriptors of `keep` as owned ones, in the same order. They must be
/// different, and stay open in the other table until this returns.
///
/// # Errors
/// When the table cannot be unshared, or descriptors cannot be closed.
pub(crate) fn own_descriptors(keep: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    // Not every C library has a wrapper for this system call.
    let close_range = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: takes only numbers; the block below says why closing is sound.
        let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let mut kept: Vec<libc::c_uint> = keep.iter().map(|descriptor| *descriptor as libc::c_uint).collect();
    kept.sort_unstable();
    // SAFETY: unshare takes no pointers. Descriptors that objects of other threads own stay open in
    // the other table. The copies that are closed here have no owner, because this thread has just
    // started, and those of `keep` become owned by the result.
    unsafe {
        if libc::unshare(libc::CLONE_FILES) != 0 {
            return Err(io::Error::last_os_error());
        };
        let mut next = 3;
        for keep in kept {
            if keep > next {
                close_range(next, keep - 1)?;
            }
            next = next.max(keep + 1);
        }
        close_range(next, libc::c_uint::MAX)?;
        Ok(keep.iter().map(|descriptor| OwnedFd::from_raw_fd(*descriptor)).collect())
    }
}
