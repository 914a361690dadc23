//! What all connections share, and what each has of its own.

use crate::{
    blob::Room,
    config::Config,
    counters::{Counters, Stats},
    limits::{ClientShare, Limits},
    server_pool::{Owner, Pool},
    store::Store,
    transcoder::Transcoder,
    worker_pool::WorkerPool,
};
use intercept::{Destinations, Dialler, Source, Users};
use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::Arc,
};

/// What all connections share.
pub(crate) struct House {
    pub(crate) config: Config,
    pub(crate) store: Arc<Store>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) transcoder: Transcoder,
    /// Bounds requests in progress and connections to servers.
    pub(crate) limits: Arc<Limits>,
    /// Idle connections to servers.
    pub(crate) pool: Pool,
    pub(crate) dialler: Dialler,
    /// What it calls itself in messages that come through it; another one's name is another.
    pub(crate) name: String,
}

impl std::fmt::Debug for House {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("House").field("name", &self.name).finish_non_exhaustive()
    }
}

impl House {
    pub(crate) fn new(config: Config, dialler: Dialler) -> Self {
        let store = Store::new(config.bounds());
        let workers = WorkerPool::new(config.picture_worker.clone(), config.wish(), config.picture_timeout);
        let transcoder = Transcoder::new(workers);
        let limits = Limits::new(config.memory.0, config.client_share, config.connect_timeout);
        let name = format!("tandem-{:08x}", RandomState::new().hash_one(0_u8) as u32);
        House { config, store, counters: Arc::default(), transcoder, limits, pool: Pool::default(), dialler, name }
    }

    pub(crate) fn room(&self) -> Arc<dyn Room> {
        self.store.clone()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (memory_bytes, disk_bytes, kept) = self.store.taken();
        Stats { kept, memory_bytes, disk_bytes, reserved_bytes: self.limits.reserved(), ..self.counters.stats() }
    }
}

/// A connection that came in.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) house: Arc<House>,
    pub(crate) client: SocketAddr,
    /// Where its connection goes on to, where it does not say that itself.
    pub(crate) server: Option<SocketAddr>,
    /// What its connections to servers wear of its client; absent: nothing.
    pub(crate) source: Option<Source>,
    /// Where it may go if it names its destination itself.
    pub(crate) destinations: Destinations,
    /// Who may name a destination.
    pub(crate) users: Users,
    /// Its client's share of the limits.
    pub(crate) share: ClientShare,
    /// Identifies the idle connections to servers that were opened for it.
    pub(crate) owner: Owner,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.house.pool.close_all(self.owner);
    }
}
