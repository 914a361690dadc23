//! The sending end of a stream: which piece goes over which path, and what is sent again.
//!
//! Terms: TCP *retransmits* on the same path, unseen here. The ledger *reinjects* bytes over
//! another path (`reinjection.rs`): those of a path that is lost or has stalled, and, with
//! foresight, late ones, so that they cause no head-of-line blocking. It sends a *probe duplicate*
//! over an idle path to measure it (`probing.rs`).

mod probing;
mod reinjection;

use crate::{
    error::ProtocolViolation,
    path::{Path, PathId, PathSample},
    ranges::Ranges,
    scheduler::{PieceContext, Scheduler, SchedulerState},
    settings::BondSettings,
};
use std::collections::VecDeque;
use units::{Bytes, Span};

/// Longest piece, bytes, however fast the paths are.
const MAX_PIECE: u64 = 512 * 1024;
/// A piece is at most this fraction of the window. Otherwise one path could hold all of it while
/// the others wait.
const MIN_PIECES_PER_WINDOW: u64 = 4;
/// More data is wanted while fewer unassigned bytes are left than the paths send in this time,
/// about a round trip: a piece is ready when a path next has room. More would only add delay, most
/// of all to a slow stream, and the source would feel the backpressure late.
const READ_AHEAD: Span = Span(100_000_000);
/// Bounds of that, bytes.
const MIN_UNASSIGNED: u64 = 64 * 1024;
const MAX_UNASSIGNED: u64 = 512 * 1024;
/// A piece is longer for the sake of fewer wake-ups only while this many such pieces wait. Towards
/// the end of a message they are short again, so that all paths end together.
const WAITING_BATCHES: u64 = 4;
/// Between the acknowledged offset and the last assigned one there are at most this many changes of
/// path. This bounds the gaps that the receiver must track.
const MAX_BOUNDARIES: usize = 4096;

/// A range of the stream, assigned to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The path that carries it.
    pub path: PathId,
    /// Stream offset of its first byte.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// Whether another path has these bytes too, or had them: a reinjection, a probe duplicate, or
    /// a redundant copy.
    pub is_duplicate: bool,
}

impl Piece {
    /// The part of it from `offset` on.
    fn beyond(self, offset: u64) -> Option<Piece> {
        let skipped = offset.saturating_sub(self.offset);
        (skipped < self.len).then(|| Piece { offset: self.offset + skipped, len: self.len - skipped, ..self })
    }
}

/// What the ledger knows of a path, for observers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStats {
    /// Hoekstra (7), seconds.
    pub score: f64,
    /// G, bytes/s; `None` until it was measured.
    pub throughput: Option<f64>,
    /// The last sample; bytes assigned since count as unsent.
    pub sample: PathSample,
    /// Payload assigned to the path, bytes.
    pub assigned: u64,
    /// Payload that the peer has received over the path by its last receipt, bytes.
    pub received: u64,
    /// The path has outstanding data, and none of it has been acknowledged for too long.
    pub is_stalled: bool,
}

/// The sending end of a stream.
///
/// It is a ledger of offsets. The caller keeps the bytes (see
/// [`StreamBuffer`](crate::StreamBuffer)), the sockets and the clock. Offsets are in bytes from the
/// beginning of the stream, times from any fixed origin.
///
/// # Contract
///
/// *Data.* The caller appends with [`offer`](Outbound::offer), as long as
/// [`wants_data`](Outbound::wants_data), and ends the stream with [`close`](Outbound::close). It
/// keeps all bytes from [`acked`](Outbound::acked) on: any of them may be asked for again.
///
/// *Paths.* [`add_path`](Outbound::add_path) and [`remove_path`](Outbound::remove_path) follow the
/// connections. Events of a path that was removed are ignored.
///
/// *Events.* The caller passes what the peer says to [`on_receipt`](Outbound::on_receipt),
/// [`on_acked`](Outbound::on_acked) and [`on_delivered`](Outbound::on_delivered). A
/// [`ProtocolViolation`] ends the stream.
///
/// *Sending.* After data, events or the timeout of [`next_timeout`](Outbound::next_timeout) the
/// caller
///
/// 1. passes a fresh sample of each path to [`update_path`](Outbound::update_path);
/// 2. calls [`handle_timeout`](Outbound::handle_timeout);
/// 3. calls [`next_piece`](Outbound::next_piece) until it returns `None`, and sends each piece on
///    its path: an assigned piece counts as sent;
/// 4. asks [`end_to_announce`](Outbound::end_to_announce) for each path;
/// 5. sleeps until [`next_timeout`](Outbound::next_timeout) at the latest.
///
/// *Guarantees.* No piece lies beyond the peer's flow-control limit or below the acknowledged
/// offset. Pieces that are no duplicates are consecutive. Memory is bounded by what is
/// unacknowledged.
#[derive(Debug)]
pub struct Outbound {
    settings: BondSettings,
    paths: Vec<Path>,
    scheduler_state: SchedulerState,
    /// All bytes offered so far.
    offered: u64,
    /// Where the stream ends; `None` while it is not closed.
    end: Option<u64>,
    /// First byte that was never assigned to a path.
    next: u64,
    /// The peer has all bytes below.
    acked: u64,
    /// The peer's flow-control limit.
    limit: u64,
    /// The peer's window at the beginning, bytes.
    initial_window: u64,
    /// Ranges of lost and stalled paths, to be reinjected before new data is assigned.
    reinject_queue: Ranges,
    /// Offsets at or above `acked` where newly assigned data changes path.
    boundaries: VecDeque<u64>,
    /// Path of the newly assigned data before `next`.
    last_path: Option<usize>,
    /// A probe duplicate that is to be sent next.
    pending_probe: Option<Piece>,
    /// The peer has reported delivery of the whole stream.
    delivered: bool,
}

impl Outbound {
    /// An empty stream. `window` is the peer's window in bytes, from the handshake.
    pub fn new(settings: BondSettings, window: u64) -> Self {
        Outbound {
            settings: BondSettings { piece: settings.piece.max(BondSettings::MIN_PIECE), queue: settings.queue.max(Bytes(1)), ..settings },
            paths: Vec::new(),
            scheduler_state: SchedulerState::default(),
            offered: 0,
            end: None,
            next: 0,
            acked: 0,
            limit: window,
            initial_window: window,
            reinject_queue: Ranges::default(),
            boundaries: VecDeque::new(),
            last_path: None,
            pending_probe: None,
            delivered: false,
        }
    }

    /// Adds a path. `tier` is its cost class; cheap ones have low numbers. The caller passes a
    /// sample to [`update_path`](Outbound::update_path) before it asks for pieces.
    pub fn add_path(&mut self, now: Span, tier: u8) -> PathId {
        let path = Path::new(now, tier, self.acked);
        let slot = self.paths.iter().position(|path| !path.is_open).unwrap_or(self.paths.len());
        match self.paths.get_mut(slot) {
            Some(free) => *free = path,
            None => self.paths.push(path),
        }
        // Paths of equal score take turns, beginning with the first.
        if self.next == 0 {
            self.scheduler_state.last = self.paths.len() - 1;
        }
        self.reassign_stalled();
        PathId(slot)
    }

    /// Removes a path after its connection has ended. Its outstanding data is reinjected.
    pub fn remove_path(&mut self, path: PathId) {
        let Some(closed) = self.paths.get_mut(path.0).filter(|path| path.is_open) else { return };
        closed.is_open = false;
        let ranges = std::mem::take(&mut closed.ranges);
        // Redundant paths carry the whole stream each: nothing of it needs reinjection.
        if self.settings.scheduler != Scheduler::Redundant {
            for range in ranges {
                self.reinject_queue.insert(range.start.max(self.acked), range.end);
            }
        }
        self.pending_probe = self.pending_probe.filter(|probe| probe.path != path);
    }

    /// Appends `bytes` to the stream. Not after [`close`](Outbound::close).
    pub fn offer(&mut self, bytes: u64) {
        debug_assert!(self.end.is_none(), "the stream is closed");
        self.offered += bytes;
    }

    /// Ends the stream at what was offered.
    pub fn close(&mut self) {
        self.end = Some(self.offered);
    }

    /// Takes a sample of a path.
    pub fn update_path(&mut self, now: Span, path: PathId, sample: PathSample) {
        if let Some(path) = self.paths.get_mut(path.0).filter(|path| path.is_open) {
            path.update(now, sample, &self.settings.smoothing);
        }
    }

    /// A receipt: the peer has received `received` bytes of payload over this path in all.
    ///
    /// # Errors
    /// [`AckedUnsent`](ProtocolViolation::AckedUnsent) when fewer bytes were assigned to the path.
    pub fn on_receipt(&mut self, now: Span, path: PathId, received: u64) -> Result<(), ProtocolViolation> {
        let Some(path) = self.paths.get_mut(path.0).filter(|path| path.is_open) else { return Ok(()) };
        if received > path.assigned {
            return Err(ProtocolViolation::AckedUnsent { acked: received, sent: path.assigned });
        }
        if received > path.received {
            let was_stalled = path.is_stalled;
            path.on_receipt(now, received);
            if was_stalled {
                self.reassign_stalled();
            }
        }
        Ok(())
    }

    /// A cumulative acknowledgement: the peer has all bytes below `acked`, and the flow-control
    /// limit is `limit`. Acknowledgements of different paths may overtake each other; older ones
    /// have no effect.
    ///
    /// # Errors
    /// [`AckedUnsent`](ProtocolViolation::AckedUnsent) when fewer bytes were assigned.
    pub fn on_acked(&mut self, acked: u64, limit: u64) -> Result<(), ProtocolViolation> {
        if acked > self.next {
            return Err(ProtocolViolation::AckedUnsent { acked, sent: self.next });
        }
        self.limit = limit.max(self.limit);
        if acked > self.acked {
            self.acked = acked;
            self.reinject_queue.remove_below(acked);
            self.paths.iter_mut().for_each(|path| path.on_stream_acked(acked));
            // The caller may release acknowledged bytes, so a probe must not ask for them.
            self.pending_probe = self.pending_probe.and_then(|probe| probe.beyond(acked));
            while self.boundaries.front().is_some_and(|boundary| *boundary < acked) {
                self.boundaries.pop_front();
            }
        }
        Ok(())
    }

    /// The peer reports that the whole stream was delivered.
    ///
    /// # Errors
    /// [`DeliveredTooEarly`](ProtocolViolation::DeliveredTooEarly) when the stream is not closed,
    /// or was not assigned to its end.
    pub fn on_delivered(&mut self) -> Result<(), ProtocolViolation> {
        if self.end.is_none_or(|end| end > self.next) {
            return Err(ProtocolViolation::DeliveredTooEarly);
        }
        self.on_acked(self.next, self.limit)?;
        self.delivered = true;
        Ok(())
    }

    /// The end of the stream, if it is to be announced on this path now. It is returned once a
    /// path, after all data was assigned: any of the paths may fail.
    pub fn end_to_announce(&mut self, path: PathId) -> Option<u64> {
        let end = self.end.filter(|end| *end == self.next && !self.delivered)?;
        let path = self.paths.get_mut(path.0).filter(|path| path.is_open && !path.end_announced)?;
        path.end_announced = true;
        Some(end)
    }

    /// What all usable paths send together, bytes/s.
    pub fn rate(&self) -> f64 {
        self.paths.iter().filter(|path| path.is_usable()).map(Path::rate).sum()
    }

    /// Length of the longest piece now, bytes, unless it is a [batch](BondSettings::batch).
    pub fn max_piece(&self) -> u64 {
        let lookahead = (self.rate() * self.settings.lookahead.secs()) as u64;
        lookahead.min(MAX_PIECE).min(self.initial_window / MIN_PIECES_PER_WINDOW).max(self.settings.piece.0)
    }

    /// Queue limit of a path, bytes: it is assigned no further piece while this much waits unsent.
    /// 0 for a path that was never added.
    pub fn queue_limit(&self, path: PathId) -> u64 {
        self.paths.get(path.0).map_or(0, |path| self.queue_limit_of(path))
    }

    fn queue_limit_of(&self, path: &Path) -> u64 {
        path.queue_limit(self.settings.queue.0, self.settings.lookahead, self.settings.batch)
    }

    fn has_room(&self, path: &Path) -> bool {
        path.sample.unsent < self.queue_limit_of(path)
    }

    /// Unassigned bytes that suffice for the time until more are read. While there are fewer, more
    /// data is wanted.
    pub fn enough_unassigned(&self) -> u64 {
        let read_ahead = (self.rate() * READ_AHEAD.secs()) as u64;
        read_ahead.clamp(MIN_UNASSIGNED, MAX_UNASSIGNED).max(self.settings.piece.0)
    }

    /// Whether more data should be offered, for which the caller has `room` bytes of buffer.
    ///
    /// It should while little is left to assign, or while the next piece would go elsewhere if more
    /// were known to follow. Otherwise data is better left with its source: there it takes no
    /// memory, and the source feels the backpressure.
    pub fn wants_data(&self, room: u64) -> bool {
        let piece = self.max_piece().min(self.next_range().1);
        self.unassigned() < self.enough_unassigned()
            || (piece > 0 && self.settings.scheduler.depends_on_more_data(&self.paths, &self.context(piece), room))
    }

    fn context(&self, piece: u64) -> PieceContext {
        PieceContext {
            piece,
            left: self.unassigned(),
            window: self.limit - self.acked,
            queue: self.settings.queue.0,
            lookahead: self.settings.lookahead,
            batch: self.settings.batch,
            foresight: self.settings.foresight,
        }
    }

    /// Offset of the next piece and its greatest length: reinjections first, then new data within
    /// the flow-control limit.
    fn next_range(&self) -> (u64, u64) {
        match self.reinject_queue.first() {
            Some((start, end)) => (start, end - start),
            None => (self.next, self.offered.min(self.limit).saturating_sub(self.next)),
        }
    }

    /// Assigns the next piece. `None`: there is nothing to send, no path has room, or it is better
    /// to wait. The caller must send the piece.
    pub fn next_piece(&mut self, now: Span) -> Option<Piece> {
        if let Some(probe) = self.pending_probe.take() {
            return Some(self.assign_probe(now, probe));
        }
        if self.settings.scheduler == Scheduler::Redundant {
            return self.next_redundant_piece(now);
        }
        let (offset, available) = self.next_range();
        if available == 0 {
            return self.reinject_early(now);
        }
        self.next_scheduled_piece(now, offset, available)
    }

    /// Assigns a piece at `offset`, of at most `available` bytes, to the path that the scheduler
    /// chooses.
    fn next_scheduled_piece(&mut self, now: Span, offset: u64, available: u64) -> Option<Piece> {
        let max_piece = self.max_piece();
        let mut len = max_piece.min(available);
        let is_reinjection = !self.reinject_queue.is_empty();
        let context = self.context(len);
        let state_before = self.scheduler_state;
        let chosen = self.settings.scheduler.choose(&self.paths, &mut self.scheduler_state, &context)?;
        // At the limit of boundaries only pieces that add none: reinjections, and the last path's.
        let adds_boundary = !is_reinjection && self.last_path != Some(chosen);
        if adds_boundary && self.boundaries.len() >= MAX_BOUNDARIES {
            self.scheduler_state = state_before;
            return None;
        }
        let batch = self.batch_for(chosen).min(available);
        if batch > len && self.settings.scheduler.permits(&self.paths, chosen, &self.context(batch)) {
            len = batch;
        }
        if is_reinjection {
            self.reinject_queue.remove_below(offset + len);
        } else {
            if adds_boundary {
                self.boundaries.push_back(self.next);
                self.last_path = Some(chosen);
            }
            self.next += len;
        }
        self.paths[chosen].assign(now, (offset, offset + len), max_piece.max(len), false);
        self.pending_probe =
            self.path_to_probe(now, chosen).map(|idle| Piece { path: PathId(idle), offset, len: len.min(max_piece), is_duplicate: true });
        Some(Piece { path: PathId(chosen), offset, len, is_duplicate: is_reinjection })
    }

    /// Length of a piece that this path carries for the sake of fewer wake-ups, bytes; 0 while too
    /// little waits.
    fn batch_for(&self, path: usize) -> u64 {
        let batch = self.paths[path].batch(self.settings.batch).min(self.initial_window / MIN_PIECES_PER_WINDOW);
        if self.unassigned() >= WAITING_BATCHES * batch { batch } else { 0 }
    }

    /// Redundant scheduling: the next piece of the whole stream for the next path in turn that has
    /// room. Acknowledged bytes are skipped.
    fn next_redundant_piece(&mut self, now: Span) -> Option<Piece> {
        let acked = self.acked;
        let end = self.offered.min(self.limit);
        let max_piece = self.max_piece();
        let count = self.paths.len();
        let has_work = |path: &Path| path.is_usable() && self.has_room(path) && path.cursor.max(acked) < end;
        let mut in_turn = (1..=count).map(|step| (self.scheduler_state.last + step) % count);
        let chosen = in_turn.find(|index| has_work(&self.paths[*index]))?;
        self.scheduler_state.last = chosen;
        let path = &mut self.paths[chosen];
        let offset = path.cursor.max(acked);
        let len = max_piece.min(end - offset);
        path.cursor = offset + len;
        path.assign(now, (offset, offset + len), self.settings.piece.0, true);
        let is_duplicate = offset < self.next;
        self.next = self.next.max(offset + len);
        Some(Piece { path: PathId(chosen), offset, len, is_duplicate })
    }

    /// Detects stalled paths, and queues what they have for reinjection.
    pub fn handle_timeout(&mut self, now: Span) {
        let scheduler_probes = self.settings.scheduler.probes();
        for path in self.paths.iter_mut().filter(|path| path.is_awaited()) {
            if now.0 >= path.last_progress.0 + path.stall_timeout().0 {
                path.stall(scheduler_probes);
            }
        }
        self.reassign_stalled();
    }

    /// When to call [`handle_timeout`](Outbound::handle_timeout) and
    /// [`next_piece`](Outbound::next_piece) next, if nothing happens before. If they were just
    /// called with `now`, it is later than that.
    pub fn next_timeout(&self, now: Span) -> Option<Span> {
        let reinjects_early = self.reinjects_early();
        let timeout = |path: &Path| {
            let stalls = path.last_progress + path.stall_timeout();
            let next_due = path.ranges.iter().find(|range| !range.is_duplicated && range.due > now).filter(|_| reinjects_early);
            next_due.map_or(stalls, |range| range.due.min(stalls))
        };
        self.paths.iter().filter(|path| path.is_awaited()).map(timeout).min()
    }

    /// Whether an acknowledgement or a receipt is outstanding. Receipts count even for bytes that
    /// are acknowledged already: the path that was to carry them is still judged by them.
    pub fn awaits_acks(&self) -> bool {
        self.acked < self.offered || self.paths.iter().any(Path::is_awaited)
    }

    /// The peer has all bytes below this offset; the caller may release them.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Offered bytes that are assigned to no path, reinjections included, within the flow-control
    /// limit or not.
    pub fn unassigned(&self) -> u64 {
        self.reinject_queue.bytes() + self.offered - self.next
    }

    /// Bytes beyond those assigned that the peer's window has room for.
    pub fn peer_room(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// Whether the peer has reported delivery of the whole stream.
    pub fn is_delivered(&self) -> bool {
        self.delivered
    }

    /// Number of ranges that the ledger keeps: a measure of its memory.
    pub fn tracked_ranges(&self) -> usize {
        self.paths.iter().map(|path| path.ranges.len()).sum::<usize>() + self.reinject_queue.len() + self.boundaries.len()
    }

    /// Number of paths.
    pub fn path_count(&self) -> usize {
        self.paths.iter().filter(|path| path.is_open).count()
    }

    /// What is known of a path; `None` if it was removed.
    pub fn path_stats(&self, path: PathId) -> Option<PathStats> {
        let path = self.paths.get(path.0).filter(|path| path.is_open)?;
        Some(PathStats {
            score: path.score(0),
            throughput: path.measured_rate(),
            sample: path.sample,
            assigned: path.assigned,
            received: path.received,
            is_stalled: path.is_stalled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Span = Span(1_000_000);

    /// A path with room.
    const ROOM: PathSample = PathSample { delivered: 0, unsent: 0, window: 1 << 20, srtt: MS, rto: Span(200_000_000), in_recovery: false };

    #[test]
    fn a_peer_that_withholds_receipts_costs_no_memory() {
        let settings = BondSettings { piece: BondSettings::MIN_PIECE, ..BondSettings::new(Scheduler::Score) };
        let mut out = Outbound::new(settings, 4096);
        let path = out.add_path(Span::ZERO, 0);
        for turn in 1..=1000 {
            out.offer(4096);
            out.update_path(Span::ZERO, path, ROOM);
            while out.next_piece(Span::ZERO).is_some() {}
            // Everything is acknowledged, but only one byte a turn has a receipt.
            out.on_receipt(Span::ZERO, path, turn).unwrap();
            out.on_acked(4096 * turn, 4096 * (turn + 1)).unwrap();
            assert!(out.tracked_ranges() <= 1, "{} ranges after {turn} turns", out.tracked_ranges());
        }
        // A late receipt still accounts for everything.
        out.on_receipt(Span::ZERO, path, 4_096_000).unwrap();
        assert_eq!(out.path_stats(path).map(|stats| stats.received), Some(4_096_000));
        assert!(!out.awaits_acks());
    }

    #[test]
    fn acknowledged_bytes_of_a_pending_probe_are_not_sent() {
        let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 1 << 20);
        let paths = [out.add_path(Span::ZERO, 0), out.add_path(Span::ZERO, 0)];
        paths.iter().for_each(|path| out.update_path(MS, *path, ROOM));
        out.offer(1000);
        // The other path has been idle for so long that it is due for a probe.
        let later = MS * 10_000;
        let piece = out.next_piece(later).unwrap();
        assert!(out.pending_probe.is_some());
        out.on_acked(600, 1 << 20).unwrap();
        assert_eq!(out.next_piece(later).map(|probe| (probe.path != piece.path, probe.offset, probe.len)), Some((true, 600, 400)));
        out.offer(1000);
        let piece = out.next_piece(later * 2).unwrap();
        out.on_acked(piece.offset + piece.len, 1 << 20).unwrap();
        assert_eq!(out.next_piece(later * 2), None);
    }

    /// A path with this rate (bytes/s) and a round trip of 50 ms.
    fn path_of(rate: u64) -> PathSample {
        PathSample { window: rate / 20, srtt: MS * 50, ..ROOM }
    }

    /// How much a stream over two paths of this rate reads ahead, if there is any amount of data
    /// and none is sent.
    fn read_ahead_at(rate: u64) -> u64 {
        let mut out = Outbound::new(BondSettings::new(Scheduler::Score), 8 << 20);
        for _ in 0..2 {
            let path = out.add_path(Span::ZERO, 0);
            out.update_path(Span::ZERO, path, path_of(rate));
        }
        while out.wants_data(8 << 20) {
            out.offer(1024);
        }
        out.unassigned()
    }

    #[test]
    fn what_is_read_ahead_lasts_about_a_round_trip() {
        // Of 16 streams over two networks of 5 Mbit/s each.
        assert_eq!(read_ahead_at(39_000), MIN_UNASSIGNED);
        // Of one stream over two of 10 Mbit/s: a tenth of a second.
        assert_eq!(read_ahead_at(1_250_000).next_multiple_of(1024), 250_000u64.next_multiple_of(1024));
        assert_eq!(read_ahead_at(100_000_000), MAX_UNASSIGNED);
    }

    /// The pieces of so many bytes over a path of this rate, which sends them at once.
    fn pieces_of(bytes: u64, rate: u64) -> Vec<u64> {
        let settings = BondSettings { batch: MS * 20, lookahead: Span::ZERO, ..BondSettings::new(Scheduler::Score) };
        let mut out = Outbound::new(settings, 8 << 20);
        let path = out.add_path(Span::ZERO, 0);
        out.offer(bytes);
        let mut pieces = Vec::new();
        loop {
            out.update_path(Span::ZERO, path, path_of(rate));
            let Some(piece) = out.next_piece(Span::ZERO) else { return pieces };
            pieces.push(piece.len);
        }
    }

    #[test]
    fn pieces_last_a_while_as_long_as_much_waits() {
        const PIECE: u64 = 16 * 1024;
        // 20 Mbit/s: 50 kB in the time of a batch.
        let pieces = pieces_of(1_000_000, 2_500_000);
        let (first, last) = (pieces[0], pieces[pieces.len() - 2]);
        assert_eq!((first, last, pieces.iter().sum()), (crate::path::MAX_BATCH, PIECE, 1_000_000), "{pieces:?}");
        // 10 Mbit/s: 25 kB.
        assert_eq!(pieces_of(1_000_000, 1_250_000)[0], 25_000);
        // A slow path, and a message.
        assert!(pieces_of(1_000_000, 100_000).iter().all(|len| *len <= PIECE));
        assert!(pieces_of(100_000, 2_500_000).iter().all(|len| *len <= PIECE));
    }

    #[test]
    fn a_due_time_beyond_the_clock_saturates() {
        let mut out = Outbound::new(BondSettings::new(Scheduler::RoundRobin), u64::MAX);
        let path = out.add_path(Span::ZERO, 0);
        out.update_path(Span::ZERO, path, PathSample { unsent: 0, window: 0, srtt: Span(u64::MAX), rto: MS, ..ROOM });
        out.offer(1000);
        assert!(out.next_piece(Span(u64::MAX / 2)).is_some());
    }
}
