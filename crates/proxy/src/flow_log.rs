//! One line for each flow at its end, on standard error, as `key=value` pairs. Workers hand over
//! lines in batches to the log's own thread, so that a slow reader of the log stalls no traffic.
//! Batches that it cannot take are dropped, and counted in the log itself.

use relay::FlowRecord;
use std::{
    fmt::Write as _,
    io::{self, Write as _},
    mem,
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Batches that may wait to be written.
const WAITING: usize = 256;
/// A batch is handed over when it is so long, or so old.
const LENGTH: usize = 8 * 1024;
pub(crate) const AGE: Duration = Duration::from_millis(100);

/// Where batches go.
pub(crate) type Batches = SyncSender<String>;

/// Starts the thread that writes; it ends when all senders of batches are gone.
pub(crate) fn start() -> io::Result<(Batches, thread::JoinHandle<()>)> {
    let (batches, waiting) = mpsc::sync_channel::<String>(WAITING);
    let write = move || {
        for batch in waiting {
            let _ = io::stderr().write_all(batch.as_bytes());
        }
    };
    Ok((batches, thread::Builder::new().name("tandem-log".into()).spawn(write)?))
}

/// A worker's lines that have not been handed over yet.
#[derive(Debug)]
pub(crate) struct Lines {
    batches: Batches,
    lines: String,
    /// A time, and its text.
    time: (Instant, String),
    since: Instant,
    dropped: u64,
}

impl Lines {
    pub(crate) fn new(batches: Batches) -> Self {
        let now = Instant::now();
        Lines { batches, lines: String::new(), time: (now, written(SystemTime::now())), since: now, dropped: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn add(&mut self, record: &FlowRecord, now: Instant) {
        if self.lines.is_empty() {
            self.since = now;
        }
        // Many flows end in the same turn: their time is formatted once.
        if now != self.time.0 {
            self.time = (now, written(SystemTime::now()));
        }
        let last = &record.last;
        let ms = |us: u32| f64::from(us) / 1000.0;
        // Writing to a string can't fail.
        let _ = writeln!(
            self.lines,
            "{} flow client={} server={} up={} down={} seconds={:.3} near_rtt_ms={:.3} far_rtt_ms={:.3} near_retrans={} \
             far_retrans={} ending=\"{}\"",
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
        if self.lines.len() > LENGTH {
            self.hand_over();
        }
    }

    /// Hands over what has waited long enough.
    pub(crate) fn hand_over_old(&mut self, now: Instant) {
        if !self.lines.is_empty() && now - self.since >= AGE {
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

fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.lines.is_empty() {
            self.hand_over();
        }
    }
}
