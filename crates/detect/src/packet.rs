//! Headers of a frame: link layer (Ethernet, VLAN, PPPoE, Linux cooked), IP with extension headers,
//! TCP and UDP. A frame may be truncated. Lengths are those on the wire.

use crate::trace::{CapturedFrame, LinkType};
use etherparse::{LaxIpSlice, ip_number};
use std::net::{IpAddr, SocketAddr};

/// TCP flag FIN.
pub const FIN: u8 = 0x01;
/// TCP flag SYN.
pub const SYN: u8 = 0x02;
/// TCP flag RST.
pub const RST: u8 = 0x04;
/// TCP flag ACK.
pub const ACK: u8 = 0x10;

/// The result of dissecting a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dissected<'a> {
    /// A TCP segment.
    Tcp(TcpSegment<'a>),
    /// A UDP datagram.
    Udp {
        /// Source.
        from: SocketAddr,
        /// Destination.
        to: SocketAddr,
        /// Payload, bytes on the wire.
        length: u64,
    },
    /// Another protocol.
    Other,
    /// A fragment of an IP packet.
    Fragment,
    /// The frame is truncated within its headers, or they are malformed.
    Short,
    /// Number of an unsupported link type.
    UnknownLink(i32),
}

/// A TCP segment, or several that the host's stack had merged (TSO, GRO).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Remaining TTL or hop limit.
    pub ttl: u8,
    /// IPv4 identification. `None` for IPv6.
    pub ip_id: Option<u16>,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags, see [`SYN`] and others.
    pub flags: u8,
    /// Window field of the header, not scaled.
    pub window: u16,
    /// Options, as far as captured.
    pub options: &'a [u8],
    /// Payload bytes on the wire.
    pub length: u32,
    /// Payload, as far as captured.
    pub payload: &'a [u8],
}

impl TcpSegment<'_> {
    /// Whether a flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// TSval and TSecr (RFC 7323 §3).
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        // Fast path: the layout that nearly every stack uses (RFC 7323 appendix A).
        let value = match self.options {
            [1, 1, 8, 10, value @ ..] if value.len() >= 8 => value,
            options => options_of(options).find(|(kind, value)| *kind == 8 && value.len() == 8)?.1,
        };
        Some((be32(value, 0)?, be32(value, 4)?))
    }
}

/// The options of a header as kind and value. Stops at a malformed option.
pub(crate) fn options_of(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (kind, value, next) = match *rest {
            [] | [0, ..] => return None,
            [1, ref next @ ..] => (1, &rest[..0], next),
            [kind, length, ..] => {
                let length = usize::from(length);
                (kind, rest.get(2..length)?, &rest[length..])
            }
            [_] => return None,
        };
        rest = next;
        Some((kind, value))
    })
}

/// Big-endian number at an offset, or `None` past the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// As [`be16`], for 32 bits.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses the headers of a frame.
pub fn dissect<'a>(frame: &CapturedFrame<'a>) -> Dissected<'a> {
    let (ip, before) = match network(frame) {
        LinkPayload::Ip { bytes, before } => (bytes, before),
        LinkPayload::Other => return Dissected::Other,
        LinkPayload::Short => return Dissected::Short,
        LinkPayload::Unknown(link) => return Dissected::UnknownLink(link),
    };
    let Ok((sliced, stopped)) = LaxIpSlice::from_slice(ip) else { return Dissected::Short };
    if stopped.is_some() {
        return Dissected::Short;
    }
    let on_wire = frame.length.max(frame.bytes.len()).saturating_sub(before);
    let (ttl, ip_id, length) = match &sliced {
        LaxIpSlice::Ipv4(packet) => {
            let (header, total) = (packet.header(), usize::from(packet.header().total_len()));
            // A packet prepared for TSO has no total length yet.
            (header.ttl(), Some(header.identification()), if total < header.slice().len() { on_wire } else { total })
        }
        LaxIpSlice::Ipv6(packet) => {
            let payload = usize::from(packet.header().payload_length());
            (packet.header().hop_limit(), None, if payload == 0 { on_wire } else { 40 + payload })
        }
    };
    let (from, to) = (sliced.source_addr(), sliced.destination_addr());
    let payload = sliced.payload();
    if payload.fragmented {
        return Dissected::Fragment;
    }
    let upper: &'a [u8] = payload.payload;
    let length = length.saturating_sub(upper.as_ptr() as usize - ip.as_ptr() as usize);
    match payload.ip_number {
        ip_number::TCP => tcp(from, to, ttl, ip_id, upper, length).map_or(Dissected::Short, Dissected::Tcp),
        ip_number::UDP => match (be16(upper, 0), be16(upper, 2)) {
            (Some(source), Some(destination)) => Dissected::Udp {
                from: SocketAddr::new(from, source),
                to: SocketAddr::new(to, destination),
                length: length.saturating_sub(8) as u64,
            },
            _ => Dissected::Short,
        },
        _ => Dissected::Other,
    }
}

fn tcp<'a>(from: IpAddr, to: IpAddr, ttl: u8, ip_id: Option<u16>, bytes: &'a [u8], length: usize) -> Option<TcpSegment<'a>> {
    let (offset, flags) = (usize::from(bytes.get(12)? >> 4) * 4, *bytes.get(13)?);
    if offset < 20 || length < offset {
        return None;
    }
    let payload = bytes.get(offset..).unwrap_or_default();
    // No packet has more than 2^30 bytes.
    let length = u32::try_from(length - offset).ok().filter(|length| *length < 1 << 30)?;
    Some(TcpSegment {
        from: SocketAddr::new(from, be16(bytes, 0)?),
        to: SocketAddr::new(to, be16(bytes, 2)?),
        ttl,
        ip_id,
        seq: be32(bytes, 4)?,
        ack: be32(bytes, 8)?,
        flags,
        window: be16(bytes, 14)?,
        options: bytes.get(20..offset.min(bytes.len())).unwrap_or_default(),
        length,
        payload: &payload[..payload.len().min(length as usize)],
    })
}

enum LinkPayload<'a> {
    /// An IP packet, and the number of bytes before it.
    Ip {
        bytes: &'a [u8],
        before: usize,
    },
    Other,
    Short,
    Unknown(i32),
}

/// Strips the link-layer header.
fn network<'a>(frame: &CapturedFrame<'a>) -> LinkPayload<'a> {
    const IP: [u16; 2] = [0x0800, 0x86dd];
    let bytes = frame.bytes;
    let (mut kind, mut at) = match frame.link {
        LinkType::Ethernet => (be16(bytes, 12), 14),
        LinkType::Cooked => (be16(bytes, 14), 16),
        LinkType::Cooked2 => (be16(bytes, 0), 20),
        LinkType::Ip => (Some(IP[0]), 0),
        LinkType::Loopback => (Some(IP[0]), 4),
        LinkType::Unknown(number) => return LinkPayload::Unknown(number),
    };
    loop {
        match kind {
            // Raw IP has no EtherType. The version is read from the IP header.
            Some(kind) if IP.contains(&kind) => break,
            // VLAN tags, possibly nested.
            Some(0x8100 | 0x88a8 | 0x9100) => (kind, at) = (be16(bytes, at + 2), at + 4),
            // PPPoE session: PPP protocol numbers of IPv4 and IPv6.
            Some(0x8864) => {
                if !matches!(be16(bytes, at + 6), Some(0x0021 | 0x0057)) {
                    return LinkPayload::Other;
                }
                (kind, at) = (Some(IP[0]), at + 8);
            }
            Some(_) => return LinkPayload::Other,
            None => return LinkPayload::Short,
        }
    }
    match bytes.get(at..) {
        Some(ip) if !ip.is_empty() => LinkPayload::Ip { bytes: ip, before: at },
        _ => LinkPayload::Short,
    }
}
