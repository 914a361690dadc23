//! How a worker keeps to its room: it says when it is full, and keeps connections from its listeners that it could not take.

use super::{REST, Token, Worker};
use crate::gate::Note;
use intercept::{
    Listener,
    listener::{BACKLOG, LEAST_BACKLOG},
};
use rustix::event::epoll::{self, EventFlags};
use std::{io, mem};

impl Worker {
    /// Says so when it has become full, or no longer is.
    pub(super) fn look_for_room(&mut self) {
        let (coming, room) = (self.alive() + self.waiting(), self.room);
        // Not at once when one has ended, lest it swing.
        let full = if self.full { coming > room - room.div_ceil(16) } else { coming >= room };
        let changed = full != mem::replace(&mut self.full, full);
        match &self.ties.gate {
            Some(gate) if changed => drop(gate.send(Note::Full(full))),
            None if changed => self.rest(full),
            _ => {}
        }
        if self.ties.gate.is_some() {
            self.keep_below_the_brim();
        }
    }

    /// The firewall takes its time to shut the gate. Those who call meanwhile are split as long as there are descriptors for them:
    /// no more may wait to be accepted. At the brim they are not heard, call again after a second, and pass.
    pub(super) fn keep_below_the_brim(&mut self) {
        let (alive, brim) = (self.alive(), self.brim);
        let most = (brim.saturating_sub(alive) / self.listeners.len().max(1)).clamp(LEAST_BACKLOG, BACKLOG);
        if most < self.backlog || most / 2 >= self.backlog {
            // Somewhat less, so that not each connection changes it.
            self.backlog = most - most / 8;
            self.to_listeners(|listener| listener.set_backlog(self.backlog));
        }
        let not_heard = self.full && (self.not_heard || alive + self.waiting() >= brim);
        if not_heard != mem::replace(&mut self.not_heard, not_heard) {
            self.to_listeners(|listener| listener.set_accepting(!not_heard));
        }
    }

    pub(super) fn to_listeners(&self, tell: impl Fn(&Listener) -> io::Result<()>) {
        if let Err(why) = self.listeners.iter().map(|listener| &listener.socket).try_for_each(tell) {
            tracing::warn!("cannot keep connections from a full listener, or let them come again: {why}");
        }
    }

    /// Connections that have been granted and wait to be accepted: they can no longer pass unsplit. Looked at only when they may
    /// be too many.
    pub(super) fn waiting(&self) -> usize {
        if self.ties.gate.is_none() || self.alive() + BACKLOG < self.room {
            return 0;
        }
        self.listeners.iter().map(|listener| listener.socket.waiting()).sum()
    }

    /// Lets listeners rest, or wakes them.
    pub(super) fn rest(&mut self, rest: bool) {
        self.resting = rest;
        let flags = if rest { EventFlags::empty() } else { EventFlags::IN };
        let mut changed = Ok(());
        for (index, listener) in self.listeners.iter().enumerate() {
            changed = changed.and(epoll::modify(&self.epoll, &listener.socket.socket, Token::Listener(index).pack(), flags));
        }
        // One that stays watched though it is to rest costs turns of the loop, no more.
        if let (Err(errno), false) = (changed, rest) {
            tracing::error!("cannot watch a listener: {errno}; this is tried again in a second");
            self.resting = true;
            self.wakes = Some(self.scratch.now + REST);
        }
    }

    /// Something has ended: there may be room again.
    pub(super) fn after_end(&mut self) {
        if self.full {
            self.look_for_room();
        } else if self.resting {
            self.rest(false);
        }
    }
}
