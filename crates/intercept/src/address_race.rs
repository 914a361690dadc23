//! In which order and when the addresses of a name are dialled: Happy Eyeballs version 2 (RFC 8305).
//!
//! [`AddressRace`] decides, its caller has the sockets. The caller dials what
//! [`next`](AddressRace::next) returns until that is `None`, and calls it again at
//! [`due`](AddressRace::due). It reports an attempt that fails by [`failed`](AddressRace::failed)
//! and the first one that connects by [`won`](AddressRace::won), and closes the others.
//!
//! [`AddressHistory`] remembers which addresses were silent while another one answered. They come
//! last for a while, so that a dead address delays only the first connection.
//!
//! ```
//! use intercept::{AddressHistory, AddressRace};
//! use std::time::{Duration, Instant};
//!
//! let (history, begun) = (AddressHistory::default(), Instant::now());
//! let addresses = ["[2001:db8::1]:80".parse().unwrap(), "192.0.2.1:80".parse().unwrap()];
//! let mut race = AddressRace::new(addresses, &history, Duration::from_secs(30), begun);
//! assert_eq!(race.next(4, begun).unwrap().address, addresses[0]);
//! assert_eq!(race.next(4, begun), None);
//! // The first address is silent.
//! let due = race.due().unwrap();
//! assert_eq!(due, begun + Duration::from_millis(250));
//! assert_eq!(race.next(4, due).unwrap().address, addresses[1]);
//! race.won(addresses[1], &history, due + Duration::from_millis(20));
//! // The next race begins with the address that answered.
//! let mut race = AddressRace::new(addresses, &history, Duration::from_secs(30), due);
//! assert_eq!(race.next(4, due).unwrap().address, addresses[1]);
//! ```

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Time after which the next address is dialled while an attempt has no answer (RFC 8305 §8:
/// Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The longest such delay, for an address whose last handshake took long (RFC 8305 §8).
const MOST_DELAY: Duration = Duration::from_secs(2);
/// The shortest such delay (RFC 8305 §5), where the time limit leaves little for each address.
const LEAST_DELAY: Duration = Duration::from_millis(10);
/// How long an attempt is left alone at most when others wait for its descriptor: enough for a SYN
/// that is retransmitted once, over a satellite.
const CHANCE: Duration = Duration::from_secs(3);
/// The most addresses of a name that are dialled. A hostile name server can return thousands.
const MOST_ADDRESSES: usize = 16;
/// An attempt that fails sooner has cost no time, so that its address keeps its place.
const IMMEDIATE: Duration = Duration::from_millis(10);
/// How long what was seen of an address counts. Routes and servers change within minutes.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most addresses in a history.
const MOST_REMEMBERED: usize = 1024;

/// What was last seen of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Experience {
    /// Another address of its name answered first, although it was dialled later.
    Late,
    /// Its handshake took this long.
    Took(Duration),
}

/// What attempts to reach addresses have shown, for the order and the delays of later ones. One
/// history serves all threads of a process.
#[derive(Debug, Default)]
pub struct AddressHistory {
    seen: Mutex<HashMap<SocketAddr, (Experience, Instant)>>,
}

impl AddressHistory {
    fn seen(&self) -> MutexGuard<'_, HashMap<SocketAddr, (Experience, Instant)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a race has shown. A handshake that was fast is the default: only its absence from
    /// the table is noted.
    fn learn(&self, address: SocketAddr, experience: Experience, now: Instant) {
        let mut seen = self.seen();
        if matches!(experience, Experience::Took(time) if 2 * time <= ATTEMPT_DELAY) {
            seen.remove(&address);
            return;
        }
        if seen.len() >= MOST_REMEMBERED && !seen.contains_key(&address) {
            seen.retain(|_, (_, at)| now.saturating_duration_since(*at) < REMEMBERED);
            if seen.len() >= MOST_REMEMBERED
                && let Some(oldest) = seen.iter().min_by_key(|(_, (_, at))| *at).map(|(address, _)| *address)
            {
                seen.remove(&oldest);
            }
        }
        seen.insert(address, (experience, now));
    }

    /// Each address with what was seen of it lately.
    fn of(&self, addresses: Vec<SocketAddr>, now: Instant) -> Vec<(SocketAddr, Option<Experience>)> {
        let seen = self.seen();
        let lately = |(experience, at): &(Experience, Instant)| (now.saturating_duration_since(*at) < REMEMBERED).then_some(*experience);
        addresses.into_iter().map(|address| (address, seen.get(&address).and_then(lately))).collect()
    }
}

/// An address to dial now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextAttempt {
    /// The address.
    pub address: SocketAddr,
    /// An earlier attempt to close first, so that there are not too many at once.
    pub give_up: Option<SocketAddr>,
}

/// An attempt to reach an address.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    address: SocketAddr,
    begun: Instant,
    /// When it failed or was given up; none: it has no answer yet.
    ended: Option<Instant>,
}

/// The attempts to reach one of several addresses: see the [module](self).
#[derive(Debug)]
pub struct AddressRace {
    /// Addresses that were not dialled yet, and the delay after each.
    waiting: VecDeque<(SocketAddr, Duration)>,
    /// In the order in which they began.
    attempts: Vec<Attempt>,
    /// When the next address is to be dialled.
    due: Instant,
    /// How long an attempt must have been open before it may be given up.
    chance: Duration,
}

/// The addresses without duplicates, the families in turn, beginning with that of the first address
/// (RFC 8305 §4); otherwise in the resolver's order (RFC 6724).
fn interleaved(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let (mut same, mut other): (VecDeque<SocketAddr>, VecDeque<SocketAddr>) = Default::default();
    for address in addresses {
        let is_same = same.front().is_none_or(|first| first.is_ipv4() == address.is_ipv4());
        let family = if is_same { &mut same } else { &mut other };
        if !family.contains(&address) {
            family.push_back(address);
        }
    }
    let mut all = Vec::with_capacity(same.len() + other.len());
    while !(same.is_empty() && other.is_empty()) {
        all.extend(same.pop_front());
        all.extend(other.pop_front());
    }
    all
}

impl AddressRace {
    /// The most attempts at once, where descriptors are not short.
    pub const MOST_ATTEMPTS: usize = 4;

    /// A race between these addresses, in the resolver's order. `limit` is the time for all of them
    /// together; its end is the caller's to watch.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>, history: &AddressHistory, limit: Duration, now: Instant) -> Self {
        let mut known = history.of(interleaved(addresses), now);
        // Stable: the order stays otherwise.
        known.sort_by_key(|(_, experience)| *experience == Some(Experience::Late));
        known.truncate(MOST_ADDRESSES);
        // Each address gets its part of the limit.
        let most = (limit / known.len().max(1) as u32).max(LEAST_DELAY);
        let delay = |experience| match experience {
            // RFC 8305 §5: about the time of the first retransmission of the SYN.
            Some(Experience::Took(time)) => (2 * time).clamp(ATTEMPT_DELAY, MOST_DELAY),
            _ => ATTEMPT_DELAY,
        };
        let waiting = known.into_iter().map(|(address, experience)| (address, delay(experience).min(most))).collect();
        AddressRace { waiting, attempts: Vec::new(), due: now, chance: CHANCE.min(most) }
    }

    /// The address to dial now; none: it is not time yet, or no address is left. `most` is the number
    /// of attempts that there may be at once, at least 1.
    pub fn next(&mut self, most: usize, now: Instant) -> Option<NextAttempt> {
        if now < self.due || self.waiting.is_empty() {
            return None;
        }
        let oldest = self.pending().next().filter(|_| self.pending().count() >= most.max(1)).copied();
        if let Some(oldest) = oldest {
            self.due = oldest.begun + self.chance;
            if now < self.due {
                return None;
            }
            self.end(oldest.address, now);
        }
        let give_up = oldest.map(|oldest| oldest.address);
        let (address, delay) = self.waiting.pop_front()?;
        self.due = now + delay;
        self.attempts.push(Attempt { address, begun: now, ended: None });
        Some(NextAttempt { address, give_up })
    }

    /// When to call [`next`](Self::next) again; none: no address is left.
    pub fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.due)
    }

    /// Whether all attempts have failed and no address is left.
    pub fn is_lost(&self) -> bool {
        self.waiting.is_empty() && self.pending().next().is_none()
    }

    /// Notes that an attempt has failed: the next address is due at once.
    pub fn failed(&mut self, address: SocketAddr, now: Instant) {
        self.end(address, now);
        self.due = now;
    }

    /// Notes which address was reached, and that earlier attempts were not.
    pub fn won(&self, address: SocketAddr, history: &AddressHistory, now: Instant) {
        let Some(winner) = self.attempts.iter().position(|attempt| attempt.address == address) else { return };
        history.learn(address, Experience::Took(now.saturating_duration_since(self.attempts[winner].begun)), now);
        let took_time = |attempt: &&Attempt| attempt.ended.is_none_or(|ended| ended.saturating_duration_since(attempt.begun) >= IMMEDIATE);
        for late in self.attempts[..winner].iter().filter(took_time) {
            history.learn(late.address, Experience::Late, now);
        }
    }

    /// The addresses that were dialled so far, in this order.
    pub fn dialled(&self) -> impl Iterator<Item = SocketAddr> {
        self.attempts.iter().map(|attempt| attempt.address)
    }

    /// The attempts that have no answer yet, the oldest first.
    fn pending(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.ended.is_none())
    }

    fn end(&mut self, address: SocketAddr, now: Instant) {
        if let Some(attempt) = self.attempts.iter_mut().find(|attempt| attempt.address == address) {
            attempt.ended.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn v6(last: u16) -> SocketAddr {
        format!("[2001:db8::{last:x}]:80").parse().unwrap()
    }

    fn v4(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 80))
    }

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// When an address answers, and whether it accepts.
    type Answer = (Instant, bool);

    /// Plays a race. `answers` says after which time an address answers, and whether it accepts;
    /// none: it is silent. Returns the winner, and how long it all took.
    fn play(
        addresses: &[SocketAddr],
        history: &AddressHistory,
        begun: Instant,
        most: usize,
        answers: impl Fn(SocketAddr) -> Option<(Duration, bool)>,
    ) -> (Option<SocketAddr>, Duration) {
        let mut race = AddressRace::new(addresses.iter().copied(), history, LIMIT, begun);
        let (mut now, mut open) = (begun, Vec::<(SocketAddr, Option<Answer>)>::new());
        loop {
            while let Some(NextAttempt { address, give_up }) = race.next(most, now) {
                open.retain(|(open, _)| Some(*open) != give_up);
                open.push((address, answers(address).map(|(after, accepts)| (now + after, accepts))));
                assert!(open.len() <= most);
            }
            if race.is_lost() {
                assert!(open.is_empty());
                return (None, now - begun);
            }
            let answer = open.iter().filter_map(|(address, answer)| Some((answer.as_ref()?.0, *address, answer.as_ref()?.1))).min();
            match (answer, race.due()) {
                (Some((at, address, accepts)), due) if due.is_none_or(|due| at <= due) && at - begun < LIMIT => {
                    now = at;
                    if accepts {
                        race.won(address, history, now);
                        return (Some(address), now - begun);
                    }
                    open.retain(|(open, _)| *open != address);
                    race.failed(address, now);
                }
                (_, Some(due)) if due - begun < LIMIT => now = due,
                _ => return (None, LIMIT),
            }
        }
    }

    #[test]
    fn the_families_alternate_from_that_of_the_first_address() {
        assert_eq!(interleaved([v6(1), v6(2), v6(3), v4(1), v4(2)]), [v6(1), v4(1), v6(2), v4(2), v6(3)]);
        assert_eq!(interleaved([v4(1), v6(1), v4(1), v6(1), v4(2)]), [v4(1), v6(1), v4(2)]);
        assert_eq!(interleaved([v4(2), v4(1)]), [v4(2), v4(1)]);
        assert_eq!(interleaved([]), []);
    }

    #[test]
    fn a_silent_first_address_costs_a_delay_once() {
        for addresses in [[v6(1), v4(1)], [v4(1), v6(1)], [v4(1), v4(2)]] {
            let (history, begun) = (AddressHistory::default(), Instant::now());
            let answers = |address| (address != addresses[0]).then_some((ms(20), true));
            let play = |at| play(&addresses, &history, begun + at, 4, answers);
            assert_eq!(play(ms(0)), (Some(addresses[1]), ms(270)));
            assert_eq!(play(ms(300)), (Some(addresses[1]), ms(20)));
            assert_eq!(play(ms(300) + REMEMBERED), (Some(addresses[1]), ms(270)), "it is forgotten");
        }
    }

    #[test]
    fn a_refusal_has_the_next_address_dialled_at_once() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        let answers = |address| Some((ms(20), address == v4(1)));
        assert_eq!(play(&[v6(1), v6(2), v4(1)], &history, begun, 4, answers), (Some(v4(1)), ms(40)), "one of each family");
        // A failure that took no time, such as no route, keeps its place.
        let answers = |address| Some(if address == v4(1) { (ms(20), true) } else { (ms(0), false) });
        let history = AddressHistory::default();
        assert_eq!(play(&[v6(1), v4(1)], &history, begun, 4, answers), (Some(v4(1)), ms(20)));
        assert_eq!(AddressRace::new([v6(1), v4(1)], &history, LIMIT, begun).next(4, begun).unwrap().address, v6(1));
    }

    #[test]
    fn silent_addresses_take_the_limit_and_no_longer() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        assert_eq!(play(&[v6(1), v4(1)], &history, begun, 4, |_| None), (None, LIMIT));
        assert_eq!(play(&[v6(1), v4(1)], &history, begun, 4, |_| Some((ms(10), false))), (None, ms(20)));
        assert_eq!(play(&[], &history, begun, 4, |_| None), (None, ms(0)));
        assert!(history.seen().is_empty(), "no address was better than another");
    }

    #[test]
    fn an_address_that_answers_again_is_first_again() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        play(&[v6(1), v4(1)], &history, begun, 4, |address| (address == v4(1)).then_some((ms(20), true)));
        let (winner, _) = play(&[v6(1), v4(1)], &history, begun, 4, |address| (address == v6(1)).then_some((ms(20), true)));
        assert_eq!(winner, Some(v6(1)));
        assert_eq!(play(&[v6(1), v4(1)], &history, begun, 4, |_| Some((ms(20), true))), (Some(v6(1)), ms(20)));
    }

    #[test]
    fn a_long_path_is_known_after_its_first_handshake() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        let count = |history: &AddressHistory| {
            let mut race = AddressRace::new([v6(1), v4(1), v4(2)], history, LIMIT, begun);
            (0..600).filter(|time| race.next(4, begun + ms(*time)).is_some()).count()
        };
        assert_eq!(count(&history), 3);
        assert_eq!(play(&[v6(1), v4(1), v4(2)], &history, begun, 4, |_| Some((ms(600), true))), (Some(v6(1)), ms(600)));
        assert_eq!(count(&history), 1, "no connection is begun in vain any more");
    }

    #[test]
    fn a_short_limit_leaves_time_for_each_address() {
        let begun = Instant::now();
        let mut race = AddressRace::new([v6(1), v4(1), v4(2), v4(3)], &AddressHistory::default(), ms(400), begun);
        let at: Vec<u64> = (0..400).filter(|time| race.next(4, begun + ms(*time)).is_some()).collect();
        assert_eq!(at, [0, 100, 200, 300]);
    }

    #[test]
    fn where_descriptors_are_short_one_attempt_follows_the_other() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        let answers = |address| (address == v4(2)).then_some((ms(20), true));
        assert_eq!(play(&[v6(1), v4(1), v4(2)], &history, begun, 1, answers), (Some(v4(2)), 2 * CHANCE + ms(20)));
        // A long path is no reason to give an attempt up.
        let answers = |address| (address == v6(1)).then_some((ms(2900), true));
        assert_eq!(play(&[v6(1), v4(1)], &AddressHistory::default(), begun, 1, answers), (Some(v6(1)), ms(2900)));
    }

    #[test]
    fn the_history_is_bounded_and_forgets_the_oldest() {
        let (history, begun) = (AddressHistory::default(), Instant::now());
        let count = MOST_REMEMBERED as u16 + 10;
        for number in 0..count {
            history.learn(v6(number), Experience::Late, begun + ms(number.into()));
        }
        let seen = history.seen();
        assert_eq!(seen.len(), MOST_REMEMBERED);
        assert!(!seen.contains_key(&v6(9)) && seen.contains_key(&v6(10)) && seen.contains_key(&v6(count - 1)));
    }

    proptest! {
        /// Whatever the addresses do: each is dialled at most once, a reachable one is found within
        /// the delays of those before it, and the second time a silent one is not waited for.
        #[test]
        fn a_reachable_address_is_found(
            kinds in prop::collection::vec((any::<bool>(), 0..3u8, 1..200u64), 1..10),
            most in 1..5usize,
        ) {
            let addresses: Vec<SocketAddr> =
                kinds.iter().enumerate().map(|(index, (is_v6, ..))| if *is_v6 { v6(index as u16) } else { v4(index as u8) }).collect();
            let answers = |address: SocketAddr| {
                let index = addresses.iter().position(|other| *other == address).unwrap();
                let (_, kind, time) = kinds[index];
                match kind { 0 => None, kind => Some((ms(time), kind == 1)) }
            };
            let (history, begun) = (AddressHistory::default(), Instant::now());
            let (winner, took) = play(&addresses, &history, begun, most, answers);
            let reachable = kinds.iter().any(|(_, kind, _)| *kind == 1);
            prop_assert_eq!(winner.is_some(), reachable);
            if reachable {
                let each = if kinds.len() > most { CHANCE } else { ATTEMPT_DELAY };
                prop_assert!(took <= each * kinds.len() as u32 + ms(200), "{:?}", took);
                let (again, took) = play(&addresses, &history, begun + took, most, answers);
                let silent = |address: SocketAddr| answers(address).is_none();
                prop_assert!(!silent(again.unwrap()));
                // Each refusal before it costs its own time, silence costs nothing.
                prop_assert!(took <= ms(200) * kinds.len() as u32, "{:?}", took);
            }
        }
    }
}
