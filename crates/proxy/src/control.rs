//! The control socket: a Unix socket by which other processes query and change a running proxy.
//!
//! The socket is in a directory that only the proxy's user can write to (`runtime_dir`). Each side
//! authenticates the other by its credentials: the proxy answers only root and its own user, and a
//! client talks only to a process of the directory's owner. Both sides bound what they read, in
//! length and time.

mod line;
mod printable;
mod protocol;
mod remote;
mod server;

pub(crate) use line::write_line;
pub use protocol::{ProxyStatus, StatusDetails};
pub use remote::{ControlError, Remote};
pub(crate) use server::take_over_control;
pub use server::{ClaimedName, ControlSocket, claim, serve, serve_claimed};
