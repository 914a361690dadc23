//! State that all connections of a cache share.

use crate::{
    blob::StorageQuota,
    config::Config,
    counters::{CacheCounters, Stats},
    limits::MemoryLimits,
    server_pool::ServerPool,
    store::ResponseStore,
    transcoder::Transcoder,
    worker_pool::WorkerPool,
};
use intercept::{AddressHistory, Dialler};
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) store: Arc<ResponseStore>,
    pub(crate) counters: Arc<CacheCounters>,
    pub(crate) transcoder: Transcoder,
    /// Bounds requests in progress and connections to servers.
    pub(crate) limits: Arc<MemoryLimits>,
    /// Idle connections to servers.
    pub(crate) server_pool: ServerPool,
    pub(crate) dialler: Dialler,
    /// Which addresses of names were reached lately.
    pub(crate) history: AddressHistory,
    /// The name of this proxy in `Via` and `Cache-Status` (RFC 9110 §7.6.3): random, so that
    /// several proxies on a path can be told apart.
    pub(crate) pseudonym: String,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("pseudonym", &self.pseudonym).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(config: Config, dialler: Dialler) -> Self {
        let workers = WorkerPool::new(config.picture_worker.clone(), config.shrink_options(), config.picture_timeout);
        Shared {
            store: ResponseStore::new(config.store_limits()),
            counters: Arc::default(),
            transcoder: Transcoder::new(workers),
            limits: MemoryLimits::new(config.memory.0, config.client_share, config.connect_timeout),
            server_pool: ServerPool::default(),
            dialler,
            history: AddressHistory::default(),
            pseudonym: format!("tandem-{:08x}", RandomState::new().hash_one(0_u8) as u32),
            config,
        }
    }

    /// The storage for bodies.
    pub(crate) fn quota(&self) -> Arc<dyn StorageQuota> {
        self.store.clone()
    }

    /// The counters, and what is held now.
    pub(crate) fn stats(&self) -> Stats {
        let usage = self.store.usage();
        Stats {
            kept: usage.responses,
            memory_bytes: usage.memory_bytes,
            disk_bytes: usage.disk_bytes,
            reserved_bytes: self.limits.reserved(),
            ..self.counters.stats()
        }
    }
}
