//! Whether the other end of a bond is reached over a network, and the log of its outages.
//!
//! A network is down when its last connection failed, or when nothing answers: neither a connection
//! that is being dialled, nor the peers of open ones. It is up again with the first answer.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

/// How long a connection that is dialled may remain unanswered until its network counts as silent:
/// so long that a lost SYN is retransmitted once.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The same where an open connection is silent already.
const DOUBTFUL_PATIENCE: Duration = Duration::from_millis(500);
/// Both are longer by twice the time that the network's last connection took to become ready, but
/// at most by this.
const MOST_ALLOWANCE: Duration = Duration::from_secs(4);
/// An answer proves for this long that the network works, whatever a connection that is dialled
/// makes of it.
const PROVES: Duration = Duration::from_secs(2);

/// A time in which a network was down.
#[derive(Debug, Clone, Copy)]
struct Outage {
    since: Instant,
    /// Nothing has answered. Otherwise the last connection was refused, or could not be made.
    is_silence: bool,
}

/// The state of a network.
#[derive(Debug, Default)]
pub(crate) struct NetworkReach {
    /// Whether the other end is reached; none: it was not tried yet.
    is_up: Option<bool>,
    outage: Option<Outage>,
    /// Since when an open connection over it is silent.
    doubted: Option<Instant>,
    /// When something was last heard over it.
    heard: Option<Instant>,
}

impl NetworkReach {
    /// Whether the other end is reached; none: it was not tried yet.
    pub(crate) fn is_up(&self) -> Option<bool> {
        self.is_up
    }

    pub(crate) fn is_down(&self) -> bool {
        self.is_up == Some(false)
    }

    /// Notes that an open connection is silent.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.doubted.get_or_insert(now);
    }

    /// Notes that the other end was reached by a new connection.
    pub(crate) fn reached(&mut self, (name, to): (&str, &dyn Display), now: Instant) {
        (self.doubted, self.heard) = (None, Some(now));
        let (before, outage) = (self.is_up.replace(true), self.outage.take());
        match outage.filter(|_| before == Some(false)) {
            Some(Outage { since, .. }) => {
                tracing::info!("network {name} of the bond is up again, to {to}, after {:.1} s", (now - since).as_secs_f64());
            }
            None if before != Some(true) => tracing::info!("network {name} of the bond is up, to {to}"),
            None => {}
        }
    }

    /// Notes that no connection could be made.
    pub(crate) fn failed(&mut self, network: (&str, &dyn Display), why: &dyn Display, is_silence: bool, now: Instant) {
        if is_silence && self.heard.is_some_and(|heard| now.saturating_duration_since(heard) < PROVES) {
            return;
        }
        if !is_silence && let Some(outage) = &mut self.outage {
            outage.is_silence = false;
        }
        self.fall(network, why, Outage { since: now, is_silence });
    }

    fn fall(&mut self, (name, to): (&str, &dyn Display), why: &dyn Display, outage: Outage) {
        if self.is_up.replace(false) != Some(false) {
            self.outage = Some(outage);
            tracing::warn!("network {name} of the bond is down, to {to}: {why}; trying again");
        }
    }

    /// Judges by what is heard. `waits_since`: since when the oldest connection that is being
    /// dialled is unanswered; `heard`: when a peer of an open connection last acknowledged
    /// something; `took`: how long the last connection took to become ready.
    pub(crate) fn judge(
        &mut self,
        network: (&str, &dyn Display),
        waits_since: Option<Instant>,
        heard: Option<Instant>,
        took: Duration,
        now: Instant,
    ) {
        self.heard = self.heard.max(heard);
        if self.doubted.is_some_and(|doubted| heard > Some(doubted)) {
            self.doubted = None;
        }
        if self.outage.is_some_and(|outage| outage.is_silence && heard > Some(outage.since)) {
            return self.reached(network, now);
        }
        let patience = if self.doubted.is_some() { DOUBTFUL_PATIENCE } else { PATIENCE } + (2 * took).min(MOST_ALLOWANCE);
        if let Some(since) = waits_since.filter(|since| now.saturating_duration_since(*since) >= patience && self.heard < Some(*since)) {
            let since = self.doubted.map_or(since, |doubted| doubted.min(since));
            self.fall(network, &"no answer", Outage { since, is_silence: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: (&str, &dyn Display) = ("n1", &"192.0.2.1:7000");

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_network_that_does_not_answer_is_down_until_it_does() {
        let (mut reach, start, took) = (NetworkReach::default(), Instant::now(), ms(40));
        assert_eq!(reach.is_up(), None);
        // A lost SYN is retransmitted after a second.
        reach.judge(NETWORK, Some(start), None, Duration::ZERO, start + ms(1400));
        assert_eq!(reach.is_up(), None);
        reach.judge(NETWORK, Some(start), None, Duration::ZERO, start + ms(1500));
        assert!(reach.is_down());
        reach.reached(NETWORK, start + ms(2000));
        assert_eq!(reach.is_up(), Some(true));
        // An open connection falls silent, and a new one is not answered either.
        let (cut, dialled) = (start + ms(10_000), start + ms(11_000));
        reach.doubt(dialled);
        reach.judge(NETWORK, Some(dialled), Some(cut), took, dialled + ms(570));
        assert_eq!(reach.is_up(), Some(true));
        reach.judge(NETWORK, Some(dialled), Some(cut), took, dialled + ms(580));
        assert!(reach.is_down());
        // The open connection's peer acknowledges again.
        reach.judge(NETWORK, Some(dialled), Some(dialled + ms(5000)), took, dialled + ms(5100));
        assert_eq!(reach.is_up(), Some(true));
    }

    #[test]
    fn a_busy_network_that_loses_a_syn_is_up() {
        let (mut reach, start) = (NetworkReach::default(), Instant::now());
        reach.reached(NETWORK, start);
        let late = start + ms(9000);
        reach.judge(NETWORK, Some(start), Some(late - ms(10)), ms(40), late);
        reach.failed(NETWORK, &"no answer", true, late);
        assert_eq!(reach.is_up(), Some(true));
        // A refusal is no matter of loss.
        reach.failed(NETWORK, &"refused", false, late);
        assert!(reach.is_down());
        // Then open connections prove nothing.
        reach.judge(NETWORK, None, Some(late + ms(10)), ms(40), late + ms(20));
        assert!(reach.is_down());
    }

    #[test]
    fn a_slow_network_gets_the_time_that_it_needs() {
        let (mut reach, start, took) = (NetworkReach::default(), Instant::now(), ms(1800));
        reach.reached(NETWORK, start);
        let dialled = start + ms(60_000);
        reach.judge(NETWORK, Some(dialled), None, took, dialled + ms(5000));
        assert_eq!(reach.is_up(), Some(true));
        reach.judge(NETWORK, Some(dialled), None, took, dialled + ms(5100));
        assert!(reach.is_down());
    }
}
