//! The store-and-forward proxy ("TCP proxy" of Wei et al., §I): it receives a whole message before
//! it forwards it, and can therefore do what needs a whole message.
//!
//! The path of a message: `acceptor` → `client_connection` (by its `protocol`) → `admission` (waits
//! for memory, within the `limits`) → `exchange` (from the `store`, by the rules of `semantics`, or
//! from an `origin` server) → `blob` (received at the server's speed) → `response` (whole or a
//! range, through `encode`, or as one of its `pictures`) → `body` (through a `window`). What is not
//! HTTP goes through `raw`, tunnels through `tunnel`. What hyper cannot represent leaves it through
//! `client_stream` and `server_stream`, and goes through `verbatim` as it came. TLS is never
//! decrypted.
//!
//! Pictures are transcoded by other processes, which have no privileges: `transcoder` (whose turn
//! it is) → `worker_pool` (a process) → `picture_protocol` → `picture_worker` (in its `sandbox`) →
//! `shrink`.
//!
//! Unlike `proxy`, this crate uses an async runtime (tokio): messages are parsed and transformed,
//! which costs more than a scheduler's task switch.

mod acceptor;
mod access_log;
mod admission;
mod blob;
mod body;
mod budget;
mod cache_status;
mod check;
mod client;
mod client_connection;
mod client_gate;
mod client_stream;
mod conditions;
mod config;
mod counters;
mod encode;
mod entity_tag;
mod error_response;
mod exchange;
mod explicit_request;
mod fields;
mod framing;
pub mod fuzz_api;
mod leg_stream;
mod limits;
pub mod metrics;
mod negotiate;
mod one_exchange;
mod origin;
mod per_client;
mod picture_protocol;
pub mod picture_worker;
mod pictures;
mod protocol;
mod proxy_auth;
mod raw;
mod reach;
mod reply;
mod request;
mod request_head;
mod response;
mod response_head;
mod semantics;
mod server_pool;
mod server_stream;
mod shared;
pub mod shrink;
mod store;
mod target;
mod transcoder;
mod tunnel;
mod verbatim;
mod window;
mod worker_pool;

pub use check::try_start;
pub use config::{Config, ConfigError, Listen, RawMode};
pub use counters::Stats;
pub use worker_pool::WorkerProgram;

use acceptor::{Acceptor, ActiveGuard};
use client_connection::ListenerSettings;
use intercept::{ActiveInterception, OpenError, RulesLost};
use shared::Shared;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::{Semaphore, watch},
};

/// How long the runtime waits for blocking tasks when the cache is dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a cache did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work on any machine, or not on this one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener, a firewall rule, a link or a thread could not be set up.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// A running cache. Dropping it resets its connections and removes its firewall rules.
///
/// To end without resets, call [`Cache::begin_drain`], then wait until [`Cache::is_idle`].
#[derive(Debug)]
pub struct Cache {
    /// Declared first, and so dropped first: the rules must go before the listeners.
    interception: Arc<Mutex<ActiveInterception>>,
    shared: Arc<Shared>,
    drain: watch::Sender<bool>,
    /// Acceptors and connections that exist.
    active: Arc<AtomicUsize>,
    addresses: Vec<SocketAddr>,
    runtime: Option<Runtime>,
}

impl Cache {
    /// Starts a cache in the network namespace of the calling thread. On return all listeners
    /// listen and all firewall rules are installed.
    ///
    /// # Errors
    /// When the configuration cannot work, or something could not be set up. Nothing of it is left
    /// then.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let (interception, listeners) = ActiveInterception::open(config.interception())?;
        let runtime = Builder::new_multi_thread().worker_threads(config.threads.max(1)).thread_name("tandem-cache").enable_all().build();
        let runtime = runtime.map_err(OpenError::system("start the worker threads"))?;
        let permits = Arc::new(Semaphore::new(config.max_connections));
        let shared = Arc::new(Shared::new(config, interception.dialler()));
        let (drain, drain_signal) = watch::channel(false);
        let interception = Arc::new(Mutex::new(interception));
        let active = Arc::new(AtomicUsize::new(0));
        let mut addresses = Vec::new();
        for (index, listener) in listeners {
            addresses.push(listener.address().map_err(OpenError::system("read a listener's address"))?);
            let _guard = runtime.enter();
            let socket = listener.socket.try_clone().and_then(|socket| TcpListener::from_std(socket.into()));
            let socket = socket.map_err(OpenError::system("register a listener with the runtime"))?;
            let is_transparent = listener.listen.is_transparent();
            let acceptor = Acceptor {
                listener,
                settings: ListenerSettings { access: shared.config.listen[index].access(), is_transparent },
                shared: shared.clone(),
                interception: interception.clone(),
                permits: permits.clone(),
                drain: drain_signal.clone(),
                active: active.clone(),
            };
            let guard = ActiveGuard::new(&active);
            runtime.spawn(async move {
                acceptor.run(&socket).await;
                drop(guard);
            });
        }
        Ok(Cache { interception, shared, drain, active, addresses, runtime: Some(runtime) })
    }

    fn interception(&self) -> MutexGuard<'_, ActiveInterception> {
        self.interception.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of the listeners, in the order of the configuration, with the ports that the
    /// system has chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the cache has done since its start, and what it holds.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Checks that the firewall rules are still installed, and installs them again if they are not.
    /// To be called several times a second.
    ///
    /// # Errors
    /// When the rules were lost and several attempts to install them again have failed.
    pub fn check_rules(&self) -> Result<(), RulesLost> {
        self.interception().check_rules()
    }

    /// Accepts no new connections from now on (those to transparent listeners pass unsplit), and no
    /// further requests on the existing ones.
    pub fn begin_drain(&self) {
        if let Err(error) = self.interception().set_open(false) {
            tracing::error!("cannot change the firewall rules that hand connections to the cache: {error}");
        }
        self.drain.send_replace(true);
    }

    /// Whether all acceptors and connections have ended. That happens after [`Cache::begin_drain`]
    /// only.
    pub fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.begin_drain();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}
