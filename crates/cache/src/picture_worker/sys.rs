//! A system call that rustix does not wrap.
#![allow(unsafe_code)]

use std::io;

/// Closes all descriptors from `first` on. The process must not use one of them afterwards.
///
/// # Errors
/// When the kernel has no `close_range` (before Linux 5.9).
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    let (last, flags) = (u32::MAX, 0_u32);
    // SAFETY: the call takes three numbers. The caller uses no descriptor in that range again.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
