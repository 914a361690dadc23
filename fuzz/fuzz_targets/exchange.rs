#![no_main]

/// Ignores SIGPIPE, as Rust's `main` does: a write to a connection that was reset fails, and does
/// not kill the process.
fn ignore_broken_pipes() {
    // SAFETY: runs before any other thread, and installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

libfuzzer_sys::fuzz_target!(init: ignore_broken_pipes(), |data: &[u8]| fuzzing::exchange(data));
