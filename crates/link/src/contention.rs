//! Contention for an IEEE 802.11b network: the distributed coordination function of two stations.
//!
//! A station with a frame counts down a backoff, a uniform number of slots up to its contention
//! window, while the network has been idle for a DIFS. Frames whose backoffs end together collide:
//! both windows double, and the next backoff begins after an EIFS instead of a DIFS. After each
//! frame a station counts down another backoff, also without a next frame (IEEE 802.11-2012
//! section 9.3.4). A frame that arrives after that, on a network that has been idle for a DIFS, is
//! sent at once.
//!
//! Not modelled: frames given up after several collisions (with two stations one in 10⁸), rate
//! adaptation, RTS and CTS, further stations.

use crate::time::Time;
use rand::RngExt as _;
use rand_pcg::Pcg64;
use units::Span;

/// Parameters as in Table IV of Hoekstra, van der Mei and Bosman 2011: 11 Mbit/s, long preamble.
const BIT_RATE: u64 = 11_000_000;
const PHY_HEADER: Span = Span(192_000);
const MAC_HEADER_BYTES: u64 = 28;
const MAC_ACK_BYTES: u64 = 14;
const PROPAGATION: Span = Span(1_000);
const SLOT: Span = Span(20_000);
const SIFS: Span = Span(10_000);
const DIFS: Span = Span(50_000);
const EIFS: Span = Span(364_000);
const LEAST_WINDOW: u32 = 31;
/// Not in the table; the standard's value.
const LARGEST_WINDOW: u32 = 1023;

/// What contention depends on besides the backoffs.
#[derive(Debug)]
pub(crate) struct Contention {
    random: Pcg64,
    windows: [u32; 2],
    /// The interframe space before the next countdown.
    space: Span,
}

/// Slots that are left of a station's backoff; `None` if it has none.
pub(crate) type Backoff = Option<u32>;

impl Contention {
    pub(crate) fn new(random: Pcg64) -> Self {
        Contention { random, windows: [LEAST_WINDOW; 2], space: DIFS }
    }

    /// How long a frame of `bytes`, IP header included, is on the air.
    pub(crate) fn air_time(bytes: u32) -> Span {
        PHY_HEADER + bit_time(MAC_HEADER_BYTES + u64::from(bytes))
    }

    /// How long the network is occupied after a frame, until the end of its MAC acknowledgement.
    pub(crate) fn acknowledgement_time() -> Span {
        SIFS + PHY_HEADER + bit_time(MAC_ACK_BYTES) + PROPAGATION * 2
    }

    /// When a backoff ends, on a network that has been idle since `idle_since` and stays so.
    pub(crate) fn backoff_end(&self, slots: u32, idle_since: Time) -> Time {
        idle_since + self.space + SLOT * u64::from(slots)
    }

    /// The backoff of a station to which a frame came at `now` while it had none. `idle_since` is
    /// since when the network has been idle, if it is.
    pub(crate) fn backoff_on_arrival(&mut self, station: usize, backoff: Backoff, idle_since: Option<Time>, now: Time) -> Backoff {
        match (backoff, idle_since) {
            (Some(slots), Some(idle_since)) if self.backoff_end(slots, idle_since) <= now => None,
            (Some(slots), _) => Some(slots),
            (None, Some(idle_since)) if idle_since + self.space <= now => None,
            (None, _) => self.draw(station),
        }
    }

    /// The rest of a backoff that the other station's frame interrupts at `at`.
    pub(crate) fn interrupted(&self, backoff: Backoff, idle_since: Time, at: Time) -> Backoff {
        let begins = idle_since + self.space;
        let counted = if at > begins { (at - begins).0 / SLOT.0 } else { 0 };
        let left = u64::from(backoff?).checked_sub(counted)?;
        (left > 0 || counted == 0).then_some(left as u32)
    }

    /// A frame of `station` has arrived; returns its next backoff.
    pub(crate) fn succeeded(&mut self, station: usize) -> Backoff {
        self.space = DIFS;
        self.windows[station] = LEAST_WINDOW;
        self.draw(station)
    }

    /// The frames of both stations have collided; returns their next backoffs.
    pub(crate) fn collided(&mut self) -> [Backoff; 2] {
        self.space = EIFS;
        self.windows = self.windows.map(|window| (2 * window + 1).min(LARGEST_WINDOW));
        [self.draw(0), self.draw(1)]
    }

    fn draw(&mut self, station: usize) -> Backoff {
        Some(self.random.random_range(0..=self.windows[station]))
    }
}

/// How long so many bytes take at the network's bit rate.
fn bit_time(bytes: u64) -> Span {
    Span(bytes * 8 * 1_000_000_000 / BIT_RATE)
}
