//! System calls that libbpf-rs and rustix do not wrap.
#![allow(unsafe_code)]

use libbpf_rs::{
    MapHandle,
    query::{LinkInfoIter, LinkTypeInfo, MapInfoIter},
};
use rustix::{
    fs::{StatFs, statfs},
    mount::{MountFlags, mount},
};
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    slice,
    sync::{Mutex, Once, PoisonError},
};

/// Pins a BPF object in the BPF file system.
pub(crate) fn pin(descriptor: impl AsFd, path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the descriptor and the path live for the call.
    check(unsafe { libbpf_sys::bpf_obj_pin(descriptor.as_fd().as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// The verifier's reason for the last refusal.
static REFUSAL: Mutex<Option<String>> = Mutex::new(None);

/// Redirects libbpf's messages from stderr to the log (`TANDEM_LOG=debug`). It returns them as
/// errors too.
pub(crate) fn redirect_libbpf_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = |_, text: String| {
            tracing::debug!("libbpf: {}", text.trim_end());
            if let Some(refusal) = refusal_in(&text) {
                *REFUSAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
            }
        };
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, log)));
    });
}

/// The verifier's reason in one of libbpf's messages: the last line before its statistics, and the
/// last line of the source before that, if the object has debug information.
fn refusal_in(text: &str) -> Option<String> {
    let (_, log) = text.split_once("-- BEGIN PROG LOAD LOG --")?;
    let lines = log.lines().take_while(|line| !line.starts_with("processed ") && !line.starts_with("-- END"));
    let lines: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    let reason = (*lines.last()?).to_owned();
    let source = lines.iter().rev().find_map(|line| line.strip_prefix("; ")).filter(|source| !source.is_empty());
    Some(source.map_or_else(|| reason.clone(), |source| format!("{reason}, at `{source}`")))
}

/// Takes the verifier's reason for the last refusal.
pub(crate) fn take_refusal() -> Option<String> {
    REFUSAL.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whether this process may load the programs: it has CAP_SYS_ADMIN, which it also needs to find
/// the maps that other processes have loaded.
pub fn may_load() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(effective.trim(), 16).is_ok_and(|effective| effective >> CAP_SYS_ADMIN & 1 == 1)
}

/// Mounts the BPF file system at its usual place, if it is not mounted.
pub(crate) fn mount_bpf() -> io::Result<()> {
    const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
    let root = Path::new("/sys/fs/bpf");
    let StatFs { f_type, .. } = statfs(root)?;
    if f_type as u64 & 0xffff_ffff != BPF_FS_MAGIC {
        mount("bpf", root, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    }
    Ok(())
}

/// The names of the kernel's maps.
pub(crate) fn map_names() -> impl Iterator<Item = String> {
    MapInfoIter::default().map(|map| map.name.to_string_lossy().into_owned())
}

/// The newest of the kernel's maps with this name (truncated to 15 bytes, as by the kernel).
pub(crate) fn newest_map(name: &str) -> Option<MapHandle> {
    MapHandle::from_map_id(maps(name).max()?).ok()
}

/// The oldest of the kernel's maps with this name.
pub(crate) fn oldest_map(name: &str) -> Option<MapHandle> {
    MapHandle::from_map_id(maps(name).min()?).ok()
}

/// Ids of the kernel's maps with this name.
pub(crate) fn maps(name: &str) -> impl Iterator<Item = u32> {
    let name = name[..name.len().min(15)].to_owned();
    MapInfoIter::default().filter(move |map| map.name.to_str() == Ok(&name)).map(|map| map.id)
}

/// The BPF link of the struct_ops map with this name.
pub(crate) fn struct_ops_link(name: &str) -> io::Result<Option<OwnedFd>> {
    let maps: Vec<u32> = maps(name).collect();
    let Some((link, _)) = linked(&maps) else { return Ok(None) };
    // SAFETY: takes an id, returns a descriptor or an error.
    opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(link) })
}

/// The ids of the link that registers one of these struct_ops maps, and of that map.
pub(crate) fn linked(maps: &[u32]) -> Option<(u32, u32)> {
    LinkInfoIter::default().find_map(|link| match &link.info {
        LinkTypeInfo::StructOps(ops) if maps.contains(&ops.map_id) => Some((link.id, ops.map_id)),
        _ => None,
    })
}

/// A descriptor of the map with this id; `None` if it does not exist any more.
pub(crate) fn map_by_id(id: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: takes an id, returns a descriptor or an error.
    opened(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })
}

/// Wraps a descriptor that a call returned; `None` if the object does not exist any more.
fn opened(result: i32) -> io::Result<Option<OwnedFd>> {
    match check(result) {
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the value of a struct_ops map is registered.
pub(crate) fn is_registered(map: impl AsFd) -> io::Result<bool> {
    /// `enum bpf_struct_ops_state`.
    const IN_USE: u32 = 1;
    // The value starts with a reference count and the state; the kernel's struct follows.
    let mut value = vec![0u32; value_size(&map)?.div_ceil(4)];
    let key = 0u32;
    // SAFETY: the key has four bytes, and `value` has the map's value size.
    let done = unsafe { libbpf_sys::bpf_map_lookup_elem(map.as_fd().as_raw_fd(), (&raw const key).cast(), value.as_mut_ptr().cast()) };
    check(done).map(|_| value.get(1) == Some(&IN_USE))
}

fn value_size(map: impl AsFd) -> io::Result<usize> {
    let mut info = libbpf_sys::bpf_map_info::default();
    let mut length = mem::size_of_val(&info) as u32;
    // SAFETY: the pointer and length describe `info`, every bit pattern of which is valid.
    let done = unsafe { libbpf_sys::bpf_obj_get_info_by_fd(map.as_fd().as_raw_fd(), (&raw mut info).cast(), &raw mut length) };
    check(done).map(|_| info.value_size as usize)
}

/// Ends a registration by deleting the value of its struct_ops map.
pub(crate) fn unregister(map: impl AsFd) -> io::Result<()> {
    let key = 0u32;
    // SAFETY: the key has four bytes, as the map's keys have.
    check(unsafe { libbpf_sys::bpf_map_delete_elem(map.as_fd().as_raw_fd(), (&raw const key).cast()) }).map(drop)
}

/// Has a link register another struct_ops map in place of its present one (Linux 6.4).
pub(crate) fn update_link(link: impl AsFd, map: impl AsFd) -> io::Result<()> {
    let [link, map] = [link.as_fd().as_raw_fd(), map.as_fd().as_raw_fd()];
    // SAFETY: takes two descriptors; null stands for the default options.
    check(unsafe { libbpf_sys::bpf_link_update(link, map, std::ptr::null()) }).map(drop)
}

/// Whether a process exists. Asked by signal 0, as /proc may hide other users' processes.
pub(crate) fn process_exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    process.is_some_and(|process| rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// Attaches a program to the egress of an interface in this network namespace (tcx), until the
/// descriptor is closed.
pub(crate) fn attach_egress(program: impl AsFd, ifindex: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes descriptors and numbers, returns a descriptor or an error; null stands for the
    // default options.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), ifindex as i32, libbpf_sys::BPF_TCX_EGRESS, std::ptr::null()) };
    // SAFETY: the descriptor was just opened and has no other owner.
    check(link).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A plain struct of integers without padding, shared between BPF programs and this process.
pub(crate) trait Plain: Copy {}
impl Plain for control::FlowState {}
impl Plain for control::LinkRecord {}

pub(crate) fn bytes_of<T: Plain>(plain: &T) -> &[u8] {
    // SAFETY: plain structs have no padding: every byte is initialised.
    unsafe { slice::from_raw_parts((&raw const *plain).cast(), mem::size_of::<T>()) }
}

/// Reads a struct from the beginning of `bytes`.
///
/// # Panics
/// When there are too few bytes.
pub(crate) fn plain_from<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= mem::size_of::<T>(), "{} bytes are too few", bytes.len());
    // SAFETY: there are enough bytes, and every bit pattern is valid.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// libbpf's calls return a negative error number on failure.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_reason_is_its_last_line() {
        let log = "libbpf: prog 'td_init': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\n452: (7b) *(u64 *)(r3 +464) = r9\n\
                   no write support to tcp_sock at off 464\nprocessed 107 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        assert_eq!(refusal_in(log).as_deref(), Some("no write support to tcp_sock at off 464"));
        let log = log.replace("452:", "; f->cwnd = 1; @ my.h:7\n452:");
        assert_eq!(refusal_in(&log).as_deref(), Some("no write support to tcp_sock at off 464, at `f->cwnd = 1; @ my.h:7`"));
        assert_eq!(refusal_in("libbpf: map 'x': failed to create: -EINVAL\n"), None);
    }
}
