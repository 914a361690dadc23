//! A connection through the bottleneck.

use link::Time;
use std::collections::VecDeque;
use units::{PKT, Span};

/// Headers of a full packet: IPv4, and TCP with timestamps.
pub(crate) const HEADERS: u64 = 52;
/// The window of a SYN is not scaled (RFC 7323 §2.2), so that no receiver can advertise more for
/// the first round trip.
const FIRST_WINDOW: u64 = 65_535;

/// A connection through the bottleneck.
#[derive(Debug)]
pub(crate) struct SharedFlow {
    /// Round trip of the leg that the bottleneck lies on.
    round_trip: Span,
    /// The window of the receiver on that leg, bytes.
    window: u64,
    /// Payload that has not been sent yet: from when on it can reach the bottleneck, and bytes.
    waiting: VecDeque<(Time, u64)>,
    /// Payload sent in the first round trip, bytes.
    first_flight: u64,
    /// When the first acknowledgement of data arrives; none before data was sent.
    first_ack: Option<Time>,
    /// Packets that are not acknowledged, if the window is a limit: when they will be, and payload.
    unacknowledged: VecDeque<(Time, u64)>,
    /// The payload of these.
    in_flight: u64,
    /// Lost packets: when each loss is known, and the payload, bytes.
    lost: VecDeque<(Time, u64)>,
    /// When the last byte so far reaches the receiver.
    pub(crate) end: Time,
}

impl SharedFlow {
    /// A connection without data.
    pub(crate) fn new(round_trip: Span, window: Option<u64>) -> Self {
        SharedFlow {
            round_trip,
            window: window.unwrap_or(u64::MAX),
            waiting: VecDeque::new(),
            first_flight: 0,
            first_ack: None,
            unacknowledged: VecDeque::new(),
            in_flight: 0,
            lost: VecDeque::new(),
            end: Time::default(),
        }
    }

    /// It has more to send from `ready` on.
    pub(crate) fn add(&mut self, ready: Time, bytes: u64) {
        self.waiting.push_back((ready, bytes));
    }

    /// When it next has a packet to send; none if everything has been sent and nothing is lost.
    pub(crate) fn next(&self) -> Option<Time> {
        let retransmission = self.lost.front().map(|(known, _)| *known);
        retransmission.into_iter().chain(self.next_new()).min()
    }

    fn next_new(&self) -> Option<Time> {
        let (ready, bytes) = *self.waiting.front()?;
        let payload = bytes.min(PKT.0 - HEADERS);
        let first = self.first_ack.filter(|_| self.first_flight + PKT.0 - HEADERS > FIRST_WINDOW);
        // So many of the oldest must be acknowledged that there is room. One packet always has.
        let mut left = self.in_flight;
        let mut room = None;
        for (acknowledged, bytes) in &self.unacknowledged {
            if left == 0 || left + payload <= self.window {
                break;
            }
            left -= bytes;
            room = Some(*acknowledged);
        }
        Some([Some(ready), first, room].into_iter().flatten().max().unwrap_or(ready))
    }

    /// Takes the payload of the next packet: retransmissions go first.
    pub(crate) fn take(&mut self, now: Time) -> u64 {
        while self.unacknowledged.front().is_some_and(|(acknowledged, _)| *acknowledged <= now) {
            self.in_flight -= self.unacknowledged.pop_front().map_or(0, |(_, payload)| payload);
        }
        if self.lost.front().is_some_and(|(known, _)| *known <= now) {
            return self.lost.pop_front().map_or(0, |(_, payload)| payload);
        }
        let Some((_, left)) = self.waiting.front_mut() else { return 0 };
        let payload = (*left).min(PKT.0 - HEADERS);
        *left -= payload;
        if *left == 0 {
            self.waiting.pop_front();
        }
        self.first_flight += payload;
        payload
    }

    /// Its packet has left the bottleneck, and reaches the receiver after `onward` unless it
    /// `is_lost`.
    pub(crate) fn has_left(&mut self, left: Time, payload: u64, onward: Span, is_lost: bool) {
        let acknowledged = left + self.round_trip;
        if is_lost {
            self.lost.push_back((acknowledged, payload));
        } else {
            self.end = self.end.max(left + onward);
        }
        if self.window < u64::MAX {
            // One that was lost takes room once more, when it is sent again.
            self.unacknowledged.push_back((acknowledged, payload));
            self.in_flight += payload;
        }
        self.first_ack.get_or_insert(acknowledged);
    }
}
