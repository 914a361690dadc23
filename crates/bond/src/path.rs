//! A connection, as the sending end of the stream knows it.

use crate::{
    inbound::MOST_DELAY,
    score::{Smoothing, Throughput, score},
};
use std::collections::VecDeque;
use units::Span;

/// However fast a connection is, no more need wait with it than keeps it busy until somebody comes with the next piece.
const MOST_QUEUE: u64 = 1 << 20;

/// What the caller sees of a connection: of its socket (Linux: `TCP_INFO`, `SIOCOUTQNSD`) and of what it keeps for it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// What the other end's TCP has acknowledged of it in all, bytes: what throughput is measured by.
    pub delivered: u64,
    /// Q of (7): what was given to it and waits to be sent for the first time, bytes.
    pub unsent: u64,
    /// What it may have under way, bytes: the lesser of its congestion window and the other end's.
    pub window: u64,
    /// The smoothed round trip; before there is one, what the handshake took.
    pub srtt: Span,
    /// The retransmission timeout.
    pub rto: Span,
    /// Its TCP is sending again what was lost: some of what is under way comes a round trip later than it says of itself, or more.
    pub mends: bool,
}

/// A part of the stream that a connection was given, and the other end has not said to have from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// When the other end should have said so.
    pub(crate) due: Span,
    /// Another has it too, or had it.
    pub(crate) is_copied: bool,
}

/// A connection.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// It is there.
    pub(crate) is_up: bool,
    /// It has something, and nothing of it arrives.
    pub(crate) is_stalled: bool,
    /// Cheap ones have low numbers.
    pub(crate) tier: u8,
    pub(crate) look: Look,
    throughput: Throughput,
    /// What it has, in the order in which it was given.
    pub(crate) runs: VecDeque<Run>,
    /// Payload given to it, and what the other end says to have got from it, bytes.
    pub(crate) given: u64,
    pub(crate) got: u64,
    /// What of that comes before its runs: it was given to others when it stalled, or the other end
    /// has it, whichever connection brought it.
    adrift: u64,
    /// Where each connection has the whole stream: how far it was given that.
    pub(crate) cursor: u64,
    /// When last it got something while it had nothing, or the other end got something from it.
    pub(crate) moved_at: Span,
    /// It was told where the stream ends.
    pub(crate) end_told: bool,
    /// It has stalled, and has to carry a copy in time before it is given anything that no other has.
    pub(crate) is_doubted: bool,
    /// What it has is a copy, to see what it is like now; how often that was tried since it was of use.
    pub(crate) is_tried: bool,
    pub(crate) trials: u32,
}

impl Path {
    pub(crate) fn new(now: Span, tier: u8, cursor: u64) -> Self {
        Path {
            is_up: true,
            is_stalled: false,
            tier,
            look: Look::default(),
            throughput: Throughput::new(now),
            runs: VecDeque::new(),
            given: 0,
            got: 0,
            adrift: 0,
            cursor,
            moved_at: now,
            end_told: false,
            is_doubted: false,
            is_tried: false,
            trials: 0,
        }
    }

    /// Whether it can be of use now.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_up && !self.is_stalled
    }

    /// Whether it may be given what no other has.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_usable() && !self.is_doubted
    }

    /// What it has, bytes.
    pub(crate) fn outstanding(&self) -> u64 {
        self.given - self.got
    }

    /// Whether something of what it has is to be heard of.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_usable() && self.outstanding() > 0
    }

    /// It looks like this now.
    pub(crate) fn look(&mut self, now: Span, look: Look, smoothing: &Smoothing) {
        self.throughput.look(now, look.delivered, look.unsent, look.srtt, smoothing);
        self.look = look;
    }

    /// Something of it should have arrived by now, and has not. It is doubted where there are trials.
    pub(crate) fn stall(&mut self, tries: bool) {
        (self.is_stalled, self.is_doubted, self.is_tried) = (true, tries, false);
    }

    /// It is given a part of the stream. Parts on end are one as long as they are no longer than `most`.
    pub(crate) fn give(&mut self, now: Span, (start, end): (u64, u64), most: u64, is_copied: bool) {
        if self.outstanding() == 0 {
            self.moved_at = now;
        }
        if !is_copied {
            self.trials = 0;
        }
        let comes = self.arrives(end - start) + self.look.srtt.secs() / 2.0;
        let due = now.saturating_add(MOST_DELAY).saturating_add(Span::from_secs_f64(comes));
        match self.runs.back_mut() {
            Some(last) if last.end == start && end - last.start <= most && last.is_copied == is_copied => (last.end, last.due) = (end, due),
            _ => self.runs.push_back(Run { start, end, due, is_copied }),
        }
        self.given += end - start;
        self.look.unsent += end - start;
        self.throughput.fed(now);
    }

    /// The other end says to have got so much of what it was given. What was believed of it before it fell silent, or was tried, is believed no longer.
    pub(crate) fn receipt(&mut self, now: Span, got: u64) {
        let mut news = got - self.got;
        let adrift = news.min(self.adrift);
        self.adrift -= adrift;
        news -= adrift;
        (self.got, self.moved_at) = (got, now);
        let has_passed = self.is_tried && !self.is_stalled && self.outstanding() == 0;
        if self.is_stalled || has_passed {
            self.throughput.forget(now, self.look.delivered);
            self.is_doubted &= !has_passed;
            (self.is_stalled, self.is_tried) = (false, false);
        }
        while let Some(first) = self.runs.front_mut() {
            let gone = news.min(first.end - first.start);
            first.start += gone;
            news -= gone;
            if first.start < first.end {
                return;
            }
            self.runs.pop_front();
        }
    }

    /// The other end has all below `acked`. What comes first of what this connection has, and is below
    /// that, is remembered as a number alone, even if the other end never tells that it came.
    pub(crate) fn settle(&mut self, acked: u64) {
        while let Some(run) = self.runs.front().filter(|run| run.end <= acked) {
            self.adrift += run.end - run.start;
            self.runs.pop_front();
        }
    }

    /// The first part that it alone has, and that the other end, which has all below `acked`, has not.
    pub(crate) fn first_alone(&self, acked: u64) -> Option<&Run> {
        self.runs.iter().find(|run| !run.is_copied && run.end > acked)
    }

    /// The last of these.
    pub(crate) fn last_alone(&self, acked: u64) -> Option<&Run> {
        self.runs.iter().rev().find(|run| !run.is_copied && run.end > acked)
    }

    /// The first part that it alone has and has not sent; one that it has begun to send is two from now on.
    pub(crate) fn first_unsent(&mut self, acked: u64) -> Option<&Run> {
        let mut sent = self.runs.iter().map(|run| run.end - run.start).sum::<u64>().saturating_sub(self.look.unsent);
        let mut index = 0;
        while let Some(run) = self.runs.get_mut(index) {
            let len = run.end - run.start;
            if !run.is_copied && run.end > acked && sent < len {
                if sent > 0 {
                    let begun = Run { end: run.start + sent, ..*run };
                    run.start += sent;
                    self.runs.insert(index, begun);
                    index += 1;
                }
                return self.runs.get(index);
            }
            sent = sent.saturating_sub(len);
            index += 1;
        }
        None
    }

    /// With so much waiting it is not given more, bytes: `least`, or, where that is more, what it sends in twice so long as `ahead`, up to
    /// [`MOST_QUEUE`].
    pub(crate) fn queue(&self, least: u64, ahead: Span) -> u64 {
        least.max(MOST_QUEUE.min((self.rate() * 2.0 * ahead.secs()) as u64))
    }

    /// When a piece of so many bytes would be there, s: not before (7), nor before all that it has could be, of which what is under way may stand in a queue
    /// that the round trip does not tell of yet.
    pub(crate) fn arrives(&self, piece: u64) -> f64 {
        let through = (self.outstanding() + piece) as f64 / self.rate().max(self.possible()).max(1.0);
        self.score(piece).max(through)
    }

    /// What it has goes to others; it may still arrive from it too.
    pub(crate) fn set_adrift(&mut self) -> std::collections::vec_deque::Drain<'_, Run> {
        self.adrift = self.outstanding();
        self.runs.drain(..)
    }

    /// What its window lets through a round trip, bytes/s.
    fn possible(&self) -> f64 {
        self.look.window as f64 / self.look.srtt.secs().max(1e-6)
    }

    /// G, bytes/s; before it was measured, what the window lets through.
    pub(crate) fn rate(&self) -> f64 {
        self.throughput.rate().unwrap_or_else(|| self.possible())
    }

    /// When all would be at the other end that waits for it and `left` bytes more, s. What was measured lags behind a window that grows.
    pub(crate) fn clears(&self, left: u64) -> f64 {
        score(self.look.unsent + left, self.rate().max(self.possible()), self.look.srtt)
    }

    /// G, bytes/s, if it was measured.
    pub(crate) fn measured(&self) -> Option<f64> {
        self.throughput.rate()
    }

    /// (7); with `more` bytes before it than there are.
    pub(crate) fn score(&self, more: u64) -> f64 {
        score(self.look.unsent + more, self.rate(), self.look.srtt)
    }

    /// How long it may be silent before what it has is given to others: two timeouts, and as long as the other end may hold a receipt back.
    pub(crate) fn patience(&self) -> Span {
        self.look.rto * 2 + MOST_DELAY
    }
}
