//! The clock that dates packets.

use std::time::{SystemTime, UNIX_EPOCH};

/// ns since 1970, by the clock that dates packets.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}
