//! What the cache did with a request: the `Cache-Status` field (RFC 9211), the log and the metrics.

use hyper::header::HeaderName;

/// The `Cache-Status` field (RFC 9211).
pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Where a response came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheOutcome {
    /// From the store, without asking the origin server.
    Hit,
    /// From the store, after the origin server had confirmed it with a 304.
    Revalidated,
    /// From the store although stale, since the origin server failed (RFC 5861 §4).
    Stale,
    /// From the origin server; it may have been stored.
    Miss,
    /// From the origin server; it could not be stored.
    Pass,
    /// From this proxy: an error, or a request that ends here.
    Refused,
    /// A tunnel was opened.
    Tunnel,
    /// From the origin server, passed on as it came.
    Verbatim,
}

impl CacheOutcome {
    /// Its name in the log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            CacheOutcome::Hit => "hit",
            CacheOutcome::Revalidated => "revalidated",
            CacheOutcome::Stale => "stale",
            CacheOutcome::Miss => "miss",
            CacheOutcome::Pass => "pass",
            CacheOutcome::Refused => "refused",
            CacheOutcome::Tunnel => "tunnel",
            CacheOutcome::Verbatim => "verbatim",
        }
    }
}
