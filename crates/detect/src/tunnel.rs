//! Removes headers of tunnels: GRE and what it carries, MPLS, and tunnels in UDP.

use crate::{
    layer::{Layer, UdpTunnel, Unwrapped, be16, be32, next},
    link_layer::looks_like_ethernet,
    obstacle::Obstacle,
};

/// The tunnel to which a UDP port belongs (IANA's registry; 8472 is Linux' former port of VXLAN).
pub(crate) fn by_port(source: u16, destination: u16) -> Option<UdpTunnel> {
    [destination, source].into_iter().find_map(|port| match port {
        4789 | 4790 | 8472 => Some(UdpTunnel::Vxlan),
        6081 => Some(UdpTunnel::Geneve),
        2152 => Some(UdpTunnel::GtpU),
        6635 => Some(UdpTunnel::Mpls),
        1701 => Some(UdpTunnel::L2tp),
        3544 => Some(UdpTunnel::Teredo),
        _ => None,
    })
}

/// What a UDP datagram carries that cannot be read.
pub(crate) fn obstacle_in_udp(source: u16, destination: u16, payload: &[u8]) -> Option<Obstacle> {
    [destination, source].into_iter().find_map(|port| match (port, payload) {
        (51820, [1..=4, 0, 0, 0, ..]) => Some(Obstacle::WireGuard),
        // The four zero bytes mark IKE, a single byte is a keep-alive (RFC 3948).
        (4500, [a, b, c, d, _, _, _, _, ..]) if [*a, *b, *c, *d] != [0; 4] => Some(Obstacle::Esp),
        (1194, [code, _, ..]) if (1..=11).contains(&(code >> 3)) => Some(Obstacle::OpenVpn),
        (1701, [_, version, ..]) if version & 0x0f == 3 => Some(Obstacle::L2tpV3),
        _ => None,
    })
}

/// Removes the header of a tunnel in UDP.
pub(crate) fn udp(tunnel: UdpTunnel, bytes: &[u8]) -> Unwrapped {
    match tunnel {
        UdpTunnel::Vxlan => vxlan(bytes),
        UdpTunnel::Geneve => geneve(bytes),
        UdpTunnel::GtpU => gtp_u(bytes),
        UdpTunnel::Mpls => next(Layer::Mpls, 0),
        UdpTunnel::L2tp => l2tp(bytes),
        UdpTunnel::Teredo => teredo(bytes),
    }
}

/// VXLAN (RFC 7348), with the group policy and generic protocol extensions.
fn vxlan(bytes: &[u8]) -> Unwrapped {
    const HAS_NETWORK: u8 = 0x08;
    const HAS_PROTOCOL: u8 = 0x04;
    let (Some(flags), Some(protocol), Some(number)) = (bytes.first(), bytes.get(3), be32(bytes, 4)) else { return Unwrapped::Short };
    if flags & HAS_NETWORK == 0 {
        return Unwrapped::Other;
    }
    let of = |layer| Unwrapped::Next { layer, skip: 8, network: (number >> 8).into() };
    match protocol {
        _ if flags & HAS_PROTOCOL == 0 => of(Layer::Ethernet),
        1 | 2 => of(Layer::Ip),
        3 => of(Layer::Ethernet),
        4 => of(Layer::EtherType(0x894f)),
        5 => of(Layer::Mpls),
        _ => Unwrapped::Other,
    }
}

/// Geneve (RFC 8926).
fn geneve(bytes: &[u8]) -> Unwrapped {
    let (Some(first), Some(kind), Some(number)) = (bytes.first(), be16(bytes, 2), be32(bytes, 4)) else { return Unwrapped::Short };
    if first >> 6 != 0 {
        return Unwrapped::Other;
    }
    Unwrapped::Next { layer: Layer::EtherType(kind), skip: 8 + usize::from(first & 0x3f) * 4, network: (number >> 8).into() }
}

/// GTP-U (3GPP TS 29.281): only G-PDUs carry packets.
fn gtp_u(bytes: &[u8]) -> Unwrapped {
    const USER_DATA: u8 = 255;
    let (Some(flags), Some(kind), Some(tunnel)) = (bytes.first(), bytes.get(1), be32(bytes, 4)) else { return Unwrapped::Short };
    if flags >> 4 != 0b0011 || *kind != USER_DATA {
        return Unwrapped::Other;
    }
    let mut skip = 8;
    if flags & 0x07 != 0 {
        // Sequence number, N-PDU number, type of the first extension header.
        let Some(mut extension) = bytes.get(11).copied() else { return Unwrapped::Short };
        skip += 4;
        while flags & 0x04 != 0 && extension != 0 {
            let Some(length) = bytes.get(skip).map(|words| usize::from(*words) * 4) else { return Unwrapped::Short };
            if length == 0 {
                return Unwrapped::Other;
            }
            skip += length;
            let Some(following) = bytes.get(skip - 1) else { return Unwrapped::Short };
            extension = *following;
        }
    }
    let Some(rest) = bytes.get(skip..).filter(|rest| !rest.is_empty()) else { return Unwrapped::Short };
    let layer = match rest[0] >> 4 {
        4 | 6 => Layer::Ip,
        _ if looks_like_ethernet(rest) => Layer::Ethernet,
        _ if rest.len() < 18 => return Unwrapped::Short,
        _ => return Unwrapped::Other,
    };
    Unwrapped::Next { layer, skip, network: tunnel.into() }
}

/// L2TP version 2 (RFC 2661): data messages carry PPP.
fn l2tp(bytes: &[u8]) -> Unwrapped {
    let Some(flags) = be16(bytes, 0) else { return Unwrapped::Short };
    let has = |flag: u16| flags & flag != 0;
    if has(0x8000) || flags & 0x000f != 2 {
        return Unwrapped::Other;
    }
    let session = if has(0x4000) { 6 } else { 4 };
    let offset = session + 2 + if has(0x0800) { 4 } else { 0 };
    let (Some(network), Some(pad)) = (be16(bytes, session), if has(0x0200) { be16(bytes, offset).map(|pad| pad + 2) } else { Some(0) })
    else {
        return Unwrapped::Short;
    };
    Unwrapped::Next { layer: Layer::Ppp, skip: offset + usize::from(pad), network: network.into() }
}

/// Teredo (RFC 4380): IPv6, perhaps after an authentication and an origin indication.
fn teredo(bytes: &[u8]) -> Unwrapped {
    let mut at = 0;
    if let [0, 1, client, authentication, ..] = bytes {
        at = 13 + usize::from(*client) + usize::from(*authentication);
    }
    if let Some([0, 0, ..]) = bytes.get(at..) {
        at += 8;
    }
    match bytes.get(at) {
        Some(first) if first >> 4 == 6 => next(Layer::Ip, at),
        Some(_) => Unwrapped::Other,
        None => Unwrapped::Short,
    }
}

/// GRE version 0 (RFC 2784, RFC 2890) and 1 (PPTP, RFC 2637).
pub(crate) fn gre(bytes: &[u8]) -> Unwrapped {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGEMENT: u16 = 0x0080;
    let (Some(flags), Some(kind)) = (be16(bytes, 0), be16(bytes, 2)) else { return Unwrapped::Short };
    let has = |flag: u16| flags & flag != 0;
    let key_at = if has(CHECKSUM) { 8 } else { 4 };
    let sequence_at = key_at + if has(KEY) { 4 } else { 0 };
    let mut skip = sequence_at + if has(SEQUENCE) { 4 } else { 0 };
    let Some(key) = (if has(KEY) { be32(bytes, key_at) } else { Some(0) }) else { return Unwrapped::Short };
    let of = |layer, skip, network: u32| Unwrapped::Next { layer, skip, network: network.into() };
    match (flags & 7, kind) {
        (1, 0x880b) => {
            skip += if has(ACKNOWLEDGEMENT) { 4 } else { 0 };
            // Without a sequence number it carries nothing. The upper half of the key is a length.
            if has(SEQUENCE) { of(Layer::Ppp, skip, key & 0xffff) } else { Unwrapped::Other }
        }
        (0, _) if has(ROUTING) => Unwrapped::Unreadable(Obstacle::Gre),
        // ERSPAN type I has no header of its own, type II one of eight bytes.
        (0, 0x88be) if !has(SEQUENCE) => of(Layer::Ethernet, skip, key),
        (0, 0x88be) => of(Layer::Ethernet, skip + 8, key),
        (0, 0x22eb) => erspan_3(bytes, skip),
        (0, 0x883e) => match bytes.get(skip) {
            // WCCP: version 2 has a header of four bytes before IP.
            Some(first) if first >> 4 == 4 => of(Layer::Ip, skip, key),
            Some(_) => of(Layer::Ip, skip + 4, key),
            None => Unwrapped::Short,
        },
        // Keep-alives of Cisco routers.
        (0, 0) => Unwrapped::Other,
        (0, 0x0800 | 0x86dd | 0x8847 | 0x8848 | 0x6558 | 0x880b | 0x8100 | 0x88a8 | 0x894f | 0x88e5) => {
            of(Layer::EtherType(kind), skip, key)
        }
        (0, 0x0806 | 0x2001 | 0x00fe | 0x8035 | 0x88cc) => Unwrapped::Other,
        _ => Unwrapped::Unreadable(Obstacle::Gre),
    }
}

/// ERSPAN type III (draft-foschiano-erspan): 12 bytes, and perhaps 8 of the platform.
fn erspan_3(bytes: &[u8], at: usize) -> Unwrapped {
    let Some(flags) = be16(bytes, at + 10) else { return Unwrapped::Short };
    let skip = at + 12 + if flags & 1 != 0 { 8 } else { 0 };
    // The type of the frame: Ethernet or IP.
    match (flags >> 10) & 0x1f {
        0 => next(Layer::Ethernet, skip),
        2 => next(Layer::Ip, skip),
        _ => Unwrapped::Unreadable(Obstacle::Gre),
    }
}

/// A stack of MPLS labels (RFC 3032), then IP, or Ethernet as a pseudowire (RFC 4448).
pub(crate) fn mpls(bytes: &[u8]) -> Unwrapped {
    const BOTTOM: u32 = 0x100;
    let mut at = 0;
    let label = loop {
        let Some(entry) = be32(bytes, at) else { return Unwrapped::Short };
        at += 4;
        if entry & BOTTOM != 0 {
            break entry >> 12;
        }
    };
    let rest = &bytes[at..];
    let of = |layer, skip: usize| Unwrapped::Next { layer, skip: at + skip, network: label.into() };
    // The label does not say what follows: the first four bits do, unless it is an Ethernet header
    // without control word.
    match rest.first().map(|first| first >> 4) {
        None => Unwrapped::Short,
        Some(4) if looks_like_ethernet(rest) && !has_valid_checksum(rest) => of(Layer::Ethernet, 0),
        Some(6) if looks_like_ethernet(rest) && !matches!(rest.get(6), Some(0 | 4 | 6 | 17 | 41 | 43 | 44 | 47 | 50 | 51 | 58 | 60)) => {
            of(Layer::Ethernet, 0)
        }
        Some(4 | 6) => of(Layer::Ip, 0),
        Some(0) if rest.get(4..).is_some_and(looks_like_ethernet) => of(Layer::Ethernet, 4),
        Some(_) if looks_like_ethernet(rest) => of(Layer::Ethernet, 0),
        // The control channel of a pseudowire (RFC 5586).
        Some(1) => Unwrapped::Other,
        Some(_) if rest.len() < 18 => Unwrapped::Short,
        Some(_) => Unwrapped::Unreadable(Obstacle::Mpls),
    }
}

/// Whether bytes begin with an IPv4 header whose checksum is right.
fn has_valid_checksum(bytes: &[u8]) -> bool {
    let length = bytes.first().map_or(0, |first| usize::from(first & 15) * 4);
    let Some(header) = bytes.get(..length).filter(|header| header.len() >= 20) else { return false };
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    folded == 0xffff || (folded & 0xffff) + (folded >> 16) == 0xffff
}
