//! An MPCP router (Li and Yousefi'zadeh, "MPCP: Multi packet congestion-control protocol", CCR
//! 2009): signals the load in 2 n bits, two in each of n packets.
//!
//! The paper was not available. From what others say of it: n is 2 or 3, two bits of each packet
//! are used, and a sender reacts to a level when all of its parts have arrived. The details of its
//! routers, and which loads its levels stand for, are not known. Our own choices are:
//!
//! - Packets are grouped by their number within a connection, which stands for a field of the IP
//!   header. The first packet of a group carries the highest bits.
//! - Half of the levels divide low load evenly, a quarter high load, and a quarter overload up to
//!   1.2; the last level also stands for all beyond.
//! - A router chooses a level for a group at its first packet, so that the parts of two levels do
//!   not mix. Of several routers on a path, the highest level must arrive complete: a router whose
//!   level is lower in some part leaves the remaining parts alone, and one whose level is higher
//!   overwrites them. For both, the router keeps state for each connection, unlike XCP and VCP
//!   routers.

use super::load_factor::{HIGH_LOAD, LoadFactor, OVERLOAD};
use crate::packet::{RouterProtocol, SimPacket};
use link::Time;
use std::cmp::Ordering;

/// The load at which the last level ends.
const MAX_LOAD: f64 = 1.2;

/// What a router remembers of a connection: its current group of packets.
#[derive(Debug, Clone, Copy)]
struct PacketGroup {
    number: u32,
    /// The level that this router signals in the group.
    level: u32,
    /// Its level compared with the parts that arrived so far.
    ordering: Ordering,
}

/// An MPCP router.
#[derive(Debug)]
pub(crate) struct MpcpRouter {
    pub(super) load: LoadFactor,
    /// By connection.
    groups: Vec<Option<PacketGroup>>,
}

impl MpcpRouter {
    pub(super) fn new(capacity: f64) -> Self {
        MpcpRouter { load: LoadFactor::new(capacity), groups: Vec::new() }
    }

    /// Writes its part of the level into an MPCP packet, if its level is the higher one.
    pub(super) fn packet_departed(&mut self, at: Time, packet: &mut SimPacket) {
        let load = self.load.at(at);
        let Some(header) = packet.congestion_header() else { return };
        let RouterProtocol::Mpcp(packets) = header.protocol else { return };
        let connection = packet.connection as usize;
        if connection >= self.groups.len() {
            self.groups.resize(connection + 1, None);
        }
        let (number, part) = (header.number / packets, header.number % packets);
        let known = self.groups[connection].filter(|group| group.number == number);
        let mut group = known.unwrap_or_else(|| PacketGroup { number, level: level_of(load, packets), ordering: Ordering::Equal });
        let own_bits = bits_of_part(group.level, part, packets) as f32;
        if group.ordering == Ordering::Equal {
            group.ordering = own_bits.total_cmp(&packet.feedback);
        }
        if group.ordering == Ordering::Greater {
            packet.feedback = own_bits;
        }
        self.groups[connection] = Some(group);
    }
}

/// The two bits of a level in a part; the first part has the highest.
fn bits_of_part(level: u32, part: u32, packets: u32) -> u32 {
    level >> (2 * (packets - 1 - part)) & 3
}

/// The number of levels.
fn levels(packets: u32) -> u32 {
    1 << (2 * packets)
}

/// The level of a load factor.
fn level_of(load: f64, packets: u32) -> u32 {
    let all = levels(packets);
    let (half, quarter) = (f64::from(all / 2), f64::from(all / 4));
    let level = if load < HIGH_LOAD {
        load / HIGH_LOAD * half
    } else if load < OVERLOAD {
        half + (load - HIGH_LOAD) / (OVERLOAD - HIGH_LOAD) * quarter
    } else {
        half + quarter + (load - OVERLOAD) / (MAX_LOAD - OVERLOAD) * quarter
    };
    (level as u32).min(all - 1)
}

/// The load factor that a level stands for: the middle of its interval.
pub(crate) fn load_of_level(level: u32, packets: u32) -> f64 {
    let all = levels(packets);
    let (half, quarter) = (all / 2, all / 4);
    let (begin, width, first, count) = match level {
        level if level < half => (0.0, HIGH_LOAD, 0, half),
        level if level < half + quarter => (HIGH_LOAD, OVERLOAD - HIGH_LOAD, half, quarter),
        _ => (OVERLOAD, MAX_LOAD - OVERLOAD, half + quarter, quarter),
    };
    begin + width * (f64::from(level - first) + 0.5) / f64::from(count)
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};
    use proptest::prelude::*;

    /// A router whose load has this level.
    fn router(level: u32, packets: u32) -> MpcpRouter {
        let mut router = MpcpRouter::new(1e7);
        // A second at this load, relative to the target of 98 % of the capacity, in packets of 1500
        // bytes.
        let count = (load_of_level(level, packets) * 0.98e7 / 1500.0).round() as u64;
        for number in 0..count {
            router.load.packet_arrived(Time(number * 1_000_000_000 / count), &data(RouterProtocol::Vcp, 0, 0.0));
        }
        router
    }

    /// The level that a receiver reassembles from a group that passed all of these routers.
    fn through(routers: &mut [MpcpRouter], packets: u32, group: u32) -> u32 {
        (0..packets).fold(0, |level, part| {
            let mut packet = data(RouterProtocol::Mpcp(packets), group * packets + part, 0.0);
            for router in &mut *routers {
                router.packet_departed(Time(1_000_000_000), &mut packet);
            }
            level << 2 | packet.feedback as u32
        })
    }

    #[test]
    fn levels_partition_the_loads() {
        for packets in [2, 3] {
            let all = levels(packets);
            assert!((0..all).all(|level| level_of(load_of_level(level, packets), packets) == level));
            assert_eq!(
                (level_of(0.799, packets), level_of(0.8, packets), level_of(0.999, packets)),
                (all / 2 - 1, all / 2, all * 3 / 4 - 1)
            );
            assert_eq!((level_of(0.0, packets), level_of(1.0, packets), level_of(9.0, packets)), (0, all * 3 / 4, all - 1));
        }
    }

    proptest! {
        /// The highest level of the routers on a path arrives, whatever their order.
        #[test]
        fn the_highest_level_arrives_complete(levels in prop::collection::vec(0u32..64, 1..5), packets in 2u32..4) {
            let levels: Vec<u32> = levels.into_iter().map(|level| level % super::levels(packets)).collect();
            let mut routers: Vec<MpcpRouter> = levels.iter().map(|level| router(*level, packets)).collect();
            for group in 0..3 {
                let told = through(&mut routers, packets, group);
                prop_assert_eq!(Some(&told), levels.iter().max(), "{:?}", levels);
            }
        }
    }

    #[test]
    fn a_group_keeps_its_level_when_the_load_changes() {
        let mut router = router(3, 2);
        let mut first = data(RouterProtocol::Mpcp(2), 0, 0.0);
        router.packet_departed(Time(1_000_000_000), &mut first);
        // After a pause the level is 0, but the rest of the group still has the level of its first
        // part.
        let mut second = data(RouterProtocol::Mpcp(2), 1, 0.0);
        router.packet_departed(Time(9_000_000_000), &mut second);
        assert_eq!((first.feedback, second.feedback), (0.0, 3.0));
        let mut next = data(RouterProtocol::Mpcp(2), 3, 0.0);
        router.packet_departed(Time(9_000_000_000), &mut next);
        assert_eq!(next.feedback, 0.0);
    }
}
