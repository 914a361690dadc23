//! State per client address, kept for as long as something of that client is in progress.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Number of entries at which unused ones are first removed.
const SWEEP_FROM: usize = 64;

/// The address that a client is counted by. It is the /64 of an IPv6 address, since one host can
/// use any address in it (RFC 4291 §2.5.1).
pub(crate) fn key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(client) => IpAddr::V6(Ipv6Addr::from_bits(client.to_bits() & (u128::MAX << 64))),
        client => client,
    }
}

/// One `T` per client.
#[derive(Debug)]
pub(crate) struct Clients<T> {
    /// The entries, and the number of them at which unused ones are removed next.
    known: Mutex<(HashMap<IpAddr, Weak<T>>, usize)>,
}

impl<T> Default for Clients<T> {
    fn default() -> Self {
        Clients { known: Mutex::new((HashMap::new(), SWEEP_FROM)) }
    }
}

impl<T> Clients<T> {
    /// Returns the client's `T`: the one that is in use, or a new one.
    pub(crate) fn get(&self, client: IpAddr, new: impl FnOnce() -> T) -> Arc<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (entries, sweep_at) = &mut *known;
        if let Some(held) = entries.get(&key(client)).and_then(Weak::upgrade) {
            return held;
        }
        if entries.len() >= *sweep_at {
            entries.retain(|_, entry| entry.strong_count() > 0);
            *sweep_at = (2 * entries.len()).max(SWEEP_FROM);
        }
        let entry = Arc::new(new());
        entries.insert(key(client), Arc::downgrade(&entry));
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_by_address_or_prefix() {
        let of = |text: &str| key(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn unused_state_is_removed() {
        let clients = Clients::default();
        let at = |last| IpAddr::from([192, 0, 2, last]);
        let first = clients.get(at(1), || 1);
        assert_eq!(*clients.get(at(1), || 2), 1);
        drop(first);
        assert_eq!(*clients.get(at(1), || 3), 3);
        for last in 0..=255 {
            clients.get(at(last), || 0);
        }
        assert!(clients.known.lock().unwrap().0.len() <= SWEEP_FROM);
    }
}
