//! How long what was received before one leg failed may take to reach the peer of the other leg,
//! before that leg is reset.
//!
//! A reset discards what its socket has not sent or what is not acknowledged. Therefore the other
//! leg is reset only when its peer has acknowledged everything, as it would have received it over a
//! direct connection. The caller checks at intervals, since an acknowledgement raises no event.

use std::time::{Duration, Instant};

/// First and longest interval of checking for acknowledgements. It doubles while nothing changes.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// How long a peer may take nothing.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// The same for a peer whose window is closed while it waits to send bytes that nothing reads: it
/// would wait for ever. A direct connection would have been reset by now, and its receive queue is
/// as full as that connection would have left it.
const BLOCKED_LIMIT: Duration = Duration::from_secs(2);

/// The delivery of the bytes that were received before the other leg failed.
#[derive(Debug)]
pub struct LastDelivery {
    acknowledged: u64,
    /// Time of the last progress.
    moved_at: Instant,
    pause: Duration,
    check_at: Instant,
}

impl LastDelivery {
    /// Begins when the other leg fails.
    pub fn new(now: Instant) -> Self {
        LastDelivery { acknowledged: 0, moved_at: now, pause: FIRST_PAUSE, check_at: now }
    }

    /// Whether to check for acknowledgements.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.check_at
    }

    /// Time of the next check.
    pub fn check_at(&self) -> Instant {
        self.check_at
    }

    /// Notes how many bytes the peer has acknowledged; returns whether to wait for more of them.
    /// `is_blocked` returns whether the peer's window is closed while bytes that it has sent are not
    /// read. It is called only after a pause.
    pub fn goes_on(&mut self, acknowledged: u64, is_blocked: impl FnOnce() -> bool, now: Instant) -> bool {
        if acknowledged > self.acknowledged {
            (self.acknowledged, self.moved_at, self.pause) = (acknowledged, now, FIRST_PAUSE);
        } else {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        self.check_at = now + self.pause;
        let stalled = now.saturating_duration_since(self.moved_at);
        stalled < BLOCKED_LIMIT || (stalled < STALL_LIMIT && !is_blocked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after which the delivery is given up, if `acknowledged` bytes are acknowledged after
    /// this many milliseconds.
    fn given_up_after(is_blocked: bool, acknowledged: impl Fn(u128) -> u64) -> f64 {
        let begun = Instant::now();
        let (mut delivery, mut now) = (LastDelivery::new(begun), begun);
        while delivery.goes_on(acknowledged((now - begun).as_millis()), || is_blocked, now) {
            assert!(!delivery.is_due(now) && delivery.check_at() - now <= LONGEST_PAUSE);
            now = delivery.check_at();
        }
        (now - begun).as_secs_f64()
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up_after_a_minute_or_sooner_if_it_is_blocked() {
        let within = |seconds: f64, limit: Duration| (limit.as_secs_f64()..limit.as_secs_f64() + 0.1).contains(&seconds);
        assert!(within(given_up_after(false, |_| 0), STALL_LIMIT));
        assert!(within(given_up_after(true, |_| 0), BLOCKED_LIMIT));
    }

    #[test]
    fn a_peer_that_takes_bytes_slowly_is_waited_for() {
        // A byte each 50 s and each 1.5 s, 100 of them.
        let slowly = given_up_after(false, |elapsed| (elapsed as u64 / 50_000).min(100));
        assert!((5060.0..5061.0).contains(&slowly), "{slowly}");
        let blocked_now_and_then = given_up_after(true, |elapsed| (elapsed as u64 / 1500).min(100));
        assert!((152.0..153.0).contains(&blocked_now_and_then), "{blocked_now_and_then}");
    }

    #[test]
    fn checks_are_frequent_while_bytes_are_acknowledged() {
        let mut now = Instant::now();
        let mut delivery = LastDelivery::new(now);
        for bytes in 0..1000 {
            assert!(delivery.goes_on(bytes + 1, || false, now));
            assert_eq!(delivery.check_at() - now, FIRST_PAUSE);
            now = delivery.check_at();
        }
    }
}
