//! System calls that no library here wraps: TUN devices, namespaces, scheduling, receive
//! timestamps, and what a child does between fork and exec.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

/// `_IOW('T', 202, int)`: makes a TUN device with a name and flags (linux/if_tun.h).
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;

/// The argument of ioctls on the interface `name`.
fn request(name: &str) -> io::Result<libc::ifreq> {
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 } };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Makes a TUN device with this name in the network namespace of the calling thread. The device is
/// removed when the descriptor is closed. Reads and writes do not block.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let open = || File::options().read(true).write(true).open("/dev/net/tun");
    // /dev/net/tun exists once the module is loaded.
    let load = || Command::new("modprobe").arg("tun").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let file = match open() {
        Err(why) if why.kind() == io::ErrorKind::NotFound && load() => open(),
        opened => opened,
    }?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: `request` is a whole ifreq, which is what this ioctl reads and writes.
    if unsafe { libc::ioctl(file.as_fd().as_raw_fd(), TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file.into())
}

/// Makes `command` enter a network namespace before it executes its program.
pub(crate) fn enter_before_exec(command: &mut Command, namespace: BorrowedFd<'_>) {
    let descriptor = namespace.as_raw_fd();
    // SAFETY: setns and prctl are async-signal-safe, and the descriptor outlives the spawn: `Host`
    // keeps it open and the command is spawned through a borrow of that host.
    unsafe {
        command.pre_exec(move || {
            if libc::setns(descriptor, libc::CLONE_NEWNET) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: a network namespace holds no memory or descriptors of this process.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Switches on the loopback interface of the calling thread's network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut request = request("lo")?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a whole ifreq, which is what this ioctl reads.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether a process of that number exists.
pub(crate) fn process_exists(pid: i32) -> bool {
    // SAFETY: signal 0 checks for existence and is not delivered.
    unsafe { libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) }
}

/// Sets the scheduling class of the calling thread; returns whether the kernel granted it. A raw
/// system call, since musl's wrapper does nothing.
fn schedule(class: libc::c_int, priority: libc::c_int) -> bool {
    const THIS_THREAD: libc::c_int = 0;
    // SAFETY: the kernel reads one integer, the priority (`struct sched_param`).
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, THIS_THREAD, class, &raw const priority) == 0 }
}

/// Binds the calling thread to a processor, in the idle scheduling class. Returns whether the
/// kernel granted both.
pub(crate) fn pin_as_idle_class(processor: usize) -> bool {
    // SAFETY: an all-zero set is a valid one, which lives for the call; the call changes only the
    // calling thread's scheduling.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        schedule(libc::SCHED_IDLE, 0) && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// Minimises the timer slack of the calling thread and requests real-time scheduling, since late
/// wake-ups delay emulated packets. Returns whether the kernel granted real-time scheduling.
pub(crate) fn request_realtime_scheduling() -> bool {
    // SAFETY: changes only the calling thread's timers; a refusal leaves them as they were.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    schedule(libc::SCHED_RR, 10)
}

/// The first bytes of a datagram, and the time at which the kernel received it (CLOCK_REALTIME), in
/// nanoseconds since 1970.
pub(crate) struct TimestampedDatagram {
    pub(crate) bytes: [u8; 16],
    pub(crate) at_ns: u64,
}

/// Makes the kernel timestamp the datagrams that `socket` receives.
pub(crate) fn enable_receive_timestamps(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length describe `on`.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives the first bytes of a datagram and its timestamp.
pub(crate) fn receive_timestamped(socket: impl AsFd) -> io::Result<TimestampedDatagram> {
    let mut bytes = [0u8; 16];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 8];
    // SAFETY: an all-zero msghdr is valid; the pointers set below outlive the call; the control
    // buffer is aligned for cmsghdr, and its messages are read only through the CMSG macros, within
    // the length the kernel returned.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        if libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_TIMESTAMPNS {
            return Err(io::Error::other("the kernel gave no timestamp"));
        }
        let stamp = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
        Ok(TimestampedDatagram { bytes, at_ns: stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64 })
    }
}

/// The clock of the kernel's receive timestamps, nanoseconds since 1970.
pub(crate) fn now_realtime_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
