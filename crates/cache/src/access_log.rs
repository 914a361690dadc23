//! The access log: one line per response, written when the response has been sent, and the counters
//! of responses.

use crate::{cache_status::CacheOutcome, counters::CacheCounters, error_response::Error};
use hyper::StatusCode;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// What is logged about a request. Dropping it writes the line and counts the response.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    counters: Arc<CacheCounters>,
    begun: Instant,
    client: SocketAddr,
    method: String,
    pub(crate) uri: String,
    pub(crate) status: StatusCode,
    pub(crate) outcome: CacheOutcome,
    /// The form in which the body is sent: a content coding, `picture`, or empty for unchanged.
    pub(crate) form: &'static str,
    /// Bytes of the body that the origin server sent.
    pub(crate) received: Arc<AtomicU64>,
    /// Bytes of the body that were sent to the client.
    sent: u64,
    /// Whether the whole body has been sent.
    pub(crate) complete: bool,
    failure: Option<String>,
}

impl AccessRecord {
    pub(crate) fn new(counters: &Arc<CacheCounters>, client: SocketAddr, method: String, uri: String) -> Self {
        AccessRecord {
            counters: counters.clone(),
            begun: Instant::now(),
            client,
            method,
            uri,
            status: StatusCode::OK,
            outcome: CacheOutcome::Refused,
            form: "",
            received: Arc::default(),
            sent: 0,
            complete: false,
            failure: None,
        }
    }

    /// Counts bytes of the body that are sent to the client.
    pub(crate) fn add_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.counters.client_bytes.add(bytes);
    }

    /// Notes why the response is an error or incomplete.
    pub(crate) fn set_failure(&mut self, why: &Error) {
        self.failure = Some(why.to_string());
    }

    fn count(&mut self) {
        let counters = &self.counters;
        counters.requests.add(1);
        match self.outcome {
            CacheOutcome::Hit => counters.hits.add(1),
            CacheOutcome::Revalidated => counters.revalidated.add(1),
            CacheOutcome::Stale => counters.stale.add(1),
            CacheOutcome::Miss => counters.misses.add(1),
            CacheOutcome::Pass => counters.passed.add(1),
            CacheOutcome::Refused => counters.refused.add(1),
            CacheOutcome::Tunnel => counters.tunnels.add(1),
            // The connection is counted when it goes on.
            CacheOutcome::Verbatim => {}
        }
        if !self.complete {
            counters.aborted.add(1);
            self.failure.get_or_insert_with(|| "the client closed the connection early".into());
        }
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        self.count();
        tracing::info!(
            client = %self.client,
            method = %self.method,
            uri = %self.uri,
            status = self.status.as_u16(),
            cache = self.outcome.name(),
            form = self.form,
            origin_bytes = self.received.load(Ordering::Relaxed),
            client_bytes = self.sent,
            seconds = format_args!("{:.3}", self.begun.elapsed().as_secs_f64()),
            broke = self.failure.as_deref().unwrap_or(""),
            "request"
        );
    }
}
