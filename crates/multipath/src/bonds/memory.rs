//! The memory that streams take, and the end of those that are stuck while it is short.

use super::Bonds;
use crate::life::BondedConnection;
use intercept::sys;
use relay::Ending;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Since when each stream has not made progress, by its identity, while memory is short.
#[derive(Debug, Default)]
pub(super) struct ProgressOfStreams(BTreeMap<u128, (u64, Instant)>);

/// Bytes that a stream holds in this process.
fn held(bonded: &BondedConnection) -> u64 {
    let stream = &bonded.stream;
    stream.unacknowledged() + stream.inbound.readable_bytes() + stream.inbound.out_of_order_bytes()
}

/// Kernel memory of a stream's sockets, bytes.
fn sockets(bonded: &BondedConnection) -> u64 {
    let plain = bonded.plain.as_ref().and_then(|plain| plain.memory().ok()).unwrap_or(0);
    let members = bonded.stream.members().filter_map(|(_, member)| sys::socket_memory(member.channel.socket()).ok());
    plain + members.sum::<u64>()
}

/// A number that changes whenever bytes of the stream move at either end of this process.
fn progress(bonded: &BondedConnection) -> u64 {
    let plain = bonded.plain.as_ref().and_then(|plain| plain.progress().ok()).unwrap_or(0);
    let own = bonded.taken + bonded.given + (bonded.taken - bonded.stream.unacknowledged().min(bonded.taken));
    plain.wrapping_add(own)
}

impl Bonds {
    /// Bytes that all streams hold in this process, in memory or pipes.
    pub fn memory(&self) -> u64 {
        self.streams.iter().map(|(_, bonded)| held(bonded)).sum()
    }

    /// Kernel memory of the sockets of all streams, bytes: asks each.
    pub fn socket_memory(&self) -> u64 {
        self.streams.iter().map(|(_, bonded)| sockets(bonded)).sum()
    }

    /// To be called every second or so while memory is short, with nothing to free while none may
    /// end. Ends streams that hold at least `least` bytes and of which nothing has moved for
    /// `limit`, those that hold most first, until `excess` bytes are freed. Returns how many have
    /// ended, and what they held.
    pub fn end_stuck(&mut self, limit: Duration, least: u64, excess: u64, now: Instant) -> (u64, u64) {
        let before = std::mem::take(&mut self.progress.0);
        let mut stuck = Vec::new();
        for (slot, bonded) in self.streams.iter() {
            let bytes = held(bonded) + sockets(bonded);
            if bytes < least {
                continue;
            }
            let moved = progress(bonded);
            let since = before.get(&bonded.id).filter(|(earlier, _)| *earlier == moved).map_or(now, |(_, since)| *since);
            self.progress.0.insert(bonded.id, (moved, since));
            if now.saturating_duration_since(since) >= limit {
                stuck.push((bytes, slot));
            }
        }
        stuck.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let (mut ended, mut freed) = (0, 0);
        for (bytes, slot) in stuck {
            if freed >= excess {
                break;
            }
            self.end(slot, Ending::Stuck);
            (ended, freed) = (ended + 1, freed + bytes);
        }
        (ended, freed)
    }
}
