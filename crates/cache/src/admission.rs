//! Admission of requests: each reserves the memory that it can take before it is answered.

use crate::{
    error_response::ErrorResponse,
    limits::{CONNECTION, HEAD_COPIES, REQUEST, Reserved, WINDOW},
    shared::Caller,
    window::Window,
};
use hyper::{HeaderMap, StatusCode};
use std::sync::{Arc, Mutex, PoisonError};

/// The reservation of a request in progress. Every piece of its bodies in memory shares it.
#[derive(Debug)]
pub(crate) struct Exchange {
    _reserved: Reserved,
    /// The part for a connection to its server, until that is opened.
    connection: Mutex<Option<Reserved>>,
}

impl Exchange {
    fn take_connection(&self) -> Option<Reserved> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the part for a connection to its server, which it no longer needs.
    pub(crate) fn return_connection(&self) {
        drop(self.take_connection());
    }

    /// A window for one of its bodies.
    pub(crate) fn window(self: &Arc<Self>) -> Window {
        Window::new(self.clone())
    }
}

impl Caller {
    /// Admits a request when there is room for it.
    ///
    /// # Errors
    /// 503 when there is none for too long.
    pub(crate) async fn admit(&self, headers: &HeaderMap, has_body: bool) -> Result<Arc<Exchange>, ErrorResponse> {
        let upload = if has_body { WINDOW as u64 } else { 0 };
        let mut reserved = self.reserve(REQUEST + upload + CONNECTION + HEAD_COPIES * size(headers)).await?;
        let connection = Mutex::new(reserved.split(CONNECTION));
        Ok(Arc::new(Exchange { _reserved: reserved, connection }))
    }

    /// Reserves `bytes` of the client's share; closes idle connections to servers to that end.
    ///
    /// # Errors
    /// 503 when they are not available for too long.
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<Reserved, ErrorResponse> {
        if let Some(reserved) = self.share.try_reserve(bytes) {
            return Ok(reserved);
        }
        self.house.counters.waited.add(1);
        // Their reservations are returned when their tasks have ended, shortly after.
        let whose = self.share.lacks(bytes).then(|| self.client.ip());
        (0..bytes.div_ceil(CONNECTION)).all(|_| self.house.pool.close_oldest(whose));
        let refused = || {
            let text = "too many requests are in progress, of this client or in all: ask again later".into();
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        self.share.reserve(bytes).await.ok_or_else(refused)
    }

    /// The reservation of a new connection to a server: the part that the request has for it, or
    /// another one when that is in use already.
    ///
    /// # Errors
    /// As [`Caller::reserve`].
    pub(crate) async fn connection(&self, exchange: &Exchange) -> Result<Reserved, ErrorResponse> {
        match exchange.take_connection() {
            Some(reserved) => Ok(reserved),
            None => self.reserve(CONNECTION).await,
        }
    }
}

/// Bytes that header fields take, with an allowance for the map.
fn size(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>() as u64
}
