//! The configuration of a proxy.
//!
//! `types` has the configuration itself; `file` and `text` read it from a file and from flags;
//! `source` is the text behind it, and `changes` what of that is new after a reload; `page` is the
//! live page, `check` finds values that cannot work; `capacity` computes for how many connections
//! there are descriptors.

mod capacity;
mod changes;
mod check;
mod file;
mod page;
mod source;
mod text;
mod types;

pub use changes::{Application, KeyChange, ReloadReport, application};
pub use check::ProxyConfigError;
pub use file::{Service, config_schema};
pub use page::{PageConfig, PageError};
pub use source::ConfigSource;
pub use types::{Buffer, BufferSetting, ListenMode, ListenerConfig, ProxyConfig, ProxyVersion};
