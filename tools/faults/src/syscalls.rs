//! Names of system calls, and the errors with which each is made to fail.

/// Pairs of name and number, from the C library's constants.
macro_rules! calls {
    ($($name:ident $number:ident),* $(,)?) => { &[$((stringify!($name), libc::$number)),*] };
}

const CALLS: &[(&str, libc::c_long)] = calls![
    accept4 SYS_accept4, bind SYS_bind, bpf SYS_bpf, brk SYS_brk, capget SYS_capget, chdir SYS_chdir, clone SYS_clone, clone3 SYS_clone3,
    connect SYS_connect, dup SYS_dup, dup3 SYS_dup3, epoll_create1 SYS_epoll_create1, epoll_ctl SYS_epoll_ctl,
    epoll_pwait SYS_epoll_pwait, epoll_pwait2 SYS_epoll_pwait2, eventfd2 SYS_eventfd2, faccessat SYS_faccessat,
    faccessat2 SYS_faccessat2, fchmod SYS_fchmod, fchmodat SYS_fchmodat, fcntl SYS_fcntl, flock SYS_flock, fstat SYS_fstat,
    ftruncate SYS_ftruncate, getcwd SYS_getcwd, getdents64 SYS_getdents64, getegid SYS_getegid, getgid SYS_getgid,
    getpeername SYS_getpeername, getppid SYS_getppid, getrandom SYS_getrandom, getrlimit SYS_getrlimit, getsockname SYS_getsockname,
    getsockopt SYS_getsockopt, ioctl SYS_ioctl, kill SYS_kill, listen SYS_listen, lseek SYS_lseek, mkdirat SYS_mkdirat, mmap SYS_mmap,
    mprotect SYS_mprotect, mremap SYS_mremap, newfstatat SYS_newfstatat, openat SYS_openat, pidfd_open SYS_pidfd_open,
    pipe2 SYS_pipe2, ppoll SYS_ppoll, prctl SYS_prctl, pread64 SYS_pread64, prlimit64 SYS_prlimit64, pwrite64 SYS_pwrite64,
    read SYS_read, readlinkat SYS_readlinkat, readv SYS_readv, recvfrom SYS_recvfrom, recvmsg SYS_recvmsg, recvmmsg SYS_recvmmsg,
    renameat SYS_renameat, renameat2 SYS_renameat2, sched_getaffinity SYS_sched_getaffinity,
    sched_setaffinity SYS_sched_setaffinity, sendmmsg SYS_sendmmsg, sendmsg SYS_sendmsg, sendto SYS_sendto,
    setsockopt SYS_setsockopt, shutdown SYS_shutdown, socket SYS_socket, socketpair SYS_socketpair, splice SYS_splice,
    statx SYS_statx, sysinfo SYS_sysinfo, tee SYS_tee, timerfd_create SYS_timerfd_create, timerfd_settime SYS_timerfd_settime,
    tgkill SYS_tgkill, umask SYS_umask, uname SYS_uname, unlinkat SYS_unlinkat, unshare SYS_unshare, wait4 SYS_wait4,
    waitid SYS_waitid, write SYS_write, writev SYS_writev,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[(&str, libc::c_long)] = calls![
    access SYS_access, chmod SYS_chmod, arch_prctl SYS_arch_prctl, epoll_wait SYS_epoll_wait, fork SYS_fork, mkdir SYS_mkdir, open SYS_open,
    pipe SYS_pipe, poll SYS_poll, readlink SYS_readlink, rename SYS_rename, rmdir SYS_rmdir, stat SYS_stat, unlink SYS_unlink,
    vfork SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[(&str, libc::c_long)] = &[];

/// The first call that a service makes after it has read its configuration: it starts the thread
/// that waits for signals. Earlier calls are made by the dynamic loader and the runtime,
/// which abort on errors by design.
pub(crate) const SERVES: i32 = libc::SYS_clone3 as i32;

/// Name of a call; its number if this list does not have it.
pub(crate) fn name(call: i32) -> String {
    let found = CALLS.iter().chain(OLD).find(|(_, number)| *number == libc::c_long::from(call));
    found.map_or_else(|| format!("call {call}"), |(name, _)| (*name).to_owned())
}

/// Errors with which every call is tried, whether its manual page lists them or not.
const ANY: [i32; 5] = [libc::ENOMEM, libc::EMFILE, libc::ENOBUFS, libc::EINTR, libc::EAGAIN];

/// Calls on sockets that epoll watches edge-triggered. EAGAIN from them promises a later event,
/// which an injected EAGAIN does not deliver: the flow would stall, as in any program written to
/// that contract. The kernel itself returns EAGAIN from these calls in every round.
const PROMISES_EVENT: [&str; 7] = ["recvfrom", "recvmsg", "readv", "sendto", "sendmsg", "writev", "splice"];

/// The errors with which a call is tried. None for `brk`, which never returns an error: the C
/// library takes any value for the new end of its heap.
pub(crate) fn errors(call: i32) -> Vec<i32> {
    if name(call) == "brk" {
        return Vec::new();
    }
    let promises = PROMISES_EVENT.contains(&name(call).as_str());
    let more: &[i32] = match name(call).as_str() {
        "recvfrom" | "recvmsg" | "readv" => &[libc::ECONNRESET, libc::ETIMEDOUT],
        "sendto" | "sendmsg" | "writev" => &[libc::EPIPE, libc::ECONNRESET],
        "splice" | "tee" => &[libc::EPIPE, libc::ECONNRESET],
        "write" => &[libc::EPIPE, libc::ENOSPC],
        "connect" => &[libc::EADDRNOTAVAIL, libc::ENETUNREACH],
        "accept4" => &[libc::ECONNABORTED, libc::ENFILE],
        "socket" | "openat" | "pipe2" => &[libc::ENFILE],
        "epoll_ctl" => &[libc::ENOSPC],
        _ => &[],
    };
    ANY.iter().chain(more).copied().filter(|errno| !(promises && *errno == libc::EAGAIN)).collect()
}

/// Name of an error.
pub(crate) fn error_name(errno: i32) -> &'static str {
    match errno {
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::ENOBUFS => "ENOBUFS",
        libc::EINTR => "EINTR",
        libc::EAGAIN => "EAGAIN",
        libc::ECONNRESET => "ECONNRESET",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EPIPE => "EPIPE",
        libc::ENOSPC => "ENOSPC",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETUNREACH => "ENETUNREACH",
        _ => "another error",
    }
}
