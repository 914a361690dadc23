//! Timeouts of handshakes, lingering connections and streams; silent peers.

use super::{BondSocket, Bonds, HandshakeOrigin};
use crate::{
    handshake::HandshakeFailure,
    life::Role,
    networks::{self, MOST_READY_TIMEOUT},
};
use intercept::sys;
use relay::Ending;
use std::{
    io,
    time::{Duration, Instant},
};

/// How long a stream waits for another connection after the other end has closed the last one: the
/// other end has probably ended.
const CLOSED_GRACE: Duration = Duration::from_secs(5);

/// A stream with more unacknowledged bytes than this shares the window with others.
const BULK: u64 = 64 * 1024;

/// A stream without progress for this long returns its pipes.
const STANDS_STILL: Duration = Duration::from_secs(1);

impl Bonds {
    /// Checks all handshakes, lingering connections, networks and streams.
    pub(crate) fn check_timeouts(&mut self) {
        let now = self.now;
        self.forget_ended_handshakes();
        // The oldest is the first.
        while let Some(&index) = self.unauthenticated.front()
            && self.handshake_began(index).is_some_and(|since| now - since >= MOST_READY_TIMEOUT)
        {
            self.unauthenticated.pop_front();
            self.refused += 1;
            self.drop_entry(index);
        }
        // For each network: since when a connection is being dialled, and when a peer last
        // acknowledged something.
        let mut answers: Vec<(Option<Instant>, Option<Instant>)> = vec![(None, None); self.networks.len()];
        for index in 0..self.entries.bound() {
            if let Some(BondSocket::Handshake(handshake, HandshakeOrigin::Dialled(network))) = self.entries.get(index) {
                let waits = &mut answers[*network].0;
                *waits = Some(waits.map_or(handshake.since, |since| since.min(handshake.since)));
            }
            match self.entries.get(index) {
                Some(BondSocket::Handshake(handshake, HandshakeOrigin::Dialled(network)))
                    if now - handshake.since >= self.networks.ready_timeout(*network) =>
                {
                    let network = *network;
                    self.drop_entry(index);
                    self.networks.failed(network, &HandshakeFailure::Silent, now);
                }
                Some(BondSocket::Pooled(channel, network, _)) if networks::ignores_probe(&sys::tcp_info(channel).unwrap_or_default()) => {
                    for stale in self.networks.doubt(*network, now) {
                        self.drop_entry(stale);
                    }
                }
                Some(BondSocket::Linger(linger)) if linger.is_late(now) => self.drop_entry(index),
                _ => {}
            }
        }
        self.networks.look(now);
        self.senders = self.streams.iter().filter(|(_, bonded)| bonded.stream.unacknowledged() > BULK).count();
        self.pipes.rest();
        for slot in 0..self.streams.bound() {
            self.check_stream(slot, &mut answers);
        }
        for (network, (waits_since, heard)) in answers.into_iter().enumerate() {
            self.networks.judge(network, waits_since, heard, now);
        }
    }

    /// Checks a stream. `answers`: for each network, when a peer last acknowledged something
    /// (second).
    fn check_stream(&mut self, slot: usize, answers: &mut [(Option<Instant>, Option<Instant>)]) {
        let (now, outage, idle, connect) = (self.now, self.host.bond().outage, self.host.idle_timeout(), self.host.connect_timeout());
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        bonded.keep_alive();
        let ending = if let Some((since, closed)) = bonded.alone.filter(|_| !bonded.is_reset()) {
            let limit = match (bonded.known, closed) {
                (false, _) => connect,
                (true, true) => CLOSED_GRACE.min(outage),
                (true, false) => outage,
            };
            (now - since >= limit).then(|| bonded.bond_failed(io::ErrorKind::TimedOut))
        } else if bonded.is_called() && now - bonded.asked >= connect {
            Some(bonded.bond_failed(io::ErrorKind::TimedOut))
        } else if bonded.is_dialling()
            && now - bonded.asked >= connect + if matches!(bonded.role, Role::Serve { .. }) { Duration::ZERO } else { connect }
        {
            Some(Ending::FarNotReached(io::ErrorKind::TimedOut))
        } else if idle.is_some_and(|limit| bonded.idle(now) >= limit) {
            Some(Ending::Idle)
        } else if bonded.has_silent_peer(now) {
            let why = io::Error::from(io::ErrorKind::TimedOut);
            match bonded.fail(bonded.failed(&why), &why, now) {
                // The rest is delivered in the next turn.
                Ok(()) => return self.give_turn(slot),
                Err(ending) => Some(ending),
            }
        } else {
            None
        };
        if let Some(ending) = ending {
            return self.end(slot, ending);
        }
        if bonded.idle(now) >= STANDS_STILL
            && let Err(why) = bonded.stream.leave_pipes()
        {
            let ending = bonded.failed(&why.into());
            return self.end(slot, ending);
        }
        let is_over = bonded.plain.is_none() && !bonded.is_dialling();
        if !is_over && bonded.stream.unacknowledged() == 0 && bonded.idle(now) > Duration::from_secs(10) {
            bonded.stream.forget();
        }
        // The end that dials replaces a silent connection.
        if let Role::Connect { .. } = bonded.role {
            let mut silent = Vec::new();
            for (_, member) in bonded.stream.members() {
                let (network, info) = (usize::from(member.network), sys::tcp_info(&member.channel).unwrap_or_default());
                if networks::is_silent(&info) {
                    silent.push(network);
                }
                let heard = now.checked_sub(Duration::from_millis(info.last_ack_recv_ms.into()));
                answers[network].1 = answers[network].1.max(heard);
            }
            let id = bonded.id;
            for network in silent {
                for stale in self.networks.suspect(network, slot, id, now) {
                    self.drop_entry(stale);
                }
            }
        }
    }
}
