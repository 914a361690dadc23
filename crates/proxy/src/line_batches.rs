//! A worker's lines about flows that end, for a thread that writes them. They are sent in batches,
//! so that a slow reader does not stall traffic.

use std::{
    mem,
    time::{Duration, Instant, SystemTime},
};

/// A batch is sent when its first line has reached this age.
pub(crate) const MAX_AGE: Duration = Duration::from_millis(100);

/// Takes batches, without waiting.
pub(crate) trait LineSink {
    /// A batch is sent when it has reached this length, bytes.
    const MAX_LENGTH: usize;

    /// Takes whole lines, and how many these are.
    fn send(&mut self, lines: Vec<u8>, count: u64);
}

/// A worker's present batch. The worker calls [`add`](Self::add) for each flow that ends and
/// [`hand_over_old`](Self::hand_over_old) once in each turn; dropping it sends the rest.
#[derive(Debug)]
pub(crate) struct LineBatches<S: LineSink> {
    sink: S,
    lines: Vec<u8>,
    count: u64,
    since: Instant,
    /// The time of the last line, and its text.
    time: (Instant, String),
}

impl<S: LineSink> LineBatches<S> {
    pub(crate) fn new(sink: S) -> Self {
        let now = Instant::now();
        LineBatches { sink, lines: Vec::new(), count: 0, since: now, time: (now, rfc3339(SystemTime::now())) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a line, which `append` writes with the present time as a text.
    pub(crate) fn add(&mut self, now: Instant, append: impl FnOnce(&mut Vec<u8>, &str)) {
        if self.lines.is_empty() {
            self.since = now;
        }
        // Flows that end in the same turn share the formatted time.
        if now != self.time.0 {
            self.time = (now, rfc3339(SystemTime::now()));
        }
        append(&mut self.lines, &self.time.1);
        self.count += 1;
        if self.lines.len() > S::MAX_LENGTH {
            self.hand_over();
        }
    }

    /// Sends the batch if it is old enough.
    pub(crate) fn hand_over_old(&mut self, now: Instant) {
        if !self.lines.is_empty() && now - self.since >= MAX_AGE {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.sink.send(mem::take(&mut self.lines), mem::take(&mut self.count));
    }
}

impl<S: LineSink> Drop for LineBatches<S> {
    fn drop(&mut self) {
        if !self.lines.is_empty() {
            self.hand_over();
        }
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}
