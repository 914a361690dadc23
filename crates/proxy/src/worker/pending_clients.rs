//! Clients that have not said yet where they go, by slot and in the order of arrival.

use crate::{config::Listen, greeting::Greeting};
use socket2::Socket;
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::Instant,
};

/// A client that has not said yet where it goes.
#[derive(Debug)]
pub(super) struct PendingClient {
    pub(super) socket: Socket,
    pub(super) client: SocketAddr,
    pub(super) greeting: Greeting,
    /// How the listener listens that it came to.
    pub(super) listen: Listen,
    pub(super) serial: u64,
    pub(super) since: Instant,
}

/// Clients that have not said yet where they go, by their slots.
#[derive(Debug, Default)]
pub(super) struct PendingClients {
    all: HashMap<usize, PendingClient>,
    /// Slots and serials in the order of arrival, so that those who take too long are found without a
    /// look at the others. Who has gone on since is passed over.
    arrivals: VecDeque<(usize, u64)>,
}

impl PendingClients {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        !self.all.is_empty() && self.all.contains_key(&slot)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&PendingClient> {
        self.all.get(&slot)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut PendingClient> {
        self.all.get_mut(&slot)
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<PendingClient> {
        self.all.remove(&slot)
    }

    pub(super) fn insert(&mut self, slot: usize, client: PendingClient) {
        // Whoever has gone on keeps its place behind a silent one; at most half of the places are such.
        if self.arrivals.len() > 2 * self.all.len() + 64 {
            self.arrivals.retain(|(slot, serial)| self.all.get(slot).is_some_and(|client| client.serial == *serial));
        }
        self.arrivals.push_back((slot, client.serial));
        self.all.insert(slot, client);
    }

    /// The slot of a client that came before `since`; none when all have come later.
    pub(super) fn late(&mut self, since: Instant) -> Option<usize> {
        while let Some((slot, serial)) = self.arrivals.front().copied() {
            match self.all.get(&slot).filter(|client| client.serial == serial) {
                Some(client) if client.since >= since => return None,
                Some(_) => return Some(slot),
                None => drop(self.arrivals.pop_front()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::time::Duration;

    #[test]
    fn only_those_who_are_still_silent_are_late() {
        let begun = Instant::now();
        let listen = Listen::socks5("127.0.0.1:1080".parse().unwrap());
        let mut clients = PendingClients::default();
        let come = |clients: &mut PendingClients, slot, serial: u64| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let client = "127.0.0.1:9".parse().unwrap();
            let since = begun + Duration::from_secs(serial);
            let greeting = Greeting::new(false, true);
            clients.insert(slot, PendingClient { socket, client, greeting, listen: listen.clone(), serial, since });
        };
        come(&mut clients, 0, 0);
        // One that goes on at once, again and again, in the same slot.
        for serial in 1..1000 {
            come(&mut clients, 1, serial);
            clients.all.remove(&1);
        }
        assert!(clients.arrivals.len() <= 70, "{}", clients.arrivals.len());
        come(&mut clients, 1, 1000);
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(clients.late(at(0)), None);
        assert_eq!(clients.late(at(1)), Some(0));
        clients.all.remove(&0);
        assert_eq!(clients.late(at(1000)), None);
        assert_eq!(clients.late(at(1001)), Some(1));
        clients.all.remove(&1);
        assert_eq!((clients.late(at(2000)), clients.arrivals.len()), (None, 0));
        assert!(clients.is_empty() && !clients.has(1));
    }
}
