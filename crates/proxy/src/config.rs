//! What a proxy is to do.

use crate::{leg::LegProfile, rules::Rules};
use ipnet::IpNet;
use scenario::Bytes;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

/// What a proxy is to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where connections come in.
    pub listen: Vec<Listen>,
    /// The leg that was accepted.
    pub near: LegProfile,
    /// The leg that is dialled.
    pub far: LegProfile,
    /// Profiles by the address of a leg's peer, whichever leg it is; the first that matches wins over `near` and `far`.
    pub by_peer: Vec<(IpNet, LegProfile)>,
    /// B: payload held in each direction of a connection; none: as much as the kernel's own buffers take.
    pub buffer: Option<Bytes>,
    /// Worker threads.
    pub threads: usize,
    /// How long a far leg may take to connect.
    pub connect_timeout: Duration,
    /// Whether the proxy installs the rules that bring it traffic; else the operator does.
    pub install_rules: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            near: LegProfile::default(),
            far: LegProfile::default(),
            by_peer: Vec::new(),
            buffer: Some(Bytes(1024 * 1024)),
            threads: 1,
            connect_timeout: Duration::from_secs(30),
            install_rules: true,
        }
    }
}

/// Where connections come in, and where they go on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Connections routed through this machine, taken by TPROXY; they go on to where they were going, from where they came.
    /// An unspecified IPv6 address stands for both families.
    Transparent(SocketAddr),
    /// Connections to this address go on to another.
    Forward {
        /// Here …
        at: SocketAddr,
        /// … and on to there.
        to: SocketAddr,
    },
}

impl FromStr for Listen {
    type Err = String;

    /// `transparent=[::]:5000` or `forward=127.0.0.1:8080=192.0.2.10:80`.
    fn from_str(text: &str) -> Result<Self, String> {
        let address = |text: &str| {
            text.parse::<SocketAddr>()
                .map_err(|_| format!("{text:?} is not an address with a port: write 192.0.2.1:5000 or [2001:db8::1]:5000"))
        };
        match text.split_once('=') {
            Some(("transparent", at)) => Ok(Listen::Transparent(address(at)?)),
            Some(("forward", both)) => {
                let (at, to) = both
                    .split_once('=')
                    .ok_or_else(|| format!("{text:?} says where to listen but not where to go on to: write forward=HERE=THERE"))?;
                Ok(Listen::Forward { at: address(at)?, to: address(to)? })
            }
            _ => Err(format!("{text:?} is no way to listen: write transparent=ADDRESS:PORT or forward=ADDRESS:PORT=ADDRESS:PORT")),
        }
    }
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nothing would ever come in.
    #[error("the proxy has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
    /// One process can own only one set of interception rules.
    #[error("there are {0} transparent listeners: one takes the traffic of all interfaces, so give one")]
    ManyTransparent(usize),
    /// B is below what the kernel can hold to.
    #[error("a buffer of {asked} is less than this host can hold to: give at least {least}")]
    BufferTooSmall {
        /// What was asked for.
        asked: Bytes,
        /// The least that can be kept.
        least: Bytes,
    },
    /// A controller is there, but not for everybody.
    #[error(
        "{leg}: the congestion controller {name:?} may be used only with CAP_NET_ADMIN: run as root, or add it to \
         net.ipv4.tcp_allowed_congestion_control"
    )]
    RestrictedController {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
    },
    /// A controller is not in the kernel.
    #[error("{leg}: the kernel has no congestion controller {name:?}; it has {available}. Choose one of these, or load it first")]
    NoController {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// What there is.
        available: String,
    },
}

impl Config {
    /// The least B: two segments in the receive queue and two unsent.
    pub const LEAST_BUFFER: Bytes = Bytes(4 * 1500);

    /// Finds what can't work before anything is set up.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::NoListener);
        }
        let transparent = self.listen.iter().filter(|listen| matches!(listen, Listen::Transparent(_))).count();
        if transparent > 1 {
            return Err(ConfigError::ManyTransparent(transparent));
        }
        if let Some(asked) = self.buffer.filter(|buffer| *buffer < Self::LEAST_BUFFER) {
            return Err(ConfigError::BufferTooSmall { asked, least: Self::LEAST_BUFFER });
        }
        let profiles = [("near leg".to_string(), &self.near), ("far leg".to_string(), &self.far)];
        let by_peer = self.by_peer.iter().map(|(prefix, profile)| (format!("legs to {prefix}"), profile));
        for (leg, profile) in profiles.into_iter().chain(by_peer) {
            let Some(name) = &profile.control else { continue };
            match crate::leg::try_controller(name).map_err(|why| why.kind()) {
                Err(io::ErrorKind::NotFound) => {
                    let available = crate::leg::available_controllers().join(", ");
                    return Err(ConfigError::NoController { leg, name: name.clone(), available });
                }
                Err(io::ErrorKind::PermissionDenied) => return Err(ConfigError::RestrictedController { leg, name: name.clone() }),
                // Whatever else may be wrong with sockets is not the controller's fault, and will be told when one is needed.
                _ => {}
            }
        }
        Ok(())
    }

    /// The rules this configuration needs; none when it takes no routed traffic or the operator brings it.
    pub fn rules(&self) -> Option<Rules> {
        self.install_rules
            .then(|| {
                self.listen.iter().find_map(|listen| match listen {
                    Listen::Transparent(at) => Some(Rules { listener: *at }),
                    Listen::Forward { .. } => None,
                })
            })
            .flatten()
    }

    /// The profile of a leg to `peer`, which is `default` unless a prefix says otherwise.
    pub(crate) fn profile<'a>(&'a self, peer: IpAddr, default: &'a LegProfile) -> &'a LegProfile {
        self.by_peer.iter().find(|(prefix, _)| prefix.contains(&peer)).map_or(default, |(_, profile)| profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_listen() {
        assert_eq!("transparent=[::]:5000".parse(), Ok(Listen::Transparent("[::]:5000".parse().unwrap())));
        assert_eq!(
            "forward=127.0.0.1:80=[::1]:8080".parse(),
            Ok(Listen::Forward { at: "127.0.0.1:80".parse().unwrap(), to: "[::1]:8080".parse().unwrap() })
        );
        for wrong in ["5000", "transparent=5000", "forward=127.0.0.1:80", "socks=[::]:1"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_at_start() {
        let listen = vec![Listen::Forward { at: "127.0.0.1:80".parse().unwrap(), to: "[::1]:8080".parse().unwrap() }];
        let good = Config { listen, ..Config::default() };
        assert!(good.check().is_ok());
        assert!(matches!(Config::default().check(), Err(ConfigError::NoListener)));
        assert!(matches!(Config { buffer: Some(Bytes(100)), ..good.clone() }.check(), Err(ConfigError::BufferTooSmall { .. })));
        let far = LegProfile { control: Some("cubik".into()), ..LegProfile::default() };
        let error = Config { far, ..good }.check().unwrap_err().to_string();
        assert!(error.starts_with("far leg: the kernel has no congestion controller \"cubik\"; it has "), "{error}");
    }
}
