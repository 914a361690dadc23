//! What cannot work of a configuration, and what of it cannot be changed while the proxy runs.

use super::types::{Config, Listen, ListenMode};
use intercept::{Controllers, InterceptionError, ListenerAccess, Users, UsersError, leg};
use multipath::{BondConfig, BondError};
use std::{io, net::SocketAddr};
use toml_file::FileError;
use units::Bytes;

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration {path}: {why}")]
    Unreadable {
        /// Which.
        path: String,
        /// The system's reason.
        why: io::Error,
    },
    /// The file is wrong.
    #[error("{0}")]
    File(Box<FileError>),
    /// Nothing would ever come in.
    #[error("the proxy has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
    /// Interception cannot work so.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// Users cannot be read, or others can read them too.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// A bond can't work so.
    #[error(transparent)]
    Bond(#[from] BondError),
    /// What must be more than nothing is nothing.
    #[error("{0} is 0, with which nothing would get through: give more, or leave it out")]
    Zero(&'static str),
    /// B is below what the kernel can hold to.
    #[error("a buffer of {asked} is less than this host can hold to: give at least {least}")]
    BufferTooSmall {
        /// What was asked for.
        asked: Bytes,
        /// The least that can be kept.
        least: Bytes,
    },
    /// More flows than descriptors.
    #[error(
        "{asked} flows need more open files than the {files} that the limit allows each of {threads} threads, enough for \
         {most}: raise it (ulimit -n, LimitNOFILE=), take more threads, or give less"
    )]
    TooManyFlows {
        /// What was asked for.
        asked: usize,
        /// The limit of open files.
        files: u64,
        /// Worker threads.
        threads: usize,
        /// What there is room for.
        most: usize,
    },
}

impl Listen {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.mode == ListenMode::Transparent && (self.accept_proxy || self.send_proxy.is_some()) {
            return Err("transparent connections keep their addresses and need no PROXY protocol: leave it out".into());
        }
        if self.mode == ListenMode::Bond && self.accept_proxy {
            return Err("streams of a bond tell who their client is without the PROXY protocol: leave accept_proxy out".into());
        }
        if self.mode == ListenMode::Bond && self.destinations.has_lists() {
            return Err("destinations of a bond are set for all its listeners: move allow and deny to [bond]".into());
        }
        if self.mode != ListenMode::Socks5 && self.destinations.has_lists() {
            return Err("allow and deny are for clients that name their destination (socks5): leave them out".into());
        }
        if self.mode != ListenMode::Socks5 && self.users.are_required() {
            return Err("users are for clients that name their destination (socks5): leave them out".into());
        }
        self.destinations.check_prefixes()
    }

    /// What of it cannot be changed while it listens.
    fn fixed(&self) -> Listen {
        Listen { users: Users::default(), ..self.clone() }
    }
}

impl Config {
    /// Finds what can't work before anything is set up.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.prepare().map(drop)
    }

    /// As [`Config::check`]; what the profiles need of the kernel is there for as long as the
    /// result is.
    pub(crate) fn prepare(&self) -> Result<Controllers, ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::NoListener);
        }
        let zeros = [
            ("max_flows", self.max_flows == Some(0)),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("idle_timeout", self.idle_timeout.is_some_and(|limit| limit.is_zero())),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero(key));
        }
        let interception = self.interception();
        interception.check()?;
        if let Some(asked) = self.buffer.filter(|buffer| *buffer < Self::LEAST_BUFFER) {
            return Err(ConfigError::BufferTooSmall { asked, least: Self::LEAST_BUFFER });
        }
        let most = self.threads.max(1) * self.flows_of_a_worker();
        if let Some(asked) = self.max_flows.filter(|asked| *asked > most) {
            return Err(ConfigError::TooManyFlows { asked, files: leg::open_files(), threads: self.threads, most });
        }
        // Over a bond it is the other end that connects.
        if self.networks.is_empty() {
            interception.check_forwards()?;
        }
        if let Some(bond) = &self.bond {
            bond.check(&self.networks)?;
        }
        self.profiles().try_for_each(|(leg, profile, _)| intercept::check_profile(leg, profile))?;
        Ok(Controllers::of(self.profiles()).map_err(InterceptionError::from)?)
    }

    /// Listeners for named destinations (SOCKS5, bonds) that are reachable from other hosts and
    /// limit neither clients (`users`) nor destinations (`allow`): the address of each, why that is
    /// doubtful, and the cure.
    pub fn open_listeners(&self) -> Vec<(SocketAddr, &'static str, &'static str)> {
        let mut found = Vec::new();
        for Listen { at, mode, destinations, users, .. } in self.listen.iter().filter(|listen| !listen.at.ip().is_loopback()) {
            let of_bond = self.bond.as_ref().map(|bond| &bond.destinations);
            match mode {
                ListenMode::Socks5 if destinations.allow.is_empty() && !users.are_required() => {
                    found.push((*at, ListenerAccess::OPEN, ListenerAccess::CLOSE));
                }
                ListenMode::Bond if of_bond.is_none_or(|destinations| destinations.allow.is_empty()) => found.push((
                    *at,
                    "every peer that has the bond's key can connect to every host that this one reaches",
                    "limit its destinations (allow of [bond], --allow PREFIX)",
                )),
                _ => {}
            }
        }
        found
    }

    /// What of this configuration differs from `other` in a way that only a restart can bring
    /// about.
    pub fn needs_restart(&self, other: &Config) -> Option<&'static str> {
        let differs = [
            ("listen", !self.listen.iter().map(Listen::fixed).eq(other.listen.iter().map(Listen::fixed))),
            ("threads", self.threads != other.threads),
            ("install_rules", self.install_rules != other.install_rules),
            ("forward_policy", self.forward_policy != other.forward_policy),
            ("buffer", self.small_buffer() != other.small_buffer()),
            ("near.mss", self.policy.near.mss != other.policy.near.mss),
            ("bond", self.bond.as_ref().map(BondConfig::fixed) != other.bond.as_ref().map(BondConfig::fixed)),
            ("bond.network", self.networks != other.networks),
        ];
        differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
    }

    /// A buffer so small that listeners have it from the start.
    fn small_buffer(&self) -> Option<Bytes> {
        self.buffer.filter(|bytes| leg::Shares::of(bytes.0 as usize).pipe == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::{LegProfile, Policy};
    use std::time::Duration;

    #[test]
    fn what_cannot_work_is_refused_at_start() {
        let listen = vec![Listen::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap())];
        let good = Config { listen, ..Config::default() };
        assert!(good.check().is_ok());
        assert!(matches!(Config::default().check(), Err(ConfigError::NoListener)));
        assert!(matches!(Config { buffer: Some(Bytes(100)), ..good.clone() }.check(), Err(ConfigError::BufferTooSmall { .. })));
        let far = LegProfile { control: Some("cubik".into()), ..LegProfile::default() };
        let policy = Policy { far, ..Policy::default() };
        for zero in [
            Config { max_flows: Some(0), ..good.clone() },
            Config { connect_timeout: Duration::ZERO, ..good.clone() },
            Config { idle_timeout: Some(Duration::ZERO), ..good.clone() },
        ] {
            assert!(matches!(zero.check(), Err(ConfigError::Zero(_))));
        }
        let error = Config { policy, ..good.clone() }.check().unwrap_err().to_string();
        assert!(error.starts_with("far leg: there is no congestion controller \"cubik\": the kernel has "), "{error}");
    }

    #[test]
    fn more_flows_than_descriptors_are_refused() {
        let listen = vec![Listen::socks5("127.0.0.1:80".parse().unwrap())];
        let error = Config { listen, max_flows: Some(100_000_000), ..Config::default() }.check().unwrap_err().to_string();
        assert!(error.starts_with("100000000 flows need more open files than the "), "{error}");
    }
}
