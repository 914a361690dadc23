//! What a request comes to.

use crate::{access_log::From, body::Body, error_response::ErrorResponse};
use hyper::{Response, header::HeaderName};

/// `Cache-Status` (RFC 9211).
pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The response to a request, where it came from, and the form in which its body is sent ("" as it
/// came); or the error that the client is told.
pub(crate) type Reply = Result<(Response<Body>, From, &'static str), ErrorResponse>;
