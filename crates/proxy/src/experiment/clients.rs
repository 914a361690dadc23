//! Times and ends of connections by client, in bounded memory.
//!
//! An estimate limits the weight of a client and of a prefix of clients, so that times are kept by
//! client. Clients are known by a place in a table, which a keyed hash of their address chooses:
//! clients of one prefix share 16 places, so that no prefix can fill the table, and the memory is
//! bounded without forgetting anyone. Two clients in one place count as one.

use super::log_times::{LogTimes, TimesOfGroups};
use crate::measure::SIZES;
use intercept::Group;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState},
    net::IpAddr,
};

/// Length of the prefixes of IPv4 and IPv6 addresses that are counted together.
const LENGTHS: (u8, u8) = (24, 48);
/// Places of the clients of one prefix.
const CLIENTS: u64 = 16;
/// Places of prefixes, of all destinations.
pub(super) const MANY_PREFIXES: u64 = 512;
/// Places of prefixes, of one destination.
pub(super) const SOME_PREFIXES: u64 = 64;

/// The prefix of an address, of which connections are counted together: /24, or /48 of IPv6.
pub fn prefix_of(address: IpAddr) -> IpNet {
    let address = address.to_canonical();
    let length = if address.is_ipv4() { LENGTHS.0 } else { LENGTHS.1 };
    IpNet::new(address, length).map_or_else(|_| address.into(), |net| net.trunc())
}

/// The key of the hash that chooses places. Clients do not know it, and cannot choose theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlaceKey(u64);

impl Default for PlaceKey {
    /// A new key, from the system's random numbers.
    fn default() -> Self {
        PlaceKey(RandomState::new().hash_one(0))
    }
}

impl PlaceKey {
    fn hash(self, value: impl std::hash::Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, value).hash(&mut hasher);
        hasher.finish()
    }

    fn place(self, client: IpAddr, prefixes: u64) -> Place {
        let client = client.to_canonical();
        Place { prefix: (self.hash(prefix_of(client)) % prefixes) as u16, client: (self.hash(client) % CLIENTS) as u8 }
    }
}

/// A place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    prefix: u16,
    client: u8,
}

/// Times by size class.
pub(super) type BySize = [TimesOfGroups; SIZES.len()];

/// The connections of one client.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ClientTimes {
    pub(super) prefix: u16,
    pub(super) times: BySize,
    /// Connections that have ended, with a time or without, by group.
    pub(super) ended: [u64; 2],
}

impl ClientTimes {
    /// Connections of a group that have a time.
    pub(super) fn timed(&self, group: usize) -> u64 {
        self.times.iter().map(|pair| pair[group].count()).sum()
    }
}

/// The connections by client.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ByClient {
    places: BTreeMap<Place, ClientTimes>,
}

impl ByClient {
    /// Adds a connection that has ended: its size class and its time in seconds, if it has one.
    pub(super) fn add(&mut self, (key, prefixes): (PlaceKey, u64), client: IpAddr, group: Group, time: Option<(usize, f64)>) {
        let place = key.place(client, prefixes);
        let of = self.places.entry(place).or_insert_with(|| ClientTimes { prefix: place.prefix, ..ClientTimes::default() });
        of.ended[group as usize] += 1;
        if let Some((size, seconds)) = time {
            of.times[size][group as usize].add(seconds);
        }
    }

    /// The connections of each client.
    pub(super) fn clients(&self) -> impl Iterator<Item = &ClientTimes> + Clone {
        self.places.values()
    }

    /// The number of clients.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

/// A client as a short list, without the times that it does not have: the place, the connections
/// that have ended, and the times by index of size class and group.
#[derive(Serialize, Deserialize)]
struct Listed(u16, u8, [u64; 2], Vec<(u8, u8, LogTimes)>);

impl Serialize for ByClient {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let listed = |(place, of): (&Place, &ClientTimes)| {
            let times =
                of.times.iter().enumerate().flat_map(|(size, pair)| pair.iter().enumerate().map(move |(group, of)| (size, group, of)));
            let times = times.filter(|(.., of)| of.count() > 0).map(|(size, group, of)| (size as u8, group as u8, *of)).collect();
            Listed(place.prefix, place.client, of.ended, times)
        };
        serializer.collect_seq(self.places.iter().map(listed))
    }
}

impl<'de> Deserialize<'de> for ByClient {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut places = BTreeMap::new();
        for Listed(prefix, client, ended, times) in Vec::deserialize(deserializer)? {
            let mut of = ClientTimes { prefix, ended, ..ClientTimes::default() };
            for (size, group, times) in times {
                let pair = of.times.get_mut(usize::from(size)).and_then(|pair: &mut TimesOfGroups| pair.get_mut(usize::from(group)));
                *pair.ok_or_else(|| serde::de::Error::custom("no such size class or group"))? = times;
            }
            places.insert(Place { prefix, client }, of);
        }
        Ok(ByClient { places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(addresses: impl Iterator<Item = String>) -> ByClient {
        let (mut clients, key) = (ByClient::default(), PlaceKey(7));
        for address in addresses {
            clients.add((key, MANY_PREFIXES), address.parse().unwrap(), Group::Split, Some((1, 2.0)));
        }
        clients
    }

    #[test]
    fn a_prefix_has_a_bounded_number_of_places() {
        assert_eq!(filled((0..200).map(|host| format!("192.0.2.{host}"))).len() as u64, CLIENTS);
        let clients = filled((0..5000).map(|host| format!("2001:db8:1:{host:x}::{host:x}")));
        assert_eq!(clients.len() as u64, CLIENTS);
        assert_eq!(clients.clients().map(|of| of.timed(Group::Split as usize)).sum::<u64>(), 5000, "all count");
        assert!(filled((0..60_000).map(|net| format!("10.{}.{}.1", net / 256, net % 256))).len() as u64 <= CLIENTS * MANY_PREFIXES);
        // A mapped address is that of IPv4.
        assert_eq!(filled(["192.0.2.1", "::ffff:192.0.2.1"].map(String::from).into_iter()).len(), 1);
    }

    #[test]
    fn the_largest_table_fits_into_a_message_of_a_takeover() {
        let of = ClientTimes { prefix: 0, times: [[LogTimes::of([1.0 / 3.0, 1e5]); 2]; SIZES.len()], ended: [1 << 40; 2] };
        let place = |number: u64| Place { prefix: (number / CLIENTS) as u16, client: (number % CLIENTS) as u8 };
        let table = ByClient { places: (0..CLIENTS * MANY_PREFIXES).map(|number| (place(number), of)).collect() };
        let text = serde_json::to_string(&table).unwrap();
        // With as many of single destinations, the limit is 16 MiB.
        assert!(text.len() < 7 << 20, "{}", text.len());
        let mut read: ByClient = serde_json::from_str(&text).unwrap();
        read.places.values_mut().for_each(|of| of.prefix = 0);
        assert!(read == table);
    }
}
