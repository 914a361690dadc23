//! The law by which B of a direction follows what is measured (`buffer = "auto"`). Pure: the caller
//! passes the time and the measurements, and applies the result.
//!
//! B is the window of the source's leg, and it bridges times in which one leg is slower than the
//! other. Two rules increase B for these purposes, one is a minimum against the proxy's own
//! latency, and two reduce B.
//!
//! - **The window of the source's leg** ([`WINDOWS`]). The source sends at most one window in each
//!   of its round trips. So the window must be twice what the flow carries in a round trip, and
//!   more while that still grows or packets come out of order. This resembles the kernel's own
//!   receive autotuning, except that it counts what *leaves*, and only while the destination
//!   starves: where a queue stands, the source is not the slower leg.
//! - **The exchange between the legs** ([`TOLERATED`]). In the equations (Baccelli, Carofiglio and
//!   Foss, *Proxy caching in split TCP*) a bound costs throughput only where the buffer is full at
//!   one time, so that the source is held back, and empty at a later time, so that the destination
//!   starves. What was missing is the shorter of the two times, at the flow's rate. B grows by
//!   twice that, so that a false alarm of some milliseconds costs some milliseconds of memory.
//! - **The proxy's latency** (`LATENCY`). B covers a time of the flow's rate, and more if the
//!   destination's queue ran empty while the source's queue had bytes.
//! - **The standing queue.** While the buffer never empties, the destination's departures do not
//!   depend on the minimum of its content: a buffer that is smaller by that minimum passes on the
//!   same (Lindley's recursion). The law keeps the largest fall of the content of the last
//!   `REMEMBERED` intervals, which the buffer has to bridge when it comes again, and takes half of
//!   what exceeds that.
//! - **A window that is not used.** After the growth of a start B is more than the window needs.
//!   The law takes half of the excess back.

use intercept::leg::Shares;
use std::{collections::VecDeque, time::Duration};

/// B at which a direction starts: more than the first windows of a connection need.
pub const START: u64 = 256 * 1024;
/// The rate that the source's window permits from the start, bytes/s. On a long leg the first round
/// trips of a slow start need more than [`START`] before they are measured.
const FIRST_RATE: u64 = 500_000;
/// The share of an interval for which the destination may starve although the source was held back
/// before. The rate is then 99 % of that with an unlimited buffer, or more.
pub const TOLERATED: f64 = 0.01;
/// Round trips of the flow's bytes that the source's window covers: usually; and if packets come
/// out of order, because what follows a gap waits in the receive queue for a round trip.
pub const WINDOWS: [f64; 2] = [2.0, 3.0];
/// The least growth of these bytes that counts, as a factor, and the greatest. While the rate grows
/// the window covers so many times more, because a larger window has to reach the sender before it
/// sends more: slow start doubles the rate in a round trip, and BBR's startup makes it 2.9 times as
/// high.
const GROWTH: [f64; 2] = [1.25, 3.0];

/// Time of the flow's rate that B covers at least, and at most if the proxy turns out to be late: a
/// quarter of B is the unsent part of the destination's queue, which has to last until the proxy
/// runs again.
const LATENCY: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(120)];
/// Upper bound of that minimum, bytes: about what the processor's caches hold.
const MOST_FOR_LATENCY: u64 = 4 << 20;
/// The least limit of what the pipe and the unsent part hold each, bytes.
pub const IN_PASSING: u64 = 128 * 1024;

/// The shortest and the longest interval for which the buffer's content is judged, and round trips
/// of both legs in it.
const LEAST_INTERVAL: Duration = Duration::from_millis(500);
const MOST_INTERVAL: Duration = Duration::from_secs(10);
const INTERVAL_ROUND_TRIPS: u32 = 2;
/// Intervals whose falls of the content are remembered, and for which the source's waiting counts.
const REMEMBERED: usize = 16;
/// Intervals for which the bytes of a round trip are remembered: the growth of a start is then
/// over.
const REMEMBERED_ROUNDS: usize = 4;
/// The smallest increase, as a part of B: each costs system calls.
const LEAST_INCREASE: u64 = 8;
/// Time of the flow's rate that the reserve covers besides a round trip of the source, for which
/// nothing comes in order after a loss, and hardly anything when BBR probes the round trip: the
/// latency of the proxy and bursts of acknowledgements.
const RESERVE: Duration = Duration::from_millis(10);
/// Memory of a packet's buffer over its payload in the worst common case (1500 bytes without GRO).
const OVERHEAD: f64 = 1.6;
/// The shortest round trip that is told from the time between two samples.
const LEAST_RTT: Duration = Duration::from_millis(1);
/// The shortest time over which bytes are counted for a round trip: the destination sends bursts.
const LEAST_ROUND: Duration = Duration::from_millis(10);

/// Between which values B stays, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimits {
    /// The smallest B.
    pub least: u64,
    /// The largest B.
    pub most: u64,
    /// The first B, unless the legs need more.
    pub start: u64,
}

impl BufferLimits {
    /// B from 64 KiB to this, in bytes. Below 64 KiB a window has too few segments to recover from
    /// a loss without a timeout.
    pub fn up_to(most: u64) -> Self {
        BufferLimits { least: most.min(64 * 1024), most, start: START }
    }

    /// The same with the smallest B as the first.
    #[must_use]
    pub fn starting_small(self) -> Self {
        BufferLimits { start: self.least, ..self }
    }
}

/// What is measured of a direction at one time. Bytes are payload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BufferSample {
    /// Time since the flow began.
    pub at: Duration,
    /// Bytes that the destination has sent so far, without retransmissions.
    pub sent: u64,
    /// Bytes that the proxy holds.
    pub held: u64,
    /// The window that is announced to the source, bytes.
    pub window: u64,
    /// Round trip time of the source's leg.
    pub source_rtt: Duration,
    /// Round trip time of the destination's leg.
    pub destination_rtt: Duration,
    /// What the destination can send, bytes/s, where that is known before this direction has
    /// carried as much; 0: it is not known.
    pub destination_rate: u64,
    /// Packets that came out of order from the source so far.
    pub out_of_order: u64,
    /// How long, since the last sample, the proxy waited for the source while the destination had
    /// nothing to send, although its windows had room.
    pub starved: Duration,
    /// The destination has nothing to send, although its windows have room and the source's queue
    /// has bytes: the proxy runs too late.
    pub is_late: bool,
    /// The source has paused since the last sample although its window was open. It has nothing to
    /// send, so that a larger buffer would not help.
    pub paused: bool,
}

/// The law of one direction. Call [`next`](Self::next) with each sample; samples may be taken at
/// any times, but seldom samples find changes late.
#[derive(Debug, Clone)]
pub struct BufferLaw {
    limits: BufferLimits,
    buffer: u64,
    last: BufferSample,
    round: Round,
    interval: Interval,
    /// The last intervals, the newest first.
    past: VecDeque<PastInterval>,
    /// Time for which the source was held back and that no gap of the destination has used up.
    held_back: Duration,
    /// Time of the flow's rate that B covers.
    latency: Duration,
    /// The rate in the interval before this one, bytes/s.
    rate: f64,
    /// The content follows a lower B until this time.
    settled: Duration,
}

/// What the flow carries in a round trip of the source.
#[derive(Debug, Clone)]
struct Round {
    /// The samples of the last round trip, and the one before them.
    marks: VecDeque<RoundMark>,
    /// Bytes that left in the last round trip.
    bytes: u64,
    /// The most bytes that left within one.
    most: u64,
}

/// What was known at one sample.
#[derive(Debug, Clone, Copy)]
struct RoundMark {
    at: Duration,
    sent: u64,
    /// The most bytes that had left within a round trip.
    most: u64,
}

impl Round {
    fn from(first: &BufferSample) -> Self {
        Round { marks: VecDeque::from([RoundMark { at: first.at, sent: first.sent, most: 0 }]), bytes: 0, most: 0 }
    }

    /// Takes a sample in. Returns by what factor more left in the last round trip than ever until
    /// then.
    fn take_in(&mut self, sample: &BufferSample) -> f64 {
        let rtt = sample.source_rtt.max(LEAST_RTT);
        let span = rtt.max(LEAST_ROUND);
        while self.marks.get(1).is_some_and(|mark| sample.at.saturating_sub(mark.at) >= span) {
            self.marks.pop_front();
        }
        let begun = self.marks.front().copied().unwrap_or(RoundMark { at: sample.at, sent: sample.sent, most: 0 });
        let took = sample.at.saturating_sub(begun.at).max(span);
        self.bytes = (sample.sent.saturating_sub(begun.sent) as f64 * rtt.as_secs_f64() / took.as_secs_f64()) as u64;
        self.most = self.most.max(self.bytes);
        self.marks.push_back(RoundMark { at: sample.at, sent: sample.sent, most: self.most });
        self.bytes as f64 / begun.most.max(1) as f64
    }
}

/// What is remembered of an interval, bytes.
#[derive(Debug, Clone, Copy)]
struct PastInterval {
    most: u64,
    least: u64,
    /// The largest fall of the content.
    fall: u64,
    /// The most that left within a round trip.
    per_round: u64,
}

/// What an interval has found so far.
#[derive(Debug, Clone, Copy)]
struct Interval {
    begun: BufferSample,
    least: u64,
    most: u64,
    /// The largest fall of the content.
    fall: u64,
    /// The most that left within a round trip.
    per_round: u64,
    /// How long the destination starved, and how much of that a larger buffer would have bridged.
    starved: Duration,
    missed: Duration,
    samples: u32,
    late: u32,
}

impl Interval {
    fn from(sample: &BufferSample) -> Self {
        let (held, none) = (sample.held, Duration::ZERO);
        Interval { begun: *sample, least: held, most: held, fall: 0, per_round: 0, starved: none, missed: none, samples: 0, late: 0 }
    }

    fn take_in(&mut self, sample: &BufferSample, per_round: u64) {
        self.per_round = self.per_round.max(per_round);
        self.most = self.most.max(sample.held);
        self.least = self.least.min(sample.held);
        self.fall = self.fall.max(self.most - sample.held);
        self.samples += 1;
        self.late += u32::from(sample.is_late);
    }

    /// The rate so far, bytes/s; none before a part of the interval has passed.
    fn rate(&self, sample: &BufferSample, span: Duration) -> Option<f64> {
        let took = sample.at.saturating_sub(self.begun.at);
        (took >= span / 4).then(|| sample.sent.saturating_sub(self.begun.sent) as f64 / took.as_secs_f64())
    }
}

/// The smallest B with a window of `window` bytes at the worst overhead. The pipe and the
/// destination's queue have at most `in_passing` bytes each, and at most a quarter of B.
fn buffer_for_window(window: u64, in_passing: u64) -> u64 {
    let receive = (window as f64 * OVERHEAD) as u64;
    (receive * 2).min(receive + 2 * in_passing)
}

/// What a latency of the proxy needs at this rate (bytes/s), bytes.
fn needed_for(latency: Duration, rate: f64) -> u64 {
    ((rate * latency.as_secs_f64()) as u64).min(MOST_FOR_LATENCY)
}

impl BufferLaw {
    /// The law of a direction, from this sample on. B stays within `limits`. `spare`: by how many
    /// bytes B may exceed its start now.
    pub fn new(limits: BufferLimits, first: BufferSample, spare: u64) -> Self {
        let window = FIRST_RATE as f64 * first.source_rtt.as_secs_f64();
        let most = limits.most.min(limits.start.saturating_add(spare));
        let for_latency = needed_for(LATENCY[0], first.destination_rate as f64);
        BufferLaw {
            limits,
            buffer: buffer_for_window(window as u64, IN_PASSING).max(limits.start).max(for_latency).min(most).max(limits.least),
            last: first,
            round: Round::from(&first),
            interval: Interval::from(&first),
            past: VecDeque::new(),
            held_back: Duration::ZERO,
            latency: LATENCY[0],
            rate: 0.0,
            settled: Duration::ZERO,
        }
    }

    /// The present B, bytes.
    pub fn buffer(&self) -> u64 {
        self.buffer
    }

    /// How B is divided: as much as possible is the source's window, and the pipe and the unsent
    /// part of the destination's queue bridge the latency of the proxy.
    pub fn shares(&self) -> Shares {
        Shares::with_window(self.buffer as usize, self.in_passing() as usize)
    }

    /// The most that the pipe and the destination's queue have each, bytes.
    fn in_passing(&self) -> u64 {
        (self.floor() / 2).max(IN_PASSING)
    }

    /// What the latency of the proxy needs at the present rate, bytes.
    fn floor(&self) -> u64 {
        needed_for(self.latency, self.rate.max(self.last.destination_rate as f64))
    }

    /// Takes a sample in; returns the present B. `spare` is how much B may grow now, bytes: the
    /// memory that all flows may still take.
    pub fn next(&mut self, sample: BufferSample, spare: u64) -> u64 {
        let since = sample.at.saturating_sub(self.last.at);
        self.last = sample;
        let span = ((sample.source_rtt + sample.destination_rtt) * INTERVAL_ROUND_TRIPS).clamp(LEAST_INTERVAL, MOST_INTERVAL);
        let growth = self.round.take_in(&sample);
        if sample.paused {
            self.held_back = Duration::ZERO;
            self.interval = Interval::from(&sample);
            return self.buffer;
        }
        self.interval.take_in(&sample, self.round.bytes);
        self.account(&sample, since, span);

        let most = self.limits.most.min(self.buffer.saturating_add(spare));
        let rate = self.interval.rate(&sample, span).unwrap_or(0.0).max(self.rate);
        let missing = (rate * self.interval.missed.as_secs_f64() * 2.0) as u64;
        let is_over = sample.at.saturating_sub(self.interval.begun.at) >= span;
        let needed = self.floor().max(self.needed_window(&sample, growth));
        if needed > self.buffer && most > self.buffer {
            self.buffer = needed.max(self.buffer + self.buffer / LEAST_INCREASE).min(most);
        } else if missing >= self.buffer / 2 || (is_over && self.interval.missed > span.mul_f64(TOLERATED)) {
            // At most twofold, since the gap may have had another cause.
            self.buffer = (self.buffer + missing.clamp(self.buffer / LEAST_INCREASE, self.buffer)).min(most);
            self.end_interval(&sample, span);
        } else if is_over {
            let [queue, window] = [self.excess(&sample, span) / 2, self.unused(&sample) / 2];
            self.end_interval(&sample, span);
            self.take_back(&sample, [queue, window], span);
        }
        self.buffer
    }

    /// Accounts for times in which the source was held back, and for gaps of the destination that
    /// they could have filled.
    fn account(&mut self, sample: &BufferSample, since: Duration, span: Duration) {
        let most = span * REMEMBERED as u32;
        // A source that the window holds back fills it in each round trip.
        let per_round = self.round.bytes.max(self.round.most / 2);
        if sample.window < per_round + per_round / 4 {
            self.held_back = (self.held_back + since.min(span / 8)).min(most);
        }
        let starved = sample.starved.min(since);
        let missed = starved.min(self.held_back);
        self.held_back -= missed;
        self.interval.starved += starved;
        self.interval.missed += missed;
    }

    /// The B that the window of the source's leg needs, if that leg limits the flow.
    fn needed_window(&self, sample: &BufferSample, growth: f64) -> u64 {
        let per_round = self.round.bytes;
        let loses = sample.out_of_order > self.interval.begun.out_of_order;
        let is_growing = growth > GROWTH[0] && sample.starved > Duration::ZERO;
        let windows = if is_growing { WINDOWS[1] * growth.min(GROWTH[1]) } else { WINDOWS[usize::from(loses)] };
        let limits = sample.held < per_round && self.interval.starved > Duration::ZERO;
        if limits { buffer_for_window((per_round as f64 * windows) as u64, self.in_passing()) } else { 0 }
    }

    /// The part of the content that was not needed in the interval that ends, bytes.
    fn excess(&self, sample: &BufferSample, span: Duration) -> u64 {
        let Interval { least, most, starved, .. } = self.interval;
        if starved > Duration::ZERO || sample.at < self.settled {
            return 0;
        }
        let rate = self.interval.rate(sample, span).unwrap_or(self.rate);
        let reserve = rate * (RESERVE + sample.source_rtt).as_secs_f64();
        least.min(most.saturating_sub(self.largest_fall())).saturating_sub(reserve as u64)
    }

    /// The part of B above the start that neither the source's window nor a fall of the content has
    /// needed lately, bytes.
    fn unused(&self, sample: &BufferSample) -> u64 {
        if self.past.len() < REMEMBERED_ROUNDS || sample.at < self.settled {
            return 0;
        }
        let per_round = self.past.iter().take(REMEMBERED_ROUNDS).map(|past| past.per_round).fold(self.interval.per_round, u64::max);
        let window = buffer_for_window((per_round as f64 * WINDOWS[1]) as u64, self.in_passing());
        self.buffer.saturating_sub((window + 2 * self.largest_fall()).max(self.limits.start))
    }

    /// The largest fall of the content in this interval and the remembered ones.
    fn largest_fall(&self) -> u64 {
        let Interval { least, most, .. } = self.interval;
        let (mut peak, mut largest) = (0u64, 0);
        let now = PastInterval { most, least, fall: self.fall(), per_round: 0 };
        for PastInterval { most, least, fall, .. } in self.past.iter().rev().copied().chain([now]) {
            largest = largest.max(peak.saturating_sub(least).max(fall));
            peak = peak.max(most);
        }
        largest
    }

    /// The largest fall of the content in this interval. Where it fell to nothing, it would have
    /// fallen by what the destination could have sent in the meantime too.
    fn fall(&self) -> u64 {
        self.interval.fall + (self.rate * self.interval.missed.as_secs_f64()) as u64
    }

    fn end_interval(&mut self, sample: &BufferSample, span: Duration) {
        let Interval { least, most, samples, late, per_round, .. } = self.interval;
        let fall = self.fall();
        if let Some(rate) = self.interval.rate(sample, span) {
            self.rate = rate;
        }
        if late * 10 > samples && samples >= 10 {
            self.latency = (self.latency * 2).min(LATENCY[1]);
        }
        // While the content follows a lower B, its fall is none that has to be bridged.
        if sample.at >= self.settled {
            self.past.truncate(REMEMBERED - 1);
            self.past.push_front(PastInterval { most, least, fall, per_round });
        }
        self.held_back = self.held_back.mul_f64(1.0 - 1.0 / REMEMBERED as f64);
        self.interval = Interval::from(sample);
    }

    /// Lowers B by the larger of these parts of a standing queue and of an unused window, so far as
    /// the limits and the flow's rate permit.
    fn take_back(&mut self, sample: &BufferSample, [queue, window]: [u64; 2], span: Duration) {
        let bytes = queue.max(window);
        if bytes <= self.buffer / 16 {
            return;
        }
        let least = self.floor().clamp(self.limits.least, self.buffer);
        let lower = ((self.buffer - bytes.min(self.buffer)) / 4096 * 4096).clamp(least, self.buffer);
        // The content does not follow what was window.
        let taken = (self.buffer - lower).min(queue);
        self.buffer = lower;
        for past in &mut self.past {
            (past.most, past.least) = (past.most.saturating_sub(taken), past.least.saturating_sub(taken));
        }
        self.settled = sample.at + span + Duration::from_secs_f64((taken as f64 / self.rate.max(1.0)).min(60.0));
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
