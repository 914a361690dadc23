//! Steps of the system clock, which the times of packets follow.

use std::time::{Duration, Instant, SystemTime};

/// A smaller difference between the clocks is no step: NTP changes the rate of the system clock,
/// and it takes a moment to read both.
const STEP: Duration = Duration::from_millis(500);

/// Compares the system clock with a clock that has no steps.
#[derive(Debug)]
pub(super) struct ClockSteps {
    before: (Instant, SystemTime),
}

impl ClockSteps {
    /// From now on.
    pub(super) fn new() -> Self {
        ClockSteps { before: (Instant::now(), SystemTime::now()) }
    }

    /// Whether the system clock has been set since the last call, or the machine has slept.
    pub(super) fn has_stepped(&mut self) -> bool {
        self.take(Instant::now(), SystemTime::now())
    }

    fn take(&mut self, steady: Instant, system: SystemTime) -> bool {
        let (steady_before, system_before) = std::mem::replace(&mut self.before, (steady, system));
        let elapsed = steady.saturating_duration_since(steady_before);
        let difference = match system.duration_since(system_before) {
            Ok(shown) => shown.abs_diff(elapsed),
            Err(back) => back.duration() + elapsed,
        };
        difference > STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_noticed_once() {
        let mut clock = ClockSteps::new();
        let (steady, system) = clock.before;
        let second = Duration::from_secs(1);
        assert!(!clock.take(steady + second, system + second));
        // A clock that runs 0.05 % too fast.
        assert!(!clock.take(steady + 100 * second, system + 100 * second + Duration::from_millis(50)));
        assert!(clock.take(steady + 101 * second, system + 900 * second));
        assert!(!clock.take(steady + 102 * second, system + 901 * second));
        assert!(clock.take(steady + 103 * second, system + 103 * second));
        assert!(!clock.take(steady + 104 * second, system + 104 * second));
    }
}
