//! How a running proxy is asked and told things, by a Unix socket.
//!
//! The socket is in a directory that only the proxy's user can write to (`runtime_dir`). Each side
//! checks who the other is: only root and the proxy's own user are answered, and only a proxy of
//! the directory's owner is asked. Both sides bound what they read, in length and time.

mod printable;
mod protocol;
mod remote;
mod server;

pub use protocol::Status;
pub use remote::{AskError, Remote};
pub use server::{ControlSocket, serve};
