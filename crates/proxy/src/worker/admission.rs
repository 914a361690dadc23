//! Limits the connections of a worker. At its soft limit it tells the gate that it is full; at its
//! hard limit its listeners stop accepting.

use super::{LISTENER_PAUSE, Worker};
use crate::{config::ListenMode, gate::GateCommand, listeners::WorkerListener};
use intercept::{
    Accepting, Listener,
    listener::{BACKLOG, LEAST_BACKLOG},
};
use relay::Token;
use rustix::event::epoll::EventFlags;
use std::{io, mem};

impl Worker {
    /// Tells the gate when the worker has become full, or is no longer full. Without a gate it
    /// pauses its listeners instead.
    pub(super) fn update_full(&mut self) {
        let (connections, soft_limit) = (self.alive() + self.waiting_connections(), self.soft_limit);
        // Hysteresis: without it the gate would open and shut with each connection that ends.
        let full = if self.full { connections > soft_limit - soft_limit.div_ceil(16) } else { connections >= soft_limit };
        let changed = full != mem::replace(&mut self.full, full);
        match &self.context.gate {
            Some(gate) if changed => drop(gate.send(GateCommand::Full(full))),
            None if changed => self.pause_listeners(full),
            _ => {}
        }
        if self.context.gate.is_some() {
            self.enforce_hard_limit();
        }
    }

    /// Connections that arrive while the gate is being shut are split as long as there are
    /// descriptors: the backlogs admit no more. At the hard limit the listeners stop accepting.
    /// Clients retransmit their SYN after one second and are then forwarded unsplit.
    pub(super) fn enforce_hard_limit(&mut self) {
        let (alive, hard_limit) = (self.alive(), self.hard_limit);
        let most = (hard_limit.saturating_sub(alive) / self.listeners.len().max(1)).clamp(LEAST_BACKLOG, BACKLOG);
        if most < self.backlog || most / 2 >= self.backlog {
            // One eighth less, so that not every connection changes the backlog.
            self.backlog = most - most / 8;
            self.change_listeners(|listener| listener.set_backlog(self.backlog));
        }
        let accept_paused = self.full && (self.accept_paused || alive + self.waiting_connections() >= hard_limit);
        if accept_paused != mem::replace(&mut self.accept_paused, accept_paused) {
            self.apply_accepting();
        }
    }

    /// Has the kernel complete handshakes for each listener, or not. A connection in a backlog
    /// takes memory for what its client sends.
    pub(super) fn apply_accepting(&self) {
        let changed = self.listeners.iter().try_for_each(|listener| match listener.socket.set_accepting(&self.accepting(listener)) {
            // It had no filter.
            Err(why) if why.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            changed => changed,
        });
        self.warn_unless(changed);
    }

    /// Which connections a listener accepts.
    fn accepting(&self, listener: &WorkerListener) -> Accepting {
        if self.accept_paused || self.waits_for_memory(listener) {
            Accepting::None
        } else if self.is_shared(listener) {
            self.memory.clients.accepting()
        } else {
            Accepting::All
        }
    }

    /// Whether clients of a listener share the connections that memory has room for. Connections
    /// that could pass unsplit are kept away by the gate. Those for streams of a bond may replace
    /// others of open streams; the bond itself refuses new streams.
    pub(super) fn is_shared(&self, listener: &WorkerListener) -> bool {
        let may_pass = self.context.gate.is_some() && listener.listen.mode == ListenMode::Transparent;
        self.memory.is_shared && !may_pass && !listener.listen.takes_streams()
    }

    /// Whether a listener does not accept because memory is short. Behind another proxy the client
    /// is not known before its header has been read.
    pub(super) fn waits_for_memory(&self, listener: &WorkerListener) -> bool {
        self.is_shared(listener) && (self.memory.pauses || listener.listen.accept_proxy)
    }

    /// Applies a change to every listener.
    pub(super) fn change_listeners(&self, change: impl Fn(&Listener) -> io::Result<()>) {
        self.warn_unless(self.listeners.iter().map(|listener| &listener.socket).try_for_each(change));
    }

    fn warn_unless(&self, changed: io::Result<()>) {
        if let Err(why) = changed {
            tracing::warn!("cannot change how a listener accepts connections: {why}; the worker may run out of descriptors");
        }
    }

    /// Number of connections in the backlogs, which can no longer pass unsplit. They are counted
    /// only when the worker is close to its soft limit, else 0.
    pub(super) fn waiting_connections(&self) -> usize {
        if self.context.gate.is_none() || self.alive() + BACKLOG < self.soft_limit {
            return 0;
        }
        self.listeners.iter().map(|listener| listener.socket.waiting()).sum()
    }

    /// Has epoll stop watching the listeners, or watch them again.
    pub(super) fn pause_listeners(&mut self, pause: bool) {
        self.listeners_paused = pause;
        let mut changed = Ok(());
        for (index, listener) in self.listeners.iter().enumerate() {
            let flags = if pause || self.waits_for_memory(listener) { EventFlags::empty() } else { EventFlags::IN };
            changed = changed.and(self.reactor.rearm(&listener.socket.socket, Token::Listener(index), flags));
        }
        // A listener that stays watched although it is paused only costs turns of the event loop.
        if let (Err(errno), false) = (changed, pause) {
            tracing::error!("cannot have epoll watch a listener: {errno}; trying again in a second");
            self.listeners_paused = true;
            self.listeners_resume_at = Some(self.scratch.now + LISTENER_PAUSE);
        }
    }

    /// Resumes what was paused for lack of room. To be called when a connection has ended.
    pub(super) fn after_end(&mut self) {
        if self.full {
            self.update_full();
        }
        // With a gate, a full worker goes on accepting what the firewall has let through.
        if self.listeners_paused && (!self.full || self.context.gate.is_some()) {
            self.pause_listeners(false);
        }
    }
}
