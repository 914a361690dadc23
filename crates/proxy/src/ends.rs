//! The ways in and out alone, for a proxy of another kind that relays by itself: listeners as the configuration has them, legs dialled and
//! tuned by its profiles, the firewall's rules.

pub use crate::leg::Source;
use crate::{
    Config, LegProfile, StartError,
    controllers::Controllers,
    egress::Egress,
    failure::Failure,
    intercept,
    kernel_setting::{self, Changed},
    leg::{self, Call},
    rules::{Counted, Installed, RulesError},
};

use rustix::fd::AsFd;
use socket2::Socket;
use std::{io, net::SocketAddr};

/// An open listener.
#[derive(Debug)]
pub struct Listener(intercept::Listener);

/// A connection that came in. Its socket does not block, and resets its peer when it is dropped before it was shut down and heard.
#[derive(Debug)]
pub struct Arrival {
    /// The near leg.
    pub socket: Socket,
    /// Who calls.
    pub client: SocketAddr,
    /// Where it goes on to, where the client need not say it.
    pub server: Option<SocketAddr>,
}

impl Listener {
    /// Its socket once more, for whoever waits for connections and accepts them.
    pub fn socket(&self) -> io::Result<Socket> {
        self.0.socket.try_clone()
    }

    /// Finds out where an accepted connection goes; none when it goes nowhere and has been reset.
    pub fn arrival(&self, socket: Socket, client: SocketAddr) -> io::Result<Option<Arrival>> {
        let arrival = self.0.arrival(socket, &client.into())?;
        Ok(arrival.map(|intercept::Arrival { socket, client, server }| Arrival { socket, client, server }))
    }

    /// As what it listens.
    pub fn listen(&self) -> &crate::Listen {
        &self.0.listen
    }

    /// Where it listens, the port that the system chose too.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("a TCP socket without an IP address"))
    }
}

/// What legs have of the kernel, and the firewall's rules. Dropping it takes them away.
#[derive(Debug)]
pub struct Ends {
    config: Config,
    rules: Option<Installed>,
    _kernel: (Controllers, Option<Egress>),
    _mtu_probing: Option<Changed>,
}

impl Ends {
    /// Opens the listeners, then has the firewall bring them their traffic: in the network namespace of the calling thread.
    pub fn open(mut config: Config) -> Result<(Self, Vec<Listener>), StartError> {
        leg::raise_open_files();
        config.without_absent_families();
        let kernel = (config.prepare()?, Egress::of(&config.policy)?);
        Controllers::rename(&mut config.policy);
        let listeners = intercept::open(&config, 0)?.into_iter().map(Listener).collect();
        let rules = config.rules().map(Installed::install).transpose()?;
        let mtu_probing = config.install_rules.then(kernel_setting::probe_mtu).flatten();
        Ok((Ends { config, rules, _kernel: kernel, _mtu_probing: mtu_probing }, listeners))
    }

    /// Lets new connections pass unsplit, or takes them again.
    pub fn set_open(&mut self, open: bool) -> Result<(), RulesError> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.set_open(open).map(drop))
    }

    /// Looks whether the firewall's rules are still in place, and installs them again where they are
    /// not. To be called several times a second.
    ///
    /// # Errors
    /// When the rules were lost and several attempts to install them again have failed.
    pub fn check_rules(&mut self) -> Result<(), Failure> {
        self.rules.as_mut().map_or(Ok(()), |rules| rules.check().map(drop).map_err(Failure::Rules))
    }

    /// What the firewall has counted; none when its rules are not ours.
    pub fn counted(&mut self) -> Option<Result<Counted, RulesError>> {
        self.rules.as_mut().map(|rules| rules.counted())
    }

    /// How legs are dialled and tuned.
    pub fn dialler(&self) -> Dialler {
        Dialler { near: self.config.policy.near.clone(), far: self.config.policy.far.clone() }
    }
}

/// Dials and tunes legs: by the profiles of all near and all far ones; those for a prefix or an interface are the proxy's own.
#[derive(Debug, Clone)]
pub struct Dialler {
    near: LegProfile,
    far: LegProfile,
}

impl Dialler {
    /// Begins to connect to `to`, as the client `from` where that is to be worn. The connection completes, or fails, later.
    pub fn dial(&self, from: Option<Source>, to: SocketAddr) -> io::Result<Socket> {
        Call { profile: &self.far, shares: None, from, to, fast_open: false }.dial(|| Ok(0))
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
