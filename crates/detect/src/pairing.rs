//! Which connection of one capture is which of the other: by addresses where they are the same; else, behind NAT or a proxy, by initial sequence numbers,
//! by what was carried, by how much.

use crate::{
    capture::Capture,
    flow::{Flow, Half},
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
pub(crate) struct Pair {
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

pub(crate) fn pairs(one: &Capture, two: &Capture) -> Vec<Pair> {
    let mut left = Left {
        one: &one.flows,
        two: &two.flows,
        free: [(0..one.flows.len()).collect(), (0..two.flows.len()).collect()],
        pairs: Vec::new(),
    };
    // Of connections between the same ports, those with the same numbers belong together, then the first with the first.
    left.match_by(MatchedBy::Addresses, |flow| Some((flow.sides, numbers(flow)?)));
    left.match_by(MatchedBy::Addresses, |flow| Some(flow.sides));
    left.match_by(MatchedBy::Isn, |flow| numbers(flow).filter(|numbers| numbers.0.is_some() && numbers.1.is_some()));
    left.match_by(MatchedBy::Isn, |flow| numbers(flow)?.0);
    left.match_by_content();
    left.match_by(MatchedBy::Lengths, |flow| {
        let lengths = [flow.halves[flow.sender()].length(), flow.halves[1 - flow.sender()].length()];
        (lengths[0] >= TELLING_LENGTH).then_some(lengths)
    });
    left.pairs
}

/// ISNs of client and server.
fn numbers(flow: &Flow) -> Option<(Option<u32>, Option<u32>)> {
    let client = flow.client?;
    let isn = |side: usize| flow.halves[side].syn.as_deref().map(|syn| syn.isn);
    Some((isn(client), isn(1 - client)))
}

struct Left<'a> {
    one: &'a [Flow],
    two: &'a [Flow],
    free: [BTreeSet<usize>; 2],
    pairs: Vec<Pair>,
}

impl Left<'_> {
    /// Pairs those of the same key, in their order. Where the key alone need not be unique, only as many as both have.
    fn match_by<K: Ord>(&mut self, by: MatchedBy, key: impl Fn(&Flow) -> Option<K>) {
        let mut groups: BTreeMap<K, [Vec<usize>; 2]> = BTreeMap::new();
        for (which, flows) in [self.one, self.two].into_iter().enumerate() {
            for index in &self.free[which] {
                if let Some(key) = key(&flows[*index]) {
                    groups.entry(key).or_default()[which].push(*index);
                }
            }
        }
        for [ones, twos] in groups.into_values() {
            // As long as each other is a coincidence among many.
            if by == MatchedBy::Lengths && (ones.len() != 1 || twos.len() != 1) {
                continue;
            }
            for (one, two) in ones.into_iter().zip(twos) {
                self.take(one, two, by);
            }
        }
    }

    fn match_by_content(&mut self) {
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
            candidates.extend(shared.into_iter().filter(|(_, count)| *count >= TELLING_CONTENT).map(|(two, count)| (count, *one, two)));
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
        self.pairs.push(Pair { one, two, by, crossed });
    }
}

fn content(flow: &Flow) -> impl Iterator<Item = u64> + '_ {
    flow.halves.iter().flat_map(|half| half.content.hashes().map(|(hash, _)| hash))
}

/// Of connections of one capture: which stretches of content they have.
pub(crate) struct Contents<'a> {
    flows: &'a [Flow],
    holders: BTreeMap<u64, Vec<usize>>,
}

impl<'a> Contents<'a> {
    pub(crate) fn new(flows: &'a [Flow], which: &BTreeSet<usize>) -> Self {
        let mut holders: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for index in which {
            for hash in content(&flows[*index]) {
                holders.entry(hash).or_default().push(*index);
            }
        }
        Contents { flows, holders }
    }

    /// How many of them began before another one of the capture and had `least` of its stretches or more.
    pub(crate) fn before(&self, index: usize, least: usize) -> usize {
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for hash in content(&self.flows[index]) {
            for earlier in self.holders.get(&hash).into_iter().flatten().take_while(|earlier| **earlier < index).take(MOST_ALIKE) {
                *shared.entry(*earlier).or_default() += 1;
            }
        }
        shared.into_values().filter(|count| *count >= least).count()
    }
}

/// What to add to a place in `two`'s view of a stream to have it in `one`'s; None when that can't be told.
pub(crate) fn shift(one: (&Half, bool), two: (&Half, bool)) -> Option<i64> {
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
pub(crate) fn names(flow: &Flow, sender: usize) -> [SocketAddr; 2] {
    [flow.sides[sender], flow.sides[1 - sender]]
}
