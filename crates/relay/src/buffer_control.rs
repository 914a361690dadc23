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

/// What is measured where the bytes of a direction go: of its destination, or of the connections of
/// a bond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendingSide {
    /// Bytes that wait to be sent for the first time.
    pub unsent: u64,
    /// The longest round trip.
    pub rtt: Duration,
    /// What it can send, bytes/s, if that is known before the direction has carried as much; 0: it
    /// is not known.
    pub rate: u64,
    /// More could be sent at once: congestion window and receiver's window have room for another
    /// segment.
    pub has_room: bool,
}

impl SendingSide {
    /// Of this leg. Its send buffer is enlarged where it limits the leg.
    pub(crate) fn of(leg: &mut PlainLeg) -> io::Result<Self> {
        let (info, unsent) = (sys::tcp_info(&*leg)?, sys::unsent(&*leg)? as u64);
        let has_room = could_send(&info);
        leg.enlarge_send(&info, has_room)?;
        Ok(SendingSide { unsent, rtt: Duration::from_micros(info.rtt_us.into()), rate: 0, has_room })
    }
}

/// The measurements of one direction, and its law.
///
/// In each turn the caller calls [`begin_turn`](Self::begin_turn), [`update`](Self::update) if a
/// measurement [is due](Self::is_due), moves bytes, calls
/// [`wait_for_source`](Self::wait_for_source) if the source has no more, and
/// [`end_turn`](Self::end_turn).
#[derive(Debug)]
pub struct BufferControl {
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
    pub fn new(limits: BufferLimits, source: &PlainLeg, sending: SendingSide, [moved, spare]: [u64; 2], now: Instant) -> io::Result<Self> {
        let first = measure(source, sending, [moved, 0], (Duration::ZERO, true))?;
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
    pub fn buffer(&self) -> u64 {
        self.law.buffer()
    }

    /// How B is divided.
    pub fn shares(&self) -> Shares {
        self.law.shares()
    }

    /// To be called before bytes are moved.
    pub fn begin_turn(&mut self, now: Instant) {
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
    pub fn end_turn(&mut self, source: &mut PlainLeg) -> io::Result<()> {
        if self.is_settling {
            self.is_settling = !source.settle_receive()?;
        }
        Ok(())
    }

    /// To be called when a turn ends because the source has no data.
    pub fn wait_for_source(&mut self) {
        self.turn.1 = true;
    }

    /// Whether a measurement is due.
    pub fn is_due(&self, moved: u64, now: Instant) -> bool {
        now >= self.due.0 && (moved >= self.due.1 || self.ends_wait)
    }

    /// The time between measurements, at least.
    fn least_time(&self) -> Duration {
        (self.source_rtt / IN_A_ROUND_TRIP).clamp(LEAST_PAUSE, MOST_PAUSE)
    }

    /// Bounds what the source's receive queue holds, by B.
    ///
    /// # Errors
    /// The socket's.
    pub fn bound_source(&mut self, source: &mut PlainLeg) -> io::Result<()> {
        source.change_receive(self.shares())?;
        // At once: if the destination stops, there is no later measurement, and a bound on the
        // window alone does not bound the queue.
        self.is_settling = !source.settle_receive()?;
        Ok(())
    }

    /// Measures, has the bound of the source's receive queue follow, and returns whether B has
    /// changed. `spare` is how much it may grow.
    /// `in_hand` bytes are in neither socket.
    ///
    /// # Errors
    /// A socket's.
    pub fn update(
        &mut self,
        source: &mut PlainLeg,
        sending: SendingSide,
        [moved, in_hand, spare]: [u64; 3],
        now: Instant,
    ) -> io::Result<bool> {
        let waited = std::mem::take(&mut self.waited);
        let sample = measure(source, sending, [moved, in_hand], waited)?;
        let at = now.saturating_duration_since(self.begun);
        self.source_rtt = sample.source_rtt;
        let before = self.law.buffer();
        let buffer = self.law.next(BufferSample { at, paused: std::mem::take(&mut self.paused), ..sample }, spare);
        if buffer != before {
            self.bound_source(source)?;
        } else if self.is_settling {
            self.is_settling = !source.settle_receive()?;
        }
        self.due = (now + self.least_time(), moved + EVERY_BYTES.min(buffer / EVERY_PART));
        Ok(buffer != before)
    }
}

/// Measures a direction, without what depends on the time. `waited` is how long the source was
/// waited for, and whether the last turn had emptied its queue.
fn measure(
    source: &PlainLeg,
    sending: SendingSide,
    [moved, in_hand]: [u64; 2],
    (waited, was_empty): (Duration, bool),
) -> io::Result<BufferSample> {
    let (from, SendingSide { unsent, rtt, rate, has_room }) = (sys::tcp_info(source)?, sending);
    let has_gap = unsent + in_hand == 0 && has_room;
    Ok(BufferSample {
        at: Duration::ZERO,
        sent: moved.saturating_sub(unsent),
        held: sys::received(source) as u64 + in_hand + unsent,
        window: from.rcv_wnd.into(),
        source_rtt: rtt_of_source(&from),
        destination_rtt: rtt,
        destination_rate: rate,
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
