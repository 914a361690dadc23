//! The outcome of handling one request.

use crate::{body::MessageBody, cache_status::CacheOutcome, error_response::ErrorResponse};
use hyper::Response;

/// A response, and what is logged about it.
pub(crate) struct Reply {
    pub(crate) response: Response<MessageBody>,
    pub(crate) outcome: CacheOutcome,
    /// The form in which the body is sent: a content coding, `picture`, or empty for unchanged.
    pub(crate) form: &'static str,
}

impl Reply {
    /// A response whose body is sent unchanged.
    pub(crate) fn unchanged(response: Response<MessageBody>, outcome: CacheOutcome) -> Self {
        Reply { response, outcome, form: "" }
    }
}

/// A reply, or the error that the client gets instead.
pub(crate) type ReplyResult = Result<Reply, ErrorResponse>;
