//! What became of a request: one line in the log when its answer has been sent, and its part of the numbers.

use crate::{counters::Counters, error_response::Error};
use hyper::{Method, StatusCode};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Hit,
    Revalidated,
    Stale,
    Miss,
    Pass,
    Refused,
    Tunnel,
}

impl From {
    const fn name(self) -> &'static str {
        match self {
            From::Hit => "hit",
            From::Revalidated => "revalidated",
            From::Stale => "stale",
            From::Miss => "miss",
            From::Pass => "pass",
            From::Refused => "refused",
            From::Tunnel => "tunnel",
        }
    }
}

/// See the module. The line is written when it is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    counters: Arc<Counters>,
    begun: Instant,
    client: SocketAddr,
    method: Method,
    pub(crate) uri: String,
    pub(crate) status: StatusCode,
    pub(crate) from: From,
    /// As what its body was sent: "" as it came.
    pub(crate) form: &'static str,
    /// What its origin sent for it.
    pub(crate) came: Arc<AtomicU64>,
    sent: u64,
    pub(crate) whole: bool,
    why: Option<String>,
}

impl Record {
    pub(crate) fn new(counters: &Arc<Counters>, client: SocketAddr, method: Method, uri: String) -> Self {
        Record {
            counters: counters.clone(),
            begun: Instant::now(),
            client,
            method,
            uri,
            status: StatusCode::OK,
            from: From::Refused,
            form: "",
            came: Arc::default(),
            sent: 0,
            whole: false,
            why: None,
        }
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.counters.client_bytes.add(bytes);
    }

    /// Why the answer is not what was asked for, or not all of it.
    pub(crate) fn broke(&mut self, why: &Error) {
        self.why = Some(why.to_string());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let counters = &self.counters;
        counters.requests.add(1);
        match self.from {
            From::Hit => counters.hits.add(1),
            From::Revalidated => counters.revalidated.add(1),
            From::Stale => counters.stale.add(1),
            From::Miss => counters.misses.add(1),
            From::Pass => counters.passed.add(1),
            From::Refused => counters.refused.add(1),
            From::Tunnel => counters.tunnels.add(1),
        }
        if !self.whole {
            counters.aborted.add(1);
            self.why.get_or_insert_with(|| "the client broke off".into());
        }
        tracing::info!(
            client = %self.client,
            method = %self.method,
            uri = %self.uri,
            status = self.status.as_u16(),
            cache = self.from.name(),
            form = self.form,
            origin_bytes = self.came.load(Ordering::Relaxed),
            client_bytes = self.sent,
            seconds = format_args!("{:.3}", self.begun.elapsed().as_secs_f64()),
            broke = self.why.as_deref().unwrap_or(""),
            "request"
        );
    }
}
