//! Throughput of a download over an IEEE 802.11b network (Hoekstra, van der Mei and Bosman 2011,
//! Table IV).
//!
//! The paper takes its effective throughput, 5.28 Mbit/s, from a model published elsewhere (its
//! reference 17). This derivation is our own, from the table's parameters and the basic access mode
//! of the standard:
//!
//! - A frame takes the preamble `phy`, then its bits at the network's rate, `mac` of which are the
//!   MAC's; then `sifs`, the MAC acknowledgement's preamble and its `ack` bits, and `difs`, with
//!   the propagation delay `delta` in both directions: phy + (mac + tcp/ip + payload)/r + sifs +
//!   phy + ack/r + difs + 2 delta. That is 1567.455 µs for a full segment, and 505.636 µs for a TCP
//!   acknowledgement, which is a frame without payload.
//! - Before a frame its sender backs off for a number of slots, uniform from 0 to Cw_min: on
//!   average Cw_min/2 slots, 310 µs. Without collisions the contention window does not grow.
//! - In a download, `segments` segments are answered by one TCP acknowledgement. The access point,
//!   which always has a next frame, backs off before each segment. Whether the client's backoff
//!   adds to that depends on whether it overlaps with the access point's; [`BackoffModel`] has both
//!   extremes.
//!
//! With one acknowledgement per segment the result is 4.34 to 4.90 Mbit/s, with one per two
//! segments (delayed acknowledgements) 5.11 to 5.48. What lies between depends on collisions, which
//! the crate `link` has frame by frame (`scenario::Medium::Wifi80211b`). The paper has 5.28.

use crate::error::{TheoryError, positive};

/// Parameters of the network and its traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wlan {
    /// MAC header and checksum, bits.
    pub mac_bits: f64,
    /// MAC acknowledgement, bits.
    pub ack_bits: f64,
    /// Payload of a full segment, bits.
    pub mss_bits: f64,
    /// TCP and IP headers, bits.
    pub tcp_ip_bits: f64,
    /// Request for a file, bits.
    pub get_bits: f64,
    /// Message that ends a transfer, bits.
    pub close_bits: f64,
    /// Rate of the network, bit/s.
    pub rate_bps: f64,
    /// Preamble and header of the physical layer, s.
    pub phy_s: f64,
    /// Short interframe space, between a frame and its acknowledgement, s.
    pub sifs_s: f64,
    /// Distributed interframe space, before a frame, s.
    pub difs_s: f64,
    /// Propagation delay, s.
    pub delta_s: f64,
    /// Backoff slot, s.
    pub slot_s: f64,
    /// Contention window: largest backoff, slots.
    pub cw_min: f64,
}

/// Which backoffs take time of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffModel {
    /// Only those before segments: the client's backoff overlaps with them.
    Segments,
    /// Those before segments and before acknowledgements.
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

    /// Time that a frame with this TCP payload occupies the network, with its MAC acknowledgement
    /// and without backoff, s.
    pub fn frame_s(&self, payload_bits: f64) -> f64 {
        let frame = self.phy_s + (self.mac_bits + self.tcp_ip_bits + payload_bits) / self.rate_bps;
        let acknowledgement = self.sifs_s + self.phy_s + self.ack_bits / self.rate_bps + 2.0 * self.delta_s;
        frame + acknowledgement + self.difs_s
    }

    /// The same for a full segment, s.
    pub fn segment_s(&self) -> f64 {
        self.frame_s(self.mss_bits)
    }

    /// The same for a TCP acknowledgement, s.
    pub fn tcp_ack_s(&self) -> f64 {
        self.frame_s(0.0)
    }

    /// Mean backoff, s.
    pub fn backoff_s(&self) -> f64 {
        self.cw_min / 2.0 * self.slot_s
    }

    /// Payload throughput of a long download, bit/s, with one TCP acknowledgement per `segments`
    /// segments.
    ///
    /// # Errors
    /// When `segments` is not positive.
    pub fn throughput_bps(&self, segments: f64, backoff: BackoffModel) -> Result<f64, TheoryError> {
        positive("the number of segments for an acknowledgement", segments)?;
        Ok(segments * self.mss_bits / self.round_s(segments, backoff))
    }

    /// The same for a file, with its request and its end.
    ///
    /// # Errors
    /// When a parameter is not positive.
    pub fn file_throughput_bps(&self, file_bits: f64, segments: f64, backoff: BackoffModel) -> Result<f64, TheoryError> {
        positive("the size of a file", file_bits)?;
        let body = file_bits / self.throughput_bps(segments, backoff)?;
        let around: f64 = [self.get_bits, self.close_bits].iter().map(|bits| self.frame_s(*bits) + self.backoff_s()).sum();
        Ok(file_bits / (body + around))
    }

    /// Time of `segments` segments and their acknowledgement, s.
    fn round_s(&self, segments: f64, backoff: BackoffModel) -> f64 {
        let backoffs = segments + f64::from(u8::from(backoff == BackoffModel::All));
        segments * self.segment_s() + self.tcp_ack_s() + backoffs * self.backoff_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_4_gives_these_times() {
        let wlan = Wlan::table_4();
        assert!((wlan.segment_s() - 1567.455e-6).abs() < 5e-10, "{}", wlan.segment_s());
        assert!((wlan.tcp_ack_s() - 505.636e-6).abs() < 5e-10, "{}", wlan.tcp_ack_s());
        assert!((wlan.backoff_s() - 310e-6).abs() < 1e-12);
    }

    #[test]
    fn the_papers_throughput_is_that_of_delayed_acknowledgements() {
        let wlan = Wlan::table_4();
        let mbps = |segments, waits| wlan.throughput_bps(segments, waits).unwrap() / 1e6;
        for (segments, waits, right) in [
            (1.0, BackoffModel::Segments, 4.90),
            (1.0, BackoffModel::All, 4.34),
            (2.0, BackoffModel::Segments, 5.48),
            (2.0, BackoffModel::All, 5.11),
        ] {
            assert!((mbps(segments, waits) - right).abs() < 0.005, "{segments} {waits:?}: {}", mbps(segments, waits));
        }
        assert!(mbps(2.0, BackoffModel::All) < 5.28 && 5.28 < mbps(2.0, BackoffModel::Segments));
        // Request and end are negligible for a file of two megabytes.
        let file = wlan.file_throughput_bps(16e6, 2.0, BackoffModel::All).unwrap() / 1e6;
        assert!(file < mbps(2.0, BackoffModel::All) && file > 0.999 * mbps(2.0, BackoffModel::All), "{file}");
        assert!(wlan.throughput_bps(0.0, BackoffModel::All).is_err());
    }
}
