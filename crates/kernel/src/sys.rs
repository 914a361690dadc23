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
    sync::Once,
};

/// A registration in the kernel that somebody must hold.
#[derive(Debug)]
pub(crate) enum Kept {
    /// As libbpf made it.
    Link(libbpf_rs::Link),
    /// Another program's, held by a descriptor of our own.
    Descriptor(OwnedFd),
}

impl Kept {
    /// Keeps it in the BPF file system.
    pub(crate) fn pin(&mut self, path: &Path) -> io::Result<()> {
        match self {
            Kept::Link(link) => link.pin(path).map_err(io::Error::other),
            Kept::Descriptor(link) => {
                let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
                // SAFETY: the descriptor and the path live for the call.
                check(unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) }).map(drop)
            }
        }
    }
}

/// libbpf says on stderr what it returns as an error, too; it is the verifier's reasons that one may want to see (`TANDEM_LOG=debug`).
pub(crate) fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = |_, text: String| tracing::debug!("libbpf: {}", text.trim_end());
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, tell)));
    });
}

/// Whether this process has what loading programs takes: CAP_SYS_ADMIN, to find those of others, has the rest in it.
pub(crate) fn may_load() -> bool {
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

fn maps(name: &str) -> impl Iterator<Item = u32> {
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
    match check(unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) }) {
        // SAFETY: the descriptor was just opened and is nobody else's.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        // It went in between.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a process is there, be it another user's: /proc may hide those.
pub(crate) fn is_there(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    process.is_some_and(|process| rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// The cookie of a socket's network namespace.
pub(crate) fn net_cookie(socket: impl AsFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = 0u64;
    let mut size = mem::size_of::<u64>() as u32;
    // SAFETY: the kernel writes the eight bytes of `cookie`.
    let done =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut size) };
    if done == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
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
