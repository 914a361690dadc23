//! The system calls that a picture worker may make. Any other call kills the process (SIGSYS).
//!
//! `seccompiler` supports x86_64, aarch64 and riscv64. On armv7, for which Tandem is built too,
//! there is no filter; everything else in `sandbox` applies there as well.

use std::io;

/// Filters the system calls of this thread from now on. Returns false where the architecture or the
/// kernel does not support filters.
///
/// # Errors
/// When the filter cannot be built or installed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn apply() -> io::Result<bool> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

    // A kernel without CONFIG_SECCOMP answers EINVAL.
    if rustix::thread::secure_computing_mode().is_err() {
        return Ok(false);
    }
    let failed = |why: &dyn std::fmt::Display| io::Error::other(format!("cannot filter system calls: {why}"));
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|why| failed(&why))?;
    let rules = rules().map_err(|why| failed(&why))?;
    let filter = SeccompFilter::new(rules.into_iter().collect(), SeccompAction::KillProcess, SeccompAction::Allow, arch);
    let program = filter.and_then(BpfProgram::try_from).map_err(|why| failed(&why))?;
    match apply_filter(&program) {
        Ok(()) => Ok(true),
        // CONFIG_SECCOMP without CONFIG_SECCOMP_FILTER.
        Err(seccompiler::Error::Seccomp(why)) if why.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(why) => Err(failed(&why)),
    }
}

/// The allowed system calls. One with rules is allowed if any of them matches its arguments.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn rules() -> Result<Vec<(i64, Vec<seccompiler::SeccompRule>)>, seccompiler::BackendError> {
    use seccompiler::{SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompRule};

    let if_argument = |index, operation, value| {
        SeccompCondition::new(index, Dword, operation, value).and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let not_executable = || if_argument(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    let own_process = u64::from(std::process::id());
    let any = [
        // The socket, and standard error for panic messages.
        libc::SYS_read,
        libc::SYS_write,
        // Memory.
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        // Locks, hash seeds, clocks.
        libc::SYS_futex,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        // Exit and abort.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_getpid,
        libc::SYS_gettid,
    ];
    let mut rules: Vec<_> = any.into_iter().map(|call| (call, Vec::new())).collect();
    rules.push((libc::SYS_mmap, vec![not_executable()?]));
    rules.push((libc::SYS_mprotect, vec![not_executable()?]));
    // For `abort`; other processes cannot be signalled.
    rules.push((libc::SYS_tgkill, vec![if_argument(0, SeccompCmpOp::Eq, own_process)?]));
    Ok(rules)
}

/// There is no filter for this architecture: returns false.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn apply() -> io::Result<bool> {
    Ok(false)
}
