//! Matches the connections of two captures: by addresses where they are equal, otherwise (behind
//! NAT or a proxy) by initial sequence numbers, content, or length.

use crate::{
    capture_file::CaptureFile,
    traced_connection::{TracedConnection, TracedStream},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

/// How a connection of one capture was matched with one of the other, the surest way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatchedBy {
    /// Equal addresses and ports.
    Addresses,
    /// Equal initial sequence numbers.
    Isn,
    /// Equal content.
    Content,
    /// Equal lengths that no other connection has.
    Lengths,
}

/// Indexes of the two views of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionMatch {
    pub(crate) one: usize,
    pub(crate) two: usize,
    pub(crate) by: MatchedBy,
    /// Whether the two views number the sides in opposite order.
    pub(crate) crossed: bool,
}

/// Length below which an equal length proves nothing, bytes.
const TELLING_LENGTH: u64 = 1000;
/// Number of content hashes that two connections must share.
const TELLING_CONTENT: usize = 3;
/// Number of shared hashes that proves equal content.
const SURELY_CONTENT: usize = 16;
/// Upper bound on the connections examined for one content hash.
const MOST_ALIKE: usize = 32;
/// Largest time between the two ends of one connection, ns. A middlebox may hold data, and the
/// clock offset is known only roughly.
const APART: i64 = 60_000_000_000;

pub(crate) fn pairs(one: &CaptureFile, two: &CaptureFile) -> Vec<ConnectionMatch> {
    pairs_of(&one.flows, &two.flows)
}

fn pairs_of(one: &[TracedConnection], two: &[TracedConnection]) -> Vec<ConnectionMatch> {
    let mut left = Unmatched { one, two, free: [(0..one.len()).collect(), (0..two.len()).collect()], pairs: Vec::new() };
    // Among connections between equal ports, first match equal sequence numbers, then the order of
    // arrival.
    left.match_by(MatchedBy::Addresses, |flow| Some((flow.sides, isns(flow)?)));
    left.match_by(MatchedBy::Addresses, |flow| Some(flow.sides));
    left.match_by(MatchedBy::Isn, |flow| isns(flow).filter(|numbers| numbers.0.is_some() && numbers.1.is_some()));
    left.match_by(MatchedBy::Isn, |flow| isns(flow)?.0);
    left.match_by_content();
    left.match_by_lengths();
    left.pairs
}

/// Clock of `two` minus clock of `one`, in ns: the median over connections whose start is in both
/// captures. Connections matched by length are left out, since they may have happened at different
/// times.
pub(crate) fn offset(one: &[TracedConnection], two: &[TracedConnection], pairs: &[ConnectionMatch]) -> Option<i64> {
    let later = |pair: &ConnectionMatch| {
        let (one, two) = (&one[pair.one], &two[pair.two]);
        (one.began() && two.began() && pair.by != MatchedBy::Lengths).then(|| two.first - one.first)
    };
    lower_median(pairs.iter().filter_map(later).collect())
}

/// The median, or the lower of the two middle values.
fn lower_median(mut times: Vec<i64>) -> Option<i64> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}

/// ISNs of client and server.
fn isns(flow: &TracedConnection) -> Option<(Option<u32>, Option<u32>)> {
    let client = flow.client?;
    let isn = |side: usize| flow.halves[side].syn.as_deref().map(|syn| syn.isn);
    Some((isn(client), isn(1 - client)))
}

struct Unmatched<'a> {
    one: &'a [TracedConnection],
    two: &'a [TracedConnection],
    free: [BTreeSet<usize>; 2],
    pairs: Vec<ConnectionMatch>,
}

impl Unmatched<'_> {
    /// Groups the unmatched connections of both captures by a key.
    fn groups<K: Ord>(&self, key: impl Fn(&TracedConnection) -> Option<K>) -> Vec<[Vec<usize>; 2]> {
        let mut groups: BTreeMap<K, [Vec<usize>; 2]> = BTreeMap::new();
        for (which, flows) in [self.one, self.two].into_iter().enumerate() {
            for index in &self.free[which] {
                if let Some(key) = key(&flows[*index]) {
                    groups.entry(key).or_default()[which].push(*index);
                }
            }
        }
        groups.into_values().collect()
    }

    /// Matches connections with equal keys in order of arrival.
    fn match_by<K: Ord>(&mut self, by: MatchedBy, key: impl Fn(&TracedConnection) -> Option<K>) {
        for [ones, twos] in self.groups(key) {
            for (one, two) in ones.into_iter().zip(twos) {
                self.take(one, two, by);
            }
        }
    }

    /// How far `two`'s clock is ahead, ns, judging by the connections matched so far. Prefers those
    /// whose start was recorded.
    fn offset(&self) -> Option<i64> {
        offset(self.one, self.two, &self.pairs)
            .or_else(|| lower_median(self.pairs.iter().map(|pair| self.two[pair.two].first - self.one[pair.one].first).collect()))
    }

    /// Matches connections whose lengths are equal and unique.
    fn match_by_lengths(&mut self) {
        let offset = self.offset();
        let lengths = |flow: &TracedConnection| {
            let lengths = [flow.halves[flow.sender()].length(), flow.halves[1 - flow.sender()].length()];
            (lengths[0] >= TELLING_LENGTH).then_some(lengths)
        };
        for [ones, twos] in self.groups(lengths) {
            // Equal lengths are a coincidence if several connections have them, if the times
            // differ, or if both contents are known and differ.
            let ([one], [two]) = (&ones[..], &twos[..]) else { continue };
            let (here, there) = (&self.one[*one], &self.two[*two]);
            let whole =
                [here, there].iter().all(|flow| content(flow).count() >= SURELY_CONTENT && !flow.halves.iter().any(|half| half.is_cut));
            if !whole && offset.is_none_or(|offset| at_once(here, there, offset)) {
                self.take(*one, *two, MatchedBy::Lengths);
            }
        }
    }

    fn match_by_content(&mut self) {
        // If the clock offset is known, equal content at another time belongs to another
        // connection.
        let offset = self.offset();
        let likely = |one: &TracedConnection, two: &TracedConnection, shared: usize| match offset {
            Some(offset) => at_once(one, two, offset),
            None => shared >= SURELY_CONTENT || shared * 2 >= content(one).count().min(content(two).count()),
        };
        let mut holders: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for index in &self.free[1] {
            for hash in content(&self.two[*index]) {
                holders.entry(hash).or_default().push(*index);
            }
        }
        // Prefer the pair with the largest overlap, then the earliest.
        let mut candidates = Vec::new();
        for one in &self.free[0] {
            let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
            for hash in content(&self.one[*one]) {
                for two in holders.get(&hash).into_iter().flatten().take(MOST_ALIKE) {
                    *shared.entry(*two).or_default() += 1;
                }
            }
            let told =
                shared.into_iter().filter(|(two, count)| *count >= TELLING_CONTENT && likely(&self.one[*one], &self.two[*two], *count));
            candidates.extend(told.map(|(two, count)| (count, *one, two)));
        }
        // Several connections may differ only by a header: prefer the earliest of them.
        let mut best: BTreeMap<usize, usize> = BTreeMap::new();
        for (count, one, _) in &candidates {
            let most = best.entry(*one).or_default();
            *most = (*most).max(*count);
        }
        candidates.sort_by_key(|(count, one, two)| (best[one] < SURELY_CONTENT, count * 4 < best[one] * 3, *one, *two));
        for (_, one, two) in candidates {
            if self.free[0].contains(&one) && self.free[1].contains(&two) {
                self.take(one, two, MatchedBy::Content);
            }
        }
    }

    fn take(&mut self, one: usize, two: usize, by: MatchedBy) {
        self.free[0].remove(&one);
        self.free[1].remove(&two);
        let (a, b) = (&self.one[one], &self.two[two]);
        let crossed = match (a.client, b.client) {
            _ if a.sides == b.sides => false,
            (Some(a), Some(b)) => a != b,
            _ => a.sender() != b.sender(),
        };
        self.pairs.push(ConnectionMatch { one, two, by, crossed });
    }
}

/// Whether two views can belong to one connection, if `two`'s clock is ahead by `offset`, ns.
fn at_once(one: &TracedConnection, two: &TracedConnection, offset: i64) -> bool {
    one.first + offset <= two.last + APART && two.first <= one.last + offset + APART
}

fn content(flow: &TracedConnection) -> impl Iterator<Item = u64> + '_ {
    flow.halves.iter().flat_map(|half| half.content.hashes().map(|(hash, _)| hash))
}

/// The side that accepted the connection, or, if its start is missing, the one that sent more.
fn server(flow: &TracedConnection) -> usize {
    flow.client.map_or(flow.sender(), |client| 1 - client)
}

/// Content hashes of what the server sent.
fn served(flow: &TracedConnection) -> impl Iterator<Item = u64> + '_ {
    flow.halves[server(flow)].content.hashes().map(|(hash, _)| hash)
}

/// Index of the content that the servers of one capture's connections sent.
pub(crate) struct ContentIndex<'a> {
    flows: &'a [TracedConnection],
    holders: BTreeMap<u64, Vec<usize>>,
}

impl<'a> ContentIndex<'a> {
    pub(crate) fn new(flows: &'a [TracedConnection], which: &BTreeSet<usize>) -> Self {
        let mut holders: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for index in which {
            for hash in served(&flows[*index]) {
                holders.entry(hash).or_default().push(*index);
            }
        }
        ContentIndex { flows, holders }
    }

    /// Counts the indexed connections that began before the given one, had the same server address,
    /// and share at least `least` and three quarters of its content hashes.
    pub(crate) fn before(&self, index: usize, least: usize) -> usize {
        let host = |flow: &TracedConnection| flow.sides[server(flow)].ip();
        let (own, here) = (served(&self.flows[index]).count(), host(&self.flows[index]));
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for hash in served(&self.flows[index]) {
            for earlier in self.holders.get(&hash).into_iter().flatten().take_while(|earlier| **earlier < index).take(MOST_ALIKE) {
                *shared.entry(*earlier).or_default() += 1;
            }
        }
        let is_it = |earlier: usize, count: usize| count >= least && count * 4 >= own * 3 && host(&self.flows[earlier]) == here;
        shared.into_iter().filter(|(earlier, count)| is_it(*earlier, *count)).count()
    }
}

/// The difference that converts a position in `two`'s view of a stream to `one`'s. `None` if it
/// cannot be determined.
pub(crate) fn shift(one: (&TracedStream, bool), two: (&TracedStream, bool)) -> Option<i64> {
    if one.1 && two.1 {
        return Some(0);
    }
    if let Some((shift, votes)) = one.0.content.shift(&two.0.content)
        && votes >= TELLING_CONTENT
    {
        return Some(shift);
    }
    // Both recorded the end of the stream.
    if let (Some(here), Some(there)) = (one.0.end, two.0.end) {
        return Some(here - there);
    }
    // Assume equal sequence numbers unless they differ as much as those of unrelated connections.
    let apart = i64::from(two.0.base()?.wrapping_sub(one.0.base()?) as i32);
    let near = one.0.length().max(two.0.length()) as i64 + (1 << 20);
    // In a stream so long that sequence numbers wrap, the nearest candidate may be wrong.
    (near < 1 << 31 && apart.abs() <= near).then_some(apart)
}

/// Addresses of both sides, the sender's first.
pub(crate) fn names(flow: &TracedConnection, sender: usize) -> [SocketAddr; 2] {
    [flow.sides[sender], flow.sides[1 - sender]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traced_connection::SynSegment;

    const SECOND: i64 = 1_000_000_000;

    /// A connection of one second from the given host, with the given content hashes.
    fn flow(host: u8, first: i64, content: impl IntoIterator<Item = u64>) -> TracedConnection {
        let mut flow = TracedConnection::new([([10, 0, 0, host], 40000).into(), ([10, 0, 1, 1], 80).into()], first);
        flow.last = first + SECOND;
        content.into_iter().for_each(|hash| flow.halves[1].content.note(hash, 0));
        flow
    }

    fn matched(one: &[TracedConnection], two: &[TracedConnection]) -> Vec<(usize, usize, MatchedBy)> {
        pairs_of(one, two).into_iter().map(|pair| (pair.one, pair.two, pair.by)).collect()
    }

    #[test]
    fn without_a_clock_offset_much_content_must_agree() {
        // Two connections with the given numbers of content hashes, `shared` of them in common.
        let same =
            |one: u64, two: u64, shared: u64| !matched(&[flow(1, 0, 0..one)], &[flow(2, 0, one - shared..one - shared + two)]).is_empty();
        // Half of the smaller set.
        assert!(same(32, 32, 16) && same(10, 32, 5) && same(32, 6, 3));
        assert!(!same(32, 32, 15) && !same(10, 32, 4) && !same(32, 7, 3));
        // Below the minimum.
        assert!(!same(3, 3, 2));
    }

    #[test]
    fn with_a_clock_offset_the_times_must_agree() {
        let hour = 3600 * SECOND;
        // The same connection at both ends, with clocks an hour apart, and another one that shares
        // some content and begins later.
        let said = |later: i64| {
            let one = [flow(1, 0, []), flow(2, 0, 0..32)];
            let two = [flow(1, hour, []), flow(3, hour + later, 20..40)];
            matched(&one, &two)
        };
        let known = (0, 0, MatchedBy::Addresses);
        // Each lasts a second, and sixty seconds are tolerated.
        for later in [-61 * SECOND, 0, 61 * SECOND] {
            assert_eq!(said(later), [known, (1, 1, MatchedBy::Content)], "{later}");
        }
        for later in [-61 * SECOND - 1, 61 * SECOND + 1, -hour] {
            assert_eq!(said(later), [known], "{later}");
        }
    }

    #[test]
    fn the_offset_needs_starts_that_both_captures_recorded() {
        let begun = |host: u8, first: i64| {
            let mut flow = flow(host, first, []);
            let order = String::new();
            let syn = SynSegment { at: first, isn: 1, mss: None, scale: None, order, clock: None, window: 1, ttl: 64 };
            (flow.client, flow.halves[0].syn) = (Some(0), Some(Box::new(syn)));
            flow
        };
        let apart = |one: TracedConnection, two: TracedConnection, by: MatchedBy| {
            offset(&[one], &[two], &[ConnectionMatch { one: 0, two: 0, by, crossed: false }])
        };
        assert_eq!(apart(begun(1, 2), begun(1, 9), MatchedBy::Content), Some(7));
        assert_eq!(apart(begun(1, 2), begun(1, 9), MatchedBy::Lengths), None);
        assert_eq!(apart(begun(1, 2), flow(1, 9, []), MatchedBy::Content), None);
    }

    #[test]
    fn one_wrong_match_does_not_change_the_offset() {
        assert_eq!(lower_median(vec![5, -900, 6]), Some(5));
        assert_eq!(lower_median(vec![7, 4]), Some(4));
        assert_eq!(lower_median(Vec::new()), None);
    }
}
