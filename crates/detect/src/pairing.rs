//! Which connection of one capture is which of the other: by addresses where they are the same; else, behind NAT or a proxy, by initial sequence numbers,
//! by what was carried, by how much.

use crate::{
    capture_file::CaptureFile,
    traced_connection::{TracedConnection, TracedStream},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

/// What showed that two captures' connections are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatchedBy {
    /// The same addresses and ports.
    Addresses,
    /// The same initial sequence numbers.
    Isn,
    /// The same bytes.
    Content,
    /// As many bytes, and no other had as many.
    Lengths,
}

/// Two captures' views of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionMatch {
    pub(crate) one: usize,
    pub(crate) two: usize,
    pub(crate) by: MatchedBy,
    /// Whether a side's index in the other's view is the other one.
    pub(crate) crossed: bool,
}

/// Bytes below which a length says nothing.
const TELLING_LENGTH: u64 = 1000;
/// Stretches of content that two connections must share.
const TELLING_CONTENT: usize = 3;
/// Those that share so many carry the same.
const SURELY_CONTENT: usize = 16;
/// Connections with the same stretch of content that are looked at.
const MOST_ALIKE: usize = 32;
/// How far apart the two ends of one connection may be in time, ns: a middle may hold it, and the clocks' offset is not known exactly.
const APART: i64 = 60_000_000_000;

pub(crate) fn pairs(one: &CaptureFile, two: &CaptureFile) -> Vec<ConnectionMatch> {
    pairs_of(&one.flows, &two.flows)
}

fn pairs_of(one: &[TracedConnection], two: &[TracedConnection]) -> Vec<ConnectionMatch> {
    let mut left = Unmatched { one, two, free: [(0..one.len()).collect(), (0..two.len()).collect()], pairs: Vec::new() };
    // Of connections between the same ports, those with the same numbers belong together, then the first with the first.
    left.match_by(MatchedBy::Addresses, |flow| Some((flow.sides, isns(flow)?)));
    left.match_by(MatchedBy::Addresses, |flow| Some(flow.sides));
    left.match_by(MatchedBy::Isn, |flow| isns(flow).filter(|numbers| numbers.0.is_some() && numbers.1.is_some()));
    left.match_by(MatchedBy::Isn, |flow| isns(flow)?.0);
    left.match_by_content();
    left.match_by_lengths();
    left.pairs
}

/// How much later connections begin by `two`'s clock than by `one`'s, ns: the median of those of which both saw the beginning. Where as much was carried
/// nothing shows that it was at the same time.
pub(crate) fn offset(one: &[TracedConnection], two: &[TracedConnection], pairs: &[ConnectionMatch]) -> Option<i64> {
    let later = |pair: &ConnectionMatch| {
        let (one, two) = (&one[pair.one], &two[pair.two]);
        (one.began() && two.began() && pair.by != MatchedBy::Lengths).then(|| two.first - one.first)
    };
    lower_median(pairs.iter().filter_map(later).collect())
}

/// The median; of an even number, the lower of the two in the middle.
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
    /// Those of the same key, of either capture.
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

    /// Pairs those of the same key, in their order, as many as both have.
    fn match_by<K: Ord>(&mut self, by: MatchedBy, key: impl Fn(&TracedConnection) -> Option<K>) {
        for [ones, twos] in self.groups(key) {
            for (one, two) in ones.into_iter().zip(twos) {
                self.take(one, two, by);
            }
        }
    }

    /// How much later `two`'s clock is, as far as those tell that have been paired, ns. A beginning that was missed is worth less than one seen, and more than
    /// none.
    fn offset(&self) -> Option<i64> {
        offset(self.one, self.two, &self.pairs)
            .or_else(|| lower_median(self.pairs.iter().map(|pair| self.two[pair.two].first - self.one[pair.one].first).collect()))
    }

    /// What carried as much, and nothing else did.
    fn match_by_lengths(&mut self) {
        let offset = self.offset();
        let lengths = |flow: &TracedConnection| {
            let lengths = [flow.halves[flow.sender()].length(), flow.halves[1 - flow.sender()].length()];
            (lengths[0] >= TELLING_LENGTH).then_some(lengths)
        };
        for [ones, twos] in self.groups(lengths) {
            // As long as each other is a coincidence among many; or at another time; or where all their bytes are there, which are other ones.
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
        // Where the clocks' offset is known, what was carried at another time is another's.
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
        // Who shares most with whom; of those that share as much, the first with the first.
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
        // Of several that are alike but for a header, the first with the first.
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

/// Whether two views can be of one connection where `two`'s clock is later by this, ns.
fn at_once(one: &TracedConnection, two: &TracedConnection, offset: i64) -> bool {
    one.first + offset <= two.last + APART && two.first <= one.last + offset + APART
}

fn content(flow: &TracedConnection) -> impl Iterator<Item = u64> + '_ {
    flow.halves.iter().flat_map(|half| half.content.hashes().map(|(hash, _)| hash))
}

/// The side that was called; where the beginning was not seen, the one that sent more.
fn server(flow: &TracedConnection) -> usize {
    flow.client.map_or(flow.sender(), |client| 1 - client)
}

/// What the server sent of it.
fn served(flow: &TracedConnection) -> impl Iterator<Item = u64> + '_ {
    flow.halves[server(flow)].content.hashes().map(|(hash, _)| hash)
}

/// Of connections of one capture: which stretches of content their servers sent.
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

    /// How many of them began before another one of the capture, were with the same server's host, and brought three quarters or more of its stretches:
    /// at least `least`.
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

/// What to add to a place in `two`'s view of a stream to have it in `one`'s; None when that can't be told.
pub(crate) fn shift(one: (&TracedStream, bool), two: (&TracedStream, bool)) -> Option<i64> {
    if one.1 && two.1 {
        return Some(0);
    }
    if let Some((shift, votes)) = one.0.content.shift(&two.0.content)
        && votes >= TELLING_CONTENT
    {
        return Some(shift);
    }
    // Both saw where it ends.
    if let (Some(here), Some(there)) = (one.0.end, two.0.end) {
        return Some(here - there);
    }
    // The same numbers, unless they are as far apart as others' would be.
    let apart = i64::from(two.0.base()?.wrapping_sub(one.0.base()?) as i32);
    let near = one.0.length().max(two.0.length()) as i64 + (1 << 20);
    // Of streams so long that their numbers come round, the nearest may not be the right one.
    (near < 1 << 31 && apart.abs() <= near).then_some(apart)
}

/// Names for both sides, sender first.
pub(crate) fn names(flow: &TracedConnection, sender: usize) -> [SocketAddr; 2] {
    [flow.sides[sender], flow.sides[1 - sender]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traced_connection::SynSegment;

    const SECOND: i64 = 1_000_000_000;

    /// A connection from the host of this number, which lasts a second and has these stretches of content.
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
    fn where_no_time_is_known_much_content_must_be_the_same() {
        // Two connections, of so many stretches, with so many in common.
        let same =
            |one: u64, two: u64, shared: u64| !matched(&[flow(1, 0, 0..one)], &[flow(2, 0, one - shared..one - shared + two)]).is_empty();
        // Half of the smaller.
        assert!(same(32, 32, 16) && same(10, 32, 5) && same(32, 6, 3));
        assert!(!same(32, 32, 15) && !same(10, 32, 4) && !same(32, 7, 3));
        // A few of few are too few.
        assert!(!same(3, 3, 2));
    }

    #[test]
    fn where_the_time_is_known_it_must_be_the_same() {
        let hour = 3600 * SECOND;
        // One and the same connection at both ends, an hour apart by their clocks; another that shares a little, which begins later.
        let said = |later: i64| {
            let one = [flow(1, 0, []), flow(2, 0, 0..32)];
            let two = [flow(1, hour, []), flow(3, hour + later, 20..40)];
            matched(&one, &two)
        };
        let known = (0, 0, MatchedBy::Addresses);
        // Each lasts a second; and sixty are allowed.
        for later in [-61 * SECOND, 0, 61 * SECOND] {
            assert_eq!(said(later), [known, (1, 1, MatchedBy::Content)], "{later}");
        }
        for later in [-61 * SECOND - 1, 61 * SECOND + 1, -hour] {
            assert_eq!(said(later), [known], "{later}");
        }
    }

    #[test]
    fn clocks_are_known_by_beginnings_that_both_saw() {
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
    fn one_pair_that_is_wrong_does_not_move_the_clocks() {
        assert_eq!(lower_median(vec![5, -900, 6]), Some(5));
        assert_eq!(lower_median(vec![7, 4]), Some(4));
        assert_eq!(lower_median(Vec::new()), None);
    }
}
