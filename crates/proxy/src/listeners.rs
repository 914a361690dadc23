//! A worker's listeners: the sockets of `intercept`, each with its configuration.

use crate::config::{ListenerConfig, ProxyConfig};
use intercept::{AcceptedConnection, Listener, ListenerOptions, OpenError, leg::Shares, listener::BACKLOG};
use std::io;

/// An open listener of a worker.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub(crate) socket: Listener,
    pub(crate) listen: ListenerConfig,
}

/// Opens the listeners of one worker. All workers share the ports (SO_REUSEPORT).
///
/// # Errors
/// When a listener cannot be opened.
pub(crate) fn open(config: &ProxyConfig, worker: usize) -> Result<Vec<WorkerListener>, OpenError> {
    let mut listeners = Vec::new();
    // All connections of a bond's stream must reach the same worker: only the first one listens.
    for listen in config.listen.iter().filter(|listen| worker == 0 || !listen.takes_streams()) {
        for socket in Listener::open(&listen.at(), &options(config, listen))? {
            listeners.push(WorkerListener { listen: ListenerConfig { at: socket.listen.at, ..listen.clone() }, socket });
        }
    }
    Ok(listeners)
}

fn options(config: &ProxyConfig, listen: &ListenerConfig) -> ListenerOptions {
    ListenerOptions {
        shares_port: config.threads > 1,
        shares: config.buffer.filter(|_| !listen.takes_streams()).map(|buffer| Shares::of(buffer.0 as usize)),
        window: config
            .bond
            .as_ref()
            .and_then(|bond| bond.connection_window)
            .filter(|_| listen.takes_streams())
            .map(|window| window.0 as usize),
        mss: config.policy.near.mss,
        backlog: BACKLOG.min(config.hard_limit_of_a_worker()),
    }
}

impl WorkerListener {
    /// Takes its users from another configuration, for clients from now on.
    pub(crate) fn take_users(&mut self, config: &ProxyConfig) {
        let same = |listen: &&ListenerConfig| (listen.at, listen.mode) == (self.listen.at, self.listen.mode);
        if let Some(listen) = config.listen.iter().find(same) {
            self.listen.users = listen.users.clone();
        }
    }

    /// Accepts a connection; none: the backlog is empty.
    ///
    /// # Errors
    /// When accepting fails, for example for lack of descriptors.
    pub(crate) fn accept(&self) -> io::Result<Option<AcceptedConnection>> {
        self.socket.accept()
    }
}
