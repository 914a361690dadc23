//! Puts the controllers and the egress monitor into the running kernel, and reads them back.
//!
//! A controller becomes a congestion control of the kernel by BPF struct_ops, named `td_` and its name: no module, no patch, any kernel
//! with BTF. A program that knows nothing of Tandem may then use it (`iperf3 -C td_hybla`). The [`Monitor`] measures what leaves an
//! interface and what waits before it, and shares that with the controllers that ask for it.
//!
//! What the controllers decide is in crate `control`; which leg gets which is the proxy's affair.

mod controllers;
mod error;
mod features;
mod monitor;
mod registration;
mod replay;
mod shared_maps;
mod sock_diag;
mod sys;

pub use control::{Controller, Link};
pub use controllers::{Held, Loaded, has, list, load, meant, unload};
pub use error::Error;
pub use monitor::{Monitor, Place, Settings, Watch};
pub use replay::Replay;
pub use shared_maps::weigh;
#[doc(hidden)]
pub use sock_diag::read_inodes;
pub use sock_diag::{User, users};
pub use sys::may_load;

/// The result of what this crate does.
pub type Result<T> = std::result::Result<T, Error>;
