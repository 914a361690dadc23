//! A point in time on the caller's clock.

use std::ops::{Add, Sub};
use units::Span;

/// A point in time: nanoseconds since the epoch that the caller has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Seconds since the epoch.
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Saturates at the largest time.
impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

/// The span since an earlier time; zero if the other time is not earlier.
impl Sub for Time {
    type Output = Span;
    fn sub(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}
