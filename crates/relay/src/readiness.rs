//! What epoll tells of a socket.

use rustix::event::epoll::EventFlags;

/// What epoll told of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub struct Readiness {
    /// There is something to read, an end of file or an error.
    pub readable: bool,
    /// There is room in the send queue.
    pub writable: bool,
    /// The peer's FIN has come.
    pub hung_up: bool,
    /// The socket has an error, which `SO_ERROR` tells.
    pub failed: bool,
    /// Urgent data has come.
    pub urgent: bool,
}

impl Readiness {
    /// What to ask epoll to tell of a socket that is relayed: every change, once (edge-triggered).
    pub const INTEREST: EventFlags =
        EventFlags::IN.union(EventFlags::PRI).union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

    /// What the flags of an event mean.
    pub fn of(flags: EventFlags) -> Self {
        Readiness {
            readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP),
            writable: flags.contains(EventFlags::OUT),
            hung_up: flags.contains(EventFlags::RDHUP),
            failed: flags.contains(EventFlags::ERR),
            urgent: flags.contains(EventFlags::PRI),
        }
    }
}
