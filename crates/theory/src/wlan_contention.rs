//! Contention for an IEEE 802.11b network in a download (Hoekstra, van der Mei and Bosman 2011,
//! Table IV): two stations of the distributed coordination function, frame by frame.
//!
//! The access point sends the segments of a TCP window, the client its acknowledgements. Each
//! station with a frame counts down a backoff, uniform from 0 to its contention window, while the
//! network is idle for a DIFS. If both reach zero in the same slot, the frames collide: the window
//! of both doubles, and the next backoff begins after an EIFS instead of a DIFS. Behind each frame
//! a station counts down another backoff, also without a next frame (post-backoff, IEEE 802.11
//! §9.3.4 of 2012).

use crate::{
    error::{TheoryError, positive},
    estimate::Mean,
    wlan::Wlan,
};
use outcome::half_width;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Batches of a download, long enough to be nearly independent.
const BATCHES: usize = 20;

/// What a long download gets of a network for which both stations contend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContendedDownload {
    /// Payload throughput, bit/s.
    pub throughput_bps: Mean,
    /// Collisions for each segment that arrives.
    pub collisions: Mean,
}

impl Wlan {
    /// A download with a window of `window` segments and one TCP acknowledgement per `segments` of
    /// them, over `frames` segments.
    ///
    /// # Errors
    /// When `segments` or `frames` is 0, or the window is smaller than `segments`, so that nobody
    /// would send.
    pub fn contended_download(&self, window: u32, segments: u32, frames: u32, seed: u64) -> Result<ContendedDownload, TheoryError> {
        positive("the number of segments for an acknowledgement", f64::from(segments))?;
        positive("the number of segments", f64::from(frames))?;
        positive("the window less the segments that are not acknowledged at once", f64::from(window) - f64::from(segments) + 1.0)?;
        let mut contention = Contention::new(self, window, segments, seed);
        let each = (frames as usize / BATCHES).max(1);
        let (mut rates, mut collisions) = (Vec::new(), Vec::new());
        for _ in 0..BATCHES {
            let (begun, collided) = (contention.now_s, contention.collisions);
            contention.carry(each);
            rates.push(each as f64 * self.mss_bits / (contention.now_s - begun));
            collisions.push((contention.collisions - collided) as f64 / each as f64);
        }
        Ok(ContendedDownload { throughput_bps: mean(&rates), collisions: mean(&collisions) })
    }
}

fn mean(values: &[f64]) -> Mean {
    Mean { mean: values.iter().sum::<f64>() / values.len() as f64, half: half_width(values) }
}

#[derive(Debug, Clone, Copy)]
struct Station {
    /// Frames that wait.
    frames: u32,
    /// Time of one on the air, s.
    frame_s: f64,
    /// Contention window, slots.
    window: u32,
    /// Slots that are left of the backoff; none if it has ended and no frame waits.
    backoff: Option<u32>,
}

#[derive(Debug)]
struct Contention<'a> {
    wlan: &'a Wlan,
    /// The access point and the client.
    stations: [Station; 2],
    /// Segments for an acknowledgement, and those that have none yet.
    segments: u32,
    unacknowledged: u32,
    now_s: f64,
    /// The interframe space before the next backoff, s.
    space_s: f64,
    collisions: u64,
    random: Pcg64Mcg,
}

impl<'a> Contention<'a> {
    fn new(wlan: &'a Wlan, window: u32, segments: u32, seed: u64) -> Self {
        let station =
            |frames, payload_bits| Station { frames, frame_s: wlan.air_s(payload_bits), window: wlan.cw_min as u32, backoff: None };
        let stations = [station(window, wlan.mss_bits), station(0, 0.0)];
        let random = Pcg64Mcg::seed_from_u64(seed);
        Contention { wlan, stations, segments, unacknowledged: 0, now_s: 0.0, space_s: wlan.difs_s, collisions: 0, random }
    }

    /// Until this many segments have arrived.
    fn carry(&mut self, segments: usize) {
        let mut left = segments;
        while left > 0 {
            match self.next_senders() {
                [true, true] => self.collide(),
                [true, false] => {
                    self.send(0);
                    self.unacknowledged += 1;
                    left -= 1;
                    if self.unacknowledged == self.segments {
                        self.unacknowledged = 0;
                        self.stations[1].frames += 1;
                    }
                }
                _ => {
                    self.send(1);
                    self.stations[0].frames += self.segments;
                }
            }
        }
    }

    /// Lets the backoffs run until one ends, and returns whose has ended.
    fn next_senders(&mut self) -> [bool; 2] {
        for station in &mut self.stations {
            if station.frames > 0 && station.backoff.is_none() {
                station.backoff = Some(self.random.random_range(0..=station.window));
            }
        }
        let waits = |station: &Station| if station.frames > 0 { station.backoff } else { None };
        let slots = self.stations.iter().filter_map(waits).min().expect("a window of segments circulates");
        self.now_s += self.space_s + f64::from(slots) * self.wlan.slot_s;
        self.space_s = self.wlan.difs_s;
        let ends = [0, 1].map(|at| waits(&self.stations[at]) == Some(slots));
        for station in &mut self.stations {
            let left = station.backoff.and_then(|backoff| backoff.checked_sub(slots));
            // Without a frame, the backoff ends by itself.
            station.backoff = left.filter(|left| *left > 0 || station.frames > 0);
        }
        ends
    }

    fn collide(&mut self) {
        self.now_s += self.stations[0].frame_s.max(self.stations[1].frame_s) + self.wlan.delta_s;
        self.space_s = self.wlan.eifs_s;
        self.collisions += 1;
        for station in &mut self.stations {
            station.window = (2 * station.window + 1).min(self.wlan.cw_max as u32);
            station.backoff = None;
        }
    }

    /// A frame arrives and is acknowledged by the MAC.
    fn send(&mut self, station: usize) {
        let station = &mut self.stations[station];
        self.now_s += station.frame_s + self.wlan.mac_ack_s();
        station.frames -= 1;
        station.window = self.wlan.cw_min as u32;
        station.backoff = Some(self.random.random_range(0..=station.window));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbps(wlan: &Wlan, window: u32, segments: u32) -> Mean {
        let Mean { mean, half } = wlan.contended_download(window, segments, 200_000, 1).unwrap().throughput_bps;
        Mean { mean: mean / 1e6, half: half / 1e6 }
    }

    #[test]
    fn a_station_alone_waits_half_a_window() {
        // No acknowledgement within the download: only the access point sends.
        let wlan = Wlan::table_4();
        let alone = mbps(&wlan, u32::MAX, 1_000_000);
        let right = wlan.mss_bits / (wlan.segment_s() + wlan.backoff_s()) / 1e6;
        assert!((alone.mean - right).abs() < 2.0 * alone.half.max(0.001), "{alone:?}, {right}");
    }

    #[test]
    fn contention_is_between_the_extremes_and_near_the_papers_throughput() {
        let wlan = Wlan::table_4();
        // 8760 bytes are six segments.
        let delayed = mbps(&wlan, 6, 2);
        assert!((5.11..5.48).contains(&delayed.mean), "{delayed:?}");
        assert!((delayed.mean / 5.28 - 1.0).abs() < 0.012, "{delayed:?}");
        let each = mbps(&wlan, 6, 1);
        assert!((4.34..4.90).contains(&each.mean), "{each:?}");
    }

    #[test]
    fn collisions_cost_an_eifs() {
        let wlan = Wlan::table_4();
        let costly = Wlan { eifs_s: 10.0 * wlan.eifs_s, ..wlan };
        let [cheap, dear] = [wlan, costly].map(|wlan| wlan.contended_download(6, 2, 200_000, 1).unwrap());
        assert!((cheap.collisions.mean - dear.collisions.mean).abs() < 1e-9, "the same backoffs");
        let extra = |seen: &ContendedDownload| wlan.mss_bits / seen.throughput_bps.mean;
        let right = cheap.collisions.mean * 9.0 * wlan.eifs_s;
        assert!((extra(&dear) - extra(&cheap) - right).abs() < 0.01 * right, "{cheap:?} {dear:?}");
        assert!((0.02..0.035).contains(&cheap.collisions.mean), "{cheap:?}");
    }

    #[test]
    fn nobody_would_send() {
        for (window, segments, frames) in [(1, 2, 10), (6, 0, 10), (6, 2, 0)] {
            assert!(Wlan::table_4().contended_download(window, segments, frames, 1).is_err(), "{window} {segments} {frames}");
        }
    }
}
