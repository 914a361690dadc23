//! Checks of a configuration: values that cannot work, and changes that need a restart.

use super::{
    page::PageError,
    types::{Buffer, ListenMode, ListenerConfig, ProxyConfig},
};
use intercept::{Controllers, InterceptionError, ListenerAccess, Users, UsersError, leg};
use multipath::{BondConfig, BondError};
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    net::SocketAddr,
};
use toml_file::FileError;
use units::Bytes;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProxyConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {why}; name another file (-c), or make it readable for this user")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Error of the system call.
        why: io::Error,
    },
    /// The file has a wrong key or value.
    #[error("{0}")]
    File(Box<FileError>),
    /// Another of these errors, with the names of variables in place of their values.
    #[error("{0}")]
    Hidden(String),
    /// The configuration has no listener.
    #[error("the proxy has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
    /// Interception cannot work with this configuration.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// A file of users cannot be used.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// The bond cannot work with this configuration.
    #[error(transparent)]
    Bond(#[from] BondError),
    /// The live page cannot be served.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A value that must be more than 0 is 0.
    #[error("{0} is 0, which would let nothing through: set it to more than 0, or leave it out")]
    Zero(&'static str),
    /// B is below the smallest bound that the kernel can enforce.
    #[error("buffer is {asked}, which is less than the proxy can enforce: give at least {least}")]
    BufferTooSmall {
        /// The configured value.
        asked: Bytes,
        /// The smallest possible value.
        least: Bytes,
    },
    /// There are not enough descriptors for the configured number of flows.
    #[error(
        "max_flows is {asked}, but the limit of {files} open files for each of {threads} threads is enough for {most}: raise the \
         limit (ulimit -n, LimitNOFILE=), give more threads, or lower max_flows"
    )]
    TooManyFlows {
        /// The configured value.
        asked: usize,
        /// The limit of open files of a thread.
        files: u64,
        /// Number of worker threads.
        threads: usize,
        /// The largest possible value.
        most: usize,
    },
}

impl ListenerConfig {
    /// Finds options that do not fit the listener's mode.
    ///
    /// # Errors
    /// What is wrong, and the cure.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.mode == ListenMode::Transparent && (self.accept_proxy || self.send_proxy.is_some()) {
            return Err("transparent connections keep the client's address: leave accept_proxy and send_proxy out".into());
        }
        if self.mode == ListenMode::Bond && self.accept_proxy {
            return Err("the bond transmits the client's address itself: leave accept_proxy out".into());
        }
        if !self.accept_proxy && self.accept_proxy_max != ListenerConfig::MOST_PROXY_HEADER {
            return Err("accept_proxy_max applies only to listeners with accept_proxy: set that too, or leave it out".into());
        }
        if !(ListenerConfig::LEAST_PROXY_HEADER..=ListenerConfig::MOST_PROXY_HEADER).contains(&self.accept_proxy_max) {
            return Err(format!(
                "accept_proxy_max is {} bytes: give {} (addresses without extensions) to {} (all that the PROXY protocol allows)",
                self.accept_proxy_max.0,
                ListenerConfig::LEAST_PROXY_HEADER.0,
                ListenerConfig::MOST_PROXY_HEADER.0
            ));
        }
        if self.mode == ListenMode::Bond && self.destinations.has_lists() {
            return Err("allow and deny of a bond apply to all its listeners: move them to [bond]".into());
        }
        if self.mode != ListenMode::Socks5 && self.destinations.has_lists() {
            return Err("allow and deny apply only to socks5 listeners, whose clients name their destination: leave them out".into());
        }
        if self.mode != ListenMode::Socks5 && self.users.are_required() {
            return Err("users apply only to socks5 listeners: leave them out".into());
        }
        self.destinations.check_prefixes()
    }

    /// The part of the configuration that cannot change while the listener is open.
    fn fixed(&self) -> ListenerConfig {
        ListenerConfig { users: Users::default(), ..self.clone() }
    }
}

impl ProxyConfig {
    /// Finds values that cannot work on this host. It changes nothing.
    ///
    /// # Errors
    /// [`ProxyConfigError`] for the first such value.
    pub fn check(&self) -> Result<(), ProxyConfigError> {
        self.prepare().map(drop)
    }

    /// As [`ProxyConfig::check`], and loads the controllers that the profiles need. They stay
    /// loaded until the result is dropped.
    ///
    /// # Errors
    /// [`ProxyConfigError`] for the first value that cannot work.
    pub(crate) fn prepare(&self) -> Result<Controllers, ProxyConfigError> {
        if self.listen.is_empty() {
            return Err(ProxyConfigError::NoListener);
        }
        let zeros = [
            ("max_flows", self.max_flows == Some(0)),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("idle_timeout", self.idle_timeout.is_some_and(|limit| limit.is_zero())),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ProxyConfigError::Zero(key));
        }
        let interception = self.interception();
        interception.check()?;
        if let Some(asked) = self.buffer.most().filter(|buffer| *buffer < Self::LEAST_BUFFER) {
            return Err(ProxyConfigError::BufferTooSmall { asked, least: Self::LEAST_BUFFER });
        }
        let most = self.threads.max(1) * self.flows_of_a_worker();
        if let Some(asked) = self.max_flows.filter(|asked| *asked > most) {
            return Err(ProxyConfigError::TooManyFlows { asked, files: leg::open_files(), threads: self.threads, most });
        }
        // Over a bond, the other end connects.
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
    /// restrict neither clients (`users`) nor destinations (`allow`): for each its address, the
    /// risk, and the cure.
    pub fn open_listeners(&self) -> Vec<(SocketAddr, &'static str, &'static str)> {
        let mut found = Vec::new();
        for ListenerConfig { at, mode, destinations, users, .. } in self.listen.iter().filter(|listen| !listen.at.ip().is_loopback()) {
            let of_bond = self.bond.as_ref().map(|bond| &bond.destinations);
            match mode {
                ListenMode::Socks5 if destinations.allow.is_empty() && !users.are_required() => {
                    found.push((*at, ListenerAccess::OPEN, ListenerAccess::CLOSE));
                }
                ListenMode::Bond if of_bond.is_none_or(|destinations| destinations.allow.is_empty()) => found.push((
                    *at,
                    "every peer that has the bond's key can connect to every host that this one reaches",
                    "restrict its destinations (allow of [bond], --allow PREFIX)",
                )),
                _ => {}
            }
        }
        found
    }

    /// The first key that differs from `other` and cannot be changed while the proxy runs.
    pub fn needs_restart(&self, other: &ProxyConfig) -> Option<&'static str> {
        let differs = [
            ("listen", !self.listen.iter().map(ListenerConfig::fixed).eq(other.listen.iter().map(ListenerConfig::fixed))),
            ("threads", self.threads != other.threads),
            ("install_rules", self.install_rules != other.install_rules),
            ("forward_policy", self.forward_policy != other.forward_policy),
            ("buffer", self.listener_buffer() != other.listener_buffer()),
            ("near.mss", self.policy.near.mss != other.policy.near.mss),
            ("bond", self.bond.as_ref().map(BondConfig::fixed) != other.bond.as_ref().map(BondConfig::fixed)),
            ("bond.network", self.networks != other.networks),
        ];
        differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
    }

    /// A hash of the settings that an experiment is about: what was measured with other ones must
    /// not be added up. Another version may make other ones.
    pub(crate) fn compared_settings(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", (self.experiment, &self.policy, self.buffer)).hash(&mut hasher);
        hasher.finish()
    }

    /// The buffer, if it is so small that listeners set it on their sockets, or if it follows each
    /// flow up to this, for which their window scale must be enough.
    pub(crate) fn listener_buffer(&self) -> Option<Bytes> {
        match self.buffer {
            Buffer::Adaptive { most } => Some(most),
            Buffer::Fixed(bytes) => Some(bytes).filter(|bytes| leg::Shares::of(bytes.0 as usize).pipe == 0),
            Buffer::Unlimited => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::{LegProfile, Policy};
    use std::time::Duration;

    #[test]
    fn values_that_cannot_work_are_refused() {
        let listen = vec![ListenerConfig::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap())];
        let good = ProxyConfig { listen, ..ProxyConfig::default() };
        assert!(good.check().is_ok());
        assert!(matches!(ProxyConfig::default().check(), Err(ProxyConfigError::NoListener)));
        assert!(matches!(
            ProxyConfig { buffer: Buffer::Fixed(Bytes(100)), ..good.clone() }.check(),
            Err(ProxyConfigError::BufferTooSmall { .. })
        ));
        let far = LegProfile { control: Some("cubik".into()), ..LegProfile::default() };
        let policy = Policy { far, ..Policy::default() };
        for zero in [
            ProxyConfig { max_flows: Some(0), ..good.clone() },
            ProxyConfig { connect_timeout: Duration::ZERO, ..good.clone() },
            ProxyConfig { idle_timeout: Some(Duration::ZERO), ..good.clone() },
        ] {
            assert!(matches!(zero.check(), Err(ProxyConfigError::Zero(_))));
        }
        let error = ProxyConfig { policy, ..good.clone() }.check().unwrap_err().to_string();
        assert!(error.starts_with("far leg: there is no congestion controller \"cubik\": the kernel has "), "{error}");
    }

    #[test]
    fn a_buffer_that_follows_its_flows_needs_the_window_scale_of_its_maximum() {
        let of = |buffer: &str, max| {
            let mut config = ProxyConfig::default();
            config.set_buffer(buffer.parse().unwrap(), max);
            config
        };
        let (auto, fixed) = (of("auto", Some(Bytes(8 << 20))), of("8MiB", None));
        assert_eq!(auto.buffer_limits().map(|limits| limits.most), Some(8 << 20));
        assert_eq!(fixed.buffer_limits(), None);
        assert_eq!(auto.needs_restart(&fixed), Some("buffer"));
        assert_eq!(fixed.needs_restart(&auto), Some("buffer"));
        assert_eq!(auto.needs_restart(&of("auto", Some(Bytes(16 << 20)))), Some("buffer"));
        assert_eq!(auto.needs_restart(&auto.clone()), None);
        assert!(of("auto", None).buffer.most() <= Some(ProxyConfig::AUTO_BUFFER_MAX));
        assert_eq!(of("auto", Some(Bytes(100))).listener_buffer(), Some(Bytes(100)));
    }

    #[test]
    fn more_flows_than_descriptors_are_refused() {
        let listen = vec![ListenerConfig::socks5("127.0.0.1:80".parse().unwrap())];
        let error = ProxyConfig { listen, max_flows: Some(100_000_000), ..ProxyConfig::default() }.check().unwrap_err().to_string();
        assert!(error.starts_with("max_flows is 100000000, but the limit of "), "{error}");
    }
}
