//! Listeners: the sockets of `intercept`, each with its configuration. They are opened for each
//! worker, or inherited from the proxy from which this one takes over.

use crate::{
    config::{ListenerConfig, ProxyConfig},
    takeover::{FixedOptions, OfferedListener},
};
use intercept::{AcceptedConnection, ListenAt, Listener, ListenerOptions, OpenError, leg, listener::BACKLOG};
use rustix::fd::OwnedFd;
use std::{io, net::SocketAddr};
use units::Bytes;

/// An open listener of a worker.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub(crate) socket: Listener,
    pub(crate) listen: ListenerConfig,
}

/// Listening sockets of the proxy from which this one takes over.
#[derive(Debug, Default)]
pub(crate) struct InheritedListeners(Vec<(OfferedListener, Vec<OwnedFd>)>);

/// The inherited sockets of one address.
type Inherited<'a> = Option<&'a (OfferedListener, Vec<OwnedFd>)>;

impl InheritedListeners {
    /// Groups the sockets by their address.
    pub(crate) fn new(sockets: impl IntoIterator<Item = (OfferedListener, OwnedFd)>) -> Self {
        let mut all: Vec<(OfferedListener, Vec<OwnedFd>)> = Vec::new();
        for (listener, socket) in sockets {
            match all.iter_mut().find(|(known, _)| *known == listener) {
                Some((_, sockets)) => sockets.push(socket),
                None => all.push((listener, vec![socket])),
            }
        }
        InheritedListeners(all)
    }

    fn of(&self, at: SocketAddr, transparent: bool) -> Inherited<'_> {
        self.0.iter().find(|(listener, _)| (listener.at, listener.transparent) == (at, transparent))
    }

    /// The key of the configuration that an inherited socket cannot follow.
    pub(crate) fn needs_restart(&self, config: &ProxyConfig) -> Option<&'static str> {
        let wanted = config.listen.iter().flat_map(|listen| {
            let sockets = listen.at().sockets().into_iter();
            sockets.filter_map(move |at| Some((listen, self.of(at, listen.at().is_transparent())?)))
        });
        let differs = |(listen, (listener, _)): (&ListenerConfig, &(OfferedListener, Vec<OwnedFd>))| {
            let (present, next) = (listener.fixed, fixed(config, listen));
            let keys = [
                ("buffer", present.buffer != next.buffer),
                ("near.mss", present.mss != next.mss),
                ("bond.connection_window", present.window != next.window),
            ];
            keys.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
        };
        wanted.into_iter().find_map(differs)
    }
}

/// Opens the listeners of one worker, or uses inherited sockets. All workers share the ports
/// (SO_REUSEPORT).
///
/// # Errors
/// When a listener cannot be opened.
pub(crate) fn open(config: &ProxyConfig, worker: usize, inherited: &InheritedListeners) -> Result<Vec<WorkerListener>, OpenError> {
    let mut listeners = Vec::new();
    // All connections of a bond's stream must reach the same worker: only the first one listens.
    for listen in config.listen.iter().filter(|listen| worker == 0 || !listen.takes_streams()) {
        for at in listen.at().sockets() {
            let configured = ListenerConfig { at, ..listen.clone() };
            let sockets = match inherited.of(at, listen.at().is_transparent()) {
                Some((_, sockets)) => {
                    let workers = if listen.takes_streams() { 1 } else { config.threads.max(1) };
                    let sockets = share(sockets, worker, workers).map_err(OpenError::system("copy an inherited listening socket"))?;
                    sockets.iter().for_each(|socket| follow_buffer(socket, config, listen));
                    sockets
                }
                // One address alone, which is not extended to both families again.
                None => {
                    Listener::open_one(ListenAt { at, ..listen.at() }, &options(config, listen)).map(|listener| vec![listener.socket])?
                }
            };
            let listener = |socket| WorkerListener { listen: configured.clone(), socket: Listener { socket, listen: configured.at() } };
            listeners.extend(sockets.into_iter().map(listener));
        }
    }
    Ok(listeners)
}

/// The inherited sockets of an address that a worker uses. Each socket has at least one worker,
/// since the kernel distributes connections to all; each worker has at least one socket.
fn share(sockets: &[OwnedFd], worker: usize, workers: usize) -> io::Result<Vec<socket2::Socket>> {
    let own = sockets.iter().enumerate().filter(|(index, _)| index % workers == worker % sockets.len());
    own.map(|(_, socket)| socket.try_clone().map(Into::into)).collect()
}

/// What the proxy that takes over must know of a listener.
pub(crate) fn offered(config: &ProxyConfig, listener: &WorkerListener) -> OfferedListener {
    let listen = &listener.listen;
    OfferedListener { at: listen.at, transparent: listen.at().is_transparent(), fixed: fixed(config, listen) }
}

fn fixed(config: &ProxyConfig, listen: &ListenerConfig) -> FixedOptions {
    let options = options(config, listen);
    FixedOptions {
        buffer: config.listener_buffer().filter(|_| options.shares.is_some()),
        window: options.window.map(|window| Bytes(window as u64)),
        mss: options.mss,
    }
}

fn options(config: &ProxyConfig, listen: &ListenerConfig) -> ListenerOptions {
    ListenerOptions {
        shares_port: config.threads > 1,
        shares: config.shares().filter(|_| !listen.takes_streams()),
        window: config
            .bond
            .as_ref()
            .and_then(|bond| bond.connection_window)
            .filter(|_| listen.takes_streams())
            .map(|window| window.0 as usize),
        mss: config.policy.near.mss,
        backlog: BACKLOG.min(config.hard_limit_of_a_worker()),
    }
}

/// Has accepted connections begin with the first B of this configuration, and with a window scale
/// for the largest, where another one has opened the listener.
fn follow_buffer(socket: &socket2::Socket, config: &ProxyConfig, listen: &ListenerConfig) {
    if let Some(shares) = options(config, listen).shares.filter(|shares| shares.most_receive > shares.receive)
        && let Err(why) = leg::bound_receive_at_first(socket, shares.receive, shares.most_receive)
    {
        tracing::warn!("cannot set the first receive buffer of connections to {}: {why}; they begin with that of before", listen.at);
    }
}

impl WorkerListener {
    /// Takes its users and B from another configuration, for clients from now on.
    pub(crate) fn reload(&mut self, config: &ProxyConfig) {
        let same = |listen: &&ListenerConfig| (listen.at, listen.mode) == (self.listen.at, self.listen.mode);
        if let Some(listen) = config.listen.iter().find(same) {
            self.listen.users = listen.users.clone();
        }
        follow_buffer(&self.socket.socket, config, &self.listen);
    }

    /// Accepts a connection; none: the backlog is empty.
    ///
    /// # Errors
    /// When accepting fails, for example for lack of descriptors.
    pub(crate) fn accept(&self) -> io::Result<Option<AcceptedConnection>> {
        self.socket.accept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Buffer;
    use std::collections::BTreeSet;

    #[test]
    fn every_inherited_socket_has_a_worker_and_every_worker_a_socket() {
        for (sockets, workers) in [(1, 1), (1, 3), (2, 3), (3, 3), (3, 1), (5, 2)] {
            let open = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let all: Vec<OwnedFd> = (0..sockets).map(|_| open().into()).collect();
            let mut ports = BTreeSet::new();
            for worker in 0..workers {
                let own = share(&all, worker, workers).unwrap();
                assert!(!own.is_empty(), "{sockets} sockets, worker {worker} of {workers}");
                ports.extend(own.iter().map(|socket| socket.local_addr().unwrap().as_socket().unwrap().port()));
            }
            assert_eq!(ports.len(), sockets, "{sockets} sockets, {workers} workers");
        }
    }

    #[test]
    fn options_of_a_socket_that_listens_stay() {
        let listen = vec![ListenerConfig::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap())];
        let config = ProxyConfig { listen, ..ProxyConfig::default() };
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let offer = OfferedListener { at: config.listen[0].at, transparent: false, fixed: fixed(&config, &config.listen[0]) };
        let inherited = InheritedListeners::new([(offer, socket.into())]);
        assert_eq!(inherited.needs_restart(&config), None);
        let mut other = config.clone();
        other.policy.near.mss = Some(1200);
        assert_eq!(inherited.needs_restart(&other), Some("near.mss"));
        other.listen[0].at = "127.0.0.1:81".parse().unwrap();
        assert_eq!(inherited.needs_restart(&other), None, "another address is opened anew");
        assert_eq!(inherited.needs_restart(&ProxyConfig { buffer: Buffer::Fixed(ProxyConfig::LEAST_BUFFER), ..config }), Some("buffer"));
    }
}
