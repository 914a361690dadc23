//! Measures a direction for the [law](crate::buffer_law) of B, and says when.
//!
//! There is no timer: B can be wrong only where bytes move, so a measurement is due after some
//! bytes, or at the end of a gap between them, when the destination has nothing to send. It takes
//! four system calls, which a message or an idle connection never pays.

use crate::{
    buffer_law::{BufferLaw, BufferLimits, BufferSample},
    plain_leg::PlainLeg,
};
use intercept::{
    leg::Shares,
    sys::{self, TcpInfo},
};
use std::{
    io,
    time::{Duration, Instant},
};

/// Bytes after which a measurement is due, and the part of B, whichever is less.
const EVERY_BYTES: u64 = 64 * 1024;
const EVERY_PART: u64 = 4;
/// The shortest and the longest time between measurements of bytes that keep moving, and their
/// number in a round trip of the source.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
const MOST_PAUSE: Duration = Duration::from_millis(50);
const IN_A_ROUND_TRIP: u32 = 8;
/// A source that sends nothing for so long although it could has nothing to send. Two round trips
/// are what a recovery takes.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_ROUND_TRIPS: u32 = 2;

/// The measurements of one direction, and its law.
#[derive(Debug)]
pub(crate) struct BufferControl {
    law: BufferLaw,
    begun: Instant,
    /// The next measurement is due at this time, if so many bytes have been moved.
    due: (Instant, u64),
    source_rtt: Duration,
    /// When the last turn began, and whether it ended because the source had no data.
    turn: (Instant, bool),
    /// How long the source was waited for since the last measurement, and whether it is the reason
    /// for which the present turn comes so late.
    waited: (Duration, bool),
    /// The present turn ends a wait that is long enough to be measured.
    ends_wait: bool,
    /// The source has paused since the last measurement.
    paused: bool,
    /// The receive queue has not got its lower bound yet.
    is_settling: bool,
}

impl BufferControl {
    /// For a direction that carries bulk data from now on. `spare` is how much B may exceed that of
    /// the start.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn new(
        limits: BufferLimits,
        source: &PlainLeg,
        destination: &PlainLeg,
        [moved, spare]: [u64; 2],
        now: Instant,
    ) -> io::Result<Self> {
        let first = measure(source, destination, [moved, 0], (Duration::ZERO, true))?;
        let law = BufferLaw::new(limits, first, spare);
        Ok(BufferControl {
            law,
            begun: now,
            due: (now, moved),
            source_rtt: first.source_rtt,
            turn: (now, false),
            waited: (Duration::ZERO, false),
            ends_wait: false,
            paused: false,
            is_settling: false,
        })
    }

    /// The present B, bytes.
    pub(crate) fn buffer(&self) -> u64 {
        self.law.buffer()
    }

    /// How B is divided.
    pub(crate) fn shares(&self) -> Shares {
        self.law.shares()
    }

    /// To be called before bytes are moved.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        let (last, waited) = std::mem::replace(&mut self.turn, (now, false));
        let since = now.saturating_duration_since(last);
        let paused = waited && since > PAUSE.max(self.source_rtt * PAUSE_ROUND_TRIPS);
        self.paused |= paused;
        self.ends_wait = waited && !paused && since >= self.least_time();
        self.waited = (self.waited.0 + if waited { since } else { Duration::ZERO }, waited);
    }

    /// To be called after bytes were moved: the receive queue follows a lower B as far as it can.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn end_turn(&mut self, source: &mut PlainLeg) -> io::Result<()> {
        if self.is_settling {
            self.is_settling = !source.settle_receive()?;
        }
        Ok(())
    }

    /// To be called when a turn ends because the source has no data.
    pub(crate) fn wait_for_source(&mut self) {
        self.turn.1 = true;
    }

    /// Whether a measurement is due.
    pub(crate) fn is_due(&self, moved: u64, now: Instant) -> bool {
        now >= self.due.0 && (moved >= self.due.1 || self.ends_wait)
    }

    /// The time between measurements, at least.
    fn least_time(&self) -> Duration {
        (self.source_rtt / IN_A_ROUND_TRIP).clamp(LEAST_PAUSE, MOST_PAUSE)
    }

    /// Bounds what the sockets hold, by B.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn divide(&mut self, source: &mut PlainLeg, destination: &PlainLeg) -> io::Result<()> {
        let shares = self.shares();
        source.change_receive(shares)?;
        // At once: if the destination stops, there is no later measurement, and a bound on the
        // window alone does not bound the queue.
        self.is_settling = !source.settle_receive()?;
        destination.bound_unsent(shares)
    }

    /// Measures, has the sockets' bounds follow, and returns B. `spare` is how much it may grow.
    /// `in_hand` bytes are in neither socket.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn update(
        &mut self,
        source: &mut PlainLeg,
        destination: &PlainLeg,
        [moved, in_hand, spare]: [u64; 3],
        now: Instant,
    ) -> io::Result<u64> {
        let waited = std::mem::take(&mut self.waited);
        let sample = measure(source, destination, [moved, in_hand], waited)?;
        let at = now.saturating_duration_since(self.begun);
        self.source_rtt = sample.source_rtt;
        let before = self.law.buffer();
        let buffer = self.law.next(BufferSample { at, paused: std::mem::take(&mut self.paused), ..sample }, spare);
        if buffer != before {
            self.divide(source, destination)?;
        } else if self.is_settling {
            self.is_settling = !source.settle_receive()?;
        }
        self.due = (now + self.least_time(), moved + EVERY_BYTES.min(buffer / EVERY_PART));
        Ok(buffer)
    }
}

/// Measures a direction, without what depends on the time. `waited` is how long the source was
/// waited for, and whether the last turn had emptied its queue.
fn measure(
    source: &PlainLeg,
    destination: &PlainLeg,
    [moved, in_hand]: [u64; 2],
    (waited, was_empty): (Duration, bool),
) -> io::Result<BufferSample> {
    let (from, to) = (sys::tcp_info(source)?, sys::tcp_info(destination)?);
    let unsent = sys::unsent(destination)? as u64;
    let has_gap = unsent + in_hand == 0 && could_send(&to);
    Ok(BufferSample {
        at: Duration::ZERO,
        sent: moved.saturating_sub(unsent),
        held: sys::received(source) as u64 + in_hand + unsent,
        window: from.rcv_wnd.into(),
        source_rtt: rtt_of_source(&from),
        destination_rtt: Duration::from_micros(to.rtt_us.into()),
        out_of_order: from.rcv_ooopack.into(),
        // A queue that was not empty was left to the destination, whose room the proxy waited for.
        starved: if has_gap && was_empty { waited } else { Duration::ZERO },
        is_late: has_gap && !was_empty,
        paused: false,
    })
}

/// The round trip of a leg that data comes from. The kernel's estimate at the receiver, from
/// timestamps, is the present one; but it contains the times for which a closed window held the
/// sender back, so that it counts only up to a multiple of the minimum.
fn rtt_of_source(info: &TcpInfo) -> Duration {
    const QUEUES: u32 = 4;
    let least = if info.min_rtt_us == u32::MAX { info.rtt_us } else { info.min_rtt_us };
    let now = if info.rcv_rtt_us == 0 { info.rtt_us } else { info.rcv_rtt_us };
    Duration::from_micros(now.clamp(least, least.saturating_mul(QUEUES)).into())
}

/// Whether congestion window and receiver's window of a leg have room for another segment.
fn could_send(info: &TcpInfo) -> bool {
    let in_flight = (info.unacked + info.retrans).saturating_sub(info.sacked + info.lost);
    let segment = info.snd_mss;
    in_flight < info.snd_cwnd && info.unacked.saturating_mul(segment).saturating_add(segment) <= info.snd_wnd
}
