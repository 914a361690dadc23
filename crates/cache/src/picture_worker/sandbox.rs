//! Gives up all privileges and resources that transcoding pictures does not need.

use super::{filter, sys};
use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, chroot, getrlimit, set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
    },
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
        set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};
use std::{fs, io};

/// The user and group `nobody`: the kernel's overflow ID.
const NOBODY: u32 = 65534;

/// Resource limits of a sandboxed process.
#[derive(Debug, Clone, Copy)]
pub struct SandboxLimits {
    /// Address space in addition to what is mapped already, bytes.
    pub memory: u64,
    /// Processor time of the process, seconds.
    pub cpu_seconds: u64,
}

/// Protections that not every host supports.
#[derive(Debug, Clone, Copy)]
pub struct Protections {
    /// Whether system calls are filtered. Some architectures and kernels do not support that.
    pub filtered: bool,
}

/// Sandboxes the process irrevocably. It gives up:
///
/// - descriptors other than standard input, output and error
/// - the file system outside the current directory, and the identity of root, where it may change
///   them
/// - all capabilities, and new privileges by setuid programs and file capabilities
/// - resources beyond the limits
/// - all system calls but a few, by a filter
///
/// From then on it cannot be traced, and is killed when the thread that started it ends. The
/// process must have only one thread, and must not use the closed descriptors again.
///
/// # Errors
/// When a step fails that needs no privilege. The process must then exit.
pub fn enter(limits: SandboxLimits) -> io::Result<Protections> {
    let mapped = mapped()?;
    sys::close_from(3).map_err(failed("close descriptors"))?;
    // The current directory is empty and has been removed.
    ignore_unprivileged(chroot(".")).map_err(failed("make the current directory the root"))?;
    leave_user();
    drop_capabilities().map_err(failed("drop capabilities"))?;
    set_no_new_privs(true).map_err(failed("renounce new privileges"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("forbid tracing and core dumps"))?;
    // After the change of the user, which clears it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("request to be killed with the cache"))?;
    for (resource, limit) in [
        (Resource::As, mapped.saturating_add(limits.memory)),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Memlock, 0),
        (Resource::Nofile, 0),
        (Resource::Nproc, 0),
    ] {
        limit_to(resource, limit).map_err(failed("set resource limits"))?;
    }
    Ok(Protections { filtered: filter::apply()? })
}

fn failed<E: std::fmt::Display>(attempt: &'static str) -> impl Fn(E) -> io::Error {
    move |why| io::Error::other(format!("a picture worker cannot {attempt}: {why}"))
}

/// Ignores a lack of permission, for steps that only a privileged process can take, and needs to.
fn ignore_unprivileged(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

/// Address space that is mapped, bytes.
fn mapped() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm").map_err(failed("read /proc/self/statm"))?;
    let pages: Option<u64> = text.split_whitespace().next().and_then(|pages| pages.parse().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm does not start with a number"))?;
    Ok(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Changes the user and the groups to `nobody`, where the process may. Root owns files even without
/// capabilities, and `RLIMIT_NPROC` does not apply to it. A process that may not is not root, or
/// its user namespace does not map `nobody`.
fn leave_user() {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // The bounding set can be changed only while the process has capabilities.
    for number in 0..64 {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number));
    }
    let _ = set_thread_groups(&[]);
    let _ = set_thread_res_gid(group, group, group);
    let _ = set_thread_res_uid(user, user, user);
}

fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Sets the soft and the hard limit, never above the current hard limit.
fn limit_to(resource: Resource, limit: u64) -> rustix::io::Result<()> {
    let limit = getrlimit(resource).maximum.map_or(limit, |most| most.min(limit));
    setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
}
