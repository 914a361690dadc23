//! Tries a network of a bond: connects over it and runs the handshake, with TLS if configured, then
//! closes the connection, as pooled ones may be closed.

use crate::{
    handshake::{Credentials, Handshake, HandshakeFailure, HandshakeStep},
    networks::connect,
    settings::{BondConfig, BondNetwork},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io,
    time::{Duration, Instant},
};

/// Tries a network; returns how long it took.
///
/// # Errors
/// Why it failed, and the cure.
pub fn try_network(bond: &BondConfig, network: &BondNetwork, limit: Duration) -> Result<Duration, (String, String)> {
    let credentials = Credentials::of(bond).map_err(|why| (why, "give the bond a key".to_owned()))?;
    let begun = Instant::now();
    let socket = connect(network, bond.connection_window).map_err(|why| unconnected(network, &why))?;
    let mut handshake = Box::new(Handshake::dialled(socket, begun));
    let mut awaited = PollFlags::OUT;
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let why = if awaited == PollFlags::OUT { "no answer" } else { "connected, but the handshake was not complete" };
            return Err((format!("{why} after {} s", limit.as_secs()), late(network)));
        }
        // Poll at intervals: TLS may have bytes to send that the socket had no room for.
        let wait = left.min(Duration::from_millis(100));
        let timeout = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::new(handshake.socket(), awaited)], Some(&timeout)) {
            Ok(0) if awaited == PollFlags::OUT => continue,
            Ok(_) => awaited = PollFlags::IN,
            Err(rustix::io::Errno::INTR) => continue,
            Err(why) => return Err((format!("cannot wait for the connection: {why}"), "see `tandem doctor`".into())),
        }
        match handshake.step(&credentials) {
            Ok(HandshakeStep::Pending(waits)) => handshake = waits,
            Ok(HandshakeStep::Done(..)) => return Ok(begun.elapsed()),
            Err(HandshakeFailure::Failed(why)) => return Err(unconnected(network, &why.into())),
            Err(why) => {
                let cure = "start `tandem bond serve` there with this key and, at both ends or at neither, --tls";
                return Err((why.to_string(), cure.into()));
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
            format!("add a route to {}{through} (`ip route get` tries it)", network.to.ip())
        }
        (io::ErrorKind::AddrNotAvailable, _) => "give a source that is an address of this host (`ip address`)".into(),
        (io::ErrorKind::PermissionDenied, _) => {
            "run as root, or with CAP_NET_RAW and CAP_NET_ADMIN; see whether a firewall forbids it".into()
        }
        _ => late(network),
    };
    (why.to_string(), cure)
}
