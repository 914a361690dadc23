//! What a client is told when its request has no answer.

use hyper::StatusCode;

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
