//! An XCP router (Katabi, Handley, Rohrs, "Congestion control for high bandwidth-delay product networks", SIGCOMM 2002), in the form of ISI's
//! specification (draft-falk-xcp-spec) and of ns-2's xcpq: what is handed out is a change of rate. It differs in that a round trip above a second
//! counts as what it is (they cut it off there, and satellites have more), and in that the timers of two routers are not set off at random.
//!
//! Rates are bytes/s, times seconds.

use crate::packet::{Packet, Protocol, bytes_of};
use link::Time;
use units::Span;

/// What is handed out of the spare rate in an interval, and against the queue: 0 < α < π/(4√2), β = α²√2.
const ALPHA: f64 = 0.4;
const BETA: f64 = 0.226;
/// What is taken from all and given back in equal parts, of what came.
const GAMMA: f64 = 0.1;
/// The interval while no round trip is known.
const FIRST_INTERVAL: f64 = 0.05;
/// No interval is shorter, nor is a queue looked at for a shorter time.
const LEAST_INTERVAL: f64 = 0.001;
const LEAST_LOOK: f64 = 0.002;

/// The state of a router.
#[derive(Debug)]
pub(crate) struct Xcp {
    capacity: f64,
    /// When the control interval ends, and how long it is.
    ends: Time,
    interval: f64,
    /// What came in it: bytes, and over the packets that tell a round trip the sum of their spacings, plain and times the round trip.
    input: f64,
    spacings: f64,
    weighted: f64,
    /// Mean round trip over flows in the last one.
    rtt: f64,
    /// Yet to be given and to be taken, bytes/s; how much for a second of spacing, and for a byte.
    gives: f64,
    takes: f64,
    per_spacing: f64,
    per_byte: f64,
    /// What waits; the least of it since the last look, before that, and when the next is.
    queued: u64,
    least: u64,
    persistent: u64,
    looks: Time,
}

impl Xcp {
    pub(super) fn new(capacity: f64) -> Self {
        Xcp {
            capacity,
            ends: Time(0) + span(FIRST_INTERVAL),
            interval: FIRST_INTERVAL,
            input: 0.0,
            spacings: 0.0,
            weighted: 0.0,
            rtt: FIRST_INTERVAL,
            gives: 0.0,
            takes: 0.0,
            per_spacing: 0.0,
            per_byte: 0.0,
            queued: 0,
            least: 0,
            persistent: 0,
            looks: Time(0) + span(LEAST_LOOK),
        }
    }

    pub(super) fn set_capacity(&mut self, now: Time, capacity: f64) {
        self.catch_up(now);
        self.capacity = capacity;
    }

    pub(super) fn comes(&mut self, now: Time, packet: &Packet) {
        self.catch_up(now);
        self.input += bytes_of(packet) as f64;
        if let Some((spacing, rtt)) = told_by(packet) {
            self.spacings += spacing;
            self.weighted += spacing * rtt;
        }
    }

    pub(super) fn holds(&mut self, queued: u64) {
        self.queued = queued;
    }

    /// Writes the packet's share of what is to be given and taken, unless it asks for less or was given less before.
    pub(super) fn leaves(&mut self, at: Time, packet: &mut Packet) {
        self.catch_up(at);
        self.least = self.least.min(self.queued);
        let Some((spacing, _)) = told_by(packet) else {
            // Nothing is known of it yet: it is not to act.
            if packet.header().is_some_and(|header| header.protocol == Protocol::Xcp) {
                packet.told = packet.told.min(0.0);
            }
            return;
        };
        let mut given = self.gives.min(self.per_spacing * spacing);
        let mut taken = self.takes.min(self.per_byte * bytes_of(packet) as f64);
        let (feedback, told) = (given - taken, f64::from(packet.told));
        if told >= feedback {
            packet.told = feedback as f32;
        } else {
            // It leaves some of its part to others, and counts for what is to be taken.
            taken = self.takes.min(taken + (feedback - told));
            given = (told + taken).max(0.0);
        }
        self.gives = (self.gives - given).max(0.0);
        self.takes = (self.takes - taken).max(0.0);
        if self.gives == 0.0 {
            self.per_spacing = 0.0;
        }
        if self.takes == 0.0 {
            self.per_byte = 0.0;
        }
    }

    /// Does what was due until `now`.
    fn catch_up(&mut self, now: Time) {
        loop {
            if self.looks <= now && self.looks <= self.ends {
                self.look();
            } else if self.ends <= now {
                self.conclude();
            } else {
                return;
            }
        }
    }

    /// The least queue of the time since the last look is what persists.
    fn look(&mut self) {
        self.persistent = self.least.min(self.queued);
        self.least = self.queued;
        let drains = self.queued as f64 / self.capacity;
        self.looks = self.looks + span(((self.rtt - drains) / 2.0).max(LEAST_LOOK));
    }

    /// A control interval is over.
    fn conclude(&mut self) {
        self.rtt = if self.spacings > 0.0 { self.weighted / self.spacings } else { FIRST_INTERVAL };
        let rate = self.input / self.interval;
        let spare = ALPHA * (self.capacity - rate) - BETA * self.persistent as f64 / self.rtt;
        let shuffled = (GAMMA * rate - spare.abs()).max(0.0);
        self.gives = shuffled + spare.max(0.0);
        self.takes = shuffled + (-spare).max(0.0);
        self.per_spacing = if self.spacings > 0.0 { self.gives / self.spacings } else { 0.0 };
        self.per_byte = if self.input > 0.0 { self.takes / self.input } else { 0.0 };
        (self.input, self.spacings, self.weighted) = (0.0, 0.0, 0.0);
        self.interval = self.rtt.max(LEAST_INTERVAL);
        self.ends = self.ends + span(self.interval);
    }
}

/// Spacing and round trip of a packet whose sender knows them.
fn told_by(packet: &Packet) -> Option<(f64, f64)> {
    let header = packet.header().filter(|header| header.protocol == Protocol::Xcp && header.rtt_us > 0)?;
    Some((header.spacing.into(), f64::from(header.rtt_us) / 1e6))
}

fn span(seconds: f64) -> Span {
    Span((seconds * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};

    /// A packet every millisecond for so many, of what the sender asks for; what was written into each.
    fn feed(router: &mut Xcp, from_ms: u64, count: u64, asks: f32) -> Vec<f64> {
        let one = |number: u64| {
            let now = Time((from_ms + number) * 1_000_000);
            let mut packet = data(Protocol::Xcp, number as u32, asks);
            router.comes(now, &packet);
            router.leaves(now, &mut packet);
            router.holds(0);
            packet.told.into()
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn what_is_spare_is_handed_out_by_a_part() {
        // 1.5 MB/s come to 3 MB/s. All say that their round trip is 100 ms, which the interval is from the second on.
        let mut router = Xcp::new(3e6);
        let told = feed(&mut router, 0, 1000, f32::MAX);
        assert!(told[..50].iter().all(|told| *told == 0.0), "nothing before the first interval is over");
        // A hundred packets an interval: the sum is α times the spare rate, in equal parts.
        let (sum, one) = (told[850..950].iter().sum::<f64>(), told[900]);
        assert!((sum - 0.4 * 1.5e6).abs() < 0.02 * sum, "{sum}");
        assert!((one * 100.0 - sum).abs() < 0.02 * sum, "{one}");
    }

    #[test]
    fn a_full_link_shuffles_and_a_queue_is_taken_back() {
        // As much as it carries: what is given is what is taken.
        let mut router = Xcp::new(1.5e6);
        let told = feed(&mut router, 0, 1000, f32::MAX);
        assert!(told[850..950].iter().sum::<f64>().abs() < 0.01 * 0.1 * 1.5e6);
        assert!((router.gives - router.takes).abs() < 1e-6 * 1.5e6 && router.per_byte > 0.0);
        // 75 kB, half a BDP, that never go away: β times that in a round trip.
        router.holds(75_000);
        let mut sum = 0.0;
        for number in 1000..1400u64 {
            let mut packet = data(Protocol::Xcp, number as u32, f32::MAX);
            router.comes(Time(number * 1_000_000), &packet);
            router.leaves(Time(number * 1_000_000), &mut packet);
            router.holds(75_000);
            sum += if number >= 1300 { f64::from(packet.told) } else { 0.0 };
        }
        let expected = -BETA * 75_000.0 / 0.1;
        assert!((sum - expected).abs() < 0.05 * expected.abs(), "{sum} {expected}");
    }

    #[test]
    fn the_least_of_a_queue_is_what_persists() {
        let mut router = Xcp::new(1.5e6);
        for number in 0..300u64 {
            let now = Time(number * 1_000_000);
            let mut packet = data(Protocol::Xcp, number as u32, f32::MAX);
            router.comes(now, &packet);
            router.leaves(now, &mut packet);
            // Empty every thirty milliseconds, which is less than half a round trip.
            router.holds(if number % 30 == 0 { 0 } else { 60_000 });
        }
        assert_eq!(router.persistent, 0);
    }

    #[test]
    fn a_word_is_only_lowered() {
        // The one before gave less.
        let mut router = Xcp::new(3e6);
        let told = feed(&mut router, 0, 500, -7.0);
        assert!(told.iter().all(|told| *told <= -7.0));
        assert!(told[300..].iter().all(|told| (told + 7.0).abs() < 1e-6), "there is more than enough here");
        // And who asks for nothing is given nothing, but taken from.
        let mut router = Xcp::new(0.75e6);
        let told = feed(&mut router, 0, 500, 0.0);
        assert!(told[300..].iter().all(|told| *told < 0.0));
    }

    #[test]
    fn no_more_is_handed_out_than_there_is() {
        let mut router = Xcp::new(3e6);
        feed(&mut router, 0, 1000, f32::MAX);
        // Ten times as many in the next interval.
        let mut sum = 0.0;
        for number in 0..1000u64 {
            let now = Time(1_050_500_000 + number * 50_000);
            let mut packet = data(Protocol::Xcp, 0, f32::MAX);
            router.comes(now, &packet);
            router.leaves(now, &mut packet);
            sum += f64::from(packet.told);
        }
        // Half of the last one nobody came.
        assert!(sum > 0.0 && sum <= 1.01 * 0.4 * 2.25e6, "{sum}");
    }

    #[test]
    fn who_knows_no_round_trip_is_told_nothing() {
        let mut router = Xcp::new(3e6);
        feed(&mut router, 0, 400, f32::MAX);
        let mut packet = data(Protocol::Xcp, 0, f32::MAX);
        let header = packet.header().unwrap();
        packet.set_header(crate::packet::Header { rtt_us: 0, ..header });
        router.leaves(Time(400_000_000), &mut packet);
        assert_eq!(packet.told, 0.0);
    }
}
