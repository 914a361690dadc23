//! Measurements of legs: what a worker adds when a flow ends and when it samples open flows, and
//! their sums over all workers, which the metrics show.
//!
//! Every measurement belongs to a leg (near or far) and its profile. The profiles' names are the
//! only labels that the operator chooses, and their number is bounded (`profiles`). A worker adds
//! to its own measurements without a lock; they are copied when metrics are read.

mod accounts;
mod histogram;
mod profiles;
mod samples;

pub(crate) use accounts::{ProfileUse, ProfileUses};
pub use histogram::Histogram;
pub(crate) use histogram::{Exemplar, FlowId};
pub(crate) use profiles::ProfileNumbers;
pub(crate) use samples::{FlowSamples, LegProgress};

use account::Account;
use intercept::sys::TcpInfo;
use relay::{Ending, FlowRecord, FlowStats, LegSide, ProfileId};
use serde::{Deserialize, Serialize};
use std::{
    io::ErrorKind,
    time::{Duration, Instant, SystemTime},
};
use units::Phase;

/// Bounds of times of a handshake and round-trip times, seconds.
pub(crate) const RTT_BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bounds of the duration of a flow, seconds.
pub(crate) const DURATION_BOUNDS: [f64; 12] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0];
/// Bounds of the throughput of a flow, bytes a second.
pub(crate) const THROUGHPUT_BOUNDS: [f64; 12] = [1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8, 1e9];
/// Bounds of the share of bytes that were retransmitted.
pub(crate) const SHARE_BOUNDS: [f64; 8] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0];
/// Bounds of the payload that the proxy holds, bytes.
pub(crate) const HELD_BOUNDS: [f64; 10] =
    [0.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 2_097_152.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];

/// Size classes of flows, by the payload of both directions together.
pub(crate) const SIZES: [(&str, u64); 5] =
    [("<10kB", 10_000), ("<100kB", 100_000), ("<1MB", 1_000_000), ("<10MB", 10_000_000), (">=10MB", u64::MAX)];
/// The phases, in the order of [`LegMeasurements::phase_s`].
pub(crate) const PHASES: [(&str, Phase); 3] =
    [("free", Phase::Free), ("starvation", Phase::Starvation), ("backpressure", Phase::Backpressure)];
/// What a leg's sender waited for, in the order of [`LegMeasurements::sending_s`].
pub(crate) const SENDING: [&str; 4] = ["idle", "path", "receiver", "buffer"];
/// A leg that has sent fewer bytes has no meaningful share of retransmissions.
const LEAST_FOR_SHARE: u64 = 10_000;

/// Why servers were not reached.
pub(crate) const FAILURES: [&str; 10] =
    ["refused", "timed_out", "unreachable", "no_route", "unresolved", "not_permitted", "no_port", "reset", "no_room", "other"];

/// The index in [`FAILURES`] of the failure to connect by which a flow ended; none: it was
/// connected, or ended before it was dialled.
fn failure(ending: Ending) -> Option<usize> {
    let name = match ending {
        Ending::FarNotReached(kind) => match kind {
            ErrorKind::ConnectionRefused => "refused",
            ErrorKind::TimedOut => "timed_out",
            ErrorKind::HostUnreachable => "unreachable",
            ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => "no_route",
            ErrorKind::NotFound => "unresolved",
            ErrorKind::PermissionDenied => "not_permitted",
            ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => "no_port",
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => "reset",
            ErrorKind::OutOfMemory => "no_room",
            _ => "other",
        },
        Ending::NoRoom => "no_room",
        _ => return None,
    };
    FAILURES.iter().position(|known| *known == name)
}

/// Measurements of the legs with one profile, on one side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LegMeasurements {
    /// `near` or `far`.
    pub leg: String,
    /// Name of the profile.
    pub profile: String,
    /// Times of handshakes, seconds.
    pub handshake: Histogram,
    /// Smoothed round-trip times at the end of each flow, seconds.
    pub rtt: Histogram,
    /// Share of the sent bytes that were retransmissions, at the end of each flow.
    pub retransmitted: Histogram,
    /// Payload that the proxy held for this leg to send, in samples of open flows, bytes.
    pub held: Histogram,
    /// Durations of flows, seconds, by size class.
    pub duration: [Histogram; SIZES.len()],
    /// Payload of both directions by the duration of the flow, bytes a second, by size class.
    pub throughput: [Histogram; SIZES.len()],
    /// Time that each flow's direction towards this leg spent in each phase, seconds.
    pub phase: [Histogram; PHASES.len()],
    /// The time in each phase, of open flows too, seconds.
    pub phase_s: [f64; PHASES.len()],
    /// What the leg's sender waited for, seconds.
    pub sending_s: [f64; SENDING.len()],
    /// The account of all data that this leg sent, of flows that were sampled.
    #[serde(default)]
    pub account: Account,
    /// Bytes sent, retransmissions included.
    pub sent_bytes: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Flows in which this leg waited for the window of its receiver.
    pub window_limited: u64,
    /// Connections that could not be made, by kind, in the order of the metric.
    pub failures: [u64; FAILURES.len()],
}

impl LegMeasurements {
    fn add(&mut self, other: &LegMeasurements) {
        self.handshake += &other.handshake;
        self.rtt += &other.rtt;
        self.retransmitted += &other.retransmitted;
        self.held += &other.held;
        let histograms = [&mut self.duration[..], &mut self.throughput, &mut self.phase].into_iter().flatten();
        let others = [&other.duration[..], &other.throughput, &other.phase].into_iter().flatten();
        histograms.zip(others).for_each(|(ours, theirs)| *ours += theirs);
        let times = self.phase_s.iter_mut().chain(&mut self.sending_s);
        times.zip(other.phase_s.iter().chain(&other.sending_s)).for_each(|(ours, theirs)| *ours += theirs);
        self.account.join(&other.account);
        self.sent_bytes += other.sent_bytes;
        self.retransmitted_bytes += other.retransmitted_bytes;
        self.window_limited += other.window_limited;
        self.failures.iter_mut().zip(other.failures).for_each(|(ours, theirs)| *ours += theirs);
    }

    /// Adds what a leg has sent, and waited for, since `counted`.
    fn add_progress(&mut self, now: &LegProgress, counted: &LegProgress) {
        self.sent_bytes += now.sent.saturating_sub(counted.sent);
        self.retransmitted_bytes += now.retransmitted.saturating_sub(counted.retransmitted);
        for ((sum, now), counted) in self.sending_s.iter_mut().zip(now.sending()).zip(counted.sending()) {
            *sum += now.saturating_sub(counted).as_secs_f64();
        }
    }
}

/// Measurements of all legs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// One for each side and profile of which there were legs.
    pub legs: Vec<LegMeasurements>,
}

impl Measurements {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.legs.is_empty()
    }
}

impl std::ops::AddAssign for Measurements {
    fn add_assign(&mut self, other: Measurements) {
        for theirs in other.legs {
            match self.legs.iter_mut().find(|ours| ours.leg == theirs.leg && ours.profile == theirs.profile) {
                Some(ours) => ours.add(&theirs),
                None => self.legs.push(theirs),
            }
        }
    }
}

/// The measurements of one worker.
#[derive(Debug)]
pub(crate) struct WorkerMeasurements {
    pub(crate) profiles: ProfileNumbers,
    legs: Vec<((LegSide, ProfileId), LegMeasurements)>,
    last_flow: FlowId,
    /// The same moment by both clocks.
    clock: (Instant, SystemTime),
}

impl WorkerMeasurements {
    /// For the worker with this number, and the profiles with these names.
    pub(crate) fn new(worker: usize, profiles: impl Iterator<Item = String>) -> Self {
        let clock = (Instant::now(), SystemTime::now());
        let unix = clock.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut numbers = ProfileNumbers::default();
        numbers.set(profiles);
        WorkerMeasurements { profiles: numbers, legs: Vec::new(), last_flow: FlowId::before_first(unix.as_secs(), worker), clock }
    }

    /// A copy with the names of the profiles.
    pub(crate) fn named(&self) -> Measurements {
        let legs =
            self.legs.iter().map(|((_, profile), leg)| LegMeasurements { profile: self.profiles.name(*profile).to_owned(), ..leg.clone() });
        // Two numbers may have one name: `bond` and a profile of that name.
        let mut all = Measurements::default();
        legs.for_each(|leg| all += Measurements { legs: vec![leg] });
        all
    }

    fn leg(&mut self, side: LegSide, profile: ProfileId) -> &mut LegMeasurements {
        let index = self.legs.iter().position(|(key, _)| *key == (side, profile)).unwrap_or_else(|| {
            let leg = if side == LegSide::Near { "near" } else { "far" };
            self.legs.push(((side, profile), LegMeasurements { leg: leg.into(), ..LegMeasurements::default() }));
            self.legs.len() - 1
        });
        &mut self.legs[index].1
    }

    /// Counts a server that was not reached because its name has no address.
    pub(crate) fn count_unresolved(&mut self) {
        self.count_failure(ProfileId::Unknown, Ending::FarNotReached(ErrorKind::NotFound));
    }

    fn count_failure(&mut self, profile: ProfileId, ending: Ending) {
        if let Some(failure) = failure(ending) {
            self.leg(LegSide::Far, profile).failures[failure] += 1;
        }
    }

    /// Adds a flow that has ended, and what was sampled of it; returns its number.
    pub(crate) fn add(&mut self, record: &FlowRecord, samples: Option<&FlowSamples>, now: Instant) -> FlowId {
        let flow = self.last_flow.next();
        self.last_flow = flow;
        let last = &record.last;
        let measured = &last.measured;
        let seen = Seen { flow, time_s: self.unix_s(now) };
        let reached = measured.handshakes[1].is_some() || last.up.moved + last.down.moved > 0 || record.ending == Ending::Finished;
        if !reached {
            self.count_failure(measured.profiles[1], record.ending);
        }
        let legs = [(LegSide::Near, &last.near, 1), (LegSide::Far, &last.far, 0)];
        for (side, info, towards) in legs {
            let index = usize::from(side == LegSide::Far);
            let profile = measured.profiles[index];
            // A leg that was never connected has only its handshake to measure.
            if profile == ProfileId::Unknown || (side == LegSide::Far && !reached) {
                continue;
            }
            let leg = self.leg(side, profile);
            if let Some(time) = measured.handshakes[index] {
                leg.handshake.observe(&RTT_BOUNDS, seen.value(time.as_secs_f64()));
            }
            leg.add_ended(last, info, seen, reached);
            let counted = samples.map(|samples| samples.counted[index]).unwrap_or_default();
            // What the sender of each connection of a bond waited for is not known.
            let age = if profile == ProfileId::Bond { Duration::ZERO } else { last.age };
            leg.add_progress(&LegProgress::of(info, age), &counted);
            let phases = &measured.phases[towards];
            if phases.total() > Duration::ZERO {
                for (histogram, (_, phase)) in leg.phase.iter_mut().zip(PHASES) {
                    histogram.observe(&DURATION_BOUNDS, seen.value(phases.of(phase).as_secs_f64()));
                }
            }
        }
        flow
    }

    /// Adds a sample of an open flow. `uses` has what is known of its legs' profiles.
    pub(crate) fn sample(&mut self, stats: &FlowStats, samples: &mut FlowSamples, uses: &ProfileUses, now: Instant) {
        let profiles = stats.measured.profiles;
        let since = samples.since(now);
        let progress = [LegProgress::of(&stats.near, stats.age), LegProgress::of(&stats.far, stats.age)];
        for (side, direction, source, towards) in [(LegSide::Far, &stats.up, &stats.near, 0), (LegSide::Near, &stats.down, &stats.far, 1)] {
            let index = usize::from(side == LegSide::Far);
            let (phase, held) = (direction.phase(source), direction.held().0);
            samples.add(towards, phase, since, held);
            let destination = if side == LegSide::Far { &stats.far } else { &stats.near };
            let leg = self.leg(side, profiles[index]);
            // The other direction has requests or acknowledgements: its sender has little to send.
            let is_main = direction.moved > 0 && direction.moved >= stats.up.moved.max(stats.down.moved);
            let all = is_main.then_some(&mut leg.account);
            samples.accounts[towards].add(direction, [source, destination], uses.of(profiles[index]), since, all);
            leg.held.add(&HELD_BOUNDS, held as f64);
            for (sum, (_, known)) in leg.phase_s.iter_mut().zip(PHASES) {
                if known == phase {
                    *sum += since.as_secs_f64();
                }
            }
            leg.add_progress(&progress[index], &samples.counted[index]);
        }
        samples.counted = progress;
    }

    fn unix_s(&self, now: Instant) -> f64 {
        let at = self.clock.1 + now.saturating_duration_since(self.clock.0);
        at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}

/// The flow of an observation, and its time.
#[derive(Debug, Clone, Copy)]
struct Seen {
    flow: FlowId,
    time_s: f64,
}

impl Seen {
    fn value(self, value: f64) -> Exemplar {
        Exemplar { value, flow: self.flow, time_s: self.time_s }
    }
}

impl LegMeasurements {
    /// Adds the last state of a flow's leg. Duration and throughput only if the server was
    /// `reached`.
    fn add_ended(&mut self, last: &FlowStats, info: &TcpInfo, seen: Seen, reached: bool) {
        if info.rtt_us > 0 {
            self.rtt.observe(&RTT_BOUNDS, seen.value(f64::from(info.rtt_us) / 1e6));
        }
        if info.bytes_sent >= LEAST_FOR_SHARE {
            self.retransmitted.observe(&SHARE_BOUNDS, seen.value(info.bytes_retrans as f64 / info.bytes_sent as f64));
        }
        self.window_limited += u64::from(info.rwnd_limited_us > 0);
        if reached {
            let bytes = last.up.moved + last.down.moved;
            let size = SIZES.iter().position(|(_, bound)| bytes < *bound).unwrap_or(SIZES.len() - 1);
            let seconds = last.age.as_secs_f64();
            self.duration[size].observe(&DURATION_BOUNDS, seen.value(seconds));
            if seconds > 0.0 {
                self.throughput[size].observe(&THROUGHPUT_BOUNDS, seen.value(bytes as f64 / seconds));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::{DirectionStats, FlowMeasurements};

    fn measurements() -> WorkerMeasurements {
        WorkerMeasurements::new(0, ["near leg", "far leg", "sat"].into_iter().map(str::to_owned))
    }

    fn record(ending: Ending, moved: u64, handshake: Option<u64>) -> FlowRecord {
        let address = "192.0.2.1:80".parse().unwrap();
        let mut last = FlowStats::unbegun(address, address);
        last.age = Duration::from_secs(2);
        last.far = TcpInfo { rtt_us: 600_000, bytes_sent: 20_000, bytes_retrans: 500, busy_time_us: 1_500_000, ..TcpInfo::default() };
        last.far.rwnd_limited_us = 400_000;
        last.down.moved = moved;
        let handshakes = [None, handshake.map(Duration::from_millis)];
        last.measured =
            FlowMeasurements { profiles: [ProfileId::Number(0), ProfileId::Number(2)], handshakes, ..FlowMeasurements::default() };
        FlowRecord { last, ending }
    }

    #[test]
    fn a_flow_is_measured_on_both_legs() {
        let mut worker = measurements();
        let flow = worker.add(&record(Ending::Finished, 50_000, Some(610)), None, Instant::now());
        let all = worker.named();
        let names: Vec<_> = all.legs.iter().map(|leg| (leg.leg.as_str(), leg.profile.as_str())).collect();
        assert_eq!(names, [("near", "near"), ("far", "sat")]);
        let far = &all.legs[1];
        assert_eq!((far.handshake.count(), far.handshake.sum), (1, 0.61));
        assert_eq!((far.rtt.sum, far.retransmitted.sum), (0.6, 0.025));
        assert_eq!((far.duration[1].sum, far.throughput[1].sum), (2.0, 25_000.0));
        assert_eq!((far.sent_bytes, far.retransmitted_bytes, far.window_limited), (20_000, 500, 1));
        assert_eq!(far.sending_s, [0.5, 1.1, 0.4, 0.0]);
        assert_eq!(far.failures.iter().sum::<u64>(), 0);
        let exemplar = far.rtt.exemplars.iter().flatten().next().unwrap();
        assert_eq!((exemplar.flow, exemplar.value), (flow, 0.6));
        // Nothing is known of the near leg but that the flow had it.
        assert_eq!((all.legs[0].rtt.count(), all.legs[0].duration[1].count()), (0, 1));
    }

    #[test]
    fn failures_to_connect_are_counted_by_kind() {
        let mut worker = measurements();
        for (kind, name) in [
            (ErrorKind::ConnectionRefused, "refused"),
            (ErrorKind::TimedOut, "timed_out"),
            (ErrorKind::HostUnreachable, "unreachable"),
            (ErrorKind::NetworkUnreachable, "no_route"),
            (ErrorKind::PermissionDenied, "not_permitted"),
            (ErrorKind::AddrNotAvailable, "no_port"),
            (ErrorKind::InvalidInput, "other"),
        ] {
            worker.add(&record(Ending::FarNotReached(kind), 0, None), None, Instant::now());
            let far = worker.named().legs.into_iter().find(|leg| leg.leg == "far").unwrap();
            let index = FAILURES.iter().position(|known| *known == name).unwrap();
            assert_eq!((far.profile.as_str(), far.failures[index]), ("sat", 1), "{name}");
            assert!(far.handshake.is_empty() && far.duration.iter().all(Histogram::is_empty) && far.rtt.is_empty());
        }
        worker.add(&record(Ending::NoRoom, 0, None), None, Instant::now());
        // Descriptors ran out later: the server had been reached.
        worker.add(&record(Ending::NoRoom, 10, Some(1)), None, Instant::now());
        worker.count_unresolved();
        let all = worker.named();
        let of = |profile: &str, name: &str| {
            let leg = all.legs.iter().find(|leg| leg.leg == "far" && leg.profile == profile).unwrap();
            leg.failures[FAILURES.iter().position(|known| *known == name).unwrap()]
        };
        assert_eq!((of("sat", "no_room"), of("unknown", "unresolved")), (1, 1));
    }

    #[test]
    fn samples_count_once_what_the_end_counts_too() {
        let mut worker = measurements();
        let begun = Instant::now();
        let mut samples = FlowSamples::new(begun, Duration::from_millis(10));
        let mut flow = record(Ending::Finished, 0, Some(10));
        // It has data for the far leg, which is slower.
        flow.last.up = DirectionStats { in_hand: 100_000, ..DirectionStats::default() };
        flow.last.near.rcv_wnd = 100_000;
        flow.last.far.bytes_sent = 15_000;
        worker.sample(&flow.last, &mut samples, &ProfileUses::default(), begun + Duration::from_secs(1));
        flow.last.near.rcv_wnd = 0;
        flow.last.near.rcv_mss = 1000;
        worker.sample(&flow.last, &mut samples, &ProfileUses::default(), begun + Duration::from_secs(3));
        flow.last.far.bytes_sent = 20_000;
        flow.last.measured.phases = samples.phases;
        worker.add(&flow, Some(&samples), begun + Duration::from_secs(3));
        let far = worker.named().legs.into_iter().find(|leg| leg.leg == "far").unwrap();
        assert_eq!(far.phase_s, [1.0, 0.0, 2.0]);
        assert_eq!((far.held.count(), far.held.sum), (2, 200_000.0));
        assert_eq!((far.sent_bytes, far.retransmitted_bytes), (20_000, 500));
        assert_eq!(far.sending_s, [0.5, 1.1, 0.4, 0.0]);
        assert_eq!(far.phase.each_ref().map(|histogram| histogram.sum), [1.0, 0.0, 2.0]);
        assert_eq!(samples.most_held, [100_000, 0]);
    }

    #[test]
    fn measurements_of_workers_add_up() {
        let [mut one, mut other] = [measurements(), measurements()];
        one.add(&record(Ending::Finished, 50_000, Some(10)), None, Instant::now());
        other.add(&record(Ending::Finished, 50_000, Some(20)), None, Instant::now());
        other.add(&record(Ending::FarNotReached(ErrorKind::TimedOut), 0, None), None, Instant::now());
        let mut all = one.named();
        all += other.named();
        assert_eq!(all.legs.len(), 2);
        let far = &all.legs[1];
        assert_eq!((far.handshake.count(), far.duration[1].count(), far.sent_bytes), (2, 2, 40_000));
        assert_eq!(far.failures.iter().sum::<u64>(), 1);
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Measurements>(&json).unwrap(), all);
    }
}
