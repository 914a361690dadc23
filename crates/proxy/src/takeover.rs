//! Hot restart: a new process takes over from the one that runs, while connections arrive.
//!
//! The *next* proxy connects to the control socket of the *present* one, and gets its listening
//! sockets, then the firewall's rules and the control socket itself. Until the next one says that
//! it is in charge, the present one keeps all of this and goes on accepting, so that a takeover
//! that fails changes nothing. Afterwards the present one drains, as an *earlier* proxy, and the
//! next one asks it for its flows and totals. `messages` has the order of the messages.
//!
//! A listening socket is never closed meanwhile: connections in its backlog are accepted by either
//! of the two.

mod generations;
mod launch;
mod link;
mod messages;
mod next;
mod present;
mod restart;
mod wire;

pub(crate) use generations::Generations;
pub use launch::Launch;
pub use link::EarlierLink;
pub use messages::RestartReport;
pub(crate) use messages::{FixedOptions, Hello, OfferedListener};
pub use next::{StartedProxy, Takeover, TakeoverError};
pub use present::{ControlEvent, Takeovers};
