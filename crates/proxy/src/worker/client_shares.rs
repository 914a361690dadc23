//! While memory is short, clients share the connections that it has room for: those that have most
//! of them wait, so that others are served beside them.

use intercept::{AcceptedConnection, Accepting, ClientKey};
use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
};

/// Connections that a client may have in any case.
const LEAST_SHARE: u32 = 4;

/// The connections of each client while memory is short, and the clients that wait.
#[derive(Debug, Default)]
pub(super) struct ClientShares {
    counts: HashMap<ClientKey, u32>,
    total: u32,
    /// There is room only for clients that have no connection.
    pub(super) is_scarce: bool,
    /// The clients from which the listeners accept no connection.
    waits: Vec<ClientKey>,
    /// Accepted connections that have not begun: the number of the listener, and the connection.
    held: VecDeque<(usize, AcceptedConnection)>,
}

impl ClientShares {
    /// Counts the present connections anew. Returns whether other clients wait than before.
    pub(super) fn recount(&mut self, clients: impl Iterator<Item = ClientKey>) -> bool {
        self.counts.clear();
        for client in clients {
            *self.counts.entry(client).or_default() += 1;
        }
        self.total = self.counts.values().sum();
        let share = self.share();
        let mut above: Vec<(u32, ClientKey)> =
            self.counts.iter().filter(|(_, count)| **count >= share).map(|(client, count)| (*count, *client)).collect();
        above.sort_unstable_by_key(|(count, client)| (Reverse(*count), *client));
        let mut waits: Vec<ClientKey> = above.into_iter().take(Accepting::MOST_LEFT_OUT).map(|(_, client)| client).collect();
        waits.sort_unstable();
        let has_changed = waits != self.waits;
        self.waits = waits;
        has_changed
    }

    /// The number of connections at which a client waits: the mean over all clients, rounded up, but
    /// at least a few.
    fn share(&self) -> u32 {
        if self.is_scarce { 1 } else { self.mean() }
    }

    /// Whether a client has at least as many connections as clients have in the mean, and more than
    /// a few.
    pub(super) fn has_many(&self, client: ClientKey) -> bool {
        self.counts.get(&client).is_some_and(|count| *count >= self.mean())
    }

    fn mean(&self) -> u32 {
        self.total.div_ceil(self.counts.len().max(1) as u32).max(LEAST_SHARE)
    }

    /// Whether a client may have another connection, which is counted.
    pub(super) fn admits(&mut self, client: ClientKey) -> bool {
        let share = self.share();
        let count = self.counts.entry(client).or_default();
        let admits = *count < share;
        *count += u32::from(admits);
        self.total += u32::from(admits);
        admits
    }

    /// Keeps an accepted connection that its client has no share for.
    pub(super) fn hold(&mut self, listener: usize, arrival: AcceptedConnection) {
        self.held.push_back((listener, arrival));
    }

    /// The number of connections that are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// The connection that has waited longest.
    pub(super) fn take_held(&mut self) -> Option<(usize, AcceptedConnection)> {
        self.held.pop_front()
    }

    /// Which connections the listeners accept.
    pub(super) fn accepting(&self) -> Accepting {
        if self.waits.is_empty() { Accepting::All } else { Accepting::NotFrom(self.waits.clone()) }
    }

    /// Ends the sharing: memory is not short any more.
    pub(super) fn clear(&mut self) {
        self.counts.clear();
        self.waits.clear();
        self.total = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn client(last: u8) -> ClientKey {
        IpAddr::from([192, 0, 2, last]).into()
    }

    /// Shares where clients have so many connections.
    fn shares(counts: &[(u8, usize)]) -> ClientShares {
        let mut shares = ClientShares::default();
        shares.recount(counts.iter().flat_map(|(last, count)| std::iter::repeat_n(client(*last), *count)));
        shares
    }

    #[test]
    fn a_client_with_most_connections_waits_and_others_do_not() {
        let mut shares = shares(&[(1, 200), (2, 3)]);
        assert_eq!(shares.accepting(), Accepting::NotFrom(vec![client(1)]));
        assert!(!shares.admits(client(1)) && shares.admits(client(2)) && shares.admits(client(3)));
        // A newcomer gets as many as each would have.
        let admitted = (0..1000).take_while(|_| shares.admits(client(4))).count();
        assert!((60..110).contains(&admitted), "{admitted}");
    }

    #[test]
    fn a_client_that_is_alone_waits_for_its_own_connections() {
        let mut alone = shares(&[(1, 30)]);
        assert!(alone.accepting() == Accepting::NotFrom(vec![client(1)]) && !alone.admits(client(1)));
        assert_eq!(shares(&[(1, 3)]).accepting(), Accepting::All, "a few are always admitted");
    }

    #[test]
    fn the_last_room_is_for_clients_that_have_no_connection() {
        let mut shares = ClientShares { is_scarce: true, ..ClientShares::default() };
        assert!(shares.recount([client(1), client(1), client(2)].into_iter()));
        assert_eq!(shares.accepting(), Accepting::NotFrom(vec![client(1), client(2)]));
        assert_eq!([2, 3, 3].map(|last| shares.admits(client(last))), [false, true, false]);
        shares.recount([1, 1, 1, 1, 1, 1, 2, 2, 2].into_iter().map(client));
        assert_eq!([1, 2, 3].map(|last| shares.has_many(client(last))), [true, false, false]);
    }

    #[test]
    fn as_many_clients_wait_as_a_filter_can_name() {
        let many: Vec<(u8, usize)> = (0..200).map(|last| (last, 5)).collect();
        let mut shares = shares(&many);
        assert!(matches!(shares.accepting(), Accepting::NotFrom(waits) if waits.len() == Accepting::MOST_LEFT_OUT));
        // The others wait too, after the handshake.
        assert!((0..200).all(|last| !shares.admits(client(last))));
        shares.clear();
        assert_eq!(shares.accepting(), Accepting::All);
    }
}
