//! Segments of IPv4 for raw sockets, with whatever an attacker writes into them.

use lab::Host;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io::Read as _,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// A segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: &'a [u8],
}

/// Returns the sum of 16-bit words for an Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum()
}

impl Segment<'_> {
    /// The packet for a raw socket: the kernel fills in length and checksum of the IP header.
    fn packet(&self) -> Vec<u8> {
        let Segment { from, to, .. } = self;
        let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        // Header of 20 bytes, window, checksum, urgent pointer 0.
        tcp.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(self.payload);
        let length = (tcp.len() as u16).to_be_bytes();
        let pseudo = [&from.ip().octets()[..], &to.ip().octets(), &[0, 6], &length].concat();
        let mut total = sum(&pseudo) + sum(&tcp);
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        tcp[16..18].copy_from_slice(&(!(total as u16)).to_be_bytes());
        [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0][..], &from.ip().octets(), &to.ip().octets(), &tcp].concat()
    }
}

/// Sockets of a host that send and receive segments beside its own TCP.
pub(crate) struct RawTcp {
    sends: Socket,
    receives: Socket,
}

/// What was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: u32,
    pub(crate) ttl: u8,
}

impl RawTcp {
    pub(crate) fn new(host: &Host) -> Self {
        let socket = |protocol| host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).unwrap()).unwrap();
        let receives = socket(Protocol::TCP);
        receives.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        receives.set_recv_buffer_size(8 << 20).unwrap();
        RawTcp { sends: socket(Protocol::from(255)), receives }
    }

    pub(crate) fn send(&self, segment: &Segment<'_>) {
        self.sends.send_to(&segment.packet(), &SockAddr::from(segment.to)).unwrap();
    }

    /// The next segment that arrives before the deadline.
    pub(crate) fn receive(&self, deadline: Instant) -> Option<Received> {
        let mut bytes = vec![0; 1 << 16];
        while Instant::now() < deadline {
            let Ok(length) = (&self.receives).read(&mut bytes) else { continue };
            let packet = &bytes[..length];
            let header = usize::from(packet[0] & 15) * 4;
            let tcp = &packet[header..];
            let address = |at: usize, port: usize| {
                let ip = Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
                SocketAddrV4::new(ip, u16::from_be_bytes([tcp[port], tcp[port + 1]]))
            };
            let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
            let payload = tcp.len() - usize::from(tcp[12] >> 4) * 4;
            return Some(Received {
                from: address(12, 0),
                to: address(16, 2),
                seq: number(4),
                ack: number(8),
                flags: tcp[13],
                payload: payload as u32,
                ttl: packet[8],
            });
        }
        None
    }
}
