//! Bounds the memory that requests in progress and connections to servers take: for all clients
//! together, and for each client.
//!
//! Bytes between two sockets are reserved before they are read. A request reserves the most that it
//! can take before it is admitted, and waits while that is not available. One pool bounds requests
//! and connections alike.

use crate::per_client::Clients;
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Bytes of a body that may be between the task that reads them and the socket they are written to.
pub(crate) const WINDOW: usize = 16 * 1024;
/// Bytes that are read at once from a socket or from the store.
pub(crate) const PIECE: usize = 16 * 1024;
/// Reservation of a request: its window, and the piece that waits to enter it.
pub(crate) const REQUEST: u64 = (WINDOW + PIECE) as u64;
/// Reservation of a connection to a server: hyper's read buffer, which grows to two pieces.
pub(crate) const CONNECTION: u64 = 2 * PIECE as u64;
/// Copies of a request's header fields that exist while it is answered.
pub(crate) const HEAD_COPIES: u64 = 4;

/// Lower bound of the pool, bytes: with little memory a few requests still have to fit.
const LEAST: u64 = 1 << 20;
/// Lower bound of a client's share, bytes.
const LEAST_SHARE: u64 = 256 << 10;
/// Requests of one client that may wait; further ones are refused at once.
const WAITING: usize = 64;
/// Bytes that one permit of the semaphores stands for.
const UNIT: u64 = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Limits {
    all: Arc<Semaphore>,
    total: u64,
    share: u64,
    clients: Clients<OfClient>,
    /// How long a request may wait.
    patience: Duration,
    /// Requests that wait, of all clients.
    waiting: AtomicU64,
}

#[derive(Debug)]
struct OfClient {
    pool: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// A client's share of the limits.
#[derive(Debug, Clone)]
pub(crate) struct ClientShare {
    limits: Arc<Limits>,
    own: Arc<OfClient>,
}

/// A reservation. Dropping it returns it to the pool.
#[derive(Debug)]
pub(crate) struct Reserved {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Reserved {
    /// Splits a reservation of `bytes` off, or returns none when it has less.
    pub(crate) fn split(&mut self, bytes: u64) -> Option<Reserved> {
        let units = bytes.div_ceil(UNIT) as usize;
        if units > self.own.num_permits() {
            return None;
        }
        Some(Reserved { own: self.own.split(units)?, all: self.all.split(units)? })
    }
}

/// Counts a waiting request for as long as it exists.
struct WaitGuard<'a>(&'a AtomicU64);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limits {
    /// The pool is a quarter of `memory` (bytes); a client may have `percent` of it. A request
    /// waits for up to `patience`.
    pub(crate) fn new(memory: u64, percent: u8, patience: Duration) -> Arc<Self> {
        let total = (memory / 4).max(LEAST) / UNIT * UNIT;
        let share = (u128::from(total) * u128::from(percent.min(100)) / 100) as u64;
        let share = share.max(LEAST_SHARE) / UNIT * UNIT;
        let all = Arc::new(Semaphore::new(units(total) as usize));
        Arc::new(Limits { all, total, share, clients: Clients::default(), patience, waiting: AtomicU64::new(0) })
    }

    /// Bytes that are reserved.
    pub(crate) fn reserved(&self) -> u64 {
        self.total - self.all.available_permits() as u64 * UNIT
    }

    /// Returns the share of a client.
    pub(crate) fn of(self: &Arc<Self>, client: IpAddr) -> ClientShare {
        let new = || OfClient { pool: Arc::new(Semaphore::new(units(self.share) as usize)), waiting: Arc::new(Semaphore::new(WAITING)) };
        ClientShare { limits: self.clone(), own: self.clients.get(client, new) }
    }
}

/// How many permits stand for `bytes`.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl ClientShare {
    /// Permits for `bytes`, at most half of the share: a request and the HTTP/2 connection that it
    /// comes through must fit together, or it would wait in vain.
    fn units(&self, bytes: u64) -> u32 {
        units(bytes.min(self.limits.share / 2))
    }

    /// Reserves `bytes` if they are available now.
    pub(crate) fn try_reserve(&self, bytes: u64) -> Option<Reserved> {
        let units = self.units(bytes);
        let own = self.own.pool.clone().try_acquire_many_owned(units).ok()?;
        let all = self.limits.all.clone().try_acquire_many_owned(units).ok()?;
        Some(Reserved { own, all })
    }

    /// Reserves `bytes` if at least half of the share and of the pool stay available: what can do
    /// with less must not keep requests waiting.
    pub(crate) fn try_reserve_spare(&self, bytes: u64) -> Option<Reserved> {
        let reserved = self.try_reserve(bytes)?;
        let half = |pool: &Semaphore, total: u64| pool.available_permits() as u64 * UNIT >= total / 2;
        let spare = half(&self.own.pool, self.limits.share) && half(&self.limits.all, self.limits.total);
        spare.then_some(reserved)
    }

    /// Waits in turn until `bytes` are available, and reserves them. Returns none when that takes
    /// too long, or when too many requests of the client wait already.
    pub(crate) async fn reserve(&self, bytes: u64) -> Option<Reserved> {
        let units = self.units(bytes);
        let _place = self.own.waiting.clone().try_acquire_owned().ok()?;
        self.limits.waiting.fetch_add(1, Ordering::Relaxed);
        let _guard = WaitGuard(&self.limits.waiting);
        let both = async {
            // The client's share first: a request that waits for it must not hold a part of the
            // pool.
            let own = self.own.pool.clone().acquire_many_owned(units).await.ok()?;
            let all = self.limits.all.clone().acquire_many_owned(units).await.ok()?;
            Some(Reserved { own, all })
        };
        timeout(self.limits.patience, both).await.ok().flatten()
    }

    /// Whether `bytes` are missing from the client's share, rather than from the pool.
    pub(crate) fn lacks(&self, bytes: u64) -> bool {
        self.own.pool.available_permits() < self.units(bytes) as usize
    }

    /// Whether a request waits for what this client returns: one of its own, or one of any client
    /// when the pool is empty.
    pub(crate) fn is_waited_for(&self) -> bool {
        let own = self.own.waiting.available_permits() < WAITING;
        own || (self.limits.waiting.load(Ordering::Relaxed) > 0 && self.limits.all.available_permits() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Arc<Limits> {
        Limits::new(64 << 20, 25, Duration::from_millis(50))
    }

    #[test]
    fn a_client_has_its_share_and_no_more() {
        let limits = limits();
        let (one, other) = (limits.of([192, 0, 2, 1].into()), limits.of([192, 0, 2, 2].into()));
        let per_request = REQUEST + CONNECTION;
        let held: Vec<_> = std::iter::from_fn(|| one.try_reserve(per_request)).collect();
        assert_eq!((held.len(), limits.reserved()), (64, 4 << 20));
        assert!(one.lacks(per_request) && !other.lacks(per_request));
        let others: Vec<_> = std::iter::from_fn(|| other.try_reserve(per_request)).collect();
        assert_eq!(others.len(), 64);
        drop((held, others));
        assert_eq!(limits.reserved(), 0);
    }

    #[test]
    fn half_is_left_for_requests() {
        let limits = limits();
        let shares: Vec<_> = (0..6).map(|last| limits.of([192, 0, 2, last].into())).collect();
        let held: Vec<_> = std::iter::from_fn(|| shares[0].try_reserve_spare(64 << 10)).collect();
        assert_eq!((held.len(), limits.reserved()), (32, 2 << 20));
        let others: Vec<_> = shares.iter().flat_map(|share| std::iter::from_fn(|| share.try_reserve_spare(64 << 10))).collect();
        assert_eq!((others.len(), limits.reserved()), (96, 8 << 20));
        assert!(shares[0].try_reserve(2 << 20).is_some());
    }

    #[test]
    fn all_together_have_the_pool_and_no_more() {
        let limits = limits();
        let shares: Vec<_> = (0..6).map(|last| limits.of([192, 0, 2, last].into())).collect();
        let held: Vec<_> = shares.iter().flat_map(|share| std::iter::from_fn(|| share.try_reserve(64 << 10))).collect();
        assert_eq!((held.len(), limits.reserved()), (256, 16 << 20));
        // With little memory there is room for the largest reservation.
        let small = Limits::new(1, 1, Duration::ZERO);
        assert!(small.of([192, 0, 2, 1].into()).try_reserve(10 << 20).is_some());
    }

    #[test]
    fn a_part_is_returned_by_itself() {
        let limits = limits();
        let share = limits.of([192, 0, 2, 1].into());
        let mut whole = share.try_reserve(64 << 10).unwrap();
        let part = whole.split(32 << 10).unwrap();
        assert!(whole.split(33 << 10).is_none());
        drop(whole);
        assert_eq!(limits.reserved(), 32 << 10);
        drop(part);
        assert_eq!(limits.reserved(), 0);
    }

    #[tokio::test]
    async fn a_client_over_its_share_waits_or_is_refused() {
        let limits = limits();
        let share = limits.of([192, 0, 2, 1].into());
        let held: Vec<_> = std::iter::from_fn(|| share.try_reserve(64 << 10)).collect();
        assert!(share.reserve(64 << 10).await.is_none(), "it has more than its share");
        let (waits, ()) = tokio::join!(share.reserve(64 << 10), async { drop(held) });
        assert!(waits.is_some());
        assert!(!share.is_waited_for());
    }
}
