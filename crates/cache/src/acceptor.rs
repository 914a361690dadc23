//! Accepts the connections of one listener, within the limit of connections.

use crate::{
    client_connection::{self, DrainSignal, ListenerSettings},
    origin::describe,
    shared::Shared,
};
use intercept::{AcceptedConnection, ActiveInterception, Listener};
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

/// How long a transparent listener still accepts after new connections bypass it: handshakes that
/// had begun before are completed.
const LATE_HANDSHAKES: Duration = Duration::from_secs(1);
/// Pause after a failed `accept`, which most often lacks descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Counts an acceptor or a connection as long as it exists.
pub(crate) struct ActiveGuard(Arc<AtomicUsize>);

impl ActiveGuard {
    pub(crate) fn new(active: &Arc<AtomicUsize>) -> Self {
        active.fetch_add(1, Ordering::AcqRel);
        ActiveGuard(active.clone())
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The acceptor of one listener.
pub(crate) struct Acceptor {
    pub(crate) listener: Listener,
    pub(crate) settings: ListenerSettings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) interception: Arc<Mutex<ActiveInterception>>,
    /// A permit for each connection that may exist.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) drain: DrainSignal,
    /// Counts the connections.
    pub(crate) active: Arc<AtomicUsize>,
}

impl Acceptor {
    /// Accepts connections until the cache drains.
    pub(crate) async fn run(&self, socket: &TcpListener) {
        let mut drain = self.drain.clone();
        loop {
            tokio::select! {
                () = self.accept(socket) => {}
                _ = drain.wait_for(|drains| *drains) => break,
            }
        }
        if self.settings.is_transparent {
            let late = async {
                loop {
                    self.accept(socket).await;
                }
            };
            let _ = timeout(LATE_HANDSHAKES, late).await;
        }
    }

    /// Accepts one connection, and starts a task that serves it.
    async fn accept(&self, socket: &TcpListener) {
        let accepted = socket.accept().await;
        let arrival = accepted.and_then(|(stream, client)| self.listener.accepted(stream.into_std()?.into(), &client.into()));
        match arrival {
            Ok(Some(arrival)) => self.serve(arrival).await,
            Ok(None) => {}
            // The client gave up while the connection was in the listen queue.
            Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(why) => {
                tracing::warn!("cannot accept a connection: {why}");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }

    async fn serve(&self, arrival: AcceptedConnection) {
        let Some(permit) = self.permit().await else { return };
        let shared = self.shared.clone();
        let settings = self.settings.clone();
        let drain = self.drain.clone();
        let active = ActiveGuard::new(&self.active);
        shared.counters.connections.add(1);
        tokio::spawn(async move {
            let client = arrival.client;
            if let Err(why) = client_connection::serve(shared, arrival, settings, drain).await {
                tracing::debug!(%client, "a connection broke off: {}", describe(&why));
            }
            drop((permit, active));
        });
    }

    /// Waits for a permit. Meanwhile, further connections bypass a transparent listener.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        tracing::warn!("the limit of connections is reached (--max-connections): new ones pass unsplit, or wait");
        self.set_open(false).await;
        let permit = self.permits.clone().acquire_owned().await;
        self.set_open(true).await;
        permit.ok()
    }

    /// Has the firewall hand new connections to the transparent listeners, or let them pass
    /// unsplit.
    async fn set_open(&self, open: bool) {
        // While the cache drains they pass unsplit.
        if *self.drain.borrow() {
            return;
        }
        let interception = self.interception.clone();
        let set = tokio::task::spawn_blocking(move || interception.lock().unwrap_or_else(PoisonError::into_inner).set_open(open)).await;
        if let Ok(Err(error)) = set {
            tracing::error!("cannot change the firewall rules that hand connections to the cache: {error}");
        }
    }
}
