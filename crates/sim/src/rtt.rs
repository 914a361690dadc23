//! The round trip: smoothed, least, and the retransmission timeout that follows from it (RFC 6298, as Linux has it).

/// No timeout is shorter, µs (Linux: TCP_RTO_MIN; RFC 6298 (2.4) asks for a second).
pub(crate) const RTO_MIN_US: u32 = 200_000;
/// Nor longer, µs (TCP_RTO_MAX).
pub(crate) const RTO_MAX_US: u64 = 120_000_000;
/// For how long the least round trip is remembered, µs (tcp_min_rtt_wlen).
const LEAST_WINDOW_US: u64 = 300_000_000;

/// What is known of a path's round trip, µs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rtt {
    /// Eight times the smoothed round trip.
    smoothed8: i64,
    /// Four times the mean deviation, and the largest of it in this round trip.
    deviation4: i64,
    most_deviation4: i64,
    variance: i64,
    /// The round trip over which deviations are compared ends when this is acknowledged.
    round_end: u64,
    least: Least,
    rto: u64,
}

impl Rtt {
    /// Before anything was measured.
    pub(crate) fn new(initial_rto_us: u64) -> Self {
        Rtt { rto: initial_rto_us, ..Rtt::default() }
    }

    /// Takes a sample in (tcp_rtt_estimator).
    pub(crate) fn sample(&mut self, rtt_us: u32, una: u64, nxt: u64) {
        let mut m = i64::from(rtt_us.max(1));
        let floor = i64::from(RTO_MIN_US);
        if self.smoothed8 == 0 {
            self.smoothed8 = m << 3;
            self.deviation4 = m << 1;
            self.variance = self.deviation4.max(floor);
            self.most_deviation4 = self.variance;
            self.round_end = nxt;
        } else {
            m -= self.smoothed8 >> 3;
            self.smoothed8 = (self.smoothed8 + m).max(1);
            if m < 0 {
                // A round trip that gets shorter is no reason for a longer timeout.
                m = -m - (self.deviation4 >> 2);
                if m > 0 {
                    m >>= 3;
                }
            } else {
                m -= self.deviation4 >> 2;
            }
            self.deviation4 += m;
            if self.deviation4 > self.most_deviation4 {
                self.most_deviation4 = self.deviation4;
                self.variance = self.variance.max(self.most_deviation4);
            }
            if una > self.round_end {
                if self.most_deviation4 < self.variance {
                    self.variance -= (self.variance - self.most_deviation4) >> 2;
                }
                self.round_end = nxt;
                self.most_deviation4 = floor;
            }
        }
        self.rto = (((self.smoothed8 >> 3) + self.variance) as u64).min(RTO_MAX_US);
    }

    /// Takes a sample in for the least round trip.
    pub(crate) fn sample_least(&mut self, rtt_us: u32, now_us: u64) {
        self.least.sample(rtt_us.max(1), now_us);
    }

    /// Smoothed, µs; 0: none was measured.
    pub(crate) fn smoothed(&self) -> u32 {
        (self.smoothed8 >> 3) as u32
    }

    /// The least, µs; 0: none was measured.
    pub(crate) fn least(&self) -> u32 {
        self.least.samples[0].1
    }

    /// The timeout, µs.
    pub(crate) fn rto(&self) -> u64 {
        self.rto
    }

    /// The timeout has passed without an answer (RFC 6298 (5.5)).
    pub(crate) fn back_off(&mut self) {
        self.rto = (self.rto * 2).min(RTO_MAX_US);
    }
}

/// The least of a sliding window, from three samples (Linux: lib/win_minmax.c, after Kathleen Nichols): when, and what.
#[derive(Debug, Clone, Default)]
struct Least {
    samples: [(u64, u32); 3],
}

impl Least {
    fn sample(&mut self, rtt: u32, now: u64) {
        let s = &mut self.samples;
        let new = (now, rtt);
        if s[0].1 == 0 || rtt <= s[0].1 || now - s[2].0 > LEAST_WINDOW_US {
            *s = [new; 3];
            return;
        }
        if rtt <= s[1].1 {
            (s[1], s[2]) = (new, new);
        } else if rtt <= s[2].1 {
            s[2] = new;
        }
        let age = now - s[0].0;
        if age > LEAST_WINDOW_US {
            *s = [s[1], s[2], new];
            if now - s[0].0 > LEAST_WINDOW_US {
                *s = [s[1], s[2], new];
            }
        } else if s[1].0 == s[0].0 && age > LEAST_WINDOW_US / 4 {
            (s[1], s[2]) = (new, new);
        } else if s[2].0 == s[1].0 && age > LEAST_WINDOW_US / 2 {
            s[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_all() {
        let mut rtt = Rtt::new(1_000_000);
        assert_eq!((rtt.rto(), rtt.smoothed()), (1_000_000, 0));
        // RFC 6298 (2.2): SRTT + 4 R/2.
        rtt.sample(400_000, 0, 0);
        assert_eq!((rtt.rto(), rtt.smoothed()), (1_200_000, 400_000));
    }

    #[test]
    fn a_steady_round_trip_has_a_timeout_of_itself_and_the_least() {
        let mut rtt = Rtt::new(1_000_000);
        for round in 0..200 {
            rtt.sample(40_000, round * 10 + 1, round * 10 + 10);
        }
        assert_eq!(rtt.rto(), 40_000 + u64::from(RTO_MIN_US));
        rtt.back_off();
        assert_eq!(rtt.rto(), 480_000);
    }

    #[test]
    fn the_least_is_forgotten_after_five_minutes() {
        let mut rtt = Rtt::new(1);
        rtt.sample_least(10, 0);
        for second in 1..1000 {
            rtt.sample_least(20, second * 1_000_000);
            assert_eq!(rtt.least(), if second <= 300 { 10 } else { 20 }, "{second}");
        }
    }
}
