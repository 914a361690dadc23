//! Interception at work, for a proxy whose listeners stand on one thread: listeners, the firewall's
//! rules, what the legs need of the kernel.

use crate::{
    controllers::Controllers,
    egress::Egress,
    interception::{Interception, OpenError},
    kernel_setting::{self, ChangedSetting},
    leg::{self, DialOptions, LegProfile, Source},
    listener::{Listener, ListenerOptions},
    rules::{Counted, Installed, RulesError, RulesLost},
};
use rustix::fd::AsFd;
use socket2::Socket;
use std::{io, net::SocketAddr};

/// What legs have of the kernel, and the firewall's rules. Dropping it takes them away.
#[derive(Debug)]
pub struct ActiveInterception {
    dialler: Dialler,
    rules: Option<Installed>,
    _kernel: (Controllers, Option<Egress>),
    _mtu_probing: Option<ChangedSetting>,
}

impl ActiveInterception {
    /// Opens the listeners, then has the firewall bring them their traffic: in the network
    /// namespace of the calling thread. Each listener comes with the index of its address in
    /// `listen`.
    ///
    /// # Errors
    /// What cannot work or could not be set up; then nothing of it is left.
    pub fn open(mut interception: Interception) -> Result<(Self, Vec<(usize, Listener)>), OpenError> {
        leg::raise_open_files();
        interception.without_absent_families();
        let kernel = (interception.prepare()?, Egress::of(interception.policy.profiles())?);
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

    /// Lets new connections pass unsplit, or takes them again.
    pub fn set_open(&mut self, open: bool) -> Result<(), RulesError> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.set_open(open).map(drop))
    }

    /// Looks whether the firewall's rules are still in place, and installs them again where they
    /// are not. To be called several times a second.
    ///
    /// # Errors
    /// When the rules were lost and several attempts to install them again have failed.
    pub fn check_rules(&mut self) -> Result<(), RulesLost> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.check().map(drop))
    }

    /// What the firewall has counted; none when its rules are not ours.
    pub fn counted(&mut self) -> Option<Result<Counted, RulesError>> {
        self.rules.as_mut().map(|rules| rules.counted())
    }

    /// How legs are dialled and tuned.
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }
}

/// Dials and tunes legs: by the profiles of all near and all far ones; those for a prefix or an
/// interface are the proxy's own.
#[derive(Debug, Clone)]
pub struct Dialler {
    near: LegProfile,
    far: LegProfile,
}

impl Dialler {
    /// Begins to connect to `to`, as the client `from` where that is to be worn. The connection
    /// completes, or fails, later.
    pub fn dial(&self, from: Option<Source>, to: SocketAddr) -> io::Result<Socket> {
        DialOptions { profile: &self.far, shares: None, from, to, fast_open: false }.dial(|| Ok(0))
    }

    /// Tunes an accepted leg.
    pub fn tune(&self, near: &Socket) -> io::Result<()> {
        leg::apply(near, &self.near, || Ok(0))
    }
}

/// Has a leg that has just connected, and has nothing to say, acknowledge so at once.
pub fn acknowledge(leg: impl AsFd) {
    // The kernel would do so a moment later.
    let _ = rustix::net::sockopt::set_tcp_quickack(leg, true);
}
