//! System calls that no library wraps: installing a seccomp filter with user notification in a
//! child, receiving its notifications, answering them.
#![allow(unsafe_code)]

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::{
    io::{self, Read as _, Write as _},
    mem,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

/// How long the child may take to install its filter.
const PATIENCE: Duration = Duration::from_secs(10);

/// Calls that are never intercepted: calls that this mechanism needs (`execve` and `pselect6` of
/// the child before it runs the program), calls that cannot fail (`prlimit64` of the calling
/// process, `sigwait`), and calls whose errors no program can handle (the C library aborts on an
/// unexpected error of `futex`; a `close` that is not executed leaks the descriptor).
const NEVER: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_munmap,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_prlimit64,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_madvise,
];

fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first word of `seccomp_data`.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (at, call) in NEVER.iter().enumerate() {
        // Jump over the rest of the list and the notification, to the last statement.
        let jump = (NEVER.len() - at) as u8;
        program.push(libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: jump, jf: 0, k: *call as u32 });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

/// Starts a program whose system calls, and those of its children, wait for an answer on the
/// returned descriptor. The descriptor is the only one of its kind: when it is closed, the calls
/// fail with ENOSYS.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(PATIENCE))?;
    let program = filter();
    // SAFETY: `install` only makes system calls and allocates nothing.
    unsafe { command.pre_exec(move || install(&program, theirs.as_raw_fd())) };
    thread::scope(|scope| {
        let listener = scope.spawn(|| fetch_listener(&ours));
        let child = command.spawn();
        let listener = listener.join().map_err(|_| io::Error::other("the thread that fetches the listener panicked"))?;
        Ok((child?, listener?))
    })
}

/// In the child, between fork and exec: reports which descriptor the listener will be, installs the
/// filter, and waits until the parent has fetched the listener.
fn install(program: &[libc::sock_filter], parent: RawFd) -> io::Result<()> {
    let checked = |status: libc::c_long| if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) };
    // SAFETY: these calls take numbers, or pointers to values that live until they return. The
    // descriptor that is opened to learn the lowest free number is closed again.
    unsafe {
        let next = checked(libc::dup(parent).into())?;
        checked(libc::close(next as RawFd).into())?;
        let message = [libc::getpid(), next as i32];
        checked(libc::write(parent, message.as_ptr().cast(), mem::size_of_val(&message)) as libc::c_long)?;
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let listener = checked(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program))?;
        // Of all calls only this one passes now without an answer.
        let mut readable: libc::fd_set = mem::zeroed();
        libc::FD_SET(parent, &mut readable);
        checked(libc::syscall(libc::SYS_pselect6, parent + 1, &raw mut readable, 0usize, 0usize, 0usize, 0usize))?;
        if listener == next { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }
}

/// In the parent: fetches a copy of the child's listener. The child's own is closed by its exec.
fn fetch_listener(mut child: &UnixStream) -> io::Result<OwnedFd> {
    let mut message = [0; 8];
    child.read_exact(&mut message)?;
    let [pid, descriptor] = [0, 4].map(|at| i32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]));
    let process = pidfd_open(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
    let begun = Instant::now();
    let listener = loop {
        match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
            Ok(listener) => break listener,
            Err(rustix::io::Errno::BADF) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(1)),
            Err(errno) => return Err(errno.into()),
        }
    };
    child.write_all(&[0])?;
    Ok(listener)
}

/// A system call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notification {
    id: u64,
    /// The thread that makes the call.
    pub(crate) thread: u32,
    pub(crate) call: i32,
}

/// Receives the next call; `None` if it vanished meanwhile, for example because its thread was
/// killed.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // SAFETY: the struct consists of numbers, for which zero is valid; the kernel requires zeroes.
    let mut notification: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: this ioctl writes one `seccomp_notif` to the pointer.
    let status = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
    if status == 0 {
        return Ok(Some(Notification { id: notification.id, thread: notification.pid, call: notification.data.nr }));
    }
    let why = io::Error::last_os_error();
    if matches!(why.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) { Ok(None) } else { Err(why) }
}

/// Lets a call proceed, or makes it fail with `errno` without being executed.
pub(crate) fn answer(listener: BorrowedFd<'_>, notification: Notification, errno: Option<i32>) -> io::Result<()> {
    let flags = if errno.is_none() { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
    let mut response = libc::seccomp_notif_resp { id: notification.id, val: 0, error: -errno.unwrap_or(0), flags };
    // SAFETY: this ioctl reads one `seccomp_notif_resp` from the pointer.
    let status = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    let why = io::Error::last_os_error();
    // Meanwhile the thread may have been killed, or interrupted by a signal.
    if status == 0 || why.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(why) }
}
