//! State per client address. An entry exists as long as something of its client is in progress.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Number of entries from which unused ones are removed.
const SWEEP_FROM: usize = 64;

/// The address by which a client is accounted. For IPv6 it is the /64, since one host can use any
/// address in it (RFC 4291 §2.5.1).
pub(crate) fn accounting_address(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(client) => IpAddr::V6(Ipv6Addr::from_bits(client.to_bits() & (u128::MAX << 64))),
        client => client,
    }
}

/// One `T` per client.
#[derive(Debug)]
pub(crate) struct PerClient<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    entries: HashMap<IpAddr, Weak<T>>,
    /// Number of entries at which unused ones are removed next.
    sweep_at: usize,
}

impl<T> Default for PerClient<T> {
    fn default() -> Self {
        PerClient { table: Mutex::new(Table { entries: HashMap::new(), sweep_at: SWEEP_FROM }) }
    }
}

impl<T> PerClient<T> {
    /// Returns the client's `T`: the one in use, or else a new one.
    pub(crate) fn get(&self, client: IpAddr, new: impl FnOnce() -> T) -> Arc<T> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let address = accounting_address(client);
        if let Some(in_use) = table.entries.get(&address).and_then(Weak::upgrade) {
            return in_use;
        }
        if table.entries.len() >= table.sweep_at {
            table.entries.retain(|_, entry| entry.strong_count() > 0);
            table.sweep_at = (2 * table.entries.len()).max(SWEEP_FROM);
        }
        let entry = Arc::new(new());
        table.entries.insert(address, Arc::downgrade(&entry));
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_accounted_by_address_and_ipv6_by_prefix() {
        let of = |text: &str| accounting_address(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn unused_entries_are_removed() {
        let clients = PerClient::default();
        let at = |last| IpAddr::from([192, 0, 2, last]);
        let first = clients.get(at(1), || 1);
        assert_eq!(*clients.get(at(1), || 2), 1);
        drop(first);
        assert_eq!(*clients.get(at(1), || 3), 3);
        for last in 0..=255 {
            clients.get(at(last), || 0);
        }
        assert!(clients.table.lock().unwrap().entries.len() <= SWEEP_FROM);
    }
}
