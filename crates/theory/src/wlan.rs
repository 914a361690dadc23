//! What a download gets out of an IEEE 802.11b network (Hoekstra, van der Mei and Bosman 2011, Table IV).
//!
//! The paper takes its effective throughput, 5.28 Mbit/s, from a model published elsewhere (its reference 17). The derivation here is ours, from the
//! table's parameters and the basic access mode of the standard:
//!
//! - A frame takes the preamble `phy`, then its bits at the rate of the network, of which `mac` are the MAC's; then `sifs`, the
//!   acknowledgement's preamble and its `ack` bits, and `difs`, with the propagation delay `delta` on the way there and back:
//!   phy + (mac + tcp/ip + payload)/r + sifs + phy + ack/r + difs + 2 delta. A full segment makes 1567.455 µs, a TCP acknowledgement, which is a
//!   frame without payload, 505.636 µs.
//! - Before a frame its sender waits for a whole number of slots, drawn evenly from 0 to Cw_min: on average Cw_min/2 slots, 310 µs. Without
//!   collisions the window does not grow.
//! - In a download, each `segments` segments are answered by one TCP acknowledgement. The access point, which always has a next frame, waits
//!   before each segment. Whether the client's wait adds to that depends on whether it passes while the access point waits as well; both
//!   extremes are offered as [`Waits`].
//!
//! With an acknowledgement a segment that makes 4.34 to 4.90 Mbit/s, with one for two segments (delayed acknowledgements) 5.11 to 5.48. The
//! paper's 5.28 lies between the latter.

use crate::{TheoryError, aimd::positive};

/// The parameters of the network and of what it carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wlan {
    /// Bits of the MAC's header and checksum.
    pub mac_bits: f64,
    /// Bits of the MAC's acknowledgement.
    pub ack_bits: f64,
    /// Bits of a full segment's payload.
    pub mss_bits: f64,
    /// Bits of the headers of TCP and IP.
    pub tcp_ip_bits: f64,
    /// Bits of the request for a file.
    pub get_bits: f64,
    /// Bits of the message that ends a transfer.
    pub close_bits: f64,
    /// The network's rate, bit/s.
    pub rate_bps: f64,
    /// The preamble and header of the physical layer, s.
    pub phy_s: f64,
    /// The space between a frame and its acknowledgement, s.
    pub sifs_s: f64,
    /// The space before a frame, s.
    pub difs_s: f64,
    /// The propagation delay, s.
    pub delta_s: f64,
    /// A slot of waiting, s.
    pub slot_s: f64,
    /// The most slots that a sender waits.
    pub cw_min: f64,
}

/// Who waits for slots before a frame, of the network's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Those who send segments: acknowledgements wait meanwhile.
    Segments,
    /// Those who send segments, and after them those who send acknowledgements.
    All,
}

impl Wlan {
    /// Table IV.
    pub fn table_4() -> Self {
        Wlan {
            mac_bits: 224.0,
            ack_bits: 112.0,
            mss_bits: 11_680.0,
            tcp_ip_bits: 320.0,
            get_bits: 4096.0,
            close_bits: 64.0,
            rate_bps: 11e6,
            phy_s: 192e-6,
            sifs_s: 10e-6,
            difs_s: 50e-6,
            delta_s: 1e-6,
            slot_s: 20e-6,
            cw_min: 31.0,
        }
    }

    /// How long a frame with so much payload for TCP keeps the network busy, with its acknowledgement by the MAC and without waiting for slots, s.
    pub fn frame_s(&self, payload_bits: f64) -> f64 {
        let frame = self.phy_s + (self.mac_bits + self.tcp_ip_bits + payload_bits) / self.rate_bps;
        let ack = self.phy_s + self.ack_bits / self.rate_bps;
        frame + self.sifs_s + ack + self.difs_s + 2.0 * self.delta_s
    }

    /// The same of a full segment.
    pub fn segment_s(&self) -> f64 {
        self.frame_s(self.mss_bits)
    }

    /// The same of a TCP acknowledgement.
    pub fn tcp_ack_s(&self) -> f64 {
        self.frame_s(0.0)
    }

    /// What a sender waits for in slots, on average, s.
    pub fn backoff_s(&self) -> f64 {
        self.cw_min / 2.0 * self.slot_s
    }

    /// The payload of a long download that passes a second, bit/s, with a TCP acknowledgement for each so many segments.
    pub fn throughput_bps(&self, segments: f64, waits: Waits) -> Result<f64, TheoryError> {
        positive("the number of segments for an acknowledgement", segments)?;
        Ok(segments * self.mss_bits / self.round_s(segments, waits))
    }

    /// The same of a file of so many bits, with its request and its end.
    pub fn file_throughput_bps(&self, file_bits: f64, segments: f64, waits: Waits) -> Result<f64, TheoryError> {
        positive("the size of a file", file_bits)?;
        let body = file_bits / self.throughput_bps(segments, waits)?;
        let around: f64 = [self.get_bits, self.close_bits].iter().map(|bits| self.frame_s(*bits) + self.backoff_s()).sum();
        Ok(file_bits / (body + around))
    }

    /// Some segments and their acknowledgement, s.
    fn round_s(&self, segments: f64, waits: Waits) -> f64 {
        let waiting = segments + f64::from(u8::from(waits == Waits::All));
        segments * self.segment_s() + self.tcp_ack_s() + waiting * self.backoff_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_4_makes_these_times() {
        let wlan = Wlan::table_4();
        assert!((wlan.segment_s() - 1567.455e-6).abs() < 5e-10, "{}", wlan.segment_s());
        assert!((wlan.tcp_ack_s() - 505.636e-6).abs() < 5e-10, "{}", wlan.tcp_ack_s());
        assert!((wlan.backoff_s() - 310e-6).abs() < 1e-12);
    }

    #[test]
    fn the_papers_throughput_is_that_of_delayed_acknowledgements() {
        let wlan = Wlan::table_4();
        let mbps = |segments, waits| wlan.throughput_bps(segments, waits).unwrap() / 1e6;
        for (segments, waits, right) in
            [(1.0, Waits::Segments, 4.90), (1.0, Waits::All, 4.34), (2.0, Waits::Segments, 5.48), (2.0, Waits::All, 5.11)]
        {
            assert!((mbps(segments, waits) - right).abs() < 0.005, "{segments} {waits:?}: {}", mbps(segments, waits));
        }
        assert!(mbps(2.0, Waits::All) < 5.28 && 5.28 < mbps(2.0, Waits::Segments));
        // Request and end are next to nothing in a file of two megabytes.
        let file = wlan.file_throughput_bps(16e6, 2.0, Waits::All).unwrap() / 1e6;
        assert!(file < mbps(2.0, Waits::All) && file > 0.999 * mbps(2.0, Waits::All), "{file}");
        assert!(wlan.throughput_bps(0.0, Waits::All).is_err());
    }
}
