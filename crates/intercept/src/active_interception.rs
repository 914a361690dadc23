//! Interception in operation, for a proxy that opens all listeners on one thread: the listeners, the
//! firewall rules, and what the legs need in the kernel.

use crate::{
    controllers::Controllers,
    egress::{Egress, LinkUses},
    interception::{Interception, OpenError},
    kernel_setting::{self, ChangedSetting},
    leg::{self, DialOptions, LegProfile, Source},
    listener::{Listener, ListenerOptions},
    rules::{Counted, Installed, RulesError, RulesLost},
};
use socket2::Socket;
use std::{io, net::SocketAddr};

/// The installed firewall rules and the kernel state of the legs: controllers, shapers, settings.
/// Dropping it removes them.
///
/// Call [`open`](Self::open), then [`check_rules`](Self::check_rules) several times a second. Drop
/// it before the listeners, so that the rules are removed while the listeners still exist.
#[derive(Debug)]
pub struct ActiveInterception {
    dialler: Dialler,
    rules: Option<Installed>,
    _kernel: (Controllers, Option<Egress>),
    _mtu_probing: Option<ChangedSetting>,
}

impl ActiveInterception {
    /// Opens the listeners, then installs the firewall rules that direct traffic to them, in the
    /// network namespace of the calling thread. Each listener is returned with the index of its
    /// address in `listen`.
    ///
    /// # Errors
    /// The configuration cannot work, or a part could not be set up. Everything that was set up
    /// before the error is removed again.
    pub fn open(mut interception: Interception) -> Result<(Self, Vec<(usize, Listener)>), OpenError> {
        leg::raise_open_files();
        interception.without_absent_families();
        let kernel = (interception.prepare()?, Egress::of(interception.policy.profiles(), &LinkUses::default())?);
        Controllers::rename(interception.policy.profiles_mut());
        let options = ListenerOptions { mss: interception.policy.near.mss, ..ListenerOptions::default() };
        let mut listeners = Vec::new();
        for (index, listen) in interception.listen.iter().enumerate() {
            listeners.extend(Listener::open(listen, &options)?.into_iter().map(|listener| (index, listener)));
        }
        let rules = interception.rules().map(Installed::install).transpose()?;
        let mtu_probing = interception.install_rules.then(kernel_setting::probe_mtu).flatten();
        let dialler = Dialler { near: interception.policy.near, far: interception.policy.far };
        Ok((ActiveInterception { dialler, rules, _kernel: kernel, _mtu_probing: mtu_probing }, listeners))
    }

    /// Intercepts new connections (`open`), or lets them pass unsplit. Connections that exist are
    /// not affected. Does nothing if the operator installs the rules.
    ///
    /// # Errors
    /// The nftables table could not be changed.
    pub fn set_open(&mut self, open: bool) -> Result<(), RulesError> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.set_open(open).map(drop))
    }

    /// Checks that the firewall rules are still in place, and installs them again if they are not.
    /// Call it several times a second.
    ///
    /// # Errors
    /// The rules were lost, and several attempts to install them again have failed.
    pub fn check_rules(&mut self) -> Result<(), RulesLost> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.check().map(drop))
    }

    /// The firewall's counters. `None` if the operator installs the rules.
    ///
    /// # Errors
    /// The inner result is an error if the counters cannot be read.
    pub fn counted(&mut self) -> Option<Result<Counted, RulesError>> {
        self.rules.as_mut().map(|rules| rules.counted())
    }

    /// How legs are dialled and tuned.
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }
}

/// Dials far legs and tunes near legs, by the profiles `near` and `far` of a policy. Its rules and
/// its profiles for prefixes and interfaces are not applied.
#[derive(Debug, Clone)]
pub struct Dialler {
    near: LegProfile,
    far: LegProfile,
}

impl Dialler {
    /// Begins to connect to `to`, from the address of the client `from` if there is one. The socket
    /// does not block: the connection completes or fails later.
    ///
    /// # Errors
    /// A socket option, bind or connect was refused.
    pub fn dial(&self, from: Option<Source>, to: SocketAddr) -> io::Result<Socket> {
        DialOptions { profile: &self.far, shares: None, from, to, fast_open: false }.dial(|| Ok(0))
    }

    /// Applies the profile `near` to an accepted leg.
    ///
    /// # Errors
    /// The kernel refused a socket option.
    pub fn tune(&self, near: &Socket) -> io::Result<()> {
        leg::apply(near, &self.near, || Ok(0))
    }
}
