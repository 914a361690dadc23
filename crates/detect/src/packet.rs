//! A frame's headers: link (Ethernet, VLAN, PPPoE, Linux cooked), IP with its extensions, and TCP. What was captured may be less than what was sent;
//! lengths are those on the wire.

use crate::trace::{CapturedFrame, LinkType};
use etherparse::{LaxIpSlice, ip_number};
use std::net::{IpAddr, SocketAddr};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// What a frame carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dissected<'a> {
    Tcp(TcpSegment<'a>),
    /// Payload bytes of a datagram.
    Udp {
        from: SocketAddr,
        to: SocketAddr,
        length: u64,
    },
    /// Some other protocol.
    Other,
    /// A part of an IP packet.
    Fragment,
    /// Too little was captured to see its headers, or they make no sense.
    Short,
    /// The number of a link type that is not read.
    UnknownLink(i32),
}

/// A TCP segment, or several that the machine had put together (TSO, GRO).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub ttl: u8,
    /// None in IPv6, which has none.
    pub ip_id: Option<u16>,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    /// As it is in the header: not scaled.
    pub window: u16,
    /// As far as captured.
    pub options: &'a [u8],
    /// Payload bytes on the wire.
    pub length: u32,
    /// As far as captured.
    pub payload: &'a [u8],
}

impl TcpSegment<'_> {
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// TSval and TSecr (RFC 7323 §3).
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        // Where nearly everybody has them (RFC 7323 appendix A).
        let value = match self.options {
            [1, 1, 8, 10, value @ ..] if value.len() >= 8 => value,
            options => options_of(options).find(|(kind, value)| *kind == 8 && value.len() == 8)?.1,
        };
        Some((word(value, 0)?, word(value, 4)?))
    }
}

/// The options of a header: kind, value. Ends where they make no sense.
pub fn options_of(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
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

/// Big-endian numbers at a place, if there are bytes.
pub fn half_word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

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
            // A packet for TSO has no length yet.
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
        ip_number::UDP => match (half_word(upper, 0), half_word(upper, 2)) {
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
    // More than 2^30 no packet has.
    let length = u32::try_from(length - offset).ok().filter(|length| *length < 1 << 30)?;
    Some(TcpSegment {
        from: SocketAddr::new(from, half_word(bytes, 0)?),
        to: SocketAddr::new(to, half_word(bytes, 2)?),
        ttl,
        ip_id,
        seq: word(bytes, 4)?,
        ack: word(bytes, 8)?,
        flags,
        window: half_word(bytes, 14)?,
        options: bytes.get(20..offset.min(bytes.len())).unwrap_or_default(),
        length,
        payload: &payload[..payload.len().min(length as usize)],
    })
}

enum LinkPayload<'a> {
    /// An IP packet, and how many bytes are before it.
    Ip {
        bytes: &'a [u8],
        before: usize,
    },
    Other,
    Short,
    Unknown(i32),
}

/// What is behind the link's header.
fn network<'a>(frame: &CapturedFrame<'a>) -> LinkPayload<'a> {
    const IP: [u16; 2] = [0x0800, 0x86dd];
    let bytes = frame.bytes;
    let (mut kind, mut at) = match frame.link {
        LinkType::Ethernet => (half_word(bytes, 12), 14),
        LinkType::Cooked => (half_word(bytes, 14), 16),
        LinkType::Cooked2 => (half_word(bytes, 0), 20),
        LinkType::Ip => (Some(IP[0]), 0),
        LinkType::Loopback => (Some(IP[0]), 4),
        LinkType::Unknown(number) => return LinkPayload::Unknown(number),
    };
    loop {
        match kind {
            // The version is in the packet, too: raw IP says no more.
            Some(kind) if IP.contains(&kind) => break,
            // VLAN, in one or more layers.
            Some(0x8100 | 0x88a8 | 0x9100) => (kind, at) = (half_word(bytes, at + 2), at + 4),
            // PPPoE: PPP's numbers for IP.
            Some(0x8864) => {
                if !matches!(half_word(bytes, at + 6), Some(0x0021 | 0x0057)) {
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
