//! A call that libbpf-rs does not wrap.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

/// Makes the kernel count runs and time of every BPF program while the descriptor is open.
pub(super) fn count_runs() -> io::Result<OwnedFd> {
    // SAFETY: takes a number and returns a descriptor or a negative error number.
    let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
