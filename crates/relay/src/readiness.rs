//! The readiness of a socket, as an epoll event reports it.

use rustix::event::epoll::EventFlags;

/// The readiness of a socket, as an epoll event reports it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Readiness {
    /// A read returns data, end of file or an error.
    pub readable: bool,
    /// The send queue has room.
    pub writable: bool,
    /// The peer's FIN has arrived.
    pub hung_up: bool,
    /// The socket has an error, which `SO_ERROR` returns.
    pub failed: bool,
    /// Urgent data has arrived.
    pub urgent: bool,
}

impl Readiness {
    /// Events of a relayed socket: every change, once (edge-triggered).
    pub const INTEREST: EventFlags =
        EventFlags::IN.union(EventFlags::PRI).union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

    /// From the flags of an event.
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
