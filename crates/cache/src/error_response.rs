//! What a client is told when its request has no answer.

use hyper::StatusCode;

/// Why a message broke off, or a connection ended.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A status, and the reason as text.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl ErrorResponse {
    pub(crate) fn new(status: StatusCode, text: String) -> Self {
        ErrorResponse { status, text }
    }
}
