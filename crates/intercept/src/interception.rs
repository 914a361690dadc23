//! What a configuration says of interception, and what is wrong with it.

use crate::{
    ControllerError, Controllers, EgressError, LegProfile, ListenAt, Policy, Rules, RulesError, forward_loop, leg, listen,
    policy::Action,
    rules::{self, ForwardPolicy},
};
use std::{fs, io, net::SocketAddr};

/// Where connections come in, which of them are taken, and how their legs are tuned.
#[derive(Debug, Clone)]
pub struct Interception {
    /// Where connections come in.
    pub listen: Vec<ListenAt>,
    /// Which connections are split, and the profiles of their legs.
    pub policy: Policy,
    /// Whether the rules that bring traffic to a transparent listener are installed; otherwise the
    /// operator installs them.
    pub install_rules: bool,
    /// Whether other programs' forward chains decide what may be taken.
    pub forward_policy: ForwardPolicy,
}

impl Default for Interception {
    fn default() -> Self {
        Interception { listen: Vec::new(), policy: Policy::default(), install_rules: true, forward_policy: ForwardPolicy::default() }
    }
}

/// Why interception cannot be set up as it is configured, on any machine or on this one.
#[derive(Debug, thiserror::Error)]
pub enum InterceptionError {
    /// One process can own only one set of interception rules.
    #[error("there are {0} transparent listeners: one takes the traffic of all interfaces, so give one")]
    ManyTransparent(usize),
    /// A listener would be its own server.
    #[error(
        "the listener at {at} forwards to {to}, where this proxy listens itself: each connection would come back to it without end. \
         Forward to the server"
    )]
    ForwardsToItself {
        /// Where it listens.
        at: SocketAddr,
        /// Where it forwards to.
        to: SocketAddr,
    },
    /// Nothing enforces a bypass.
    #[error(
        "rule {0} lets connections bypass, but nothing here could let them: the rules are left to you (--no-rules), or no \
         listener is transparent. Leave those connections out in your own firewall"
    )]
    NoBypass(usize),
    /// ECN is asked for, but the kernel is not to use it.
    #[error("{leg}: asks for ECN, which this host requests of no peer: sysctl -w net.ipv4.tcp_ecn=1 (it is {value})")]
    NoEcn {
        /// Which profile.
        leg: String,
        /// What the setting is.
        value: String,
    },
    /// A mark would be taken for the proxy's own.
    #[error("{leg}: the mark {mark:#x} is the one by which this proxy's own rules know its packets: choose another")]
    OwnMark {
        /// Which profile.
        leg: String,
        /// The mark.
        mark: u32,
    },
    /// A socket refuses a profile.
    #[error("{leg}: the kernel refuses this profile: {why}; {cure}")]
    Profile {
        /// Which profile.
        leg: String,
        /// The system's reason.
        why: io::Error,
        /// What to do about it.
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
        /// Where.
        address: String,
        /// The system's reason.
        why: io::Error,
        /// What to do about it.
        cure: &'static str,
    },
    /// The firewall or routing rules could not be installed.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A link could not be shaped or watched.
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
    /// For `map_err`: an operation of the system failed. `attempt` completes the sentence "cannot …".
    pub fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |why| OpenError::System { attempt, why }
    }

    /// Metrics cannot be served at this address.
    pub fn metrics(at: SocketAddr, why: io::Error) -> Self {
        let cure = match why.kind() {
            io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port (--metrics)",
            _ => "choose an address that this machine has, such as 127.0.0.1:9155",
        };
        OpenError::Listen { address: format!("{at} for metrics"), cure, why }
    }
}

impl Interception {
    /// Listens on 0.0.0.0 in place of `[::]` where this kernel has IPv6 switched off
    /// (`ipv6.disable=1`).
    pub fn without_absent_families(&mut self) {
        self.listen.iter_mut().for_each(|listen| listen::without_absent_families(&mut listen.at));
    }

    /// The rules it needs; none when no routed traffic is taken or the operator brings it.
    pub fn rules(&self) -> Option<Rules> {
        let transparent = self.listen.iter().find(|listen| listen.is_transparent())?;
        let policy = self.policy.rules.clone();
        self.install_rules.then_some(Rules { listener: transparent.at, policy, forward_policy: self.forward_policy })
    }

    /// Finds what cannot work before anything is set up, of listeners and rules.
    ///
    /// # Errors
    /// The first thing that cannot work.
    pub fn check(&self) -> Result<(), InterceptionError> {
        let transparent = self.listen.iter().filter(|listen| listen.is_transparent()).count();
        if transparent > 1 {
            return Err(InterceptionError::ManyTransparent(transparent));
        }
        let bypass = self.policy.rules.iter().position(|rule| rule.action == Action::Bypass);
        if let Some(index) = bypass.filter(|_| !self.install_rules || transparent == 0) {
            return Err(InterceptionError::NoBypass(index + 1));
        }
        Ok(())
    }

    /// Finds a listener that forwards to this proxy itself.
    ///
    /// # Errors
    /// That listener.
    pub fn check_forwards(&self) -> Result<(), InterceptionError> {
        match forward_loop::find(&self.listen) {
            Some((at, to)) => Err(InterceptionError::ForwardsToItself { at, to }),
            None => Ok(()),
        }
    }

    /// As [`Interception::check`] and [`Interception::check_forwards`], and tries the profiles.
    /// What these need of the kernel is there for as long as the result is.
    ///
    /// # Errors
    /// The first thing that cannot work.
    pub fn prepare(&self) -> Result<Controllers, InterceptionError> {
        self.check()?;
        self.check_forwards()?;
        self.policy.profiles().try_for_each(|(leg, profile, _)| check_profile(leg, profile))?;
        Ok(Controllers::of(self.policy.profiles())?)
    }
}

/// Tries a profile on a socket; `leg` is what errors call it.
///
/// # Errors
/// Its mark is the proxy's own, this host does not request ECN, or the kernel refuses an option.
pub fn check_profile(leg: String, profile: &LegProfile) -> Result<(), InterceptionError> {
    if let Some(mark) = profile.mark.filter(|mark| *mark == rules::MARK) {
        return Err(InterceptionError::OwnMark { leg, mark });
    }
    if profile.ecn {
        let value = fs::read_to_string("/proc/sys/net/ipv4/tcp_ecn").unwrap_or_default().trim().to_string();
        // 1: asked for and granted; 4: the same, with accurate ECN where the peer has it too.
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
