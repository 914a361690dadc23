//! The configuration of a proxy.
//!
//! `types` has the configuration itself; `file` and `text` read it from a file and from flags;
//! `page` is the live page, `check` finds values that cannot work; `capacity` computes for how many
//! connections there are descriptors.

mod capacity;
mod check;
mod file;
mod page;
mod text;
mod types;

pub use check::ProxyConfigError;
pub use file::{Service, config_schema};
pub use page::{PageConfig, PageError};
pub use types::{BufferSetting, ListenMode, ListenerConfig, ProxyConfig, ProxyVersion};
