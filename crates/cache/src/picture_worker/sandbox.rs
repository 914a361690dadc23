//! How a process gives up everything that it does not need to make pictures smaller.

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

/// The user and group `nobody`, by which Linux shows those that have no number of their own.
const NOBODY: u32 = 65534;

/// What the process may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of address space beyond what is mapped already.
    pub memory: u64,
    /// Seconds of processor time in the process's life.
    pub cpu_seconds: u64,
}

/// What holds besides what holds everywhere.
#[derive(Debug, Clone, Copy)]
pub struct Protections {
    /// Whether system calls are filtered; not on all architectures, nor by all kernels.
    pub filtered: bool,
}

/// Gives up privileges for good: descriptors beyond standard input, output and error; the file
/// system outside the current directory and root's identity, where the process may change them;
/// all capabilities; what setuid programs and file capabilities could give back; resources beyond
/// the limits; and, by a filter, all system calls but a few. From now on the process cannot be
/// traced, and ends with the thread that started it.
///
/// The process must have one thread only, and must not need descriptors that it has open.
///
/// # Errors
/// When one of these steps fails that needs no privilege: the process must then do nothing further.
pub fn enter(limits: Limits) -> io::Result<Protections> {
    let mapped = mapped()?;
    sys::close_from(3).map_err(failed("close descriptors"))?;
    // The cache starts it in an empty directory that has been removed.
    ignore_unprivileged(chroot(".")).map_err(failed("make the current directory the root"))?;
    leave_user();
    drop_capabilities().map_err(failed("drop capabilities"))?;
    set_no_new_privs(true).map_err(failed("renounce new privileges"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("forbid traces and dumps"))?;
    // After the change of the user, which resets it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("ask for a signal when the cache ends"))?;
    for (resource, limit) in [
        (Resource::As, mapped.saturating_add(limits.memory)),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Memlock, 0),
        (Resource::Nofile, 0),
        (Resource::Nproc, 0),
    ] {
        limit_to(resource, limit).map_err(failed("limit its resources"))?;
    }
    Ok(Protections { filtered: filter::apply()? })
}

fn failed<E: std::fmt::Display>(attempt: &'static str) -> impl Fn(E) -> io::Error {
    move |why| io::Error::other(format!("a picture worker cannot {attempt}: {why}"))
}

/// Only root may, and what only root may do is needed only of root.
fn ignore_unprivileged(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

/// Bytes of address space that are mapped.
fn mapped() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm").map_err(failed("read /proc/self/statm"))?;
    let pages: Option<u64> = text.split_whitespace().next().and_then(|pages| pages.parse().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm does not begin with a number"))?;
    Ok(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Becomes `nobody`, where the process may. Root owns files even without capabilities, and the
/// number of root's processes has no limit. Where it may not, it is not root, or `nobody` has no
/// number in its user namespace.
fn leave_user() {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // The bounding set can be changed only as long as there are capabilities.
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

/// Lowers a limit, both the soft and the hard one.
fn limit_to(resource: Resource, limit: u64) -> rustix::io::Result<()> {
    let limit = getrlimit(resource).maximum.map_or(limit, |most| most.min(limit));
    setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
}
