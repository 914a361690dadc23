//! Limits the connections of a worker. At its soft limit it tells the gate that it is full; at its
//! hard limit its listeners stop accepting.

use super::{LISTENER_PAUSE, Worker};
use crate::gate::GateCommand;
use intercept::{
    Listener,
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
            self.change_listeners(|listener| listener.set_accepting(!accept_paused));
        }
    }

    /// Applies a change to every listener.
    pub(super) fn change_listeners(&self, change: impl Fn(&Listener) -> io::Result<()>) {
        if let Err(why) = self.listeners.iter().map(|listener| &listener.socket).try_for_each(change) {
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
        let flags = if pause { EventFlags::empty() } else { EventFlags::IN };
        let mut changed = Ok(());
        for (index, listener) in self.listeners.iter().enumerate() {
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
