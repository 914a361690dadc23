//! What libbpf-rs and rustix do not wrap.
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

/// Keeps what a descriptor stands for in the BPF file system.
pub(crate) fn pin(descriptor: impl AsFd, path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the descriptor and the path live for the call.
    check(unsafe { libbpf_sys::bpf_obj_pin(descriptor.as_fd().as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Why the verifier refused the program that was loaded last.
static REFUSAL: Mutex<Option<String>> = Mutex::new(None);

/// Keeps libbpf from writing to stderr what it returns as an error, too; the whole of it is in the log (`TANDEM_LOG=debug`).
pub(crate) fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = |_, text: String| {
            tracing::debug!("libbpf: {}", text.trim_end());
            if let Some(refusal) = refusal_in(&text) {
                *REFUSAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
            }
        };
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, tell)));
    });
}

/// The verifier's reason in one of libbpf's messages: the last line before its statistics.
fn refusal_in(text: &str) -> Option<String> {
    let (_, log) = text.split_once("-- BEGIN PROG LOAD LOG --")?;
    let reasons = log.lines().take_while(|line| !line.starts_with("processed ") && !line.starts_with("-- END"));
    reasons.filter(|line| !line.trim().is_empty()).last().map(|line| line.trim().to_owned())
}

/// The verifier's reason for the last refusal, once.
pub(crate) fn take_refusal() -> Option<String> {
    REFUSAL.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whether this process has what loading programs takes: CAP_SYS_ADMIN, by which it finds those that
/// others have loaded, and which has the rest in it.
pub fn may_load() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(effective.trim(), 16).is_ok_and(|effective| effective >> CAP_SYS_ADMIN & 1 == 1)
}

/// Mounts the BPF file system where distributions have it, if it is not.
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

/// The newest of the kernel's maps of this name (of which the kernel keeps 15 letters).
pub(crate) fn newest_map(name: &str) -> Option<MapHandle> {
    MapHandle::from_map_id(maps(name).max()?).ok()
}

/// The oldest of them.
pub(crate) fn oldest_map(name: &str) -> Option<MapHandle> {
    MapHandle::from_map_id(maps(name).min()?).ok()
}

/// The ids of the kernel's maps of this name.
pub(crate) fn maps(name: &str) -> impl Iterator<Item = u32> {
    let name = name[..name.len().min(15)].to_owned();
    MapInfoIter::default().filter(move |map| map.name.to_str() == Ok(&name)).map(|map| map.id)
}

/// The registration whose struct_ops map has this name.
pub(crate) fn struct_ops_link(name: &str) -> io::Result<Option<OwnedFd>> {
    let maps: Vec<u32> = maps(name).collect();
    let link = LinkInfoIter::default().find(|link| match &link.info {
        LinkTypeInfo::StructOps(ops) => maps.contains(&ops.map_id),
        _ => false,
    });
    let Some(link) = link else { return Ok(None) };
    // SAFETY: takes an id, returns a descriptor or an error.
    opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) })
}

/// A map by its id; none when it is gone.
pub(crate) fn map_by_id(id: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: takes an id, returns a descriptor or an error.
    opened(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })
}

/// A descriptor that a call returned; none when what it was to stand for is gone.
fn opened(result: i32) -> io::Result<Option<OwnedFd>> {
    match check(result) {
        // SAFETY: the descriptor was just opened and is nobody else's.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the value of a struct_ops map is registered.
pub(crate) fn is_registered(map: impl AsFd) -> io::Result<bool> {
    /// `enum bpf_struct_ops_state`.
    const IN_USE: u32 = 1;
    // The value begins with a reference count and the state; what follows is as large as the kernel's struct.
    let mut value = vec![0u32; value_size(&map)?.div_ceil(4)];
    let key = 0u32;
    // SAFETY: the key is of four bytes, and `value` is as large as the map says.
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

/// Ends the registration that is the value of a struct_ops map.
pub(crate) fn unregister(map: impl AsFd) -> io::Result<()> {
    let key = 0u32;
    // SAFETY: the key is of four bytes, as the map's are.
    check(unsafe { libbpf_sys::bpf_map_delete_elem(map.as_fd().as_raw_fd(), (&raw const key).cast()) }).map(drop)
}

/// Whether a process is there, be it another user's: /proc may hide those.
pub(crate) fn is_there(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    process.is_some_and(|process| rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// Attaches a program to what leaves an interface of this network namespace (tcx), for as long as the descriptor is held.
pub(crate) fn attach_egress(program: impl AsFd, ifindex: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes descriptors and numbers, returns a descriptor or an error; null stands for the default options.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), ifindex as i32, libbpf_sys::BPF_TCX_EGRESS, std::ptr::null()) };
    // SAFETY: the descriptor was just opened and is nobody else's.
    check(link).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What is a plain struct of integers without padding, as the programs and this process share it.
pub(crate) trait Plain: Copy {}
impl Plain for control::Flow {}
impl Plain for control::Link {}

pub(crate) fn bytes_of<T: Plain>(plain: &T) -> &[u8] {
    // SAFETY: plain structs have no padding, every byte is initialised.
    unsafe { slice::from_raw_parts((&raw const *plain).cast(), mem::size_of::<T>()) }
}

/// Reads one from the beginning of `bytes`.
pub(crate) fn plain_from<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= mem::size_of::<T>(), "{} bytes are too few", bytes.len());
    // SAFETY: there are enough bytes, and every pattern of them is a value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// libbpf's calls return a negative error number.
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
        assert_eq!(refusal_in("libbpf: map 'x': failed to create: -EINVAL\n"), None);
    }
}
