//! *Serve*: reaches one of several addresses of a stream's server (RFC 8305). A server with a single
//! address is dialled without this.

use super::{BondSocket, Bonds};
use crate::life::Attempt;
use intercept::{AddressRace, canonical};
use relay::{DialRace, Ending, OpenAttempt, Readiness, Scratch, Token};
use std::{io, net::SocketAddr};

impl Bonds {
    /// Dials these addresses, in the resolver's order, until one is connected.
    pub(crate) fn reach(&mut self, slot: usize, servers: Vec<SocketAddr>) {
        let servers = servers.into_iter().map(canonical).collect();
        let race = DialRace::new(servers, self.host.history(), self.host.connect_timeout(), self.now);
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        (bonded.race, bonded.asked) = (Some(Box::new(race)), self.now);
        self.proceed_reaching(slot);
    }

    /// Dials the addresses whose time has come.
    pub(crate) fn proceed_reaching(&mut self, slot: usize) {
        let now = self.now;
        // Where streams may need all descriptors, one attempt follows the other.
        let most = if 2 * self.stream_count() > self.host.most_streams() { 1 } else { AddressRace::MOST_ATTEMPTS };
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        let client = bonded.client;
        let Some(mut race) = bonded.race.take() else { return };
        let given_up = race.proceed(most, now, |server| {
            let leg = self.dial_plain(client, server)?;
            let entry = self.entries.insert(BondSocket::Plain(slot));
            if self.reactor.watch(&leg, Token::Carrier(entry), Readiness::INTEREST).is_err() {
                self.drop_entry(entry);
                return Err(Ending::NoRoom);
            }
            Ok(Attempt { entry, leg })
        });
        self.close_attempts(&given_up);
        let ending = race.ending(now);
        if ending.is_some() {
            let time = (now - race.begun()).as_secs_f64();
            tracing::info!(%client, "a stream of the bond is refused: no address of its server was reached in {time:.1} s: {race}");
        }
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        (bonded.server, bonded.race) = (race.last_dialled().unwrap_or(bonded.server), Some(race));
        match ending {
            Some(ending) => self.end(slot, ending),
            None => self.schedule(slot),
        }
    }

    /// Handles an event of an attempt.
    pub(crate) fn on_attempt(&mut self, slot: usize, entry: usize, events: Readiness, scratch: &mut Scratch) {
        let now = self.now;
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        let Some(race) = &mut bonded.race else { return };
        let is_it = |attempt: &Attempt| attempt.entry == entry;
        if events.failed {
            let Some(attempt) = race.open().iter().find(|attempt| is_it(&attempt.socket)) else { return };
            let why = attempt.socket.leg.socket().take_error().unwrap_or_else(Some);
            let kind = why.map_or(io::ErrorKind::Other, |why| why.kind());
            let failed = race.failed(is_it, Ending::FarNotReached(kind), now);
            self.close_attempts(failed.as_slice());
            return self.proceed_reaching(slot);
        }
        if !events.writable || !race.open().iter().any(|attempt| is_it(&attempt.socket)) {
            return;
        }
        let Some(race) = bonded.race.take() else { return };
        let Some((winner, others)) = race.won(is_it, self.host.history(), now) else { return };
        (bonded.entry, bonded.asked) = (entry, winner.dialled_at);
        bonded.dials(winner.socket.leg, winner.server, winner.dialled_at);
        let connected = bonded.on_events(events, now);
        self.close_attempts(&others);
        match connected {
            Ok(()) => self.proceed(slot, scratch),
            Err(ending) => self.end(slot, ending),
        }
    }

    /// Forgets the sockets of attempts; dropping these closes them.
    pub(crate) fn close_attempts(&mut self, attempts: &[OpenAttempt<Attempt>]) {
        for attempt in attempts {
            self.drop_entry(attempt.socket.entry);
        }
    }
}
