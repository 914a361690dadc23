//! What all endpoints of a run share: its clock, its end, the bytes that flows send.

use rand::RngExt;
use scenario::{Purpose, stream};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use units::Span;

/// State that all flows of a run share.
#[derive(Debug)]
pub(crate) struct RunContext {
    /// Start of the run.
    pub(crate) began: Instant,
    /// Set when the run is to end.
    pub(crate) stop: AtomicBool,
    /// Seed of the random times of application writes and cross traffic.
    pub(crate) seed: u64,
    /// The bytes that flows send, repeated cyclically.
    payload: Vec<u8>,
    /// Whether the receiver of a download sends a request of one byte, which the sender awaits. A
    /// SYN with Fast Open is sent with the first data only.
    pub(crate) requests: bool,
}

impl RunContext {
    pub(crate) fn new(seed: u64, requests: bool) -> Self {
        let mut payload = vec![0; 1 << 20];
        stream(seed, Purpose::Payload, 0).fill(&mut payload[..]);
        RunContext { began: Instant::now(), stop: AtomicBool::new(false), seed, payload, requests }
    }

    /// Seconds since the start of the run.
    pub(crate) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The bytes that are sent, repeated cyclically.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Whether the run is to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Sleeps until `at`, counted from the start of the run. Returns false if the run ended before.
    pub(crate) fn sleep_until(&self, at: Span) -> bool {
        loop {
            if self.stopped() {
                return false;
            }
            let left = at.duration().saturating_sub(self.began.elapsed());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}
