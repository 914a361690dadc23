//! How much of what a link allows a transfer used, and what the rest was lost to.
//!
//! A transfer is observed at intervals. In each, the link could have carried so many bytes
//! ([`Interval::allowed`]), the receiver got so many, other transfers got so many, and the senders
//! of the transfer's connections waited for something: [`LegTime`] says for what, and [`Waits::of`]
//! which of them held the receiver up. What the link did not carry in the interval is lost to that
//! [`Cause`]. The shares of an [`Account`] add up to 1, and the percentages of its text to 100.
//!
//! ```
//! use account::{Account, Cause, Interval, LegTime, SenderWait, Waits};
//! let mut account = Account::default();
//! let slow_start = Waits::of(&[LegTime::all(SenderWait::SlowStart)], false);
//! account.add(Interval { allowed: 1000.0, delivered: 250.0, others: 0.0, waits: slow_start });
//! let waits = Waits::of(&[LegTime::all(SenderWait::Receiver)], false);
//! account.add(Interval { allowed: 1000.0, delivered: 750.0, others: 150.0, waits });
//! let shares = account.shares().unwrap();
//! assert_eq!(shares.used, Some(0.5));
//! assert_eq!(shares.lost_to(Cause::SlowStart), 0.375);
//! assert_eq!(shares.to_string(), "50 % of what the link allows; lost to: slow start 38 %, other traffic 7 %, the receiver's window 5 %");
//! ```

mod shares;
mod waits;

pub use shares::{AccountShares, Lost};
pub use waits::{Cause, LegTime, SenderWait, Waits};

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most losses that are remembered one by one.
const MOST_RECENT: usize = 8;

/// Payload in the bytes of a full IP packet: 1448 of 1500, with an IPv4 header and timestamps.
pub const PAYLOAD: f64 = 1448.0 / 1500.0;

/// What happened between two observations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Payload that the link could have carried, bytes.
    pub allowed: f64,
    /// Payload that the receiver got, bytes.
    pub delivered: f64,
    /// Payload of other transfers that the link carried, bytes.
    pub others: f64,
    /// What the transfer waited for.
    pub waits: Waits,
}

/// The intervals of a transfer, added up: in bytes, or in seconds where it is not known what the
/// link could have carried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    is_of_time: bool,
    allowed: f64,
    delivered: f64,
    lost: [f64; Cause::ALL.len()],
    /// The last losses, of which what is delivered late can be taken back.
    recent: VecDeque<(Cause, f64)>,
    /// What was delivered beyond what the link had allowed so far.
    ahead: f64,
}

impl Account {
    /// Adds an interval of `seconds` in which it is not known what the link could have carried. A
    /// sum of bytes begins anew as one of time.
    pub fn add_time(&mut self, seconds: f64, waits: Waits) {
        self.begin(true);
        self.allowed += seconds;
        waits.shares().for_each(|(cause, share)| self.lost[cause as usize] += seconds * share);
    }

    /// Begins anew if the sum so far has the other unit.
    fn begin(&mut self, is_of_time: bool) {
        if self.is_of_time != is_of_time {
            *self = Account { is_of_time, ..Account::default() };
        }
    }

    /// Adds an interval. A sum of time begins anew as one of bytes.
    ///
    /// A receiver may get more than the link carries meanwhile: data that waited for a
    /// retransmission come all at once. The link carried them in earlier intervals, so that less
    /// was lost in the last of these.
    pub fn add(&mut self, interval: Interval) {
        let Interval { allowed, delivered, others, waits } = interval;
        self.begin(false);
        self.allowed += allowed;
        self.delivered += delivered;
        let mut spare = allowed - delivered - others - self.ahead;
        self.ahead = 0.0;
        while spare < 0.0 {
            let Some((cause, lost)) = self.recent.pop_back() else {
                self.ahead = -spare;
                break;
            };
            let back = lost.min(-spare);
            self.lost[cause as usize] -= back;
            spare += back;
            if lost > back {
                self.recent.push_back((cause, lost - back));
            }
        }
        self.lose(Cause::OtherTraffic, others);
        for (cause, share) in waits.shares() {
            self.lose(cause, spare.max(0.0) * share);
        }
    }

    /// Adds another account: of another transfer, or of a later time. One in the other unit takes
    /// its place.
    pub fn join(&mut self, other: &Account) {
        if other.allowed <= 0.0 {
            return;
        }
        self.begin(other.is_of_time);
        self.allowed += other.allowed;
        self.delivered += other.delivered;
        self.lost.iter_mut().zip(other.lost).for_each(|(ours, theirs)| *ours += theirs);
        self.ahead += other.ahead;
        self.recent.clear();
    }

    fn lose(&mut self, cause: Cause, bytes: f64) {
        if bytes <= 0.0 {
            return;
        }
        self.lost[cause as usize] += bytes;
        match self.recent.back_mut() {
            Some((last, lost)) if *last == cause => *lost += bytes,
            _ => {
                if self.recent.len() == MOST_RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back((cause, bytes));
            }
        }
    }

    /// The shares; none if the link allowed nothing.
    pub fn shares(&self) -> Option<AccountShares> {
        let lost: f64 = self.lost.iter().sum();
        // Not `allowed`: what was delivered beyond it stays.
        let whole = self.delivered + lost;
        if self.allowed <= 0.0 || whole <= 0.0 {
            return None;
        }
        let mut parts: Vec<Lost> = Cause::ALL
            .into_iter()
            .map(|to| Lost { to, share: self.lost[to as usize].max(0.0) / whole })
            .filter(|part| part.share > 0.0)
            .collect();
        parts.sort_by(|one, other| other.share.total_cmp(&one.share));
        Some(AccountShares { used: (!self.is_of_time).then_some(self.delivered / whole), lost: parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waits(wait: SenderWait) -> Waits {
        Waits::of(&[LegTime::all(wait)], false)
    }

    #[test]
    fn what_waited_for_a_retransmission_is_not_lost() {
        let mut account = Account::default();
        let mut add = |delivered, wait| account.add(Interval { allowed: 100.0, delivered, others: 0.0, waits: waits(wait) });
        add(20.0, SenderWait::SlowStart);
        // Nothing can be read until the hole is filled; most of it was received meanwhile.
        add(0.0, SenderWait::Recovery);
        add(190.0, SenderWait::Control);
        let shares = account.shares().unwrap();
        assert_eq!((shares.lost_to(Cause::SlowStart), shares.lost_to(Cause::Loss)), (80.0 / 300.0, 10.0 / 300.0));
        assert_eq!(shares.lost.len(), 2);
    }

    #[test]
    fn time_and_bytes_are_not_added() {
        let mut account = Account::default();
        account.add(Interval { allowed: 1e6, delivered: 1e5, others: 0.0, waits: waits(SenderWait::Control) });
        for (seconds, wait) in [(1.0, SenderWait::Handshake), (3.0, SenderWait::Receiver)] {
            account.add_time(seconds, waits(wait));
        }
        assert_eq!(account.shares().unwrap().to_string(), "of its time: the receiver's window 75 %, handshake 25 %");
        let mut sum = Account::default();
        sum.join(&account);
        sum.join(&Account::default());
        assert_eq!(sum.shares(), account.shares());
        assert_eq!(Account::default().shares(), None);
    }

    proptest! {
        #[test]
        fn shares_add_up(intervals in prop::collection::vec((1.0..1e6f64, 0.0..1e6f64, 0.0..1e6f64, 0..7usize), 1..200)) {
            let mut account = Account::default();
            for (allowed, delivered, others, wait) in intervals {
                let waits = waits(SenderWait::ALL[wait]);
                account.add(Interval { allowed, delivered: delivered.min(allowed), others: others.min(allowed - delivered.min(allowed)), waits });
            }
            let shares = account.shares().unwrap();
            let sum = shares.used.unwrap() + shares.lost.iter().map(|part| part.share).sum::<f64>();
            prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            let text = shares.to_string();
            let percents: u32 = text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).sum();
            prop_assert_eq!(percents, 100, "{}", text);
        }
    }
}
