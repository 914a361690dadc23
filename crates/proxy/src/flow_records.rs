//! Flow records: a JSON object on a line of its own for each flow that ends, written to a file or a
//! socket.
//!
//! A thread of their own writes them. Records for which its queue has no room, which cannot be
//! written, or which are left at the deadline of the proxy's end, are dropped and counted.

mod line;
mod output;

use crate::{end::EndDeadline, line_batches::LineSink};
pub(crate) use line::append;
use output::Output;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// Length of the queue, batches.
const QUEUE: usize = 256;
/// How long a new configuration waits for a place in the queue.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where flow records go: to one of `file`, `unix` and `tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "FlowRecordsKeys")]
#[schemars(with = "FlowRecordsKeys")]
pub struct FlowRecordsConfig {
    to: RecordTarget,
    /// Size of a file at which it is put aside.
    max_size: Bytes,
    /// How many files that were put aside are kept.
    keep: u32,
}

impl std::fmt::Display for FlowRecordsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to.fmt(f)
    }
}

/// A file or socket for records.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RecordTarget {
    File(PathBuf),
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::fmt::Display for RecordTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordTarget::File(path) => write!(f, "the file {}", path.display()),
            RecordTarget::Unix(path) => write!(f, "the socket {}", path.display()),
            RecordTarget::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A record of each flow that ends, as a JSON object on a line of its own. Exactly one of `file`,
/// `unix` and `tcp` says where they go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FlowRecordsKeys {
    /// File that records are appended to. SIGHUP opens it again.
    file: Option<PathBuf>,
    /// Unix stream socket of a program that reads records.
    unix: Option<PathBuf>,
    /// Address of a program that reads records.
    #[serde(default, deserialize_with = "intercept::optional_address")]
    #[schemars(with = "Option<intercept::AddressSchema>")]
    tcp: Option<SocketAddr>,
    /// `file`: size at which the file is renamed (`.1` is the newest) and a new one is begun.
    #[schemars(extend("default" = "64MiB"))]
    max_size: Option<Bytes>,
    /// `file`: number of renamed files that are kept.
    #[schemars(extend("default" = 4))]
    keep: Option<u32>,
}

impl TryFrom<FlowRecordsKeys> for FlowRecordsConfig {
    type Error = &'static str;

    fn try_from(keys: FlowRecordsKeys) -> Result<Self, Self::Error> {
        let to = match (keys.file, keys.unix, keys.tcp) {
            (Some(path), None, None) => RecordTarget::File(path),
            (None, Some(path), None) => RecordTarget::Unix(path),
            (None, None, Some(address)) => RecordTarget::Tcp(address),
            _ => return Err("needs exactly one of file = \"PATH\", unix = \"PATH\" and tcp = \"ADDRESS:PORT\""),
        };
        if !matches!(to, RecordTarget::File(_)) && (keys.max_size.is_some() || keys.keep.is_some()) {
            return Err("max_size and keep are for records in a file: leave them out");
        }
        if keys.max_size.is_some_and(|size| size.0 < 4096) {
            return Err("max_size is too small for a file of records: give at least 4KiB");
        }
        if keys.keep.is_some_and(|keep| keep > 1000) {
            return Err("keep is too large: give at most 1000");
        }
        Ok(FlowRecordsConfig { to, max_size: keys.max_size.unwrap_or(Bytes(64 << 20)), keep: keys.keep.unwrap_or(4) })
    }
}

/// Counts of flow records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCounts {
    /// Records that were written.
    pub written: u64,
    /// Records that were dropped: the queue was full, they could not be written, or the proxy ended
    /// before.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct SharedCounts {
    written: AtomicU64,
    dropped: AtomicU64,
    /// Those of the dropped ones, and those in the queue, that were there at the deadline of the
    /// end.
    late: AtomicU64,
    /// Records in the queue.
    waiting: AtomicU64,
}

enum Message {
    /// Lines, and how many these are.
    Batch(Vec<u8>, u64),
    /// Use this configuration from now on, and open its output anew; none: write no records.
    Configure(Option<FlowRecordsConfig>),
    /// Another process writes to the same file from now on, and renames it.
    Leave,
}

/// The way to the thread that writes records.
#[derive(Debug, Clone)]
pub(crate) struct RecordSink {
    messages: SyncSender<Message>,
    counts: Arc<SharedCounts>,
}

impl RecordSink {
    /// Starts the thread. It ends when all sinks have been dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(config: Option<FlowRecordsConfig>, end: EndDeadline) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (messages, inbox) = mpsc::sync_channel(QUEUE);
        let counts = Arc::new(SharedCounts::default());
        let shared = counts.clone();
        let write = move || {
            let new = |config| Output::new(config, end.clone());
            let mut output = config.map(new);
            for message in inbox {
                match message {
                    Message::Configure(config) => output = config.map(new),
                    Message::Leave => output.iter_mut().for_each(Output::leave),
                    Message::Batch(lines, count) => {
                        let is_late = end.has_passed();
                        // None: these flows ended before records were configured away.
                        let written = output.as_mut().map(|output| !is_late && output.write(&lines));
                        match written {
                            Some(true) => drop(shared.written.fetch_add(count, Relaxed)),
                            Some(false) => {
                                shared.dropped.fetch_add(count, Relaxed);
                                if end.has_passed() {
                                    shared.late.fetch_add(count, Relaxed);
                                }
                            }
                            None => {}
                        }
                        shared.waiting.fetch_sub(count, Relaxed);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("tandem-records".into()).spawn(write)?;
        Ok((RecordSink { messages, counts }, thread))
    }

    /// Has the thread use this configuration, and open its file or socket anew.
    pub(crate) fn configure(&self, config: Option<FlowRecordsConfig>) {
        if !self.command(Message::Configure(config)) {
            tracing::error!("the configuration of flow records stays as it was: the thread that writes them is stuck");
        }
    }

    /// Has the thread leave the renaming of its file to the process that has taken over, and follow
    /// that.
    pub(crate) fn leave(&self) {
        self.command(Message::Leave);
    }

    /// Sends the thread a command; returns false if it is stuck.
    fn command(&self, mut command: Message) -> bool {
        let begun = Instant::now();
        // Workers fill the queue while a file system is stuck: the caller waits for a place, but not
        // for ever.
        while let Err(TrySendError::Full(refused)) = self.messages.try_send(command) {
            if begun.elapsed() > CONFIGURE_TIMEOUT {
                return false;
            }
            command = refused;
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Gives this way up, which the thread waits for. What is returned tells how many records the
    /// end of the proxy did not wait for.
    pub(crate) fn into_left_at_end(self) -> impl Fn() -> u64 {
        let counts = self.counts;
        move || counts.late.load(Relaxed) + counts.waiting.load(Relaxed)
    }

    pub(crate) fn counts(&self) -> RecordCounts {
        RecordCounts { written: self.counts.written.load(Relaxed), dropped: self.counts.dropped.load(Relaxed) }
    }
}

impl LineSink for RecordSink {
    const MAX_LENGTH: usize = 32 * 1024;

    fn send(&mut self, lines: Vec<u8>, count: u64) {
        self.counts.waiting.fetch_add(count, Relaxed);
        if self.messages.try_send(Message::Batch(lines, count)).is_err() {
            self.counts.waiting.fetch_sub(count, Relaxed);
            self.counts.dropped.fetch_add(count, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
