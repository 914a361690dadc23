//! Ends a service that is stuck while it ends: at a log that nobody reads, at a file system, at the
//! firewall. Its parts have a deadline of their own; this one is behind it.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio::stderr,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Time after the deadline that parts with a limit of their own get.
const GRACE: Duration = Duration::from_secs(3);
const MESSAGE: &[u8] = b"tandem: the end of the process is stuck, and is not waited for any longer: see the log for what was not written\n";

/// Whether a line can be written to standard error without waiting for the program that reads it.
pub(crate) fn log_has_room() -> bool {
    let stderr = stderr();
    let mut output = [PollFd::new(&stderr, PollFlags::OUT)];
    matches!(poll(&mut output, Some(&Timespec::default())), Ok(1)) && output[0].revents().contains(PollFlags::OUT)
}

/// Ends the process some seconds after `deadline`, with status 1, if it has not ended by then. The
/// kernel then does what is left: it closes the connections and the owner's table of rules.
pub(crate) fn start(deadline: Instant) {
    let wait = move || {
        thread::sleep((deadline + GRACE).saturating_duration_since(Instant::now()));
        if log_has_room() {
            // Not by the library's handle: another thread may have its lock.
            let _ = rustix::io::write(stderr(), MESSAGE);
        }
        // Without destructors, which may be what is stuck.
        std::process::exit(1);
    };
    // Without the thread the service manager's time limit has the same effect.
    let _ = thread::Builder::new().name("tandem-end".into()).spawn(wait);
}
