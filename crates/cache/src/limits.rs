//! Bounds the memory of requests in progress and of connections to servers, for all clients
//! together and for each client.
//!
//! Bytes between two sockets are reserved before they are read. A request reserves the most that it
//! can take before it is admitted, and waits while that is not available. One pool bounds requests
//! and connections alike.

use crate::per_client::PerClient;
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

/// Bytes of a body that may be between the task that reads them and the socket that they are
/// written to.
pub(crate) const BODY_WINDOW: usize = 16 * 1024;
/// Bytes that one read takes from a socket or from the store, at most.
pub(crate) const READ_BYTES: usize = 16 * 1024;
/// Reservation of a request, bytes: its window, and the buffer that waits to enter it.
pub(crate) const REQUEST_BYTES: u64 = (BODY_WINDOW + READ_BYTES) as u64;
/// Reservation of a connection to a server, bytes: hyper's read buffer grows to twice the size of
/// one read.
pub(crate) const CONNECTION_BYTES: u64 = 2 * READ_BYTES as u64;
/// Copies of a request's header fields that exist while the request is served.
pub(crate) const HEADER_COPIES: u64 = 4;

/// Size of the header section of a message that is parsed, bytes at most.
pub(crate) const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Fields of a message that is parsed, at most.
pub(crate) const MAX_HEADER_FIELDS: usize = 200;

/// Lower bound of the pool, bytes: a few requests must fit however little memory is configured.
const MIN_POOL: u64 = 1 << 20;
/// Lower bound of a client's share, bytes.
const MIN_CLIENT_SHARE: u64 = 256 << 10;
/// Requests of one client that may wait. Further ones are refused at once.
const MAX_WAITING: usize = 64;
/// Bytes that one permit of the semaphores stands for.
const BYTES_PER_PERMIT: u64 = 1024;

/// The pool of memory, and each client's share of it.
#[derive(Debug)]
pub(crate) struct MemoryLimits {
    /// Unreserved memory of the pool.
    pool: Arc<Semaphore>,
    /// Size of the pool, bytes.
    pool_bytes: u64,
    /// Size of each client's share, bytes.
    share_bytes: u64,
    clients: PerClient<ClientLimits>,
    /// How long a request may wait.
    max_wait: Duration,
    /// Requests of all clients that wait.
    waiting: AtomicU64,
}

/// What one client has left.
#[derive(Debug)]
struct ClientLimits {
    /// Unreserved memory of the client's share.
    share: Arc<Semaphore>,
    /// Further requests that may wait.
    waiting: Arc<Semaphore>,
}

/// A client's share of the limits.
#[derive(Debug, Clone)]
pub(crate) struct ClientShare {
    limits: Arc<MemoryLimits>,
    own: Arc<ClientLimits>,
}

/// Reserved memory. Dropping it returns it to the pool and to the client's share.
#[derive(Debug)]
pub(crate) struct Reservation {
    share: OwnedSemaphorePermit,
    pool: OwnedSemaphorePermit,
}

impl Reservation {
    /// Splits `bytes` off. Returns none when it has less.
    pub(crate) fn split(&mut self, bytes: u64) -> Option<Reservation> {
        let permits = bytes.div_ceil(BYTES_PER_PERMIT) as usize;
        if permits > self.share.num_permits() {
            return None;
        }
        Some(Reservation { share: self.share.split(permits)?, pool: self.pool.split(permits)? })
    }
}

/// Counts a waiting request for as long as it exists.
struct WaitGuard<'a>(&'a AtomicU64);

impl<'a> WaitGuard<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        WaitGuard(waiting)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemoryLimits {
    /// The pool is a quarter of `memory` (bytes). A client may have `percent` of it. A request
    /// waits for up to `max_wait`.
    pub(crate) fn new(memory: u64, percent: u8, max_wait: Duration) -> Arc<Self> {
        let pool_bytes = (memory / 4).max(MIN_POOL) / BYTES_PER_PERMIT * BYTES_PER_PERMIT;
        let share_bytes = (u128::from(pool_bytes) * u128::from(percent.min(100)) / 100) as u64;
        let share_bytes = share_bytes.max(MIN_CLIENT_SHARE) / BYTES_PER_PERMIT * BYTES_PER_PERMIT;
        Arc::new(MemoryLimits {
            pool: Arc::new(Semaphore::new(permits(pool_bytes) as usize)),
            pool_bytes,
            share_bytes,
            clients: PerClient::default(),
            max_wait,
            waiting: AtomicU64::new(0),
        })
    }

    /// Bytes that are reserved.
    pub(crate) fn reserved(&self) -> u64 {
        self.pool_bytes - self.pool.available_permits() as u64 * BYTES_PER_PERMIT
    }

    /// Returns the share of a client.
    pub(crate) fn share_of(self: &Arc<Self>, client: IpAddr) -> ClientShare {
        let new = || ClientLimits {
            share: Arc::new(Semaphore::new(permits(self.share_bytes) as usize)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        };
        ClientShare { limits: self.clone(), own: self.clients.get(client, new) }
    }
}

/// How many permits stand for `bytes`.
fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX)
}

impl ClientShare {
    /// Permits for `bytes`, at most half of the share. A request and the HTTP/2 connection that
    /// carries it must fit together, or the request would wait in vain.
    fn permits(&self, bytes: u64) -> u32 {
        permits(bytes.min(self.limits.share_bytes / 2))
    }

    /// Reserves `bytes` if they are available now.
    pub(crate) fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let permits = self.permits(bytes);
        let share = self.own.share.clone().try_acquire_many_owned(permits).ok()?;
        let pool = self.limits.pool.clone().try_acquire_many_owned(permits).ok()?;
        Some(Reservation { share, pool })
    }

    /// Reserves `bytes` if at least half of the share and of the pool stay available. For callers
    /// that can do with less memory and must not keep requests waiting.
    pub(crate) fn try_reserve_spare(&self, bytes: u64) -> Option<Reservation> {
        let reservation = self.try_reserve(bytes)?;
        let half_left = |memory: &Semaphore, total: u64| memory.available_permits() as u64 * BYTES_PER_PERMIT >= total / 2;
        let spare = half_left(&self.own.share, self.limits.share_bytes) && half_left(&self.limits.pool, self.limits.pool_bytes);
        spare.then_some(reservation)
    }

    /// Waits in FIFO order until `bytes` are available, and reserves them. Returns none when that
    /// takes too long, or when too many requests of the client wait already.
    pub(crate) async fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let permits = self.permits(bytes);
        let _queued = self.own.waiting.clone().try_acquire_owned().ok()?;
        let _counted = WaitGuard::new(&self.limits.waiting);
        let both = async {
            // The client's share first: a request that waits for its share must not hold a part of
            // the pool.
            let share = self.own.share.clone().acquire_many_owned(permits).await.ok()?;
            let pool = self.limits.pool.clone().acquire_many_owned(permits).await.ok()?;
            Some(Reservation { share, pool })
        };
        timeout(self.limits.max_wait, both).await.ok().flatten()
    }

    /// Whether `bytes` are missing from the client's share, rather than from the pool.
    pub(crate) fn lacks(&self, bytes: u64) -> bool {
        self.own.share.available_permits() < self.permits(bytes) as usize
    }

    /// Whether a request waits for memory that this client could return: one of its own, or, when
    /// the pool is empty, one of any client.
    pub(crate) fn is_waited_for(&self) -> bool {
        let own = self.own.waiting.available_permits() < MAX_WAITING;
        own || (self.limits.waiting.load(Ordering::Relaxed) > 0 && self.limits.pool.available_permits() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Arc<MemoryLimits> {
        MemoryLimits::new(64 << 20, 25, Duration::from_millis(50))
    }

    #[test]
    fn a_client_cannot_exceed_its_share() {
        let limits = limits();
        let (one, other) = (limits.share_of([192, 0, 2, 1].into()), limits.share_of([192, 0, 2, 2].into()));
        let per_request = REQUEST_BYTES + CONNECTION_BYTES;
        let held: Vec<_> = std::iter::from_fn(|| one.try_reserve(per_request)).collect();
        assert_eq!((held.len(), limits.reserved()), (64, 4 << 20));
        assert!(one.lacks(per_request) && !other.lacks(per_request));
        let others: Vec<_> = std::iter::from_fn(|| other.try_reserve(per_request)).collect();
        assert_eq!(others.len(), 64);
        drop((held, others));
        assert_eq!(limits.reserved(), 0);
    }

    #[test]
    fn spare_reservations_leave_half_for_requests() {
        let limits = limits();
        let shares: Vec<_> = (0..6).map(|last| limits.share_of([192, 0, 2, last].into())).collect();
        let held: Vec<_> = std::iter::from_fn(|| shares[0].try_reserve_spare(64 << 10)).collect();
        assert_eq!((held.len(), limits.reserved()), (32, 2 << 20));
        let others: Vec<_> = shares.iter().flat_map(|share| std::iter::from_fn(|| share.try_reserve_spare(64 << 10))).collect();
        assert_eq!((others.len(), limits.reserved()), (96, 8 << 20));
        assert!(shares[0].try_reserve(2 << 20).is_some());
    }

    #[test]
    fn all_clients_together_cannot_exceed_the_pool() {
        let limits = limits();
        let shares: Vec<_> = (0..6).map(|last| limits.share_of([192, 0, 2, last].into())).collect();
        let held: Vec<_> = shares.iter().flat_map(|share| std::iter::from_fn(|| share.try_reserve(64 << 10))).collect();
        assert_eq!((held.len(), limits.reserved()), (256, 16 << 20));
        // The smallest pool has room for the largest reservation.
        let small = MemoryLimits::new(1, 1, Duration::ZERO);
        assert!(small.share_of([192, 0, 2, 1].into()).try_reserve(10 << 20).is_some());
    }

    #[test]
    fn a_split_reservation_is_returned_in_parts() {
        let limits = limits();
        let share = limits.share_of([192, 0, 2, 1].into());
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
        let share = limits.share_of([192, 0, 2, 1].into());
        let held: Vec<_> = std::iter::from_fn(|| share.try_reserve(64 << 10)).collect();
        assert!(share.reserve(64 << 10).await.is_none(), "the client exceeds its share");
        let (waited, ()) = tokio::join!(share.reserve(64 << 10), async { drop(held) });
        assert!(waited.is_some());
        assert!(!share.is_waited_for());
    }
}
