//! When a pacing rate permits the next segment (tcp_pacing_check, tcp_tso_autosize,
//! tcp_update_skb_after_send).

/// A piece has the bytes of this part of a second at the pacing rate (sk_pacing_shift).
const PIECES_A_SECOND: u64 = 1024;
/// Where the round trip is short, it has up to this many bytes more: half of them for each
/// 2^[`RTT_SHIFT`] µs (tcp_tso_rtt_log).
const LARGEST_PIECE: u64 = 65_535;
const RTT_SHIFT: u32 = 9;
/// Segments of a piece at least (tcp_min_tso_segs).
const SMALLEST_PIECE: u64 = 2;
/// Segments at the start of a connection that are not paced.
const UNPACED: u64 = 10;

/// The pacing of a sender. Segments leave in pieces of several, as the kernel hands them to the
/// network device.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// When the next piece may leave, ns.
    next_ns: u64,
    /// How many segments may still follow in the present piece.
    left: u64,
    /// When that piece began, ns.
    begun_at: u64,
    /// By how much it was late, less what its segments have made up for, ns.
    late: u64,
}

impl Pacing {
    /// Whether a segment has to wait.
    #[inline]
    pub(super) fn forbids(&self, now: u64) -> bool {
        self.next_ns > now && !self.continues(now)
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn continues(&self, now: u64) -> bool {
        self.left > 0 && self.begun_at == now
    }

    /// Counts a segment of `len` bytes that leaves after `sent` others. `rate` is the pacing rate
    /// in bytes/s; 0: none. If a timer was late, half of that time is made up for.
    pub(super) fn on_send(&mut self, now: u64, len: u32, sent: u64, rate: u64, min_rtt_us: u32, mss: u32) {
        if !self.continues(now) {
            let late = now.saturating_sub(self.next_ns);
            *self = Pacing { next_ns: self.next_ns + late, left: segments_of_a_piece(rate, min_rtt_us, mss), begun_at: now, late };
        }
        if rate > 0 && sent >= UNPACED {
            let gap = u64::from(len) * 1_000_000_000 / rate;
            let made_up = self.late.min(gap / 2);
            self.next_ns += gap - made_up;
            self.late -= made_up;
            self.left -= 1;
        }
    }
}

fn segments_of_a_piece(rate: u64, min_rtt_us: u32, mss: u32) -> u64 {
    let for_short_rtt = LARGEST_PIECE.checked_shr(min_rtt_us >> RTT_SHIFT).unwrap_or(0);
    let bytes = (rate / PIECES_A_SECOND + for_short_rtt).min(LARGEST_PIECE);
    (bytes / u64::from(mss)).max(SMALLEST_PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1448;
    /// 10 Mbit/s.
    const RATE: u64 = 1_250_000;

    #[test]
    fn a_piece_is_a_millisecond_of_the_rate_and_more_where_the_round_trip_is_short() {
        // Of net/ipv4/tcp_output.c, by hand: rate / 1024 + (65535 >> (µs >> 9)), in segments.
        let pieces = [(10_000, 600_000), (10, 40_000), (100, 40_000), (1000, 40_000), (10, 1000), (10, 4000), (1, 100)];
        let segments = pieces.map(|(mbit, rtt_us)| segments_of_a_piece(mbit * 125_000, rtt_us, MSS));
        assert_eq!(segments, [45, 2, 8, 45, 23, 2, 45]);
    }

    #[test]
    fn segments_leave_in_pairs_at_the_rate() {
        let mut pacing = Pacing::default();
        let (mut now, mut departures) = (0, Vec::new());
        for sent in 0..1010 {
            if pacing.forbids(now) {
                now = pacing.next_ns();
            }
            departures.push(now);
            pacing.on_send(now, MSS, sent, RATE, 600_000, MSS);
        }
        assert!(departures[..12].iter().all(|at| *at == 0), "ten segments and a piece at once");
        assert!(departures[10..].chunks(2).all(|piece| piece[0] == piece[1]));
        let rate = 998.0 * f64::from(MSS) / (departures[1009] as f64 / 1e9);
        assert!((rate / RATE as f64 - 1.0).abs() < 1e-3, "{rate}");
    }

    #[test]
    fn half_of_a_delay_is_made_up_for() {
        let gap = u64::from(MSS) * 1_000_000_000 / RATE;
        for (late, made_up) in [(gap / 10, gap / 10), (gap, gap), (5 * gap, gap)] {
            let mut pacing = Pacing { next_ns: 1_000_000, ..Pacing::default() };
            let now = 1_000_000 + late;
            for _ in 0..2 {
                assert!(!pacing.forbids(now));
                pacing.on_send(now, MSS, UNPACED, RATE, 600_000, MSS);
            }
            assert!(pacing.forbids(now), "the piece is full");
            assert!((now + 2 * gap - made_up).abs_diff(pacing.next_ns()) <= 1, "{late}");
        }
    }
}
