//! The law by which B of a direction follows what is measured (`buffer = "auto"`). Pure: the caller
//! passes the time and the measurements, and applies the result.
//!
//! B has two purposes, and the law has a rule for each, and a third rule that takes back. A floor
//! keeps the proxy's own latency from starving the destination: B is at least [`LATENCY`] of the
//! flow's rate.
//!
//! - **The window of the source's leg.** The source sends at most one window in each of its round
//!   trips. So the window must be twice what the flow carries in a round trip (three times if
//!   packets come out of order: what follows a gap waits in the receive queue for a round trip),
//!   and four times while that still grows, because slow start doubles it in the next round trip,
//!   and the larger window has to reach the sender before. This is the rule of the kernel's own
//!   receive autotuning, except that it counts what *leaves*: what only fills the buffer needs no
//!   larger one.
//! - **The exchange between the legs.** In the equations (Baccelli, Carofiglio and Foss, *Proxy
//!   caching in split TCP*) a bound costs throughput only where the buffer is full at one time, so
//!   that the source is held back, and empty at another, so that the destination starves. Where
//!   only one of them happens, the slower leg passes on what it would in isolation. So B is doubled
//!   if the destination has starved for more than [`TOLERATED`] of an interval in which the source
//!   was held back.
//! - **The standing queue.** While the buffer never empties, the destination's departures do not
//!   depend on the minimum of its content: a buffer that is smaller by that minimum passes on the
//!   same (Lindley's recursion). So half of what the minimum exceeds a reserve by is taken from B
//!   after each interval.

use intercept::leg::Shares;
use std::time::Duration;

/// B at which a direction starts: more than the first windows of a connection need.
pub const START: u64 = 256 * 1024;
/// The share of an interval for which the destination may starve although the source is held back.
/// The rate is then 99 % of that with an unlimited buffer, or more.
pub const TOLERATED: f64 = 0.01;

/// Time of the flow's rate that B covers at least: a quarter of B is the unsent part of the
/// destination's queue, which has to last until the proxy runs again.
const LATENCY: Duration = Duration::from_millis(30);
/// The least limit of what the pipe and the unsent part hold each, bytes.
const IN_PASSING: u64 = 128 * 1024;
/// The destination starves only if B is empty but for this part, the latest packets from the source.
const EMPTY: u64 = 8;

/// The shortest and the longest interval in which the minimum of the buffer's content is taken, and
/// round trips of both legs in it.
const LEAST_INTERVAL: Duration = Duration::from_millis(500);
const MOST_INTERVAL: Duration = Duration::from_secs(10);
const INTERVAL_ROUND_TRIPS: u32 = 2;
/// Intervals after a doubling in which nothing is taken back: losses that come this often have to be
/// bridged.
const HOLD_INTERVALS: u32 = 20;
/// The smallest increase, as a part of B: each costs system calls.
const LEAST_INCREASE: u64 = 4;
/// Time of the flow's rate that the reserve covers besides parts of the source's round trip: the
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
}

impl BufferLimits {
    /// B from 64 KiB to this, in bytes. Below 64 KiB a window has too few segments to recover from
    /// a loss without a timeout.
    pub fn up_to(most: u64) -> Self {
        BufferLimits { least: most.min(64 * 1024), most }
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
    /// Packets that came out of order from the source so far.
    pub out_of_order: u64,
    /// The destination's windows have room for a segment, and there is none to send.
    pub starves: bool,
    /// The source has paused since the last sample although its window was open. It has nothing to
    /// send, so that a larger buffer would not help.
    pub paused: bool,
}

/// The law of one direction. Call [`next`](Self::next) with each sample; samples may be taken at any
/// times, but seldom samples find changes late.
#[derive(Debug, Clone)]
pub struct BufferLaw {
    limits: BufferLimits,
    buffer: u64,
    last: BufferSample,
    /// The sample with which the present round trip of the source began.
    round: BufferSample,
    /// Bytes that left in the last round trip.
    per_round: u64,
    /// The most bytes that left within a round trip of the source.
    most_per_round: u64,
    interval: Interval,
    /// Whether the source was held back in the interval before this one.
    was_held_back: bool,
    /// The rate in the interval before this one, bytes/s.
    rate: f64,
    /// Nothing is taken back before this time.
    hold_until: Duration,
}

/// What an interval has found so far.
#[derive(Debug, Clone, Copy)]
struct Interval {
    begun: BufferSample,
    least_held: u64,
    most_held: u64,
    starved: Duration,
    held_back: bool,
}

impl Interval {
    fn from(sample: &BufferSample) -> Self {
        Interval { begun: *sample, least_held: sample.held, most_held: sample.held, starved: Duration::ZERO, held_back: false }
    }
}

impl BufferLaw {
    /// For a direction whose B stays within `limits`, from this sample on.
    pub fn new(limits: BufferLimits, first: BufferSample) -> Self {
        BufferLaw {
            limits,
            buffer: START.clamp(limits.least, limits.most),
            last: first,
            round: first,
            per_round: 0,
            most_per_round: 0,
            interval: Interval::from(&first),
            was_held_back: false,
            rate: 0.0,
            hold_until: Duration::ZERO,
        }
    }

    /// The present B, bytes.
    pub fn buffer(&self) -> u64 {
        self.buffer
    }

    /// How B is divided: as much as possible is the source's window, and the pipe and the unsent part
    /// of the destination's queue bridge the latency of the proxy.
    pub fn shares(&self) -> Shares {
        Shares::with_window(self.buffer as usize, self.in_passing() as usize)
    }

    /// The most that the pipe and the destination's queue have each, bytes.
    fn in_passing(&self) -> u64 {
        (self.floor() / 2).max(IN_PASSING)
    }

    /// The smallest B whose receive queue has a window of `window` bytes at the worst overhead.
    fn buffer_for_window(&self, window: u64) -> u64 {
        let receive = (window as f64 * OVERHEAD) as u64;
        // The other shares are at most a quarter each.
        (receive * 2).min(receive + 2 * self.in_passing())
    }

    /// Takes a sample in; returns the present B. `spare` is how much B may grow now, bytes: the
    /// memory that all flows may still take.
    pub fn next(&mut self, sample: BufferSample, spare: u64) -> u64 {
        let since = sample.at.saturating_sub(self.last.at);
        self.last = sample;
        let most = self.limits.most.min(self.buffer.saturating_add(spare));
        let per_round = self.take_round(&sample);
        let rtt = sample.source_rtt.max(LEAST_RTT);
        let span = ((sample.source_rtt + sample.destination_rtt) * INTERVAL_ROUND_TRIPS).clamp(LEAST_INTERVAL, MOST_INTERVAL);

        if sample.paused {
            self.restart(&sample);
            return self.buffer;
        }
        let (floor, is_empty) = (self.floor(), sample.held <= self.buffer / EMPTY);
        let loses = sample.out_of_order > self.interval.begun.out_of_order;
        let is_growing = per_round > self.most_per_round + self.most_per_round / 4;
        let windows = if is_growing { 4 } else { 2 + u64::from(loses) };
        // What stands in the buffer shows that the source is not the slower leg.
        let needed = if sample.held < per_round { self.buffer_for_window(per_round * windows) } else { 0 };
        let interval = &mut self.interval;
        interval.least_held = interval.least_held.min(sample.held);
        interval.most_held = interval.most_held.max(sample.held);
        interval.held_back |= sample.window < per_round.max(self.most_per_round / 2);
        if sample.starves && is_empty {
            interval.starved += since.min(span / 8);
        }

        let least_increase = self.buffer + self.buffer / LEAST_INCREASE;
        if needed.max(floor) > self.buffer && most > self.buffer {
            self.buffer = needed.max(floor).max(least_increase).min(most);
        } else if (interval.held_back || self.was_held_back) && interval.starved > span.mul_f64(TOLERATED) {
            self.hold_until = sample.at + span * HOLD_INTERVALS;
            self.buffer = (self.buffer * 2).min(most);
            self.restart(&sample);
        } else if sample.at.saturating_sub(self.interval.begun.at) >= span {
            let took = sample.at.saturating_sub(self.interval.begun.at).as_secs_f64();
            self.rate = sample.sent.saturating_sub(self.interval.begun.sent) as f64 / took;
            self.take_back(&sample, rtt, loses);
            self.restart(&sample);
        }
        self.most_per_round = self.most_per_round.max(per_round);
        self.buffer
    }

    /// Bytes that left in the last round trip of the source, or in this one so far if they are
    /// more.
    fn take_round(&mut self, sample: &BufferSample) -> u64 {
        let rtt = sample.source_rtt.max(LEAST_RTT);
        let (took, sent) = (sample.at.saturating_sub(self.round.at), sample.sent.saturating_sub(self.round.sent));
        if took >= rtt.max(LEAST_ROUND) {
            self.round = *sample;
            self.per_round = (sent as f64 * rtt.as_secs_f64() / took.as_secs_f64()) as u64;
            return self.per_round;
        }
        if rtt < LEAST_ROUND { self.per_round } else { self.per_round.max(sent) }
    }

    /// What the latency of the proxy needs at the present rate, bytes.
    fn floor(&self) -> u64 {
        (self.rate * LATENCY.as_secs_f64()) as u64
    }

    /// Takes half of the queue that has stood for an interval, except a reserve.
    fn take_back(&mut self, sample: &BufferSample, rtt: Duration, loses: bool) {
        let Interval { least_held, most_held, starved, .. } = self.interval;
        if starved > Duration::ZERO || sample.at < self.hold_until {
            return;
        }
        let rate = self.rate;
        // A loss stops the source's data for a round trip; its retransmission may be lost too.
        let reserve = RESERVE + if loses { rtt * 2 } else { rtt / 4 };
        let (reserve, in_flight) = (rate * reserve.as_secs_f64(), rate * rtt.as_secs_f64());
        let excess = (least_held as f64 - reserve) / 2.0;
        if excess > least_held as f64 / 8.0 {
            // A queue that is still far from filling B must not go on to grow.
            let filled = (most_held as f64 - excess + in_flight) * OVERHEAD;
            let buffer = (self.buffer as f64 - excess).min(filled) as u64;
            let least = self.floor().clamp(self.limits.least, self.buffer);
            self.buffer = (buffer / 4096 * 4096).clamp(least, self.buffer);
        }
    }

    fn restart(&mut self, sample: &BufferSample) {
        self.was_held_back = self.interval.held_back && !sample.paused;
        self.interval = Interval::from(sample);
    }
}

#[cfg(test)]
mod tests;
