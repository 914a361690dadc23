//! The flow log: one line of `key=value` pairs on standard error for each flow that ends. Workers
//! send batches of lines to the log's own thread, so that a slow reader of the log does not stall
//! traffic. Batches that do not fit into its queue are dropped and counted in the log.

use crate::measure::FlowId;
use relay::FlowRecord;
use std::{
    fmt::Write as _,
    io::{self, Write as _},
    mem,
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Length of the queue, batches.
const QUEUE: usize = 256;
/// A batch is sent when it has reached this length, bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// A batch is sent when its first line has reached this age.
pub(crate) const MAX_AGE: Duration = Duration::from_millis(100);

/// Channel for batches of lines.
pub(crate) type Batches = SyncSender<String>;

/// Starts the thread that writes. It ends when all senders of batches have been dropped.
pub(crate) fn start() -> io::Result<(Batches, thread::JoinHandle<()>)> {
    let (batches, waiting) = mpsc::sync_channel::<String>(QUEUE);
    let write = move || {
        for batch in waiting {
            let _ = io::stderr().write_all(batch.as_bytes());
        }
    };
    Ok((batches, thread::Builder::new().name("tandem-log".into()).spawn(write)?))
}

/// A worker's present batch. The worker calls [`add`](Self::add) for each flow that ends and
/// [`hand_over_old`](Self::hand_over_old) once in each turn; dropping it sends the rest.
#[derive(Debug)]
pub(crate) struct Lines {
    batches: Batches,
    lines: String,
    /// The time of the last line, and its text.
    time: (Instant, String),
    since: Instant,
    dropped: u64,
}

impl Lines {
    pub(crate) fn new(batches: Batches) -> Self {
        let now = Instant::now();
        Lines { batches, lines: String::new(), time: (now, rfc3339(SystemTime::now())), since: now, dropped: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn add(&mut self, flow: FlowId, record: &FlowRecord, now: Instant) {
        if self.lines.is_empty() {
            self.since = now;
        }
        // Flows that end in the same turn share the formatted time.
        if now != self.time.0 {
            self.time = (now, rfc3339(SystemTime::now()));
        }
        let last = &record.last;
        let ms = |us: u32| f64::from(us) / 1000.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.lines,
            "{} flow client={} server={} up={} down={} seconds={:.3} near_rtt_ms={:.3} far_rtt_ms={:.3} near_retrans={} \
             far_retrans={} ending=\"{}\" id={flow}",
            self.time.1,
            last.client,
            last.server,
            last.up.moved,
            last.down.moved,
            last.age.as_secs_f64(),
            ms(last.near.rtt_us),
            ms(last.far.rtt_us),
            last.near.total_retrans,
            last.far.total_retrans,
            record.ending
        );
        if self.lines.len() > MAX_LENGTH {
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
        if self.dropped > 0 {
            let _ = writeln!(self.lines, "dropped lines={} why=\"the log is read too slowly\"", self.dropped);
        }
        match self.batches.try_send(mem::take(&mut self.lines)) {
            Ok(()) => self.dropped = 0,
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => self.dropped += batch.lines().count() as u64,
        }
    }
}

pub(crate) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.lines.is_empty() {
            self.hand_over();
        }
    }
}
