//! The system call that rustix does not wrap.
#![allow(unsafe_code)]

use std::io;

/// Closes all descriptors from `first` on. Nothing in this process may use one of them afterwards.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    let (last, flags) = (u32::MAX, 0_u32);
    // SAFETY: takes three numbers. Who calls it gives up all descriptors in that range.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
