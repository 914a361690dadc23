//! A receive buffer that grows as the application reads, as in Linux 6.18 (net/ipv4/tcp_input.c):
//! dynamic right-sizing, and the threshold that limits the window of a young connection.

use scenario::ReceiveBuffers;

/// The share of a buffer that the kernel takes for payload until packets arrive
/// (TCP_DEFAULT_SCALING_RATIO).
const FIRST_SHARE: f64 = 0.5;
/// What an application is expected to read in the first round trip, segments (TCP_INIT_CWND).
const FIRST_READ: u64 = 10;

/// How much a receiver offers. All sizes are payload, bytes.
#[derive(Debug)]
pub(crate) struct ReceiveTuning {
    /// What the buffer holds (window_clamp).
    buffer: u64,
    /// The largest that it may become (`tcp_rmem`).
    most: u64,
    /// The window grows to no more (rcv_ssthresh).
    threshold: u64,
    mss: u64,
    /// The most that was read in a round trip (rcvq_space.space).
    most_read: u64,
    /// The stream's offset at the start of the measured round trip (rcvq_space.seq).
    from: u64,
    /// When it started, ns (rcvq_space.time).
    since_ns: u64,
}

impl ReceiveTuning {
    pub(crate) fn new(buffers: ReceiveBuffers, mss: u32) -> Self {
        let payload = |bytes: u64, share: f64| (bytes as f64 * share) as u64;
        let threshold = payload(buffers.first.0, FIRST_SHARE);
        let mss = u64::from(mss);
        ReceiveTuning {
            buffer: payload(buffers.first.0, ReceiveBuffers::PAYLOAD_SHARE),
            most: payload(buffers.most.0, ReceiveBuffers::PAYLOAD_SHARE),
            threshold,
            mss,
            most_read: (FIRST_READ * mss).min(threshold),
            from: 0,
            since_ns: 0,
        }
    }

    pub(crate) fn buffer(&self) -> u64 {
        self.buffer
    }

    /// The largest window now.
    pub(crate) fn window(&self) -> u64 {
        self.threshold
    }

    /// A segment has arrived in order (tcp_grow_window).
    pub(crate) fn on_segment(&mut self, len: u64) {
        self.threshold = (self.threshold + 2 * len.max(self.mss)).min(self.buffer);
    }

    /// The application has read up to `read`; `ahead` is the payload that has arrived out of order
    /// (tcp_rcv_space_adjust).
    pub(crate) fn on_read(&mut self, read: u64, ahead: u64, now_ns: u64, rtt_us: u64) {
        if rtt_us == 0 || now_ns - self.since_ns < rtt_us * 1000 {
            return;
        }
        let copied = read - self.from;
        if copied > self.most_read {
            // Twice what was read, and more while the sender's rate grows.
            let window = 2 * copied + 4 * copied * (copied - self.most_read) / self.most_read + ahead;
            self.buffer = self.buffer.max(window.min(self.most));
            self.most_read = copied;
        }
        (self.from, self.since_ns) = (read, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Bytes;

    #[test]
    fn the_window_grows_with_what_is_read_up_to_the_largest_buffer() {
        let mut tuning = ReceiveTuning::new(ReceiveBuffers { first: Bytes(131_072), most: Bytes(6 << 20) }, 1448);
        assert_eq!(tuning.window(), 65_536);
        let (mut read, mut window) = (0, Vec::new());
        for round in 1..=8 {
            // All that was offered arrives within a round trip.
            let segments = tuning.window() / 1448;
            for _ in 0..segments {
                read += 1448;
                tuning.on_segment(1448);
                tuning.on_read(read, 0, round * 600_000_000, 600_000);
            }
            window.push(tuning.window());
        }
        // At first all of the buffer. What is read is known a round trip later.
        assert_eq!(window[0], 82_575, "{window:?}");
        assert!(window[1..4].iter().zip(&window).all(|(now, before)| now.abs_diff(3 * before) < 10_000), "{window:?}");
        assert_eq!(*window.last().unwrap(), 3_963_617, "{window:?}");
    }
}
