//! How a connection ended.

use std::{fmt, io};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Both ends closed, and everything was delivered.
    Finished,
    /// The near leg was reset, or its peer fell silent.
    NearFailed(io::ErrorKind),
    /// The far end was not reached, or refused the connection.
    FarNotReached(io::ErrorKind),
    /// The far leg was reset, or its peer fell silent.
    FarFailed(io::ErrorKind),
    /// No byte moved for longer than the idle timeout.
    Idle,
    /// The client did not name its destination, or its greeting was malformed.
    NoGreeting,
    /// No descriptor or memory was left for it.
    NoRoom,
    /// The proxy stopped.
    Stopped,
    /// Memory was short, and nothing had moved for a while although bytes were held.
    Stuck,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Finished => write!(f, "finished"),
            Ending::NearFailed(why) => write!(f, "near leg failed: {why}"),
            Ending::FarNotReached(why) => write!(f, "far end not reached: {why}"),
            Ending::FarFailed(why) => write!(f, "far leg failed: {why}"),
            Ending::Idle => write!(f, "idle for too long"),
            Ending::NoGreeting => write!(f, "no sensible greeting"),
            Ending::NoRoom => write!(f, "no descriptor or memory left"),
            Ending::Stopped => write!(f, "proxy stopped"),
            Ending::Stuck => write!(f, "stuck while memory was short"),
        }
    }
}

impl Ending {
    /// The ending of a connection whose far leg could not be dialled.
    pub fn undialled(why: &io::Error) -> Self {
        let out_of_descriptors = matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if out_of_descriptors { Ending::NoRoom } else { Ending::FarNotReached(why.kind()) }
    }

    /// Name of its kind, as in metrics.
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.index()]
    }

    /// Names of all kinds.
    pub const KINDS: [&'static str; 10] =
        ["finished", "near_failed", "far_not_reached", "far_timed_out", "far_failed", "idle", "no_greeting", "no_room", "stopped", "stuck"];

    /// Index of its kind in [`KINDS`](Self::KINDS).
    pub fn index(&self) -> usize {
        match self {
            Ending::Finished => 0,
            Ending::NearFailed(_) => 1,
            Ending::FarNotReached(io::ErrorKind::TimedOut) => 3,
            Ending::FarNotReached(_) => 2,
            Ending::FarFailed(_) => 4,
            Ending::Idle => 5,
            Ending::NoGreeting => 6,
            Ending::NoRoom => 7,
            Ending::Stopped => 8,
            Ending::Stuck => 9,
        }
    }
}
