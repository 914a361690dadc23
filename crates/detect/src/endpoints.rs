//! One connection as its two endpoints recorded it. Stream 0 goes from the data's sender to its
//! receiver, stream 1 in the opposite direction.

use crate::{
    clock_fit::{Transit, transits},
    pairing,
    progress::ProgressStep,
    traced_connection::{TracedConnection, TracedStream},
};

/// If two delays differ by more than this ratio, the capture was taken at the end with the shorter
/// one.
const CLEARLY_SOONER: i64 = 4;

/// A connection as one capture recorded it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointView<'a> {
    pub(crate) flow: &'a TracedConnection,
    /// Index of the side that sends stream 0.
    pub(crate) sender: usize,
}

impl<'a> EndpointView<'a> {
    /// What was recorded of `stream`.
    pub(crate) fn half(&self, stream: usize) -> &'a TracedStream {
        &self.flow.halves[self.sender ^ stream]
    }

    pub(crate) fn anchored(&self, stream: usize) -> bool {
        self.flow.anchored(self.sender ^ stream)
    }

    /// The stream that the client sends.
    pub(crate) fn client(&self) -> Option<usize> {
        self.flow.client.map(|side| side ^ self.sender)
    }

    /// Time from SYN to SYN-ACK, and from SYN-ACK to the third packet, ns. `None` if one of them is
    /// missing or was repeated.
    pub(crate) fn handshake(&self) -> Option<(i64, i64)> {
        let client = self.client()?;
        let (asked, answered) = (self.half(client), self.half(1 - client));
        if asked.syns != 1 || answered.syns != 1 {
            return None;
        }
        let (syn, answer) = (asked.syn.as_deref()?.at, answered.syn.as_deref()?.at);
        let third = asked.acked.steps().first().filter(|step| step.reach == 0)?.at;
        (syn <= answer && answer <= third).then_some((answer - syn, third - answer))
    }

    /// Upper bound of the time from data of `stream` to their ACK, ns, for each ACK. It holds even
    /// if the capture missed packets.
    pub(crate) fn answers(&self, stream: usize) -> Vec<i64> {
        let (sent, acked) = (&self.half(stream).sent, &self.half(1 - stream).acked);
        let answer = |step: &ProgressStep| Some(step.at - sent.reached(step.reach)?.after?);
        acked.steps().iter().filter(|step| step.reach > 0).filter_map(answer).collect()
    }

    /// The same times as recorded, ns.
    pub(crate) fn answers_recorded(&self, stream: usize) -> Vec<i64> {
        let (sent, acked) = (&self.half(stream).sent, &self.half(1 - stream).acked);
        let answer = |step: &ProgressStep| Some(step.at - sent.reached(step.reach)?.at);
        acked.steps().iter().filter(|step| step.reach > 0).filter_map(answer).collect()
    }

    /// Index of the stream whose sender is nearest to the capture point, judged by delays.
    pub(crate) fn at(&self) -> Option<usize> {
        if let (Some((there, back)), Some(client)) = (self.handshake(), self.client()) {
            if back.saturating_mul(CLEARLY_SOONER) < there {
                return Some(client);
            }
            if there.saturating_mul(CLEARLY_SOONER) < back {
                return Some(1 - client);
            }
        }
        let median = |stream: usize| {
            let mut delays = self.answers_recorded(stream);
            delays.sort_unstable();
            delays.get(delays.len() / 2).copied()
        };
        match (median(0), median(1)) {
            (Some(out), Some(back)) if back.saturating_mul(CLEARLY_SOONER) < out => Some(0),
            (Some(out), Some(back)) if out.saturating_mul(CLEARLY_SOONER) < back => Some(1),
            _ => None,
        }
    }
}

/// A connection as both endpoints recorded it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointPair<'a> {
    /// The view at the sender of stream 0, then the view at its receiver.
    pub(crate) ends: [EndpointView<'a>; 2],
    /// Adding this to a position at the receiver of stream 0 gives the position at the sender of
    /// stream 0, bytes. Indexed by stream.
    shifts: [Option<i64>; 2],
}

impl<'a> EndpointPair<'a> {
    pub(crate) fn new(ends: [EndpointView<'a>; 2]) -> Self {
        let shift = |stream: usize| {
            let of = |view: &EndpointView<'a>| (view.half(stream), view.anchored(stream));
            pairing::shift(of(&ends[0]), of(&ends[1]))
        };
        EndpointPair { ends, shifts: [shift(0), shift(1)] }
    }

    pub(crate) fn sender(&self) -> &EndpointView<'a> {
        &self.ends[0]
    }

    pub(crate) fn receiver(&self) -> &EndpointView<'a> {
        &self.ends[1]
    }

    pub(crate) fn shift(&self, stream: usize) -> Option<i64> {
        self.shifts[stream]
    }

    /// For positions of a stream: upper bound of the sender's wait for the ACK, and lower bound of
    /// the receiver's delay before it sent one, both ns.
    pub(crate) fn waits(&self, stream: usize) -> Option<Vec<(i64, i64)>> {
        let (from, to) = (self.ends[stream], self.ends[1 - stream]);
        // From a position at the stream's sender to the same position at its receiver.
        let shift = self.shifts[stream]? * if stream == 0 { -1 } else { 1 };
        let wait = |step: &ProgressStep| {
            let sent = from.half(stream).sent.reached(step.reach)?.after?;
            let came = to.half(stream).sent.reached(step.reach + shift).filter(|came| came.exact && came.after.is_some())?.at;
            Some((step.at - sent, to.half(1 - stream).acked.reached(step.reach + shift)?.after? - came))
        };
        Some(from.half(1 - stream).acked.steps().iter().filter(|step| step.reach > 0).filter_map(wait).collect())
    }

    /// Transit times of a stream's data, from its sender to its receiver.
    pub(crate) fn data(&self, stream: usize) -> Option<Vec<Transit>> {
        let (from, to) = (self.ends[stream], self.ends[1 - stream]);
        let shift = self.shifts[stream]? * if stream == 0 { 1 } else { -1 };
        Some(transits(&from.half(stream).sent, &to.half(stream).sent, shift, from.half(stream).syn.is_some()))
    }

    /// Transit times of the ACKs for a stream's data, from its receiver to its sender.
    pub(crate) fn acks(&self, stream: usize) -> Option<Vec<Transit>> {
        let (from, to) = (self.ends[1 - stream], self.ends[stream]);
        let shift = self.shifts[stream]? * if stream == 0 { -1 } else { 1 };
        Some(transits(&from.half(1 - stream).acked, &to.half(1 - stream).acked, shift, from.anchored(stream)))
    }
}
