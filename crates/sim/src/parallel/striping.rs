//! Striping of a transfer over connections: which bytes each connection carries, and how far the
//! transfer can be read.
//!
//! Each connection delivers in order what was assigned to it. The transfer can be read up to the
//! first byte that has not arrived; the receiving end holds the rest, without limit.

use super::{bonded_transfer::BondedTransfer, limits::MAX_CONNECTIONS};
use scenario::{Bond, TransferScheduler};
use std::collections::VecDeque;

/// How a transfer is striped.
#[derive(Debug)]
enum StripingPlan {
    /// A connection that can send takes the next bytes. The assigned and unread runs of bytes, in
    /// the order of the transfer: connection, and length.
    Pull(VecDeque<(usize, u64)>),
    /// Pieces of `piece` bytes go to the connections in turn.
    RoundRobin { piece: u64, connections: u64 },
    /// One connection carries everything.
    Single(usize),
    /// Each connection carries one run of bytes, in the order of the connections.
    Parts,
    /// A bond assigns pieces.
    Bonded(Box<BondedTransfer>),
}

/// A striped transfer.
#[derive(Debug)]
pub(super) struct StripedTransfer {
    plan: StripingPlan,
    bytes: u64,
    /// Of these, bytes from the first on that the sending end has.
    available: u64,
    /// Bytes assigned to each connection so far. Unused with a bond.
    assigned: [u64; MAX_CONNECTIONS],
    /// Bytes that each connection has delivered, without duplicates.
    delivered: [u64; MAX_CONNECTIONS],
    /// Of these, bytes that could be read. Unused with a bond.
    consumed: [u64; MAX_CONNECTIONS],
    /// Bytes that can be read in order.
    readable: u64,
    /// The most bytes that had arrived beyond them.
    max_held: u64,
}

impl StripedTransfer {
    /// A transfer of `bytes` over connection `only`.
    pub(super) fn single(bytes: u64, only: usize) -> Self {
        let mut striped = StripedTransfer::new(bytes, StripingPlan::Single(only));
        striped.assigned[only] = bytes;
        striped
    }

    /// A transfer of `bytes`, of which each connection carries one of these parts of the whole.
    pub(super) fn in_parts(bytes: u64, parts: &[f64]) -> Self {
        let mut striped = StripedTransfer::new(bytes, StripingPlan::Parts);
        let (mut sum, mut from) = (0.0, 0);
        for (index, part) in parts.iter().enumerate() {
            sum += part;
            // The last one gets what rounding leaves.
            let until = if index + 1 == parts.len() { bytes } else { ((sum * bytes as f64) as u64).clamp(from, bytes) };
            striped.assigned[index] = until - from;
            from = until;
        }
        striped
    }

    /// A transfer of `bytes` over this number of connections, by the scheduler of `bond`; the
    /// scheduler `single` takes connection `best`.
    pub(super) fn over(bytes: u64, bond: &Bond, connections: usize, best: usize) -> Self {
        // Round robin is static and needs no bond.
        if let Some(settings) = bond.settings().filter(|settings| settings.scheduler != bond::Scheduler::RoundRobin) {
            return StripedTransfer::new(
                bytes,
                StripingPlan::Bonded(Box::new(BondedTransfer::new(bytes, settings, bond.window.map(|window| window.0)))),
            );
        }
        match bond.scheduler {
            TransferScheduler::RoundRobin => {
                let (connections, piece) = (connections as u64, bond.piece_size().0);
                let mut striped = StripedTransfer::new(bytes, StripingPlan::RoundRobin { piece, connections });
                for (number, assigned) in (0..connections).zip(&mut striped.assigned) {
                    *assigned = round_robin_bytes(bytes, piece, connections, number);
                }
                striped
            }
            TransferScheduler::Single => StripedTransfer::single(bytes, best),
            _ => StripedTransfer::new(bytes, StripingPlan::Pull(VecDeque::new())),
        }
    }

    fn new(bytes: u64, plan: StripingPlan) -> Self {
        let none = [0; MAX_CONNECTIONS];
        StripedTransfer { plan, bytes, available: bytes, assigned: none, delivered: none, consumed: none, readable: 0, max_held: 0 }
    }

    /// The same transfer before any of it is at the sending end; [`feed`](Self::feed) tells what is.
    pub(super) fn fed(self) -> Self {
        let plan = match self.plan {
            StripingPlan::Bonded(bonded) => StripingPlan::Bonded(Box::new(bonded.fed())),
            other => other,
        };
        StripedTransfer { plan, available: 0, ..self }
    }

    /// The sending end has the first `available` bytes, which are the whole transfer if `is_all`.
    pub(super) fn feed(&mut self, available: u64, is_all: bool) {
        if let StripingPlan::Bonded(bonded) = &mut self.plan {
            bonded.feed(available - self.available, is_all);
        }
        self.available = available;
    }

    /// Whether the sending end has the whole transfer.
    pub(super) fn is_all_available(&self) -> bool {
        self.available == self.bytes
    }

    /// The part of what is assigned to a connection from the start that the sending end has, bytes.
    pub(super) fn writable(&self, connection: usize) -> u64 {
        let assigned = self.assigned[connection];
        match &self.plan {
            StripingPlan::RoundRobin { piece, connections } => round_robin_bytes(self.available, *piece, *connections, connection as u64),
            StripingPlan::Parts => {
                let before: u64 = self.assigned[..connection].iter().sum();
                self.available.saturating_sub(before).min(assigned)
            }
            _ => self.available.min(assigned),
        }
    }

    /// Bytes assigned to a connection so far.
    pub(super) fn assigned(&self, connection: usize) -> u64 {
        self.assigned[connection]
    }

    /// Whether connections take the next bytes when they can send.
    pub(super) fn is_pulled(&self) -> bool {
        matches!(self.plan, StripingPlan::Pull(_))
    }

    /// The bond that assigns the pieces, if one does.
    pub(super) fn bonded(&mut self) -> Option<&mut BondedTransfer> {
        match &mut self.plan {
            StripingPlan::Bonded(bonded) => Some(bonded),
            _ => None,
        }
    }

    /// Whether all bytes are assigned from the start.
    pub(super) fn is_static(&self) -> bool {
        matches!(self.plan, StripingPlan::RoundRobin { .. } | StripingPlan::Single(_) | StripingPlan::Parts)
    }

    /// Whether bytes are or may be assigned to a connection.
    pub(super) fn uses(&self, connection: usize) -> bool {
        !self.is_static() || self.assigned[connection] > 0
    }

    /// Bytes at the sending end that are not assigned yet, and those that a bond is to send again.
    pub(super) fn unassigned(&self) -> u64 {
        match &self.plan {
            StripingPlan::Bonded(bonded) => bonded.unassigned(),
            _ => self.available.saturating_sub(self.assigned.iter().sum()),
        }
    }

    /// A connection has sent its own stream up to `sent`. Returns whether it has thereby taken
    /// bytes that were not assigned.
    pub(super) fn on_sent(&mut self, connection: usize, sent: u64) -> bool {
        let taken = sent.saturating_sub(self.assigned[connection]);
        let StripingPlan::Pull(runs) = &mut self.plan else { return false };
        if taken == 0 {
            return false;
        }
        self.assigned[connection] = sent;
        match runs.back_mut() {
            Some((last, bytes)) if *last == connection => *bytes += taken,
            _ => runs.push_back((connection, taken)),
        }
        true
    }

    /// A connection has delivered its own stream up to `end`; returns how many bytes of the
    /// transfer are new.
    pub(super) fn on_delivered(&mut self, connection: usize, end: u64) -> u64 {
        if let StripingPlan::Bonded(bonded) = &mut self.plan {
            let new = bonded.on_delivered(connection, end);
            self.delivered[connection] += new;
            self.readable = bonded.readable();
            self.max_held = bonded.max_held();
            return new;
        }
        debug_assert!(end <= self.assigned[connection], "delivered bytes were assigned");
        let new = end - self.delivered[connection];
        self.delivered[connection] = end;
        while let Some((next, bytes)) = self.next_run() {
            let readable = bytes.min(self.delivered[next] - self.consumed[next]);
            self.consumed[next] += readable;
            self.readable += readable;
            if let StripingPlan::Pull(runs) = &mut self.plan {
                runs[0].1 -= readable;
                if readable == bytes {
                    runs.pop_front();
                }
            }
            if readable < bytes {
                break;
            }
        }
        self.max_held = self.max_held.max(self.delivered.iter().sum::<u64>() - self.readable);
        new
    }

    /// The connection that carries the first unread byte, and how many bytes in a row from there.
    fn next_run(&self) -> Option<(usize, u64)> {
        let unread = self.bytes - self.readable;
        match &self.plan {
            StripingPlan::Pull(runs) => runs.front().copied(),
            _ if unread == 0 => None,
            StripingPlan::RoundRobin { piece, connections } => {
                Some(((self.readable / piece % connections) as usize, (piece - self.readable % piece).min(unread)))
            }
            StripingPlan::Single(only) => Some((*only, unread)),
            StripingPlan::Parts => {
                let mut end = 0;
                (0..MAX_CONNECTIONS).find_map(|connection| {
                    end += self.assigned[connection];
                    (self.readable < end).then(|| (connection, end - self.readable))
                })
            }
            StripingPlan::Bonded(_) => None,
        }
    }

    /// Bytes that can be read in order.
    pub(super) fn readable(&self) -> u64 {
        self.readable
    }

    /// Bytes of the transfer that each connection has delivered first.
    pub(super) fn delivered(&self) -> &[u64; MAX_CONNECTIONS] {
        &self.delivered
    }

    /// The most bytes that were held out of order.
    pub(super) fn max_held(&self) -> u64 {
        self.max_held
    }

    /// Whether the whole transfer can be read.
    pub(super) fn is_complete(&self) -> bool {
        self.readable == self.bytes
    }
}

/// The bytes that connection `number` carries of `bytes` in pieces that go round.
fn round_robin_bytes(bytes: u64, piece: u64, connections: u64, number: u64) -> u64 {
    let (pieces, rest) = (bytes / piece, bytes % piece);
    let whole = pieces / connections + u64::from(number < pieces % connections);
    whole * piece + if pieces % connections == number { rest } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use units::Bytes;

    fn bond_of(scheduler: TransferScheduler, piece: u64) -> Bond {
        Bond { piece: Some(Bytes(piece)), ..Bond::of(scheduler) }
    }

    #[test]
    fn round_robin_assigns_pieces_in_turn() {
        let striped = StripedTransfer::over(10_500, &bond_of(TransferScheduler::RoundRobin, 1000), 3, 0);
        // Pieces 0, 3, 6, 9; 1, 4, 7 and the rest; 2, 5, 8.
        assert_eq!([0, 1, 2].map(|connection| striped.assigned(connection)), [4000, 3500, 3000]);
        assert_eq!(striped.unassigned(), 0);
        let small = StripedTransfer::over(700, &bond_of(TransferScheduler::RoundRobin, 1000), 3, 0);
        assert_eq!([0, 1, 2].map(|connection| small.uses(connection)), [true, false, false]);
    }

    #[test]
    fn parts_are_runs_of_the_transfer() {
        let mut striped = StripedTransfer::in_parts(1001, &[0.25, 0.0, 0.75]);
        assert_eq!([0, 1, 2].map(|connection| striped.assigned(connection)), [250, 0, 751]);
        assert!(striped.is_static() && !striped.uses(1));
        striped.on_delivered(2, 751);
        assert_eq!((striped.readable(), striped.max_held()), (0, 751));
        striped.on_delivered(0, 250);
        assert!(striped.is_complete());
        let mut striped = StripedTransfer::in_parts(1000, &[0.25, 0.75]);
        for (connection, delivered, readable) in [(0, 250, 250), (1, 100, 350), (1, 750, 1000)] {
            striped.on_delivered(connection, delivered);
            assert_eq!(striped.readable(), readable);
        }
    }

    #[test]
    fn out_of_order_bytes_are_held() {
        let mut striped = StripedTransfer::over(4000, &bond_of(TransferScheduler::RoundRobin, 1000), 2, 0);
        striped.on_delivered(1, 1500);
        assert_eq!((striped.readable(), striped.max_held()), (0, 1500));
        striped.on_delivered(0, 1000);
        assert_eq!((striped.readable(), striped.max_held()), (2000, 1500));
        striped.on_delivered(0, 2000);
        assert_eq!(striped.readable(), 3500);
        striped.on_delivered(1, 2000);
        assert!(striped.is_complete());
    }

    #[test]
    fn what_is_assigned_from_the_start_is_written_as_it_comes() {
        let writable = |striped: &StripedTransfer| [0, 1].map(|connection| striped.writable(connection));
        let bond = bond_of(TransferScheduler::RoundRobin, 1000);
        for (striped, after_1500, whole) in [
            (StripedTransfer::in_parts(4000, &[0.25, 0.75]), [1000, 500], [1000, 3000]),
            (StripedTransfer::over(4000, &bond, 2, 0), [1000, 500], [2000, 2000]),
            (StripedTransfer::single(4000, 1), [0, 1500], [0, 4000]),
        ] {
            assert_eq!(writable(&striped), whole, "nothing comes in between");
            let mut fed = striped.fed();
            assert_eq!((writable(&fed), fed.is_all_available()), ([0, 0], false));
            fed.feed(1500, false);
            assert_eq!(writable(&fed), after_1500);
            fed.feed(4000, true);
            assert_eq!((writable(&fed), fed.is_all_available()), (whole, true));
        }
        let mut pulled = StripedTransfer::over(4000, &bond_of(TransferScheduler::Fluid, 1), 2, 0).fed();
        assert_eq!(pulled.unassigned(), 0);
        pulled.feed(1000, false);
        assert!(pulled.on_sent(1, 600));
        assert_eq!(pulled.unassigned(), 400);
    }

    #[test]
    fn a_connection_that_sends_more_takes_more() {
        let mut striped = StripedTransfer::over(4000, &bond_of(TransferScheduler::Fluid, 1), 2, 0);
        assert!(striped.on_sent(0, 1000) && striped.on_sent(0, 1500) && striped.on_sent(1, 2000));
        assert!(!striped.on_sent(1, 2000), "nothing new");
        assert_eq!((striped.unassigned(), striped.assigned(0), striped.assigned(1)), (500, 1500, 2000));
        striped.on_delivered(1, 2000);
        assert_eq!((striped.readable(), striped.max_held()), (0, 2000));
        striped.on_delivered(0, 1500);
        assert_eq!(striped.readable(), 3500);
        assert!(striped.on_sent(1, 2500));
        striped.on_delivered(1, 2500);
        assert!(striped.is_complete() && striped.unassigned() == 0);
    }

    proptest! {
        #[test]
        fn every_byte_is_assigned_once_and_read_in_the_end(
            bytes in 1u64..100_000,
            piece in 1u64..5000,
            connections in 1usize..=MAX_CONNECTIONS,
            scheduler in prop_oneof![Just(TransferScheduler::Fluid), Just(TransferScheduler::RoundRobin), Just(TransferScheduler::Single)],
            steps in prop::collection::vec((0usize..MAX_CONNECTIONS, 1u64..3000), 1..200),
        ) {
            let mut striped = StripedTransfer::over(bytes, &bond_of(scheduler, piece), connections, connections - 1);
            let mut sent = [0u64; MAX_CONNECTIONS];
            // In each step one connection sends, and all that it has sent arrives. At the end all
            // connections send the rest.
            let rest = (0..connections).map(|connection| (connection, u64::MAX));
            for (connection, most) in steps.into_iter().map(|(connection, most)| (connection % connections, most)).chain(rest) {
                let available = if striped.is_pulled() { striped.unassigned() } else { striped.assigned(connection) - sent[connection] };
                sent[connection] += most.min(available);
                striped.on_sent(connection, sent[connection]);
                striped.on_delivered(connection, sent[connection]);
                prop_assert_eq!(striped.delivered().iter().sum::<u64>(), sent.iter().sum::<u64>());
                prop_assert!(striped.readable() <= sent.iter().sum::<u64>() && striped.max_held() <= bytes);
            }
            prop_assert!(striped.is_complete() && striped.unassigned() == 0);
            prop_assert_eq!(sent.iter().sum::<u64>(), bytes);
        }
    }
}
