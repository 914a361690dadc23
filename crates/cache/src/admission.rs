//! Admission of requests: each reserves the memory that it can take before it is handled.

use crate::{
    client::Client,
    error_response::ErrorResponse,
    limits::{BODY_WINDOW, CONNECTION_BYTES, HEADER_COPIES, REQUEST_BYTES, Reservation},
    window::BodyWindow,
};
use hyper::{HeaderMap, StatusCode};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that a header field takes besides its name and its value, bytes.
const FIELD_OVERHEAD: usize = 32;

/// The reservation of a request in progress. Every buffer of its bodies keeps it alive.
#[derive(Debug)]
pub(crate) struct RequestReservation {
    _request: Reservation,
    /// The part for a connection to the server, until that is opened.
    connection: Mutex<Option<Reservation>>,
}

impl RequestReservation {
    fn take_connection(&self) -> Option<Reservation> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the part for a connection to the server, which is no longer needed.
    pub(crate) fn return_connection(&self) {
        drop(self.take_connection());
    }

    /// A window for one of its bodies.
    pub(crate) fn window(self: &Arc<Self>) -> BodyWindow {
        BodyWindow::new(self.clone())
    }
}

impl Client {
    /// Admits a request when there is memory for it.
    ///
    /// # Errors
    /// 503 when there is none for too long.
    pub(crate) async fn admit(&self, headers: &HeaderMap, has_body: bool) -> Result<Arc<RequestReservation>, ErrorResponse> {
        let upload = if has_body { BODY_WINDOW as u64 } else { 0 };
        let mut request = self.reserve(REQUEST_BYTES + upload + CONNECTION_BYTES + HEADER_COPIES * size_of_fields(headers)).await?;
        let connection = Mutex::new(request.split(CONNECTION_BYTES));
        Ok(Arc::new(RequestReservation { _request: request, connection }))
    }

    /// Reserves `bytes` of the client's share, and closes idle connections to servers when they are
    /// not available at once.
    ///
    /// # Errors
    /// 503 when they are not available for too long.
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<Reservation, ErrorResponse> {
        if let Some(reservation) = self.share.try_reserve(bytes) {
            return Ok(reservation);
        }
        self.shared.counters.waited.add(1);
        // The reservations of the connections are returned shortly after, when their tasks end.
        let owner = self.share.lacks(bytes).then(|| self.address.ip());
        (0..bytes.div_ceil(CONNECTION_BYTES)).all(|_| self.shared.server_pool.close_oldest(owner));
        let refused = || {
            let text = "too many requests are in progress, of this client or of all clients: try again later";
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        self.share.reserve(bytes).await.ok_or_else(refused)
    }

    /// The reservation of a new connection to a server: the request's part for one, or, when that
    /// is in use already, a further one.
    ///
    /// # Errors
    /// As [`Client::reserve`].
    pub(crate) async fn reserve_connection(&self, request: &RequestReservation) -> Result<Reservation, ErrorResponse> {
        match request.take_connection() {
            Some(reservation) => Ok(reservation),
            None => self.reserve(CONNECTION_BYTES).await,
        }
    }
}

/// Memory that header fields take, bytes.
fn size_of_fields(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum::<usize>() as u64
}
