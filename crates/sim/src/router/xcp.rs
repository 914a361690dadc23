//! An XCP router (Katabi, Handley, Rohrs, "Congestion control for high bandwidth-delay product
//! networks", SIGCOMM 2002), in the form of ISI's specification (draft-falk-xcp-spec) and of ns-2's
//! xcpq, where the feedback is a change of rate. It differs in two ways: RTTs above a second count
//! as they are (the others cut them off, and satellite paths have more), and the timers of
//! different routers do not start at random times.
//!
//! Rates are in bytes/s, times in seconds.

use crate::packet::{RouterProtocol, SimPacket, wire_bytes_of};
use link::Time;
use units::Span;

/// α: the share of the spare rate that is granted in an interval; 0 < α < π/(4√2).
const ALPHA: f64 = 0.4;
/// β: the share of the persistent queue that is drained in an interval; β = α²√2.
const BETA: f64 = 0.226;
/// γ: the share of the input rate that is redistributed among flows.
const GAMMA: f64 = 0.1;
/// The interval before an RTT is known, s.
const INITIAL_INTERVAL: f64 = 0.05;
/// The shortest control interval, s.
const MIN_INTERVAL: f64 = 0.001;
/// The shortest interval over which the minimum of the queue is taken, s.
const MIN_QUEUE_INTERVAL: f64 = 0.002;

/// An XCP router.
#[derive(Debug)]
pub(crate) struct XcpRouter {
    capacity: f64,
    /// End and length of the control interval.
    interval_end: Time,
    interval: f64,
    /// Bytes that arrived in the interval.
    input: f64,
    /// Sum of the spacings of packets that report an RTT, and sum of spacing times RTT.
    spacing_sum: f64,
    rtt_spacing_sum: f64,
    /// Mean RTT over flows in the last interval.
    mean_rtt: f64,
    /// Changes of rate that are still to be granted and withdrawn in the interval.
    to_grant: f64,
    to_withdraw: f64,
    /// The grant per second of spacing, and the withdrawal per byte.
    grant_per_spacing: f64,
    withdraw_per_byte: f64,
    /// The queue now, bytes.
    queued: u64,
    /// The minimum of the queue in the current queue interval, and in the last one: the persistent
    /// queue, bytes.
    min_queue: u64,
    persistent_queue: u64,
    queue_interval_end: Time,
}

impl XcpRouter {
    pub(super) fn new(capacity: f64) -> Self {
        XcpRouter {
            capacity,
            interval_end: Time(0) + span(INITIAL_INTERVAL),
            interval: INITIAL_INTERVAL,
            input: 0.0,
            spacing_sum: 0.0,
            rtt_spacing_sum: 0.0,
            mean_rtt: INITIAL_INTERVAL,
            to_grant: 0.0,
            to_withdraw: 0.0,
            grant_per_spacing: 0.0,
            withdraw_per_byte: 0.0,
            queued: 0,
            min_queue: 0,
            persistent_queue: 0,
            queue_interval_end: Time(0) + span(MIN_QUEUE_INTERVAL),
        }
    }

    pub(super) fn set_capacity(&mut self, now: Time, capacity: f64) {
        self.run_timers(now);
        self.capacity = capacity;
    }

    pub(super) fn packet_arrived(&mut self, now: Time, packet: &SimPacket) {
        self.run_timers(now);
        self.input += wire_bytes_of(packet) as f64;
        if let Some((spacing, rtt)) = spacing_and_rtt(packet) {
            self.spacing_sum += spacing;
            self.rtt_spacing_sum += spacing * rtt;
        }
    }

    pub(super) fn queue_changed(&mut self, queued: u64) {
        self.queued = queued;
    }

    /// Writes the packet's share of grant and withdrawal, unless the packet requests less or was
    /// granted less before.
    pub(super) fn packet_departed(&mut self, at: Time, packet: &mut SimPacket) {
        self.run_timers(at);
        self.min_queue = self.min_queue.min(self.queued);
        let Some((spacing, _)) = spacing_and_rtt(packet) else {
            // A sender without an RTT estimate must not increase its rate.
            if packet.congestion_header().is_some_and(|header| header.protocol == RouterProtocol::Xcp) {
                packet.feedback = packet.feedback.min(0.0);
            }
            return;
        };
        let mut granted = self.to_grant.min(self.grant_per_spacing * spacing);
        let mut withdrawn = self.to_withdraw.min(self.withdraw_per_byte * wire_bytes_of(packet) as f64);
        let own_feedback = granted - withdrawn;
        let feedback = f64::from(packet.feedback);
        if feedback >= own_feedback {
            packet.feedback = own_feedback as f32;
        } else {
            // What the packet does not take of its share counts as withdrawn, and is left to
            // others.
            withdrawn = self.to_withdraw.min(withdrawn + (own_feedback - feedback));
            granted = (feedback + withdrawn).max(0.0);
        }
        self.to_grant = (self.to_grant - granted).max(0.0);
        self.to_withdraw = (self.to_withdraw - withdrawn).max(0.0);
        if self.to_grant == 0.0 {
            self.grant_per_spacing = 0.0;
        }
        if self.to_withdraw == 0.0 {
            self.withdraw_per_byte = 0.0;
        }
    }

    /// Runs the timers that are due by `now`.
    fn run_timers(&mut self, now: Time) {
        loop {
            if self.queue_interval_end <= now && self.queue_interval_end <= self.interval_end {
                self.end_queue_interval();
            } else if self.interval_end <= now {
                self.end_interval();
            } else {
                return;
            }
        }
    }

    /// Takes the minimum of the queue over the interval as the persistent queue.
    fn end_queue_interval(&mut self) {
        self.persistent_queue = self.min_queue.min(self.queued);
        self.min_queue = self.queued;
        let drain_time = self.queued as f64 / self.capacity;
        let interval = ((self.mean_rtt - drain_time) / 2.0).max(MIN_QUEUE_INTERVAL);
        self.queue_interval_end = self.queue_interval_end + span(interval);
    }

    /// Computes what is granted and withdrawn in the next control interval.
    fn end_interval(&mut self) {
        self.mean_rtt = if self.spacing_sum > 0.0 { self.rtt_spacing_sum / self.spacing_sum } else { INITIAL_INTERVAL };
        let input_rate = self.input / self.interval;
        let aggregate = ALPHA * (self.capacity - input_rate) - BETA * self.persistent_queue as f64 / self.mean_rtt;
        let shuffled = (GAMMA * input_rate - aggregate.abs()).max(0.0);
        self.to_grant = shuffled + aggregate.max(0.0);
        self.to_withdraw = shuffled + (-aggregate).max(0.0);
        self.grant_per_spacing = if self.spacing_sum > 0.0 { self.to_grant / self.spacing_sum } else { 0.0 };
        self.withdraw_per_byte = if self.input > 0.0 { self.to_withdraw / self.input } else { 0.0 };
        self.input = 0.0;
        self.spacing_sum = 0.0;
        self.rtt_spacing_sum = 0.0;
        self.interval = self.mean_rtt.max(MIN_INTERVAL);
        self.interval_end = self.interval_end + span(self.interval);
    }
}

/// Packet spacing and RTT of an XCP packet whose sender has an RTT estimate, s.
fn spacing_and_rtt(packet: &SimPacket) -> Option<(f64, f64)> {
    let header = packet.congestion_header().filter(|header| header.protocol == RouterProtocol::Xcp && header.rtt_us > 0)?;
    Some((header.spacing.into(), f64::from(header.rtt_us) / 1e6))
}

fn span(seconds: f64) -> Span {
    Span((seconds * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};

    /// Passes `count` packets, one each millisecond, that request `request`; returns the feedback
    /// of each.
    fn feed(router: &mut XcpRouter, from_ms: u64, count: u64, request: f32) -> Vec<f64> {
        let one = |number: u64| {
            let now = Time((from_ms + number) * 1_000_000);
            let mut packet = data(RouterProtocol::Xcp, number as u32, request);
            router.packet_arrived(now, &packet);
            router.packet_departed(now, &mut packet);
            router.queue_changed(0);
            packet.feedback.into()
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn a_share_of_the_spare_rate_is_granted() {
        // 1.5 MB/s arrive at 3 MB/s. All packets report an RTT of 100 ms, which is the interval
        // from the second one on.
        let mut router = XcpRouter::new(3e6);
        let told = feed(&mut router, 0, 1000, f32::MAX);
        assert!(told[..50].iter().all(|told| *told == 0.0), "nothing before the end of the first interval");
        // 100 packets an interval: the sum is α times the spare rate, in equal parts.
        let (sum, one) = (told[850..950].iter().sum::<f64>(), told[900]);
        assert!((sum - 0.4 * 1.5e6).abs() < 0.02 * sum, "{sum}");
        assert!((one * 100.0 - sum).abs() < 0.02 * sum, "{one}");
    }

    #[test]
    fn a_full_link_shuffles_and_a_queue_is_drained() {
        // As much as the capacity: what is granted equals what is withdrawn.
        let mut router = XcpRouter::new(1.5e6);
        let told = feed(&mut router, 0, 1000, f32::MAX);
        assert!(told[850..950].iter().sum::<f64>().abs() < 0.01 * 0.1 * 1.5e6);
        assert!((router.to_grant - router.to_withdraw).abs() < 1e-6 * 1.5e6 && router.withdraw_per_byte > 0.0);
        // A persistent queue of 75 kB, half a BDP: β times that is withdrawn in an RTT.
        router.queue_changed(75_000);
        let mut sum = 0.0;
        for number in 1000..1400u64 {
            let mut packet = data(RouterProtocol::Xcp, number as u32, f32::MAX);
            router.packet_arrived(Time(number * 1_000_000), &packet);
            router.packet_departed(Time(number * 1_000_000), &mut packet);
            router.queue_changed(75_000);
            sum += if number >= 1300 { f64::from(packet.feedback) } else { 0.0 };
        }
        let expected = -BETA * 75_000.0 / 0.1;
        assert!((sum - expected).abs() < 0.05 * expected.abs(), "{sum} {expected}");
    }

    #[test]
    fn the_persistent_queue_is_the_minimum() {
        let mut router = XcpRouter::new(1.5e6);
        for number in 0..300u64 {
            let now = Time(number * 1_000_000);
            let mut packet = data(RouterProtocol::Xcp, number as u32, f32::MAX);
            router.packet_arrived(now, &packet);
            router.packet_departed(now, &mut packet);
            // Empty every 30 ms, which is less than half an RTT.
            router.queue_changed(if number % 30 == 0 { 0 } else { 60_000 });
        }
        assert_eq!(router.persistent_queue, 0);
    }

    #[test]
    fn feedback_is_only_lowered() {
        // A router before has granted less.
        let mut router = XcpRouter::new(3e6);
        let told = feed(&mut router, 0, 500, -7.0);
        assert!(told.iter().all(|told| *told <= -7.0));
        assert!(told[300..].iter().all(|told| (told + 7.0).abs() < 1e-6), "this router would grant more");
        // A packet that requests nothing is granted nothing, but may be lowered.
        let mut router = XcpRouter::new(0.75e6);
        let told = feed(&mut router, 0, 500, 0.0);
        assert!(told[300..].iter().all(|told| *told < 0.0));
    }

    #[test]
    fn no_more_is_granted_than_available() {
        let mut router = XcpRouter::new(3e6);
        feed(&mut router, 0, 1000, f32::MAX);
        // Ten times as many packets in the next interval.
        let mut sum = 0.0;
        for number in 0..1000u64 {
            let now = Time(1_050_500_000 + number * 50_000);
            let mut packet = data(RouterProtocol::Xcp, 0, f32::MAX);
            router.packet_arrived(now, &packet);
            router.packet_departed(now, &mut packet);
            sum += f64::from(packet.feedback);
        }
        // No packet arrived in half of the last interval.
        assert!(sum > 0.0 && sum <= 1.01 * 0.4 * 2.25e6, "{sum}");
    }

    #[test]
    fn a_packet_without_an_rtt_gets_no_feedback() {
        let mut router = XcpRouter::new(3e6);
        feed(&mut router, 0, 400, f32::MAX);
        let mut packet = data(RouterProtocol::Xcp, 0, f32::MAX);
        let header = packet.congestion_header().unwrap();
        packet.set_congestion_header(crate::packet::CongestionHeader { rtt_us: 0, ..header });
        router.packet_departed(Time(400_000_000), &mut packet);
        assert_eq!(packet.feedback, 0.0);
    }
}
