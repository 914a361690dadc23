//! ICMP echo requests, and what ICMP errors say about the packets that caused them.

use crate::{clock::now, sys};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

/// What happened to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its TTL expired on the way.
    Exceeded,
    /// It reached the host.
    Reached,
    /// Another node refused to forward it.
    Barred,
}

pub(crate) fn fate(host: IpAddr, icmp_error: &sys::IcmpError) -> Fate {
    let exceeded = if host.is_ipv6() { 3 } else { 11 };
    match icmp_error.from {
        Some(from) if from == host => Fate::Reached,
        _ if icmp_error.kind == exceeded && icmp_error.code == 0 => Fate::Exceeded,
        _ => Fate::Barred,
    }
}

/// A socket for ICMP echo. Requests are identified by their sequence numbers.
pub(crate) struct EchoSocket {
    pub(crate) socket: Socket,
    pub(crate) host: IpAddr,
    pub(crate) raw: bool,
    pub(crate) id: u16,
}

/// A reply to an echo request, or the ICMP error that it caused.
pub(crate) struct EchoReply {
    pub(crate) number: u16,
    pub(crate) at: i64,
    pub(crate) ttl: Option<u8>,
    pub(crate) fate: Fate,
    pub(crate) from: Option<IpAddr>,
}

impl EchoSocket {
    pub(crate) fn new(host: IpAddr) -> io::Result<Self> {
        let (domain, protocol) = if host.is_ipv6() { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        // Unprivileged users may have ICMP sockets (net.ipv4.ping_group_range). Root falls back to
        // raw sockets.
        let (socket, raw) = match Socket::new(domain, Type::DGRAM, Some(protocol)) {
            Ok(socket) => (socket, false),
            Err(_) => (Socket::new(domain, Type::RAW, Some(protocol))?, true),
        };
        sys::enable_error_queue(&socket, host.is_ipv6())?;
        socket.connect(&SocketAddr::new(host, 0).into())?;
        Ok(EchoSocket { socket, host, raw, id: std::process::id() as u16 })
    }

    pub(crate) fn send(&self, number: u16, hops: Option<u8>) -> io::Result<i64> {
        sys::set_hops(&self.socket, self.host.is_ipv6(), hops)?;
        let mut packet = [if self.host.is_ipv6() { 128 } else { 8 }, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        packet[6..8].copy_from_slice(&number.to_be_bytes());
        let sum = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
        packet[2..4].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        let at = now();
        self.socket.send(&packet)?;
        Ok(at)
    }

    /// Replies and errors that have arrived.
    pub(crate) fn replies(&self) -> Vec<EchoReply> {
        let (mut found, mut buffer) = (Vec::new(), [0; 256]);
        for errors in [true, false] {
            // A pending error makes every receive call fail once before queued data are returned.
            for _ in 0..64 {
                let Ok(got) = sys::receive(&self.socket, &mut buffer, errors) else { break };
                let bytes = &buffer[..got.length];
                // A raw socket delivers the IPv4 header too.
                let skip = if self.raw && !errors && !self.host.is_ipv6() {
                    usize::from(bytes.first().map_or(0, |first| first & 15)) * 4
                } else {
                    0
                };
                let Some(message) = bytes.get(skip..skip + 8) else { continue };
                let (kind, id) = (message[0], u16::from_be_bytes([message[4], message[5]]));
                let number = u16::from_be_bytes([message[6], message[7]]);
                if self.raw && id != self.id {
                    continue;
                }
                let (fate, from) = match got.icmp_error {
                    Some(icmp_error) => (fate(self.host, &icmp_error), icmp_error.from),
                    None if !errors && matches!(kind, 0 | 129) => (Fate::Reached, Some(self.host)),
                    None => continue,
                };
                found.push(EchoReply { number, at: got.at.unwrap_or_else(now), ttl: got.ttl, fate, from });
            }
        }
        found
    }
}
