//! Accepts connections from a worker's listeners.

use super::{LISTENER_PAUSE, Worker, greet::header_for_server, memory::FIRST_WINDOW};
use crate::{config::ListenMode, connection::ConnectionStart};
use intercept::AcceptedConnection;

/// Connections that are accepted in one turn, at most, and while memory is short.
const BATCH: usize = 64;
const SHORT_BATCH: usize = 8;

impl Worker {
    /// Accepts the connections in the backlog of a listener.
    pub(super) fn accept(&mut self, index: usize) {
        // A bounded batch, so that a flood of new connections does not stall the established ones.
        let batch = if self.memory.is_shared { SHORT_BATCH } else { BATCH };
        for _ in 0..batch {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok(Some(arrival)) => self.on_arrival(index, arrival),
                Ok(None) => return,
                Err(why) => {
                    // The listener is level-triggered: without a pause the event loop would spin
                    // until a descriptor is free.
                    tracing::error!("cannot accept a connection: {why}; trying again when another ends, or in a second");
                    self.pause_listeners(true);
                    self.listeners_resume_at = Some(self.scratch.now + LISTENER_PAUSE);
                    return;
                }
            }
            if self.listeners_paused {
                return;
            }
            // A look that is due must not wait until the batch is accepted.
            self.watch_memory();
            if self.listeners.get(index).is_some_and(|listener| self.waits_for_memory(listener)) {
                return;
            }
        }
    }

    /// Begins an accepted connection, or holds it, if memory is short and its client has its share
    /// of the connections already.
    fn on_arrival(&mut self, index: usize, arrival: AcceptedConnection) {
        if self.is_shared(&self.listeners[index]) && !self.memory.clients.admits(arrival.client.ip().into()) {
            self.scratch.budget.note_growth(FIRST_WINDOW);
            return self.memory.clients.hold(index, arrival);
        }
        self.begin_arrival(index, arrival);
    }

    /// Splits an accepted connection, reads its greeting first, or hands it over to the carrier.
    pub(super) fn begin_arrival(&mut self, index: usize, arrival: AcceptedConnection) {
        let AcceptedConnection { socket, client, server } = arrival;
        let listen = &self.listeners[index].listen;
        if listen.takes_streams() {
            if let Some(carrier) = &mut self.carrier {
                carrier.accept(socket, listen);
            }
            return;
        }
        match server.filter(|_| !listen.accept_proxy) {
            Some(server) => {
                let preface = header_for_server(listen, client, None, &socket);
                let keep_source = listen.mode == ListenMode::Transparent;
                let already_read = Vec::new();
                let start = ConnectionStart { near: socket, client, server, far: None, keep_source, preface, already_read, socks: false };
                self.begin(start);
            }
            None => {
                let listen = listen.clone();
                self.scratch.budget.note_growth(FIRST_WINDOW);
                self.await_greeting(socket, client, listen);
            }
        }
        self.update_full();
    }

    /// Begins to accept from listeners that were inherited: the proxy that had them may have
    /// limited them.
    pub(super) fn begin_accepting(&mut self) {
        self.apply_accepting();
        self.change_listeners(|listener| listener.set_backlog(self.backlog));
        self.pause_listeners(false);
    }

    /// Closes all listeners. Connections that they have accepted begin before.
    pub(super) fn close_listeners(&mut self) {
        self.serve_all_held();
        self.listeners.clear();
    }

    /// Closes the listeners of a draining worker, or resumes paused ones, when that is due.
    pub(super) fn check_listeners(&mut self) {
        if self.listeners_close_at.is_some_and(|at| self.scratch.now >= at) {
            self.listeners_close_at = None;
            self.close_listeners();
        }
        if self.listeners_resume_at.is_some_and(|at| self.scratch.now >= at) {
            self.listeners_resume_at = None;
            self.after_end();
        }
    }
}
