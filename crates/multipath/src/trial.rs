//! Tries a network of a bond: connects over it and runs the handshake, with TLS if configured, then
//! closes the connection, as pooled ones may be closed.

use crate::{
    far_end::FarEnd,
    handshake::{Credentials, Handshake, HandshakeFailure, HandshakeStep},
    networks::connect,
    settings::{BondConfig, BondNetwork},
};
use bond::{HandshakeError, OLDEST_VERSION, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    time::{Duration, Instant},
};

/// Tries a network; returns how long it took.
///
/// # Errors
/// Why it failed, and the cure.
pub fn try_network(bond: &BondConfig, network: &BondNetwork, limit: Duration) -> Result<Duration, (String, String)> {
    let credentials = Credentials::of(bond).map_err(|why| (why, "give the bond a key".to_owned()))?;
    let mut failure = None;
    for to in addresses(network)? {
        let tried = match try_address(bond, network, (to, VERSION), &credentials, limit) {
            Err(TrialFailure::Old) => try_address(bond, network, (to, OLDEST_VERSION), &credentials, limit),
            tried => tried,
        };
        match tried {
            Ok(took) => return Ok(took),
            Err(TrialFailure::Old) => {}
            Err(TrialFailure::Failed(why, cure)) => failure = failure.or(Some((why, cure))),
        }
    }
    Err(failure.unwrap_or_else(|| ("no address can be tried".into(), late(network))))
}

/// The addresses of the other end over a network.
fn addresses(network: &BondNetwork) -> Result<Vec<SocketAddr>, (String, String)> {
    let (name, port) = match &network.to {
        FarEnd::Address(address) => return Ok(vec![*address]),
        FarEnd::Name(name, port) => (name, *port),
    };
    let cure = || format!("see whether `getent ahosts {name}` prints an address of the IP version of the source address, if there is one");
    let found = (name.as_str(), port).to_socket_addrs().map_err(|why| (format!("cannot look up {name}: {why}"), cure()))?;
    let fits = |address: &SocketAddr| network.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
    let addresses: Vec<SocketAddr> = found.filter(fits).collect();
    if addresses.is_empty() { Err((format!("{name} has no address that can be used"), cure())) } else { Ok(addresses) }
}

/// Why a trial failed.
enum TrialFailure {
    /// The other end speaks an older version of the protocol.
    Old,
    /// Why, and the cure.
    Failed(String, String),
}

/// Tries an address of the other end in a version of the protocol.
fn try_address(
    bond: &BondConfig,
    network: &BondNetwork,
    (to, version): (SocketAddr, u8),
    credentials: &Credentials,
    limit: Duration,
) -> Result<Duration, TrialFailure> {
    let failed = |(why, cure)| TrialFailure::Failed(why, cure);
    let begun = Instant::now();
    let socket = connect(network, to, bond.connection_window).map_err(|why| failed(unconnected(network, &why)))?;
    let mut handshake = Box::new(Handshake::dialled(socket, version, begun));
    let mut awaited = PollFlags::OUT;
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let why = if awaited == PollFlags::OUT { "no answer" } else { "connected, but the handshake was not complete" };
            return Err(failed((format!("{why} after {} s", limit.as_secs()), late(network))));
        }
        // Poll at intervals: TLS may have bytes to send that the socket had no room for.
        let wait = left.min(Duration::from_millis(100));
        let timeout = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::new(handshake.socket(), awaited)], Some(&timeout)) {
            Ok(0) if awaited == PollFlags::OUT => continue,
            Ok(_) => awaited = PollFlags::IN,
            Err(rustix::io::Errno::INTR) => continue,
            Err(why) => return Err(failed((format!("cannot wait for the connection: {why}"), "see `tandem doctor`".into()))),
        }
        match handshake.step(credentials) {
            Ok(HandshakeStep::Pending(waits)) => handshake = waits,
            Ok(HandshakeStep::Done(..)) => return Ok(begun.elapsed()),
            Err(HandshakeFailure::Failed(why)) => return Err(failed(unconnected(network, &why.into()))),
            Err(HandshakeFailure::Refused(HandshakeError::UnsupportedVersion(OLDEST_VERSION))) if version != OLDEST_VERSION => {
                return Err(TrialFailure::Old);
            }
            Err(why) => {
                let cure = "start `tandem bond serve` there with this key and, at both ends or at neither, --tls";
                return Err(failed((why.to_string(), cure.into())));
            }
        }
    }
}

fn late(network: &BondNetwork) -> String {
    format!("see whether packets to {} pass on the way and back (firewalls, routes at the other end)", network.to)
}

fn unconnected(network: &BondNetwork, why: &io::Error) -> (String, String) {
    let interface = network.interface.as_ref().map_or("", |interface| interface.0.as_str());
    let cure = match (why.kind(), why.raw_os_error()) {
        (_, Some(libc::ENODEV)) => format!("there is no interface {interface}: correct its name (`ip link`), or bring it up first"),
        (io::ErrorKind::ConnectionRefused, _) => format!("nothing listens at {}: start `tandem bond serve` there", network.to),
        (io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable, _) => {
            let through = if interface.is_empty() { String::new() } else { format!(" through {interface}") };
            format!("add a route to {}{through} (`ip route get` tries it)", network.to)
        }
        (io::ErrorKind::AddrNotAvailable, _) => "give a source that is an address of this host (`ip address`)".into(),
        (io::ErrorKind::PermissionDenied, _) => {
            "run as root, or with CAP_NET_RAW and CAP_NET_ADMIN; see whether a firewall forbids it".into()
        }
        _ => late(network),
    };
    (why.to_string(), cure)
}
