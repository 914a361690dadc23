//! What a proxy is to do: from a file, from flags, or made by hand.
//!
//! `types` has what can be told, `file` and `text` read it from a file and from flags, `check`
//! finds what cannot work, `capacity` says for how many connections there are descriptors.

mod capacity;
mod check;
mod file;
mod text;
mod types;

pub use check::ConfigError;
pub use file::{Service, config_schema};
pub use types::{BufferSetting, Config, Listen, ListenMode, ProxyVersion};
