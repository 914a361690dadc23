//! How a request that is being served takes its client's connection from hyper, to pass the
//! response on as it came.

use crate::server_stream::VerbatimResponse;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::Notify;

/// What the parts of one client connection tell each other: the task that sends a request
/// ([`ClientGate::hand_over`]), hyper's service ([`ClientGate::response`], [`ClientGate::depart`]),
/// the task that runs hyper ([`ClientGate::departs`]), and the stream.
#[derive(Debug, Default)]
pub(crate) struct ClientGate {
    /// Whether the connection can leave hyper. One of HTTP/2 cannot: it carries several requests.
    is_open: AtomicBool,
    response: Mutex<Option<VerbatimResponse>>,
    arrived: Notify,
    flush_wanted: AtomicBool,
    flushed: Notify,
    departing: Notify,
}

impl ClientGate {
    /// Lets the connection leave hyper from now on.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Hands a response over. Returns it where the connection cannot leave hyper.
    pub(crate) fn hand_over(&self, response: VerbatimResponse) -> Option<VerbatimResponse> {
        if !self.is_open.load(Ordering::Acquire) {
            return Some(response);
        }
        *self.response.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
        self.arrived.notify_one();
        None
    }

    /// Waits for a response that was handed over, and returns the beginning of its bytes.
    pub(crate) async fn response(&self) -> (bytes::Bytes, String) {
        loop {
            self.arrived.notified().await;
            if let Some(response) = &*self.response.lock().unwrap_or_else(PoisonError::into_inner) {
                return (response.bytes.clone(), response.why.clone());
            }
        }
    }

    /// Has the connection leave hyper once hyper has written the responses before. Does not return:
    /// the caller is dropped with hyper.
    pub(crate) async fn depart<T>(&self) -> T {
        self.flush_wanted.store(true, Ordering::Release);
        self.flushed.notified().await;
        self.departing.notify_one();
        std::future::pending().await
    }

    /// Tells that hyper has written everything that it had.
    pub(crate) fn note_flush(&self) {
        if self.flush_wanted.swap(false, Ordering::AcqRel) {
            self.flushed.notify_one();
        }
    }

    /// Waits until the connection leaves hyper.
    pub(crate) async fn departs(&self) {
        self.departing.notified().await;
    }

    /// Takes the response that was handed over.
    pub(crate) fn take_response(&self) -> Option<VerbatimResponse> {
        self.response.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
