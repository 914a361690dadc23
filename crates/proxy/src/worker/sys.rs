//! What worker threads ask of the kernel: wake-ups, and a descriptor table of their own.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    thread,
    time::Duration,
};

/// Makes an eventfd readable, for a thread that sleeps until it is. The write cannot be refused for
/// lack of room: whoever waits reads it. Should it fail all the same it is tried again for a
/// second, because without it the sleeper might never hear.
pub(crate) fn signal(eventfd: &OwnedFd) {
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 0..200 {
        if rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Gives the calling thread a descriptor table of its own, in which of all that were open only
/// `keep` and the standard streams remain. Descriptors then are counted, and looked up, for this
/// thread alone.
pub(crate) fn own_descriptors(keep: RawFd) -> io::Result<OwnedFd> {
    // Not every C library has a function for it.
    let close_range = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: takes numbers alone; what it closes is said below.
        let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: unshare takes no pointers. Whatever descriptors other threads' objects own stay open
    // in their table; what is closed here is this thread's copy, of which no object of this thread
    // is an owner: it has just begun, and `keep` is adopted.
    unsafe {
        if libc::unshare(libc::CLONE_FILES) != 0 {
            return Err(io::Error::last_os_error());
        };
        let keep = keep as libc::c_uint;
        if keep > 3 {
            close_range(3, keep - 1)?;
        }
        close_range(keep + 1, libc::c_uint::MAX)?;
        Ok(OwnedFd::from_raw_fd(keep as i32))
    }
}
