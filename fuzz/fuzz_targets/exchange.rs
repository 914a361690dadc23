#![no_main]

/// As in every program whose `main` is Rust's: a write to a connection that was reset fails, and does
/// not kill the process.
fn ignore_broken_pipes() {
    // SAFETY: it is the first thing that is done, and no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

libfuzzer_sys::fuzz_target!(init: ignore_broken_pipes(), |data: &[u8]| fuzzing::exchange(data));
