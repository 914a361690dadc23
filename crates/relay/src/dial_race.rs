//! Dials the addresses of a name from an event loop, with the sockets that
//! [`AddressRace`](intercept::AddressRace) does not have.

use crate::ending::Ending;
use intercept::{AddressHistory, AddressRace};
use std::{
    fmt, io,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The open attempts to reach one of several addresses. `T` is an attempt's socket and whatever its
/// owner needs to tell it from the others.
///
/// The caller calls [`proceed`](Self::proceed) at once and again at [`wakes`](Self::wakes), watches
/// the sockets that it dials, and calls [`failed`](Self::failed) or [`won`](Self::won) by their
/// events. After `proceed` and `failed`, [`ending`](Self::ending) says whether the race is lost.
/// Dropping it closes the sockets.
#[derive(Debug)]
pub struct DialRace<T> {
    race: AddressRace,
    open: Vec<OpenAttempt<T>>,
    /// The failures so far.
    failures: Vec<(SocketAddr, Ending)>,
    begun: Instant,
    limit: Duration,
}

/// An attempt that has no answer yet, or the one that was successful.
#[derive(Debug)]
pub struct OpenAttempt<T> {
    /// The address.
    pub server: SocketAddr,
    /// When it was dialled.
    pub dialled_at: Instant,
    /// Its socket.
    pub socket: T,
}

impl<T> DialRace<T> {
    /// A race between `servers`, in the resolver's order, which may take `limit`.
    pub fn new(servers: Vec<SocketAddr>, history: &AddressHistory, limit: Duration, now: Instant) -> Self {
        DialRace { race: AddressRace::new(servers, history, limit, now), open: Vec::new(), failures: Vec::new(), begun: now, limit }
    }

    /// Has `dial` dial the addresses whose time has come. Returns attempts that were given up for
    /// them: there are at most `most` at once.
    pub fn proceed(&mut self, most: usize, now: Instant, mut dial: impl FnMut(SocketAddr) -> Result<T, Ending>) -> Vec<OpenAttempt<T>> {
        let mut given_up = Vec::new();
        while let Some(next) = self.race.next(most, now) {
            if let Some(index) = self.open.iter().position(|attempt| Some(attempt.server) == next.give_up) {
                given_up.push(self.open.remove(index));
            }
            match dial(next.address) {
                Ok(socket) => self.open.push(OpenAttempt { server: next.address, dialled_at: now, socket }),
                Err(ending) => self.note_failure(next.address, ending, now),
            }
        }
        given_up
    }

    /// When to call [`proceed`](Self::proceed) again, or at the latest to look at the
    /// [`ending`](Self::ending).
    pub fn wakes(&self) -> Instant {
        let end = self.begun + self.limit;
        self.race.due().map_or(end, |due| due.min(end))
    }

    /// How it has ended without success; none: it goes on.
    pub fn ending(&self, now: Instant) -> Option<Ending> {
        let timed_out = || Ending::FarNotReached(io::ErrorKind::TimedOut);
        if self.race.is_lost() {
            return Some(self.failures.last().map_or_else(timed_out, |(_, ending)| *ending));
        }
        (now.saturating_duration_since(self.begun) >= self.limit).then(timed_out)
    }

    /// The open attempts, the oldest first.
    pub fn open(&self) -> &[OpenAttempt<T>] {
        &self.open
    }

    /// Notes that the attempt for which `is_it` is true has failed; returns it.
    pub fn failed(&mut self, is_it: impl Fn(&T) -> bool, ending: Ending, now: Instant) -> Option<OpenAttempt<T>> {
        let index = self.open.iter().position(|attempt| is_it(&attempt.socket))?;
        let attempt = self.open.remove(index);
        self.note_failure(attempt.server, ending, now);
        Some(attempt)
    }

    /// Takes the attempt for which `is_it` is true: it is connected. The others are returned too.
    pub fn won(
        mut self,
        is_it: impl Fn(&T) -> bool,
        history: &AddressHistory,
        now: Instant,
    ) -> Option<(OpenAttempt<T>, Vec<OpenAttempt<T>>)> {
        let index = self.open.iter().position(|attempt| is_it(&attempt.socket))?;
        let winner = self.open.remove(index);
        self.race.won(winner.server, history, now);
        Some((winner, self.open))
    }

    /// When it began.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// The address that was dialled last.
    pub fn last_dialled(&self) -> Option<SocketAddr> {
        self.race.dialled().last()
    }

    fn note_failure(&mut self, server: SocketAddr, ending: Ending, now: Instant) {
        self.failures.push((server, ending));
        self.race.failed(server, now);
    }
}

/// What became of each address: `[2001:db8::1]:80: no answer, 192.0.2.1:80: connection refused`.
impl<T> fmt::Display for DialRace<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.race.dialled().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            match self.failures.iter().find(|(failed, _)| *failed == server) {
                None => write!(f, "{server}: no answer")?,
                Some((_, Ending::FarNotReached(why))) => write!(f, "{server}: {why}")?,
                Some((_, ending)) => write!(f, "{server}: {ending}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Ending = Ending::FarNotReached(io::ErrorKind::ConnectionRefused);
    const TIMED_OUT: Ending = Ending::FarNotReached(io::ErrorKind::TimedOut);

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 80))
    }

    fn race(count: u8, now: Instant) -> DialRace<u8> {
        DialRace::new((1..=count).map(address).collect(), &AddressHistory::default(), Duration::from_secs(30), now)
    }

    /// Dials all addresses that are due; the socket is the last byte of the address.
    fn proceed(race: &mut DialRace<u8>, most: usize, now: Instant) -> Vec<u8> {
        let given_up = race.proceed(most, now, |server| match server {
            SocketAddr::V4(server) => Ok(server.ip().octets()[3]),
            SocketAddr::V6(_) => Err(REFUSED),
        });
        given_up.into_iter().map(|attempt| attempt.socket).collect()
    }

    fn open(race: &DialRace<u8>) -> Vec<u8> {
        race.open().iter().map(|attempt| attempt.socket).collect()
    }

    #[test]
    fn attempts_overlap_and_the_first_to_connect_wins() {
        let begun = Instant::now();
        let mut race = race(3, begun);
        assert!(proceed(&mut race, 4, begun).is_empty());
        assert_eq!(open(&race), [1]);
        let second = race.wakes();
        proceed(&mut race, 4, second);
        assert_eq!((open(&race), race.ending(second)), (vec![1, 2], None));
        let (winner, others) = race.won(|socket| *socket == 1, &AddressHistory::default(), second).unwrap();
        assert_eq!((winner.socket, winner.dialled_at, others.len()), (1, begun, 1));
    }

    #[test]
    fn a_lost_race_ends_with_the_last_failure_or_the_limit() {
        let begun = Instant::now();
        let mut race = race(2, begun);
        proceed(&mut race, 4, begun);
        race.failed(|socket| *socket == 1, REFUSED, begun);
        assert_eq!((race.ending(begun), race.wakes()), (None, begun), "the next address is due at once");
        proceed(&mut race, 4, begun);
        let end = begun + Duration::from_secs(30);
        assert_eq!((race.wakes(), race.ending(end)), (end, Some(TIMED_OUT)));
        assert_eq!(race.to_string(), "192.0.2.1:80: connection refused, 192.0.2.2:80: no answer");
        race.failed(|socket| *socket == 2, REFUSED, begun);
        assert_eq!(race.ending(begun), Some(REFUSED));
    }

    #[test]
    fn addresses_that_cannot_be_dialled_are_passed_over() {
        let begun = Instant::now();
        let servers = vec!["[2001:db8::1]:80".parse().unwrap(), address(1)];
        let mut race = DialRace::new(servers, &AddressHistory::default(), Duration::from_secs(30), begun);
        proceed(&mut race, 4, begun);
        assert_eq!(open(&race), [1]);
        let mut race = DialRace::new(vec!["[2001:db8::1]:80".parse().unwrap()], &AddressHistory::default(), Duration::from_secs(30), begun);
        proceed(&mut race, 4, begun);
        assert_eq!(race.ending(begun), Some(REFUSED));
    }

    #[test]
    fn where_descriptors_are_short_an_attempt_replaces_the_last() {
        let begun = Instant::now();
        let mut race = race(2, begun);
        proceed(&mut race, 1, begun);
        let second = race.wakes();
        assert!(proceed(&mut race, 1, second).is_empty(), "the first has its chance");
        let later = race.wakes();
        assert!(later > second);
        assert_eq!(proceed(&mut race, 1, later), [1]);
        assert_eq!(open(&race), [2]);
    }
}
