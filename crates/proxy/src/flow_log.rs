//! The flow log: one line of `key=value` pairs on standard error for each flow that ends. Workers
//! send batches of lines to the log's own thread. Batches that do not fit into its queue are
//! dropped and counted in the log, and so are those that are left at the deadline of the proxy's
//! end.

use crate::{end::EndDeadline, line_batches::LineSink, measure::FlowId};
use relay::FlowRecord;
use std::{
    io::{self, Write as _},
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
};

/// Length of the queue, batches.
const QUEUE: usize = 256;

/// The way to the thread that writes the log.
#[derive(Debug, Clone)]
pub(crate) struct LogSink {
    batches: SyncSender<(Vec<u8>, u64)>,
    /// Lines that were dropped since the last batch that was sent.
    dropped: u64,
}

impl LogSink {
    /// Starts the thread. It ends when all sinks have been dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(end: EndDeadline) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (batches, waiting) = mpsc::sync_channel::<(Vec<u8>, u64)>(QUEUE);
        let write = move || {
            let mut left = 0;
            for (batch, count) in waiting {
                if end.has_passed() {
                    left += count;
                } else {
                    let _ = io::stderr().write_all(&batch);
                }
            }
            if left > 0 {
                tracing::warn!("{left} lines of the flow log were not written: the log was read too slowly for the end of the proxy");
            }
        };
        let thread = thread::Builder::new().name("tandem-log".into()).spawn(write)?;
        Ok((LogSink { batches, dropped: 0 }, thread))
    }
}

impl LineSink for LogSink {
    const MAX_LENGTH: usize = 8 * 1024;

    fn send(&mut self, mut lines: Vec<u8>, count: u64) {
        if self.dropped > 0 {
            // Writing to a vector cannot fail.
            let _ = writeln!(lines, "dropped lines={} why=\"the log is read too slowly\"", self.dropped);
        }
        match self.batches.try_send((lines, count)) {
            Ok(()) => self.dropped = 0,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.dropped += count,
        }
    }
}

/// Appends the line of a flow that has ended.
pub(crate) fn append(lines: &mut Vec<u8>, time: &str, flow: FlowId, record: &FlowRecord) {
    let last = &record.last;
    let ms = |us: u32| f64::from(us) / 1000.0;
    // Writing to a vector cannot fail.
    let _ = writeln!(
        lines,
        "{time} flow client={} server={} up={} down={} seconds={:.3} near_rtt_ms={:.3} far_rtt_ms={:.3} near_retrans={} \
         far_retrans={} ending=\"{}\" id={flow}",
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
}
