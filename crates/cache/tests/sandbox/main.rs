//! What a process in the sandbox of the picture workers can still do. The tests run this program
//! again: it enters the sandbox as a picture worker does, then makes one attempt, as a compromised
//! decoder would.

use cache::picture_worker::sandbox::{Protections, SandboxLimits, enter};
use rustix::{
    fs::{Mode, OFlags, open},
    net::{AddressFamily, SocketType},
    process::{Pid, Signal, kill_process},
};
use std::{
    env, fs,
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus, Stdio, exit},
    thread,
    time::{Duration, Instant},
};

/// Environment variable with the attempt, for [`attempt_in_the_sandbox`].
const ATTEMPT: &str = "SANDBOX_TEST_ATTEMPT";
/// Exit statuses of an attempt; others mean that the test harness has failed.
const DONE: i32 = 40;
const REFUSED: i32 = 41;
const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;
const MIB: usize = 1 << 20;

/// Makes the attempt that the environment names. Without one it does nothing.
#[test]
fn attempt_in_the_sandbox() {
    let Ok(attempt) = env::var(ATTEMPT) else { return };
    let limits = SandboxLimits { memory: 64 << 20, cpu_seconds: 1 };
    let outside = attempt.strip_prefix("outside: ");
    if outside.is_none() {
        let Protections { filtered } = enter(limits).unwrap_or_else(|why| panic!("{why}"));
        assert!(filtered, "system calls are not filtered");
    }
    let done = match outside.unwrap_or(&attempt) {
        "nothing" => true,
        "open" => open("/etc/passwd", OFlags::RDONLY, Mode::empty()).is_ok(),
        "socket" => rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).is_ok(),
        "fork" => Command::new("/bin/true").spawn().is_ok(),
        "thread" => thread::Builder::new().spawn(|| {}).is_ok(),
        "signal" => kill_process(Pid::from_raw(parent()).unwrap(), Signal::CONT).is_ok(),
        "executable memory" => executable_memory(),
        "memory" => Vec::<u8>::new().try_reserve_exact(32 * MIB).is_ok(),
        "much memory" => Vec::<u8>::new().try_reserve_exact(128 * MIB).is_ok(),
        "spin" => loop {
            std::hint::spin_loop();
        },
        other => panic!("{other}: no such attempt"),
    };
    exit(if done { DONE } else { REFUSED });
}

fn parent() -> i32 {
    env::var("SANDBOX_TEST_PARENT").unwrap().parse().unwrap()
}

#[allow(unsafe_code)]
fn executable_memory() -> bool {
    let (length, protection) = (4096, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    mapped != libc::MAP_FAILED
}

fn attempt(what: &str) -> ExitStatus {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "attempt_in_the_sandbox", "--nocapture"]).env(ATTEMPT, what);
    command.env("SANDBOX_TEST_PARENT", std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

/// Whether system calls are filtered on this architecture and by this kernel.
fn skip(test: &str) -> bool {
    let has = cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && rustix::thread::secure_computing_mode().is_ok();
    if !has {
        testing::skipped(test, &"system calls cannot be filtered here");
    }
    !has
}

#[test]
fn forbidden_system_calls_kill_the_process() {
    if skip("forbidden_system_calls_kill_the_process") {
        return;
    }
    for what in ["open", "socket", "fork", "signal", "thread", "executable memory"] {
        assert_eq!(attempt(&format!("outside: {what}")).code(), Some(DONE), "{what} without the sandbox");
        assert_eq!(attempt(what).signal(), Some(SIGSYS), "{what}");
    }
}

#[test]
fn memory_and_time_are_limited() {
    if skip("memory_and_time_are_limited") {
        return;
    }
    assert_eq!(attempt("nothing").code(), Some(DONE));
    assert_eq!(attempt("memory").code(), Some(DONE));
    assert_eq!(attempt("outside: much memory").code(), Some(DONE));
    assert_eq!(attempt("much memory").code(), Some(REFUSED));
    assert_eq!(attempt("spin").signal(), Some(SIGKILL), "the limit is a second of processor time");
}

/// A real worker, as the kernel reports it.
#[test]
fn a_worker_has_no_privileges() {
    use std::os::{fd::OwnedFd, unix::net::UnixStream};
    if skip("a_worker_has_no_privileges") {
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_tandem-picture-worker"));
    worker.args(["25", "1000000", "60"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut worker = worker.spawn().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hello = [0; 8];
    std::io::Read::read_exact(&mut &ours, &mut hello).unwrap();
    assert_eq!(&hello, b"tandem1\x01");
    let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in\n{status}")).trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str(), field("Threads").as_str()), ("1", "2", "1"));
    if rustix::process::geteuid().is_root() {
        assert!(field("Uid").split_whitespace().all(|id| id == "65534"), "{status}");
        assert_eq!((field("Groups").as_str(), field("CapBnd").as_str()), ("", "0000000000000000"));
    }
    // It ends when its socket is closed.
    drop(ours);
    let begun = Instant::now();
    while worker.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not end without its socket");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(worker.wait().unwrap().success());
}
