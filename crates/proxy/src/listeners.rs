//! A worker's listeners: those of interception, with what the configuration says of each.

use crate::config::{Config, Listen};
use intercept::{AcceptedConnection, Listener, ListenerOptions, OpenError, leg::Shares, listener::BACKLOG};
use std::io;

/// An open listener of a worker.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub(crate) socket: Listener,
    pub(crate) listen: Listen,
}

/// Opens one worker's listeners; all workers share the ports.
pub(crate) fn open(config: &Config, worker: usize) -> Result<Vec<WorkerListener>, OpenError> {
    let mut listeners = Vec::new();
    // The connections of a stream have to meet: the first worker alone takes them.
    for listen in config.listen.iter().filter(|listen| worker == 0 || !listen.takes_streams()) {
        for socket in Listener::open(&listen.at(), &options(config, listen))? {
            listeners.push(WorkerListener { listen: Listen { at: socket.listen.at, ..listen.clone() }, socket });
        }
    }
    Ok(listeners)
}

fn options(config: &Config, listen: &Listen) -> ListenerOptions {
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
    /// Takes the users that a configuration has for it, for clients from now on.
    pub(crate) fn take_users(&mut self, config: &Config) {
        let same = |listen: &&Listen| (listen.at, listen.mode) == (self.listen.at, self.listen.mode);
        if let Some(listen) = config.listen.iter().find(same) {
            self.listen.users = listen.users.clone();
        }
    }

    /// The next connection, or none when there is none now.
    pub(crate) fn accept(&self) -> io::Result<Option<AcceptedConnection>> {
        self.socket.accept()
    }
}
