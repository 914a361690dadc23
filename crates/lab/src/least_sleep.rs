//! Keeps a real-time thread from using so much processor time that the kernel stops it.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Time over which the thread's share of its processor is measured.
const WINDOW: Duration = Duration::from_millis(20);
/// Above this share the thread wakes up less often. The kernel stops a real-time thread that has
/// used 95 % of a second until the next one begins (`sched_rt_runtime_us`).
const HIGHEST_LOAD: f64 = 0.8;
/// Below this share it may wake up more often again.
const LOW_LOAD: f64 = 0.4;
/// The least sleep of a thread that is to wake up less often starts here, and doubles.
const FIRST: Duration = Duration::from_micros(10);
/// Bound of the least sleep, and so of how late an event is handled because of it.
const LONGEST: Duration = Duration::from_micros(80);

/// The least time that a thread sleeps before it looks for events again. It is zero unless the
/// thread uses most of a processor: on many virtual machines setting a timer takes longer than
/// the packets of a fast link need, since the hypervisor has to set it.
#[derive(Debug)]
pub(crate) struct LeastSleep {
    span: Duration,
    /// Start of the present window, and the thread's processor time then.
    since: (Instant, Duration),
}

impl LeastSleep {
    /// Starts the measurement; must be called by the thread that is to sleep.
    pub(crate) fn new() -> Self {
        LeastSleep { span: Duration::ZERO, since: (Instant::now(), thread_time()) }
    }

    /// Sleeps for the least time, and returns it.
    pub(crate) fn sleep(&mut self) -> Duration {
        let elapsed = self.since.0.elapsed();
        if elapsed >= WINDOW {
            let used = thread_time();
            self.span = next_span(self.span, (used - self.since.1).as_secs_f64() / elapsed.as_secs_f64());
            self.since = (Instant::now(), used);
        }
        if !self.span.is_zero() {
            thread::sleep(self.span);
        }
        self.span
    }
}

/// The least sleep after a window in which the thread used this share of a processor.
fn next_span(span: Duration, load: f64) -> Duration {
    if load > HIGHEST_LOAD {
        (span * 2).clamp(FIRST, LONGEST)
    } else if load < LOW_LOAD {
        if span > FIRST { span / 2 } else { Duration::ZERO }
    } else {
        span
    }
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_sleep_grows_with_the_load_and_ends_with_it() {
        assert_eq!(next_span(Duration::ZERO, 0.7), Duration::ZERO);
        assert_eq!(next_span(Duration::ZERO, 0.9), FIRST);
        assert_eq!(next_span(FIRST, 0.9), 2 * FIRST);
        assert_eq!(next_span(LONGEST, 0.9), LONGEST);
        assert_eq!(next_span(2 * FIRST, 0.6), 2 * FIRST);
        assert_eq!(next_span(2 * FIRST, 0.3), FIRST);
        assert_eq!(next_span(FIRST, 0.3), Duration::ZERO);
    }
}
