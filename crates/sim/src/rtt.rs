//! RTT estimation and the retransmission timeout (RFC 6298, as in Linux).

/// The smallest retransmission timeout, µs (Linux: TCP_RTO_MIN; RFC 6298 (2.4) recommends 1 s).
pub(crate) const RTO_MIN_US: u32 = 200_000;
/// The largest retransmission timeout, µs (TCP_RTO_MAX).
pub(crate) const RTO_MAX_US: u64 = 120_000_000;
/// Length of the window of the minimum RTT, µs (tcp_min_rtt_wlen).
const MIN_RTT_WINDOW_US: u64 = 300_000_000;

/// The RTT estimate of a path. All times are in µs.
#[derive(Debug, Clone, Default)]
pub(crate) struct RttEstimator {
    /// Eight times the smoothed RTT.
    srtt8: i64,
    /// Four times the mean deviation.
    mdev4: i64,
    /// The largest `mdev4` in the current round trip.
    mdev_max4: i64,
    /// Four times the RTT variation.
    rttvar: i64,
    /// The current round trip ends when this byte is acknowledged.
    rtt_seq: u64,
    min: WindowedMinimum,
    rto_us: u64,
}

impl RttEstimator {
    /// An estimator without samples.
    pub(crate) fn new(initial_rto_us: u64) -> Self {
        RttEstimator { rto_us: initial_rto_us, ..RttEstimator::default() }
    }

    /// Takes an RTT sample (tcp_rtt_estimator). A round trip, over which deviations are compared,
    /// ends when `snd_una` passes the `snd_nxt` of its beginning.
    pub(crate) fn sample(&mut self, rtt_us: u32, snd_una: u64, snd_nxt: u64) {
        let mut deviation = i64::from(rtt_us.max(1));
        let floor = i64::from(RTO_MIN_US);
        if self.srtt8 == 0 {
            self.srtt8 = deviation << 3;
            self.mdev4 = deviation << 1;
            self.rttvar = self.mdev4.max(floor);
            self.mdev_max4 = self.rttvar;
            self.rtt_seq = snd_nxt;
        } else {
            deviation -= self.srtt8 >> 3;
            self.srtt8 = (self.srtt8 + deviation).max(1);
            if deviation < 0 {
                // A falling RTT must not raise the timeout as much as a rising one.
                deviation = -deviation - (self.mdev4 >> 2);
                if deviation > 0 {
                    deviation >>= 3;
                }
            } else {
                deviation -= self.mdev4 >> 2;
            }
            self.mdev4 += deviation;
            if self.mdev4 > self.mdev_max4 {
                self.mdev_max4 = self.mdev4;
                self.rttvar = self.rttvar.max(self.mdev_max4);
            }
            if snd_una > self.rtt_seq {
                if self.mdev_max4 < self.rttvar {
                    self.rttvar -= (self.rttvar - self.mdev_max4) >> 2;
                }
                self.rtt_seq = snd_nxt;
                self.mdev_max4 = floor;
            }
        }
        self.rto_us = (((self.srtt8 >> 3) + self.rttvar) as u64).min(RTO_MAX_US);
    }

    /// Takes a sample for the minimum RTT.
    pub(crate) fn sample_min(&mut self, rtt_us: u32, now_us: u64) {
        self.min.sample(rtt_us.max(1), now_us);
    }

    /// The smoothed RTT, µs; 0 before the first sample.
    pub(crate) fn srtt_us(&self) -> u32 {
        (self.srtt8 >> 3) as u32
    }

    /// The minimum RTT, µs; 0 before the first sample.
    pub(crate) fn min_us(&self) -> u32 {
        self.min.samples[0].1
    }

    /// The retransmission timeout, µs.
    pub(crate) fn rto_us(&self) -> u64 {
        self.rto_us
    }

    /// Doubles the timeout after it has expired (RFC 6298 (5.5)).
    pub(crate) fn back_off(&mut self) {
        self.rto_us = (self.rto_us * 2).min(RTO_MAX_US);
    }
}

/// The minimum over a sliding window, from three samples of time and value (Linux:
/// lib/win_minmax.c, after Kathleen Nichols).
#[derive(Debug, Clone, Default)]
struct WindowedMinimum {
    samples: [(u64, u32); 3],
}

impl WindowedMinimum {
    fn sample(&mut self, rtt: u32, now: u64) {
        let s = &mut self.samples;
        let new = (now, rtt);
        if s[0].1 == 0 || rtt <= s[0].1 || now - s[2].0 > MIN_RTT_WINDOW_US {
            *s = [new; 3];
            return;
        }
        if rtt <= s[1].1 {
            (s[1], s[2]) = (new, new);
        } else if rtt <= s[2].1 {
            s[2] = new;
        }
        let age = now - s[0].0;
        if age > MIN_RTT_WINDOW_US {
            *s = [s[1], s[2], new];
            if now - s[0].0 > MIN_RTT_WINDOW_US {
                *s = [s[1], s[2], new];
            }
        } else if s[1].0 == s[0].0 && age > MIN_RTT_WINDOW_US / 4 {
            (s[1], s[2]) = (new, new);
        } else if s[2].0 == s[1].0 && age > MIN_RTT_WINDOW_US / 2 {
            s[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_initializes_the_estimate() {
        let mut rtt = RttEstimator::new(1_000_000);
        assert_eq!((rtt.rto_us(), rtt.srtt_us()), (1_000_000, 0));
        // RFC 6298 (2.2): SRTT + 4 R/2.
        rtt.sample(400_000, 0, 0);
        assert_eq!((rtt.rto_us(), rtt.srtt_us()), (1_200_000, 400_000));
    }

    #[test]
    fn a_constant_rtt_has_the_minimum_variation() {
        let mut rtt = RttEstimator::new(1_000_000);
        for round in 0..200 {
            rtt.sample(40_000, round * 10 + 1, round * 10 + 10);
        }
        assert_eq!(rtt.rto_us(), 40_000 + u64::from(RTO_MIN_US));
        rtt.back_off();
        assert_eq!(rtt.rto_us(), 480_000);
    }

    #[test]
    fn the_minimum_expires_after_five_minutes() {
        let mut rtt = RttEstimator::new(1);
        rtt.sample_min(10, 0);
        for second in 1..1000 {
            rtt.sample_min(20, second * 1_000_000);
            assert_eq!(rtt.min_us(), if second <= 300 { 10 } else { 20 }, "{second}");
        }
    }
}
