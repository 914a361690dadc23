//! The system clock, which is also the clock of packet timestamps.

use std::time::{SystemTime, UNIX_EPOCH};

/// Time, ns since 1970, by the clock of packet timestamps.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}
