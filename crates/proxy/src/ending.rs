//! How a connection ended.

use std::{fmt, io};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Both ends closed, and all was delivered.
    Finished,
    /// The near end reset it, or fell silent.
    NearFailed(io::ErrorKind),
    /// The far end could not be reached, or refused.
    FarNotReached(io::ErrorKind),
    /// The far end reset it, or fell silent.
    FarFailed(io::ErrorKind),
    /// The proxy had no descriptor left for it.
    NoRoom,
    /// The proxy stopped.
    Stopped,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Finished => write!(f, "finished"),
            Ending::NearFailed(why) => write!(f, "near leg failed: {why}"),
            Ending::FarNotReached(why) => write!(f, "far end not reached: {why}"),
            Ending::FarFailed(why) => write!(f, "far leg failed: {why}"),
            Ending::NoRoom => write!(f, "no descriptor left"),
            Ending::Stopped => write!(f, "proxy stopped"),
        }
    }
}
