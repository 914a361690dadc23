//! Name lookups. They have threads of their own, since the system's resolver blocks.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Instant,
};

/// Number of parallel lookups. Those of names without an answering server take many seconds each.
const THREADS: usize = 16;
/// The most lookups that wait for a thread.
const MOST_WAITING: usize = 4096;

/// What a lookup is for, within its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupOrigin {
    /// The pending client in this slot of the worker.
    Client(usize),
    /// The stream in this slot of the worker's carrier.
    Stream(usize),
    /// The other end of the worker's carrier over this network.
    FarEnd(usize),
}

/// A request to look up a name.
#[derive(Debug)]
pub(crate) struct NameLookup {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Number of the worker that gets the result.
    pub(crate) worker: usize,
    pub(crate) origin: LookupOrigin,
    /// Distinguishes the present user of the slot from later ones; unchanged in the result.
    pub(crate) serial: u64,
    /// From then on the result is of no use.
    pub(crate) until: Instant,
}

impl NameLookup {
    /// Asks the system's resolver, unless it is too late.
    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        if Instant::now() >= self.until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        (self.name.as_str(), self.port).to_socket_addrs().map(Iterator::collect)
    }

    fn result(self, addresses: io::Result<Vec<SocketAddr>>) -> LookupResult {
        LookupResult { origin: self.origin, serial: self.serial, name: self.name, addresses }
    }
}

/// The result of a [`NameLookup`].
#[derive(Debug)]
pub(crate) struct LookupResult {
    pub(crate) origin: LookupOrigin,
    pub(crate) serial: u64,
    pub(crate) name: String,
    pub(crate) addresses: io::Result<Vec<SocketAddr>>,
}

/// Lookups that wait for a thread. The newest is next: if names come faster than they are looked
/// up, because the path to the name servers is down, the clients of the oldest ones have given up
/// before their turn comes.
#[derive(Debug)]
struct WaitingLookups {
    inbox: mpsc::Receiver<NameLookup>,
    /// From the oldest to the newest.
    waiting: Vec<NameLookup>,
}

impl WaitingLookups {
    /// Waits for the next lookup, and returns those beyond [`MOST_WAITING`], the oldest, too. None:
    /// all senders have been dropped.
    fn next(&mut self) -> Option<(NameLookup, Vec<NameLookup>)> {
        self.waiting.extend(self.inbox.try_iter());
        let next = self.waiting.pop().or_else(|| self.inbox.recv().ok())?;
        let excess = self.waiting.len().saturating_sub(MOST_WAITING);
        Some((next, self.waiting.drain(..excess).collect()))
    }
}

/// Starts the threads. They end when all senders of lookups have been dropped. `send_result` passes
/// a result to the worker with this number.
///
/// # Errors
/// When a thread cannot be started.
pub(crate) fn start(
    lookups: mpsc::Receiver<NameLookup>,
    send_result: impl Fn(usize, LookupResult) + Clone + Send + 'static,
) -> io::Result<()> {
    let lookups = Arc::new(Mutex::new(WaitingLookups { inbox: lookups, waiting: Vec::new() }));
    for _ in 0..THREADS {
        let (lookups, send_result) = (lookups.clone(), send_result.clone());
        let work = move || {
            loop {
                let Ok(Some((lookup, excess))) = lookups.lock().map(|mut lookups| lookups.next()) else { return };
                for excessive in excess {
                    send_result(excessive.worker, excessive.result(Err(io::ErrorKind::TimedOut.into())));
                }
                let addresses = lookup.addresses();
                send_result(lookup.worker, lookup.result(addresses));
            }
        };
        thread::Builder::new().name("tandem-names".into()).spawn(work)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn lookup(serial: u64, until: Instant) -> NameLookup {
        NameLookup { name: "192.0.2.1".into(), port: 80, worker: 0, origin: LookupOrigin::Client(7), serial, until }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[test]
    fn the_newest_is_next_and_the_oldest_in_excess_is_not_looked_up() {
        let (sender, inbox) = mpsc::channel();
        let mut lookups = WaitingLookups { inbox, waiting: Vec::new() };
        let count = MOST_WAITING as u64 + 3;
        (0..count).for_each(|serial| sender.send(lookup(serial, soon())).unwrap());
        let (next, excess) = lookups.next().unwrap();
        assert_eq!(next.serial, count - 1);
        assert_eq!(excess.iter().map(|lookup| lookup.serial).collect::<Vec<_>>(), [0, 1]);
        sender.send(lookup(count, soon())).unwrap();
        assert_eq!(lookups.next().map(|(next, excess)| (next.serial, excess.len())), Some((count, 0)));
        assert_eq!(lookups.next().map(|(next, _)| next.serial), Some(count - 2));
        drop(sender);
        assert_eq!(std::iter::from_fn(|| lookups.next()).count(), MOST_WAITING - 1);
    }

    #[test]
    fn a_lookup_that_is_too_late_is_not_made() {
        let (sender, inbox) = mpsc::channel();
        let (results, got) = mpsc::channel();
        start(inbox, move |worker, result| results.send((worker, result)).unwrap()).unwrap();
        for (serial, until, expected) in [(1, Instant::now(), None), (2, soon(), Some("192.0.2.1:80"))] {
            sender.send(lookup(serial, until)).unwrap();
            let (worker, result) = got.recv().unwrap();
            assert_eq!((worker, result.origin, result.serial), (0, LookupOrigin::Client(7), serial));
            match expected {
                Some(address) => assert_eq!(result.addresses.unwrap(), [address.parse().unwrap()]),
                None => assert_eq!(result.addresses.unwrap_err().kind(), io::ErrorKind::TimedOut),
            }
        }
    }
}
