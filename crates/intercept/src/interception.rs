//! The configuration of interception, and its errors.

use crate::{
    ControllerError, Controllers, EgressError, LegProfile, ListenAt, Policy, Rules, RulesError, forward_loop, leg, listen,
    policy::Action,
    rules::{self, Carried, Experiment, ExperimentShare, ForwardPolicy},
};
use std::{fs, io, net::SocketAddr};
use units::Bytes;

/// The configuration of interception: listeners, which connections are split, how their legs are
/// tuned.
///
/// [`check`](Self::check) and [`check_forwards`](Self::check_forwards) find errors without changing
/// anything, [`prepare`](Self::prepare) tries the profiles and loads controllers,
/// [`ActiveInterception::open`](crate::ActiveInterception::open) sets everything up.
#[derive(Debug, Clone)]
pub struct Interception {
    /// The listeners.
    pub listen: Vec<ListenAt>,
    /// Which connections are split, and the profiles of their legs.
    pub policy: Policy,
    /// Whether the proxy installs the firewall rules that direct traffic to a transparent listener.
    /// If not, the operator installs them.
    pub install_rules: bool,
    /// Whether other programs' forward chains decide which connections may be split.
    pub forward_policy: ForwardPolicy,
    /// Which share of the connections passes unsplit to be compared with split ones. `None`: none.
    pub experiment: Option<ExperimentShare>,
    /// Whether there is a carrier, which takes connections by [`Action::Carry`] and by default.
    pub has_carrier: bool,
}

impl Default for Interception {
    fn default() -> Self {
        Interception {
            listen: Vec::new(),
            policy: Policy::default(),
            install_rules: true,
            forward_policy: ForwardPolicy::default(),
            experiment: None,
            has_carrier: false,
        }
    }
}

/// Why a configuration of interception cannot work, on any machine or on this one.
#[derive(Debug, thiserror::Error)]
pub enum InterceptionError {
    /// One process can own only one set of interception rules.
    #[error("there are {0} transparent listeners: one receives the traffic of all interfaces, so configure only one")]
    ManyTransparent(usize),
    /// A listener forwards to an address of this proxy.
    #[error(
        "the listener at {at} forwards to {to}, where this proxy itself listens: each connection would loop forever. Forward to \
         the server instead"
    )]
    ForwardsToItself {
        /// Where it listens.
        at: SocketAddr,
        /// Where it forwards to.
        to: SocketAddr,
    },
    /// A rule bypasses connections, but the proxy installs no firewall rules that could enforce it.
    #[error(
        "rule {0} lets connections bypass, but this proxy installs no firewall rules that could do so (--no-rules, or no \
         transparent listener): exclude those connections in your own firewall"
    )]
    NoBypass(usize),
    /// A rule names QUIC, but the proxy installs no firewall rules that could count or reject it.
    #[error(
        "rule {0} has quic, but this proxy installs no firewall rules that could do so (--no-rules, or no transparent listener): count or \
         reject UDP port 443 in your own firewall"
    )]
    NoQuic(usize),
    /// A profile requires ECN, but the kernel does not request it.
    #[error("{leg}: asks for ECN, but this host does not request it: sysctl -w net.ipv4.tcp_ecn=1 (it is {value})")]
    NoEcn {
        /// Which profile.
        leg: String,
        /// The value of `net.ipv4.tcp_ecn`.
        value: String,
    },
    /// A profile asks for a larger buffer than a socket can have.
    #[error("{leg}: {key} = \"{bytes}\" is more than a socket of the kernel can have: at most 2GiB; twice the BDP of the link is enough")]
    LargeBuffer {
        /// Which profile.
        leg: String,
        /// Which key.
        key: &'static str,
        /// Its value.
        bytes: Bytes,
    },
    /// A profile has the mark that the proxy's firewall rules use.
    #[error("{leg}: the mark {mark:#x} is reserved for this proxy's own firewall rules: choose another")]
    OwnMark {
        /// Which profile.
        leg: String,
        /// The mark.
        mark: u32,
    },
    /// An experiment is configured, but the proxy installs no firewall rules that could choose.
    #[error(
        "experiment needs the firewall rules of a transparent listener, which choose the connections that pass unsplit, and this proxy \
         installs none (--no-rules, or no transparent listener): leave experiment out"
    )]
    NoExperiment,
    /// The kernel refuses an option of a profile.
    #[error("{leg}: the kernel refuses this profile: {why}; {cure}")]
    Profile {
        /// Which profile.
        leg: String,
        /// The system's reason.
        why: io::Error,
        /// The cure.
        cure: &'static str,
    },
    /// A profile's controller cannot be used.
    #[error(transparent)]
    Controller(#[from] ControllerError),
}

/// Why a proxy could not be set up, apart from its own configuration: what was attempted, on what,
/// why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration cannot work on any machine, or not on this one.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// A listener could not be opened.
    #[error("cannot listen on {address}: {why}; {cure}")]
    Listen {
        /// The address, and its purpose if it is not a proxy's listener.
        address: String,
        /// The system's reason.
        why: io::Error,
        /// The cure.
        cure: &'static str,
    },
    /// The firewall or routing rules could not be installed.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A link could not be shaped or monitored.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// Another operation of the system failed.
    #[error("cannot {attempt}: {why}")]
    System {
        /// What was attempted: "start a worker thread".
        attempt: &'static str,
        /// The system's reason.
        why: io::Error,
    },
}

impl OpenError {
    /// For `map_err`: an operation of the system failed. `attempt` completes the sentence "cannot
    /// …".
    pub fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |why| OpenError::System { attempt, why }
    }

    /// For `map_err`: metrics cannot be served at this address.
    pub fn metrics(at: SocketAddr, why: io::Error) -> Self {
        let cure = match why.kind() {
            io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port (--metrics)",
            _ => "choose an address that this machine has, such as 127.0.0.1:9155",
        };
        OpenError::Listen { address: format!("{at} for metrics"), cure, why }
    }

    /// For `map_err`: the live page cannot be served at this address.
    pub fn page(at: SocketAddr, why: io::Error) -> Self {
        let cure = match why.kind() {
            io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port (--page)",
            _ => "choose an address that this machine has, such as 127.0.0.1:9155",
        };
        OpenError::Listen { address: format!("{at} for the page"), cure, why }
    }
}

impl Interception {
    /// Replaces the address `[::]` of listeners by 0.0.0.0 if IPv6 is disabled in this kernel
    /// (`ipv6.disable=1`).
    pub fn without_absent_families(&mut self) {
        self.listen.iter_mut().for_each(|listen| listen::without_absent_families(&mut listen.at));
    }

    /// The firewall rules that it needs. `None` if no listener is transparent, or the operator
    /// installs the rules.
    pub fn rules(&self) -> Option<Rules> {
        let transparent = self.listen.iter().find(|listen| listen.is_transparent())?;
        let policy = self.policy.rules.clone();
        // Connections of clients that do not know the key cannot be chosen by them.
        let experiment = self.experiment.map(|share| Experiment { share, keys: rules::random_keys() });
        let carried = self.has_carrier.then_some(Carried::ALL);
        self.install_rules.then_some(Rules { listener: transparent.at, policy, forward_policy: self.forward_policy, experiment, carried })
    }

    /// Finds listeners and rules that cannot work on any machine.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), InterceptionError> {
        let transparent = self.listen.iter().filter(|listen| listen.is_transparent()).count();
        if transparent > 1 {
            return Err(InterceptionError::ManyTransparent(transparent));
        }
        let bypass = self.policy.rules.iter().position(|rule| rule.action == Action::Bypass);
        if let Some(index) = bypass.filter(|_| !self.install_rules || transparent == 0) {
            return Err(InterceptionError::NoBypass(index + 1));
        }
        let quic = self.policy.rules.iter().position(|rule| rule.quic.is_some());
        if let Some(index) = quic.filter(|_| !self.install_rules || transparent == 0) {
            return Err(InterceptionError::NoQuic(index + 1));
        }
        if self.experiment.is_some() && (!self.install_rules || transparent == 0) {
            return Err(InterceptionError::NoExperiment);
        }
        Ok(())
    }

    /// Finds a listener that forwards to this proxy itself.
    ///
    /// # Errors
    /// [`InterceptionError::ForwardsToItself`] with the first such listener.
    pub fn check_forwards(&self) -> Result<(), InterceptionError> {
        match forward_loop::find(&self.listen) {
            Some((at, to)) => Err(InterceptionError::ForwardsToItself { at, to }),
            None => Ok(()),
        }
    }

    /// Like [`Interception::check`] and [`Interception::check_forwards`]; also tries the profiles
    /// and loads the controllers that they name. The controllers stay loaded until the result is
    /// dropped.
    ///
    /// # Errors
    /// The first error found.
    pub fn prepare(&self) -> Result<Controllers, InterceptionError> {
        self.check()?;
        self.check_forwards()?;
        self.policy.profiles().try_for_each(|(leg, profile, _)| check_profile(leg, profile))?;
        Ok(Controllers::of(self.policy.profiles())?)
    }
}

/// The kernel keeps the size of a socket's buffers in a signed number of 32 bits.
const MOST_BUFFER: u64 = 2 << 30;

/// Tries a profile on a socket that is then closed. `leg` is the profile's name in errors.
///
/// # Errors
/// Its mark is the proxy's own, a buffer is too large, this host does not request ECN, or the kernel
/// refuses an option.
pub fn check_profile(leg: String, profile: &LegProfile) -> Result<(), InterceptionError> {
    if let Some(mark) = profile.mark.filter(|mark| *mark == rules::MARK) {
        return Err(InterceptionError::OwnMark { leg, mark });
    }
    let buffers = [("send_buffer", profile.send_buffer), ("receive_buffer", profile.receive_buffer), ("not_sent", profile.not_sent)];
    if let Some((key, Some(bytes))) = buffers.into_iter().find(|(_, bytes)| bytes.is_some_and(|bytes| bytes.0 > MOST_BUFFER)) {
        return Err(InterceptionError::LargeBuffer { leg, key, bytes });
    }
    if profile.ecn {
        let value = fs::read_to_string("/proc/sys/net/ipv4/tcp_ecn").unwrap_or_default().trim().to_string();
        // These request ECN on outgoing connections; 3 and 4 know accurate ECN too.
        if !matches!(value.as_str(), "1" | "3" | "4") {
            return Err(InterceptionError::NoEcn { leg, value });
        }
    }
    leg::try_profile(profile).map_err(|why| {
        let cure = match why.kind() {
            io::ErrorKind::PermissionDenied => "run as root, or with CAP_NET_ADMIN (a mark needs it)",
            io::ErrorKind::InvalidInput => "a value is out of the kernel's range (mss is 88 to 32767, keepalive at most 32767s)",
            _ => "see `tandem doctor` for what this machine can do",
        };
        InterceptionError::Profile { leg, why, cure }
    })
}
