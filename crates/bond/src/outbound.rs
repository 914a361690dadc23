//! The sending end of a stream: which part of it goes over which connection, and what goes again.
//!
//! The ledger knows offsets, not bytes: these are the caller's (see [`Buffer`](crate::Buffer)). The caller says what there is to send
//! ([`offer`](Outbound::offer)), what its connections look like ([`look`](Outbound::look)) and what the other end says
//! ([`receipt`](Outbound::receipt), [`acknowledge`](Outbound::acknowledge)), and asks for pieces until there is none ([`give`](Outbound::give)).
//!
//! What a connection has that is lost goes again over the others: what the other end has not said to have got from it. One that stalls, which has
//! something and of which nothing arrives, gets nothing more, and what it has goes over the others too. When something arrives of it, it must first carry
//! a copy of a piece in time; then it is as before.
//! When there is nothing else to give out, what is late goes over another one too: so the end of a stream does not wait for a loss.
//! A connection that is idle while others are busy gets a copy of a piece now and then; when that has come, or when a connection that was silent is
//! heard of again, it is judged by its window and its round trip, as one that begins: nothing is believed for ever of what it was in a bad hour.

use crate::{
    Breach,
    inbound::MOST_DELAY,
    path::{Look, Path, Run},
    ranges::Ranges,
    scheduler::{Ask, Memory, Scheduler},
    score::Smoothing,
};
use std::collections::VecDeque;
use units::{Bytes, Span};

/// An idle connection gets a copy so often at last; the first after so many of its round trips, then after twice as long, and so on: its handshake may
/// have been the worst hour of its life.
const TRIAL: Span = Span(1_000_000_000);
const FIRST_TRIAL_RTTS: u64 = 4;
const LEAST_TRIAL: Span = Span(20_000_000);
/// However fast the connections are, no piece has more bytes, nor more than one of so many parts of the window: else all connections but one wait while the
/// other end has it.
const MOST_PIECE: u64 = 512 * 1024;
const LEAST_PIECES: u64 = 4;
/// More is wanted while less than this is left: so much is there when a connection next has room.
const STOCK: u64 = 512 * 1024;
/// More parts than this, of what goes out for the first time, are never between what the other end has in order and the last: it need not remember
/// more holes.
const MOST_RUNS: usize = 4096;

/// How a stream is shared out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Who gets what.
    pub scheduler: Scheduler,
    /// How throughput is smoothed.
    pub smoothing: Smoothing,
    /// What is given out at a time.
    pub piece: Bytes,
    /// A connection with so much waiting to be sent is not given more: what is given out late is given to the right one.
    pub queue: Bytes,
    /// Both are more where they would be sent sooner than that: nobody can come with the next piece at once.
    pub ahead: Span,
    /// A piece waits, rather than go where it would be late, and what is late goes over another too. Off, (7) decides alone.
    pub foresight: bool,
}

impl Settings {
    /// The least piece: header and holes would cost too much.
    pub const LEAST_PIECE: Bytes = Bytes(1024);

    /// The paper's numbers, a piece of 16 KiB, a millisecond ahead.
    pub fn new(scheduler: Scheduler) -> Self {
        let piece = Bytes(16 * 1024);
        Settings { scheduler, smoothing: Smoothing::default(), piece, queue: piece, ahead: Span(1_000_000), foresight: true }
    }
}

/// A connection of a stream: its place in the ledger, which another has after it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub usize);

/// A part of the stream for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Who carries it.
    pub conn: ConnId,
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
    /// Another connection has it too, or had it.
    pub again: bool,
}

impl Piece {
    /// What of it is beyond an offset.
    fn beyond(self, offset: u64) -> Option<Piece> {
        let gone = offset.saturating_sub(self.offset);
        (gone < self.len).then(|| Piece { offset: self.offset + gone, len: self.len - gone, ..self })
    }
}

/// What is believed of a connection, and what it has: for those who watch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// (7), s.
    pub score: f64,
    /// G, bytes/s; none: not measured yet.
    pub throughput: Option<f64>,
    /// What the caller saw last.
    pub look: Look,
    /// Payload it was given, and that the other end got from it.
    pub given: u64,
    /// See `given`.
    pub got: u64,
    /// It has something, and nothing of it arrives.
    pub stalled: bool,
}

/// The ledger.
#[derive(Debug)]
pub struct Outbound {
    settings: Settings,
    paths: Vec<Path>,
    memory: Memory,
    /// All that there is to send until now, and where that ends for good.
    offered: u64,
    end: Option<u64>,
    /// First byte that nobody was given, first that the other end has not in order, and first that it has no room for.
    next: u64,
    acked: u64,
    limit: u64,
    /// What it had room for to begin with.
    window: u64,
    /// What is to go again.
    again: Ranges,
    /// Where, beyond `acked`, another connection's part begins.
    cuts: VecDeque<u64>,
    last_given: Option<usize>,
    /// A piece that is to go over an idle connection as well.
    copy: Option<Piece>,
    /// All of it was delivered to whom it is for.
    done: bool,
}

impl Outbound {
    /// Nothing is offered yet. The other end has room for `window` bytes to begin with.
    pub fn new(settings: Settings, window: u64) -> Self {
        Outbound {
            settings: Settings { piece: settings.piece.max(Settings::LEAST_PIECE), queue: settings.queue.max(Bytes(1)), ..settings },
            paths: Vec::new(),
            memory: Memory::default(),
            offered: 0,
            end: None,
            next: 0,
            acked: 0,
            limit: window,
            window,
            again: Ranges::default(),
            cuts: VecDeque::new(),
            last_given: None,
            copy: None,
            done: false,
        }
    }

    /// A connection is there. Cheap ones have low tiers.
    pub fn add(&mut self, now: Span, tier: u8) -> ConnId {
        let path = Path::new(now, tier, self.acked);
        let place = self.paths.iter().position(|path| !path.is_up).unwrap_or(self.paths.len());
        match self.paths.get_mut(place) {
            Some(free) => *free = path,
            None => self.paths.push(path),
        }
        // Those of equal score go round, beginning with the first.
        self.memory.last = if self.next == 0 { self.paths.len() - 1 } else { self.memory.last };
        self.reassign();
        ConnId(place)
    }

    /// A connection is gone: what it has goes again.
    pub fn lose(&mut self, conn: ConnId) {
        let Some(path) = self.paths.get_mut(conn.0).filter(|path| path.is_up) else { return };
        path.is_up = false;
        // Where each carries the whole stream, nobody need carry another's part.
        let runs = std::mem::take(&mut path.runs);
        if self.settings.scheduler != Scheduler::Redundant {
            for run in runs {
                self.again.insert(run.start.max(self.acked), run.end);
            }
        }
        self.copy = self.copy.filter(|copy| copy.conn != conn);
    }

    /// There are `bytes` more to send.
    pub fn offer(&mut self, bytes: u64) {
        debug_assert!(self.end.is_none(), "nothing follows the end");
        self.offered += bytes;
    }

    /// Nothing will follow what was offered.
    pub fn close(&mut self) {
        self.end = Some(self.offered);
    }

    /// A connection looks like this now.
    pub fn look(&mut self, now: Span, conn: ConnId, look: Look) {
        if let Some(path) = self.paths.get_mut(conn.0).filter(|path| path.is_up) {
            path.look(now, look, &self.settings.smoothing);
        }
    }

    /// The other end says on a connection that it has got `got` bytes of payload over it.
    pub fn receipt(&mut self, now: Span, conn: ConnId, got: u64) -> Result<(), Breach> {
        let Some(path) = self.paths.get_mut(conn.0).filter(|path| path.is_up) else { return Ok(()) };
        if got > path.given {
            return Err(Breach::NeverSent { got, sent: path.given });
        }
        if got > path.got {
            let was_stalled = path.is_stalled;
            path.receipt(now, got);
            if was_stalled {
                self.reassign();
            }
        }
        Ok(())
    }

    /// The other end has all below `acked`, and room for all below `limit`. What it said later may come earlier, over another connection.
    pub fn acknowledge(&mut self, acked: u64, limit: u64) -> Result<(), Breach> {
        if acked > self.next {
            return Err(Breach::NeverSent { got: acked, sent: self.next });
        }
        self.limit = limit.max(self.limit);
        if acked > self.acked {
            self.acked = acked;
            self.again.trim(acked);
            self.paths.iter_mut().for_each(|path| path.settle(acked));
            // The caller may have let go of what is below.
            self.copy = self.copy.and_then(|copy| copy.beyond(acked));
            while self.cuts.front().is_some_and(|cut| *cut < acked) {
                self.cuts.pop_front();
            }
        }
        Ok(())
    }

    /// The other end says that all was delivered to whom it is for.
    pub fn delivered(&mut self) -> Result<(), Breach> {
        if self.end.is_none_or(|end| end > self.next) {
            return Err(Breach::NotAtEnd);
        }
        self.acknowledge(self.next, self.limit)?;
        self.done = true;
        Ok(())
    }

    /// Where the stream ends, if a connection is to say that now: each says it once, since any of them may be lost.
    pub fn end_to_tell(&mut self, conn: ConnId) -> Option<u64> {
        let end = self.end.filter(|end| *end == self.next && !self.done)?;
        let path = self.paths.get_mut(conn.0).filter(|path| path.is_up && !path.end_told)?;
        path.end_told = true;
        Some(end)
    }

    /// How long a piece is now, at most.
    pub fn piece(&self) -> u64 {
        let rate: f64 = self.paths.iter().filter(|path| path.is_usable()).map(Path::rate).sum();
        let ahead = (rate * self.settings.ahead.secs()) as u64;
        ahead.min(MOST_PIECE).min(self.window / LEAST_PIECES).max(self.settings.piece.0)
    }

    /// Where the next piece begins, what goes again first, and how long it is at most.
    fn next_part(&self) -> (u64, u64) {
        match self.again.first() {
            Some((start, end)) => (start, end - start),
            None => (self.next, self.offered.min(self.limit).saturating_sub(self.next)),
        }
    }

    fn has_room(&self, path: &Path) -> bool {
        path.look.unsent < path.queue(self.settings.queue.0, self.settings.ahead)
    }

    /// With so much waiting a connection is not given more, bytes.
    pub fn queue(&self, conn: ConnId) -> u64 {
        self.paths.get(conn.0).map_or(0, |path| path.queue(self.settings.queue.0, self.settings.ahead))
    }

    /// Whether it matters that more be offered now, for which there are `room` bytes. It does not while there is enough to give until the caller comes again,
    /// and the next piece would go nowhere else if more were known of: what is left where it comes from takes none of our memory, and its sender hears of it.
    pub fn wants(&self, room: u64) -> bool {
        let piece = self.piece().min(self.next_part().1);
        self.left() < STOCK.max(self.settings.piece.0)
            || (piece > 0 && self.settings.scheduler.depends_on(&self.paths, &self.ask(piece), room))
    }

    fn ask(&self, piece: u64) -> Ask {
        Ask {
            piece,
            left: self.left(),
            window: self.limit - self.acked,
            queue: self.settings.queue.0,
            ahead: self.settings.ahead,
            foresight: self.settings.foresight,
        }
    }

    /// The next piece; none: there is nothing, or it is better to wait. It must be sent, whatever becomes of it.
    pub fn give(&mut self, now: Span) -> Option<Piece> {
        let most_of_a_piece = self.piece();
        if let Some(copy) = self.copy.take() {
            let path = &mut self.paths[copy.conn.0];
            path.give(now, (copy.offset, copy.offset + copy.len), most_of_a_piece, true);
            path.is_tried = true;
            path.trials += 1;
            return Some(copy);
        }
        if self.settings.scheduler == Scheduler::Redundant {
            return self.give_each(now);
        }
        let (first, most) = self.next_part();
        let again = !self.again.is_empty();
        if most == 0 {
            return self.rescue(now);
        }
        let piece = most_of_a_piece.min(most);
        let ask = self.ask(piece);
        // Among too many holes only those who fill them, and who carries on without making one.
        let crowded = self.cuts.len() >= MOST_RUNS && !again;
        let before = self.memory;
        let chosen = self.settings.scheduler.choose(&self.paths, &mut self.memory, &ask)?;
        if crowded && self.last_given != Some(chosen) {
            self.memory = before;
            return None;
        }
        if again {
            self.again.trim(first + piece);
        } else {
            if self.last_given != Some(chosen) {
                self.cuts.push_back(self.next);
                self.last_given = Some(chosen);
            }
            self.next += piece;
        }
        self.paths[chosen].give(now, (first, first + piece), most_of_a_piece, false);
        self.copy = self.trial(now, chosen).map(|idle| Piece { conn: ConnId(idle), offset: first, len: piece, again: true });
        Some(Piece { conn: ConnId(chosen), offset: first, len: piece, again })
    }

    /// An idle connection that nobody knows the present state of.
    fn trial(&self, now: Span, chosen: usize) -> Option<usize> {
        let tier = match self.settings.scheduler {
            Scheduler::Score => u8::MAX,
            // One that costs money is not tried for nothing.
            Scheduler::Tiers => self.paths[chosen].tier,
            _ => return None,
        };
        let is_old = |path: &Path| {
            // One that has just been heard of again is asked at once.
            let first = if path.is_doubted { LEAST_TRIAL.0 } else { (FIRST_TRIAL_RTTS * path.look.srtt.0).max(LEAST_TRIAL.0) };
            let pause = first.saturating_mul(1 << path.trials.min(20)).min(TRIAL.0);
            path.outstanding() == 0 && path.look.unsent == 0 && now.0.saturating_sub(path.moved_at.0) >= pause
        };
        (0..self.paths.len()).find(|index| {
            let path = &self.paths[*index];
            *index != chosen && path.is_usable() && (path.tier <= tier || path.is_doubted) && is_old(path)
        })
    }

    /// Whether what is late is copied.
    fn rescues(&self) -> bool {
        self.settings.foresight && matches!(self.settings.scheduler, Scheduler::Score | Scheduler::Tiers)
    }

    /// There is nothing that nobody has: what the others have is the end of the stream, or of what is there of it, or all that the other end has room for.
    /// What should be there by now and is not goes over another connection too, if that is not slower than to send it again; and so does what still waits to
    /// be sent, and what is on its way, if it comes earlier over the other: at the end of the stream, and where that connection's TCP mends a loss, of which
    /// nobody knows what it has hit.
    fn rescue(&mut self, now: Span) -> Option<Piece> {
        if !self.rescues() {
            return None;
        }
        let (acked, is_end) = (self.acked, self.end.is_some());
        for from in 0..self.paths.len() {
            let path = &mut self.paths[from];
            if !path.is_usable() {
                continue;
            }
            let (tier, round, waits, mends) = (path.tier, path.look.srtt.secs(), path.score(0), path.look.mends);
            // Each with how soon it will be there, s, if nothing is done.
            let late = path.first_alone(acked).filter(|run| run.due <= now).map(|run| (*run, round));
            let unsent = path.first_unsent(acked).map(|run| (*run, waits));
            let last = path.last_alone(acked).filter(|_| is_end || mends).map(|run| {
                let said = run.due.saturating_sub(now + MOST_DELAY).secs() - round / 2.0;
                (*run, if mends { said.max(round) } else { said })
            });
            let better = |(run, most): &(Run, f64)| self.sooner(from, run.end - run.start, *most, tier).map(|to| (*run, to));
            let Some((run, to)) = [late, unsent, last].iter().flatten().find_map(better) else { continue };
            // The path may hold the same range twice; one copy covers both.
            self.paths[from]
                .runs
                .iter_mut()
                .filter(|other| (other.start, other.end) == (run.start, run.end))
                .for_each(|other| other.is_copied = true);
            let (start, end) = (run.start.max(acked), run.end);
            self.paths[to].give(now, (start, end), self.settings.piece.0, true);
            return Some(Piece { conn: ConnId(to), offset: start, len: end - start, again: true });
        }
        None
    }

    /// Another that would have `len` bytes at the other end in less than so many s, and costs no more: the soonest.
    fn sooner(&self, than: usize, len: u64, most: f64, tier: u8) -> Option<usize> {
        let is_fit = |path: &Path| path.is_usable() && self.has_room(path) && path.score(len) < most && path.tier <= tier;
        let others = self.paths.iter().enumerate().filter(|(index, path)| *index != than && is_fit(path));
        others.min_by(|one, other| one.1.score(len).total_cmp(&other.1.score(len))).map(|(index, _)| index)
    }

    /// The next piece of the whole stream for a connection that has room. What the other end has need not be sent by who comes late.
    fn give_each(&mut self, now: Span) -> Option<Piece> {
        let (acked, all, most_of_a_piece) = (self.acked, self.offered.min(self.limit), self.piece());
        let count = self.paths.len();
        let has_work = |path: &Path| path.is_usable() && self.has_room(path) && path.cursor.max(acked) < all;
        let chosen = (1..=count).map(|step| (self.memory.last + step) % count).find(|index| has_work(&self.paths[*index]))?;
        self.memory.last = chosen;
        let path = &mut self.paths[chosen];
        let offset = path.cursor.max(acked);
        let len = most_of_a_piece.min(all - offset);
        path.cursor = offset + len;
        path.give(now, (offset, offset + len), self.settings.piece.0, true);
        let again = offset < self.next;
        self.next = self.next.max(offset + len);
        Some(Piece { conn: ConnId(chosen), offset, len, again })
    }

    /// Finds those that have stalled.
    pub fn check(&mut self, now: Span) {
        let tries = matches!(self.settings.scheduler, Scheduler::Score | Scheduler::Tiers);
        for path in self.paths.iter_mut().filter(|path| path.is_awaited()) {
            if now.0 >= path.moved_at.0 + path.patience().0 {
                path.stall(tries);
            }
        }
        self.reassign();
    }

    /// What those have that have stalled goes over others, where there are any: else it may come after all, and need not go twice.
    fn reassign(&mut self) {
        if self.settings.scheduler == Scheduler::Redundant || !self.paths.iter().any(Path::is_usable) {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| path.is_up && path.is_stalled) {
            for run in path.set_adrift() {
                self.again.insert(run.start.max(self.acked), run.end);
            }
        }
    }

    /// Whether something was not heard of yet: not acknowledged, or given to a connection that has told nothing of it. A part that came over another
    /// connection is acknowledged, and still the one that was to carry it is waited for, and judged.
    pub fn waits(&self) -> bool {
        self.acked < self.offered || self.paths.iter().any(Path::is_awaited)
    }

    /// When to [`check`](Outbound::check) next, and to ask for pieces, if nothing happens before: after now, if that was just done.
    pub fn next_check(&self, now: Span) -> Option<Span> {
        let rescues = self.rescues();
        let next = |path: &Path| {
            let silent = path.moved_at + path.patience();
            let late = path.runs.iter().find(|run| !run.is_copied && run.due > now).filter(|_| rescues);
            late.map_or(silent, |run| run.due.min(silent))
        };
        self.paths.iter().filter(|path| path.is_awaited()).map(next).min()
    }

    /// All below was received, and can be forgotten.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// What was offered and not given to anybody, within the other end's room or not.
    pub fn left(&self) -> u64 {
        self.again.bytes() + self.offered - self.next
    }

    /// Whether all was delivered to whom it is for.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How many parts of the stream it keeps track of: what its memory grows with.
    pub fn remembered(&self) -> usize {
        self.paths.iter().map(|path| path.runs.len()).sum::<usize>() + self.again.len() + self.cuts.len()
    }

    /// How many connections are there.
    pub fn connections(&self) -> usize {
        self.paths.iter().filter(|path| path.is_up).count()
    }

    /// What is believed of a connection.
    pub fn seen(&self, conn: ConnId) -> Option<Seen> {
        let path = self.paths.get(conn.0).filter(|path| path.is_up)?;
        Some(Seen {
            score: path.score(0),
            throughput: path.measured(),
            look: path.look,
            given: path.given,
            got: path.got,
            stalled: path.is_stalled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Span = Span(1_000_000);

    /// What a connection with room looks like.
    const ROOM: Look = Look { delivered: 0, unsent: 0, window: 1 << 20, srtt: MS, rto: Span(200_000_000), mends: false };

    #[test]
    fn a_peer_that_tells_little_of_what_came_costs_no_memory() {
        let settings = Settings { piece: Settings::LEAST_PIECE, ..Settings::new(Scheduler::Score) };
        let mut out = Outbound::new(settings, 4096);
        let conn = out.add(Span::ZERO, 0);
        for turn in 1..=1000 {
            out.offer(4096);
            out.look(Span::ZERO, conn, ROOM);
            while out.give(Span::ZERO).is_some() {}
            // All is there, but one byte a turn is said to have come over this connection.
            out.receipt(Span::ZERO, conn, turn).unwrap();
            out.acknowledge(4096 * turn, 4096 * (turn + 1)).unwrap();
            assert!(out.remembered() <= 1, "{} parts after {turn} turns", out.remembered());
        }
        // What was told late is told right all the same.
        out.receipt(Span::ZERO, conn, 4_096_000).unwrap();
        assert_eq!(out.seen(conn).map(|seen| seen.got), Some(4_096_000));
        assert!(!out.waits());
    }

    #[test]
    fn a_copy_of_what_is_acknowledged_meanwhile_is_not_sent() {
        let mut out = Outbound::new(Settings::new(Scheduler::Score), 1 << 20);
        let conns = [out.add(Span::ZERO, 0), out.add(Span::ZERO, 0)];
        conns.iter().for_each(|conn| out.look(MS, *conn, ROOM));
        out.offer(1000);
        // The other connection has been idle for so long that it is to carry a copy.
        let later = MS * 10_000;
        let piece = out.give(later).unwrap();
        assert!(out.copy.is_some());
        out.acknowledge(600, 1 << 20).unwrap();
        assert_eq!(out.give(later).map(|copy| (copy.conn != piece.conn, copy.offset, copy.len)), Some((true, 600, 400)));
        out.offer(1000);
        let piece = out.give(later * 2).unwrap();
        out.acknowledge(piece.offset + piece.len, 1 << 20).unwrap();
        assert_eq!(out.give(later * 2), None);
    }

    #[test]
    fn a_part_that_would_come_too_late_for_the_clock_is_due_at_its_end() {
        let mut out = Outbound::new(Settings::new(Scheduler::RoundRobin), u64::MAX);
        let conn = out.add(Span::ZERO, 0);
        out.look(Span::ZERO, conn, Look { unsent: 0, window: 0, srtt: Span(u64::MAX), rto: MS, ..ROOM });
        out.offer(1000);
        assert!(out.give(Span(u64::MAX / 2)).is_some());
    }
}
