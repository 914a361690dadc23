//! A transfer that is shared out among connections: which of them has how much of it, and up to where it can be read.
//!
//! Each connection delivers in order what it was given. What can be read of the transfer is all before the first byte that has not come; the
//! receiving end holds the rest, however much that is.

use super::bonded_transfer::Steered;
use scenario::{Bond, Scenario, Scheduler};
use std::collections::VecDeque;

/// The most connections of a transfer.
pub(super) const MOST: usize = Scenario::MOST_NETWORKS;

/// How a transfer is shared out.
#[derive(Debug)]
enum Plan {
    /// Whoever can send takes what is next. Of what was given out and not read, in the order of the transfer: to whom, and how much.
    Pull(VecDeque<(usize, u64)>),
    /// A piece of so many bytes each, in turn.
    Turns { piece: u64, connections: u64 },
    /// One has all.
    One(usize),
    /// A bond says who has what.
    Steered(Box<Steered>),
}

/// A transfer, shared out.
#[derive(Debug)]
pub(super) struct Stripe {
    plan: Plan,
    bytes: u64,
    /// By connection: bytes given to it, delivered by it, and read of these.
    given: [u64; MOST],
    came: [u64; MOST],
    used: [u64; MOST],
    /// Bytes that could be read, and the most that had come beyond them.
    read: u64,
    most_held: u64,
}

impl Stripe {
    /// All of it over connection `only`.
    pub(super) fn whole(bytes: u64, only: usize) -> Self {
        let mut stripe = Stripe::new(bytes, Plan::One(only));
        stripe.given[only] = bytes;
        stripe
    }

    /// Over so many connections, of which `best` is the one that `single` takes.
    pub(super) fn over(bytes: u64, bond: &Bond, connections: usize, best: usize) -> Self {
        // By turns it is settled beforehand who has what.
        if let Some(settings) = bond.settings().filter(|settings| settings.scheduler != bond::Scheduler::RoundRobin) {
            return Stripe::new(bytes, Plan::Steered(Box::new(Steered::new(bytes, settings))));
        }
        match bond.scheduler {
            Scheduler::RoundRobin => {
                let (connections, piece) = (connections as u64, bond.piece.0);
                let mut stripe = Stripe::new(bytes, Plan::Turns { piece, connections });
                for (number, given) in (0..connections).zip(&mut stripe.given) {
                    *given = turns(bytes, piece, connections, number);
                }
                stripe
            }
            Scheduler::Single => Stripe::whole(bytes, best),
            _ => Stripe::new(bytes, Plan::Pull(VecDeque::new())),
        }
    }

    fn new(bytes: u64, plan: Plan) -> Self {
        Stripe { plan, bytes, given: [0; MOST], came: [0; MOST], used: [0; MOST], read: 0, most_held: 0 }
    }

    /// What a connection was given until now.
    pub(super) fn given(&self, connection: usize) -> u64 {
        self.given[connection]
    }

    /// Whether connections take what they can send, rather than have their parts from the beginning.
    pub(super) fn is_pulled(&self) -> bool {
        matches!(self.plan, Plan::Pull(_))
    }

    /// Who steers it, if somebody does.
    pub(super) fn steered(&mut self) -> Option<&mut Steered> {
        match &mut self.plan {
            Plan::Steered(steered) => Some(steered),
            _ => None,
        }
    }

    /// Whether each connection has its part from the beginning.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.plan, Plan::Turns { .. } | Plan::One(_))
    }

    /// Whether a connection may be given any of it.
    pub(super) fn uses(&self, connection: usize) -> bool {
        !self.is_settled() || self.given[connection] > 0
    }

    /// What nobody was given yet, where connections take what they can send.
    pub(super) fn left(&self) -> u64 {
        self.bytes - self.given.iter().sum::<u64>()
    }

    /// A connection has sent all up to `sent` of its own stream; true: that is more than it had been given, and it has taken the rest.
    pub(super) fn take(&mut self, connection: usize, sent: u64) -> bool {
        let more = sent.saturating_sub(self.given[connection]);
        let Plan::Pull(order) = &mut self.plan else { return false };
        if more == 0 {
            return false;
        }
        self.given[connection] = sent;
        match order.back_mut() {
            Some((last, bytes)) if *last == connection => *bytes += more,
            _ => order.push_back((connection, more)),
        }
        true
    }

    /// A connection has delivered all up to `came` of its own stream; how much of the transfer is new.
    pub(super) fn arrive(&mut self, connection: usize, came: u64) -> u64 {
        if let Plan::Steered(steered) = &mut self.plan {
            let new = steered.arrive(connection, came);
            self.came[connection] += new;
            (self.read, self.most_held) = (steered.read(), steered.most_held());
            return new;
        }
        debug_assert!(came <= self.given[connection], "what comes was given out");
        let new = came - self.came[connection];
        self.came[connection] = came;
        while let Some((next, bytes)) = self.next() {
            let readable = bytes.min(self.came[next] - self.used[next]);
            self.used[next] += readable;
            self.read += readable;
            if let Plan::Pull(order) = &mut self.plan {
                order[0].1 -= readable;
                if readable == bytes {
                    order.pop_front();
                }
            }
            if readable < bytes {
                break;
            }
        }
        self.most_held = self.most_held.max(self.came.iter().sum::<u64>() - self.read);
        new
    }

    /// Who has the first bytes that were not read, and how many on end.
    fn next(&self) -> Option<(usize, u64)> {
        let left = self.bytes - self.read;
        match &self.plan {
            Plan::Pull(order) => order.front().copied(),
            _ if left == 0 => None,
            Plan::Turns { piece, connections } => Some(((self.read / piece % connections) as usize, (piece - self.read % piece).min(left))),
            Plan::One(only) => Some((*only, left)),
            Plan::Steered(_) => None,
        }
    }

    /// How much could be read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// How much of the transfer each connection has delivered, first of all.
    pub(super) fn came(&self) -> &[u64; MOST] {
        &self.came
    }

    /// The most that was held because something before it had not come.
    pub(super) fn most_held(&self) -> u64 {
        self.most_held
    }

    /// Whether all of it could be read.
    pub(super) fn is_complete(&self) -> bool {
        self.read == self.bytes
    }
}

/// What connection `number` has of `bytes` that go out in pieces by turns.
fn turns(bytes: u64, piece: u64, connections: u64, number: u64) -> u64 {
    let (pieces, rest) = (bytes / piece, bytes % piece);
    let whole = pieces / connections + u64::from(number < pieces % connections);
    whole * piece + if pieces % connections == number { rest } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use units::Bytes;

    fn of(scheduler: Scheduler, piece: u64) -> Bond {
        Bond { piece: Bytes(piece), ..Bond::of(scheduler) }
    }

    #[test]
    fn pieces_go_round() {
        let stripe = Stripe::over(10_500, &of(Scheduler::RoundRobin, 1000), 3, 0);
        // Pieces 0, 3, 6, 9; 1, 4, 7 and the rest; 2, 5, 8.
        assert_eq!([0, 1, 2].map(|connection| stripe.given(connection)), [4000, 3500, 3000]);
        assert_eq!(stripe.left(), 0);
        let small = Stripe::over(700, &of(Scheduler::RoundRobin, 1000), 3, 0);
        assert_eq!([0, 1, 2].map(|connection| small.uses(connection)), [true, false, false]);
    }

    #[test]
    fn what_overtakes_is_held() {
        let mut stripe = Stripe::over(4000, &of(Scheduler::RoundRobin, 1000), 2, 0);
        stripe.arrive(1, 1500);
        assert_eq!((stripe.read(), stripe.most_held()), (0, 1500));
        stripe.arrive(0, 1000);
        assert_eq!((stripe.read(), stripe.most_held()), (2000, 1500));
        stripe.arrive(0, 2000);
        assert_eq!(stripe.read(), 3500);
        stripe.arrive(1, 2000);
        assert!(stripe.is_complete());
    }

    #[test]
    fn who_takes_more_has_more() {
        let mut stripe = Stripe::over(4000, &of(Scheduler::Fluid, 1), 2, 0);
        assert!(stripe.take(0, 1000) && stripe.take(0, 1500) && stripe.take(1, 2000));
        assert!(!stripe.take(1, 2000), "nothing new");
        assert_eq!((stripe.left(), stripe.given(0), stripe.given(1)), (500, 1500, 2000));
        stripe.arrive(1, 2000);
        assert_eq!((stripe.read(), stripe.most_held()), (0, 2000));
        stripe.arrive(0, 1500);
        assert_eq!(stripe.read(), 3500);
        assert!(stripe.take(1, 2500));
        stripe.arrive(1, 2500);
        assert!(stripe.is_complete() && stripe.left() == 0);
    }

    proptest! {
        #[test]
        fn all_of_it_is_given_once_and_read_in_the_end(
            bytes in 1u64..100_000,
            piece in 1u64..5000,
            connections in 1usize..=MOST,
            scheduler in prop_oneof![Just(Scheduler::Fluid), Just(Scheduler::RoundRobin), Just(Scheduler::Single)],
            steps in prop::collection::vec((0usize..MOST, 1u64..3000), 1..200),
        ) {
            let mut stripe = Stripe::over(bytes, &of(scheduler, piece), connections, connections - 1);
            let mut sent = [0u64; MOST];
            // Each step somebody sends, and all that they sent comes; then all send what is left.
            let rest = (0..connections).map(|connection| (connection, u64::MAX));
            for (connection, most) in steps.into_iter().map(|(connection, most)| (connection % connections, most)).chain(rest) {
                let may = if stripe.is_pulled() { stripe.left() } else { stripe.given(connection) - sent[connection] };
                sent[connection] += most.min(may);
                stripe.take(connection, sent[connection]);
                stripe.arrive(connection, sent[connection]);
                prop_assert_eq!(stripe.came().iter().sum::<u64>(), sent.iter().sum::<u64>());
                prop_assert!(stripe.read() <= sent.iter().sum::<u64>() && stripe.most_held() <= bytes);
            }
            prop_assert!(stripe.is_complete() && stripe.left() == 0);
            prop_assert_eq!(sent.iter().sum::<u64>(), bytes);
        }
    }
}
