//! What a proxy is to do: from a file, from flags, or made by hand.

mod types;

pub use types::{BufferSetting, Config, ConfigError, Listen, ProxyVersion, Service, Way};
