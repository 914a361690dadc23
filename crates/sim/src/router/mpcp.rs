//! An MPCP router (Li and Yousefi'zadeh, "MPCP: Multi packet congestion-control protocol", CCR 2009): the load in 2 n bits, two in each of n packets.
//!
//! From the paper is what is said of it elsewhere: that n is 2 or 3, that two bits of each packet are used, and that a sender acts on a level when
//! all of its parts have arrived. What its routers do in detail, and which loads its levels are, was not to be had. Here, by our own choice:
//!
//! - Packets are in groups by their number within a connection, as a field of IP tells it; the first of a group has the highest bits.
//! - Half of the levels divide low load evenly, a quarter high load, a quarter the overload up to 1.2, which the last stands for beyond.
//! - A router takes a level for a group when it sees the first packet of it, so that parts of two levels do not mix. Where several are in a row
//!   the highest level is to arrive whole: a router that found itself lower in a part leaves the rest alone, one that found itself higher
//!   writes it. For both it remembers something of each connection, which XCP's and VCP's routers need not.

use super::load_factor::{HIGH_LOAD, Load, OVERLOAD};
use crate::packet::{Packet, Protocol};
use link::Time;
use std::cmp::Ordering;

/// The last level begins at this load less its part of the overload.
const MOST: f64 = 1.2;

/// What a router remembers of a connection.
#[derive(Debug, Clone, Copy)]
struct Group {
    number: u32,
    level: u32,
    /// Its level against what the parts so far were.
    stands: Ordering,
}

/// An MPCP router.
#[derive(Debug)]
pub(crate) struct Mpcp {
    pub(super) load: Load,
    /// By connection.
    groups: Vec<Option<Group>>,
}

impl Mpcp {
    pub(super) fn new(capacity: f64) -> Self {
        Mpcp { load: Load::new(capacity), groups: Vec::new() }
    }

    /// Writes a part of its level, where that is the higher one.
    pub(super) fn leaves(&mut self, at: Time, packet: &mut Packet) {
        let load = self.load.at(at);
        let Some(header) = packet.header() else { return };
        let Protocol::Mpcp(packets) = header.protocol else { return };
        let conn = packet.conn as usize;
        if conn >= self.groups.len() {
            self.groups.resize(conn + 1, None);
        }
        let (number, part) = (header.number / packets, header.number % packets);
        let known = self.groups[conn].filter(|group| group.number == number);
        let mut group = known.unwrap_or_else(|| Group { number, level: level_of(load, packets), stands: Ordering::Equal });
        let (own, before) = (part_of(group.level, part, packets) as f32, packet.told);
        if group.stands == Ordering::Equal {
            group.stands = own.total_cmp(&before);
        }
        if group.stands == Ordering::Greater {
            packet.told = own;
        }
        self.groups[conn] = Some(group);
    }
}

/// Two bits of a level, the highest in the first part.
fn part_of(level: u32, part: u32, packets: u32) -> u32 {
    level >> (2 * (packets - 1 - part)) & 3
}

/// How many levels there are.
fn levels(packets: u32) -> u32 {
    1 << (2 * packets)
}

/// The level of a load.
fn level_of(load: f64, packets: u32) -> u32 {
    let all = levels(packets);
    let (half, quarter) = (f64::from(all / 2), f64::from(all / 4));
    let level = if load < HIGH_LOAD {
        load / HIGH_LOAD * half
    } else if load < OVERLOAD {
        half + (load - HIGH_LOAD) / (OVERLOAD - HIGH_LOAD) * quarter
    } else {
        half + quarter + (load - OVERLOAD) / (MOST - OVERLOAD) * quarter
    };
    (level as u32).min(all - 1)
}

/// The load that a level stands for: the middle of those that have it.
pub(crate) fn load_of(level: u32, packets: u32) -> f64 {
    let all = levels(packets);
    let (half, quarter) = (all / 2, all / 4);
    let (begins, span, first, count) = match level {
        level if level < half => (0.0, HIGH_LOAD, 0, half),
        level if level < half + quarter => (HIGH_LOAD, OVERLOAD - HIGH_LOAD, half, quarter),
        _ => (OVERLOAD, MOST - OVERLOAD, half + quarter, quarter),
    };
    begins + span * (f64::from(level - first) + 0.5) / f64::from(count)
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};
    use proptest::prelude::*;

    /// One that tells this level.
    fn router(level: u32, packets: u32) -> Mpcp {
        let mut router = Mpcp::new(1e7);
        // A second at that load: 98 % of what the link carries, times it, in packets of 1500 bytes.
        let count = (load_of(level, packets) * 0.98e7 / 1500.0).round() as u64;
        for number in 0..count {
            router.load.comes(Time(number * 1_000_000_000 / count), &data(Protocol::Vcp, 0, 0.0));
        }
        router
    }

    /// What a receiver puts together of a group that went through all of these.
    fn through(routers: &mut [Mpcp], packets: u32, group: u32) -> u32 {
        (0..packets).fold(0, |level, part| {
            let mut packet = data(Protocol::Mpcp(packets), group * packets + part, 0.0);
            for router in &mut *routers {
                router.leaves(Time(1_000_000_000), &mut packet);
            }
            level << 2 | packet.told as u32
        })
    }

    #[test]
    fn levels_divide_the_loads() {
        for packets in [2, 3] {
            let all = levels(packets);
            assert!((0..all).all(|level| level_of(load_of(level, packets), packets) == level));
            assert_eq!(
                (level_of(0.799, packets), level_of(0.8, packets), level_of(0.999, packets)),
                (all / 2 - 1, all / 2, all * 3 / 4 - 1)
            );
            assert_eq!((level_of(0.0, packets), level_of(1.0, packets), level_of(9.0, packets)), (0, all * 3 / 4, all - 1));
        }
    }

    proptest! {
        /// Whatever routers are in a row, and in which order: the highest level arrives.
        #[test]
        fn the_highest_level_arrives_whole(levels in prop::collection::vec(0u32..64, 1..5), packets in 2u32..4) {
            let levels: Vec<u32> = levels.into_iter().map(|level| level % super::levels(packets)).collect();
            let mut routers: Vec<Mpcp> = levels.iter().map(|level| router(*level, packets)).collect();
            for group in 0..3 {
                let told = through(&mut routers, packets, group);
                prop_assert_eq!(Some(&told), levels.iter().max(), "{:?}", levels);
            }
        }
    }

    #[test]
    fn a_group_has_one_level_though_the_load_changes() {
        let mut router = router(3, 2);
        let mut first = data(Protocol::Mpcp(2), 0, 0.0);
        router.leaves(Time(1_000_000_000), &mut first);
        // Nothing comes for a while: the level is 0 now. The rest of the group still has that of its first part.
        let mut second = data(Protocol::Mpcp(2), 1, 0.0);
        router.leaves(Time(9_000_000_000), &mut second);
        assert_eq!((first.told, second.told), (0.0, 3.0));
        let mut next = data(Protocol::Mpcp(2), 3, 0.0);
        router.leaves(Time(9_000_000_000), &mut next);
        assert_eq!(next.told, 0.0);
    }
}
