//! The end of a proxy: one deadline for all that is left to do once its flows have ended or are to
//! be reset. A slow collector of flow records, a log that nobody reads or a stuck file system would
//! otherwise keep the process for as long as they like.

use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

/// How long the end of a proxy takes at most, from the moment at which no flow is left to wait for.
/// Well below `TimeoutStopSec=` of the service unit, which includes that wait.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which threads are checked for their end.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The deadline of a proxy's end, which all of its parts share.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndDeadline(Arc<OnceLock<Instant>>);

impl EndDeadline {
    /// Begins the end, unless it has begun; returns the deadline.
    pub(crate) fn begin(&self) -> Instant {
        *self.0.get_or_init(|| Instant::now() + END_TIMEOUT)
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.0.get().is_some_and(|deadline| Instant::now() >= *deadline)
    }

    /// Until when something may take that takes `timeout` while the proxy does not end.
    pub(crate) fn limit(&self, timeout: Duration) -> Instant {
        let until = Instant::now() + timeout;
        self.0.get().map_or(until, |deadline| until.min(*deadline))
    }

    /// Has the deadline at this time, for tests.
    #[cfg(test)]
    pub(crate) fn set(&self, deadline: Instant) {
        self.0.set(deadline).expect("the end has not begun");
    }
}

/// Waits for the end of a thread until `deadline`, at least for an instant. Returns whether it has
/// ended.
pub(crate) fn join_by(thread: thread::JoinHandle<()>, deadline: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    // A panic has been reported as a failure.
    let _ = thread.join();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_deadline_is_that_of_the_first_call() {
        let end = EndDeadline::default();
        let free = end.limit(Duration::from_secs(60));
        assert!(!end.has_passed() && free > Instant::now() + Duration::from_secs(50), "there is no deadline yet");
        let deadline = end.begin();
        assert_eq!((end.begin(), end.clone().begin()), (deadline, deadline));
        assert_eq!(end.limit(Duration::from_secs(60)), deadline);
        assert!(end.limit(Duration::ZERO) < deadline);
        let over = EndDeadline::default();
        over.set(Instant::now());
        assert!(over.has_passed());
    }

    #[test]
    fn a_stuck_thread_is_left_behind_at_the_deadline() {
        let (release, stuck) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let _ = stuck.recv();
        });
        assert!(!join_by(thread, Instant::now()));
        drop(release);
        assert!(join_by(thread::spawn(|| {}), Instant::now() + Duration::from_secs(60)));
    }
}
