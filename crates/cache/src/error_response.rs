//! Errors: those that end a message, and those that a client gets as a response.

use hyper::StatusCode;

/// Why a message broke off, or a connection ended.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The response to a request that this proxy cannot answer otherwise.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) status: StatusCode,
    /// What failed and why, for the client and for the log.
    pub(crate) text: String,
}

impl ErrorResponse {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        ErrorResponse { status, text: text.into() }
    }

    /// The body of the response.
    pub(crate) fn body(&self) -> String {
        format!("tandem cache: {}\n", self.text)
    }
}
