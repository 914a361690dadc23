//! The store-and-forward proxy ("TCP proxy" of Wei et al., §I): it first receives all data from a sender and only then forwards them, and does on
//! the way what can be done with a whole message.
//!
//! The way of a message: the proxy's `ends` (the firewall brings it) → `client_connection` (is it HTTP?) →
//! `admission` (is there room for it, by the `limits`?) → `exchange` (who answers: `store`, by the
//! `semantics`, or `origin`) → `blob` (received as fast as it comes) → `response` (as the client wants it:
//! a part, `encode`d, or as one of its `pictures`) → `body` (through a `window`). What is not HTTP
//! goes through `raw`, what is no longer HTTP through `tunnel`. TLS is never opened.
//!
//! Pictures are made smaller in other processes, which have no privileges: `transcoder` (whose turn
//! is it?) → `worker_pool` (which process has time?) → `picture_protocol` → `picture_worker` (in
//! its `sandbox`) → `shrink`.
//!
//! Other than in `proxy` a runtime (tokio) moves the bytes: here they are looked at, and a message costs more than a turn of a scheduler.

mod access_log;
mod admission;
mod blob;
mod body;
mod budget;
mod check;
mod client_connection;
mod config;
mod counters;
mod encode;
mod error_response;
mod exchange;
mod fields;
pub mod fuzz_api;
mod leg_stream;
mod limits;
pub mod metrics;
mod negotiate;
mod origin;
mod per_client;
mod picture_protocol;
pub mod picture_worker;
mod pictures;
mod proxy_auth;
mod raw;
mod reply;
mod request;
mod response;
mod semantics;
mod server_pool;
mod shared;
pub mod shrink;
mod store;
mod transcoder;
mod tunnel;
mod window;
mod worker_pool;

pub use check::try_start;
pub use config::{Config, ConfigError, Listen, Raw};
pub use counters::Stats;
pub use worker_pool::WorkerProgram;

use intercept::{Arrival, Ends, Listener, ListenerAccess, OpenError, RulesLost};
use shared::House;
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

/// How long connections whose handshake has begun may still come when no new ones are wanted.
const LATE_COMERS: Duration = Duration::from_secs(1);

/// Why a cache did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work on any machine, or not on this one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener, a rule or a link could not be set up.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something else the system refused.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's reason.
        why: io::Error,
    },
}

/// A running cache. Dropping it resets what it still carries and takes its rules away.
#[derive(Debug)]
pub struct Cache {
    /// Declared first: the rules go before those who listen.
    ends: Arc<Mutex<Ends>>,
    house: Arc<House>,
    stop: watch::Sender<bool>,
    /// Listeners and connections that are still there.
    alive: Arc<AtomicUsize>,
    addresses: Vec<SocketAddr>,
    runtime: Option<Runtime>,
}

/// Counts one that is there.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::AcqRel);
        Alive(alive.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cache {
    /// Starts in the network namespace of the calling thread; returns when every listener listens and every rule is in place.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let failed = |what| move |why| StartError::System { what, why };
        let (ends, listeners) = Ends::open(config.interception())?;
        let runtime = Builder::new_multi_thread().worker_threads(config.threads.max(1)).thread_name("tandem-cache").enable_all().build();
        let runtime = runtime.map_err(failed("start the worker threads"))?;
        let room = Arc::new(Semaphore::new(config.max_connections));
        let house = Arc::new(House::new(config, ends.dialler()));
        let (stop, stopped) = watch::channel(false);
        let (ends, alive) = (Arc::new(Mutex::new(ends)), Arc::new(AtomicUsize::new(0)));
        let mut addresses = Vec::new();
        for (index, listener) in listeners {
            addresses.push(listener.address().map_err(failed("read a listener's address"))?);
            let _guard = runtime.enter();
            let socket =
                listener.socket.try_clone().and_then(|socket| TcpListener::from_std(socket.into())).map_err(failed("watch a listener"))?;
            let door = Door {
                listener,
                access: house.config.listen[index].access(),
                house: house.clone(),
                ends: ends.clone(),
                room: room.clone(),
                stop: stopped.clone(),
                alive: alive.clone(),
            };
            let here = Alive::new(&alive);
            runtime.spawn(async move {
                door.listen(socket).await;
                drop(here);
            });
        }
        Ok(Cache { ends, house, stop, alive, addresses, runtime: Some(runtime) })
    }

    /// Where it listens, the ports that the system chose too, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        self.house.stats()
    }

    /// Looks whether the firewall's rules are still in place, and installs them again where they are
    /// not. To be called several times a second.
    ///
    /// # Errors
    /// When the rules were lost and several attempts to install them again have failed.
    pub fn check_rules(&self) -> Result<(), RulesLost> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).check_rules()
    }

    /// Takes no new connections from now on (those that are routed here pass unsplit), and no more requests of those there are.
    pub fn begin_drain(&self) {
        if let Err(error) = self.ends.lock().unwrap_or_else(PoisonError::into_inner).set_open(false) {
            tracing::error!("cannot shut the way from the firewall: {error}");
        }
        self.stop.send_replace(true);
    }

    /// Whether all connections have ended, as they do once it drains.
    pub fn is_idle(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.begin_drain();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

/// Where connections come in.
struct Door {
    listener: Listener,
    access: ListenerAccess,
    house: Arc<House>,
    ends: Arc<Mutex<Ends>>,
    room: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
    alive: Arc<AtomicUsize>,
}

impl Door {
    async fn listen(&self, socket: TcpListener) {
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                () = self.take(&socket) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if self.listener.listen.is_transparent() {
            let late = async {
                loop {
                    self.take(&socket).await;
                }
            };
            let _ = timeout(LATE_COMERS, late).await;
        }
    }

    /// Takes one connection.
    async fn take(&self, socket: &TcpListener) {
        let accepted = socket.accept().await;
        let arrival = accepted.and_then(|(stream, client)| self.listener.arrival(stream.into_std()?.into(), &client.into()));
        match arrival {
            Ok(Some(arrival)) => self.let_in(arrival).await,
            Ok(None) => {}
            // The connection went away while it waited.
            Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(why) => {
                tracing::warn!("cannot accept a connection: {why}");
                // Descriptors, most likely: some will be free in a moment.
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn let_in(&self, arrival: Arrival) {
        let place = match self.room.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                tracing::warn!("as many connections as there is room for: new ones pass unsplit, or wait");
                self.turn(false).await;
                let place = self.room.clone().acquire_owned().await;
                self.turn(true).await;
                let Ok(place) = place else { return };
                place
            }
        };
        let (access, is_transparent) = (self.access.clone(), self.listener.listen.is_transparent());
        let (house, stop, here) = (self.house.clone(), self.stop.clone(), Alive::new(&self.alive));
        house.counters.connections.add(1);
        tokio::spawn(async move {
            let client = arrival.client;
            if let Err(why) = client_connection::serve(house, arrival, (access, is_transparent), stop).await {
                tracing::debug!(%client, "a connection broke off: {}", origin::told(&why));
            }
            drop((place, here));
        });
    }

    /// Opens or shuts the way from the firewall.
    async fn turn(&self, open: bool) {
        if *self.stop.borrow() {
            return;
        }
        let ends = self.ends.clone();
        let turned = tokio::task::spawn_blocking(move || ends.lock().unwrap_or_else(PoisonError::into_inner).set_open(open)).await;
        if let Ok(Err(error)) = turned {
            tracing::error!("cannot open or shut the way from the firewall: {error}");
        }
    }
}
