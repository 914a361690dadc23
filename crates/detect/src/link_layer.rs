//! Removes headers of link layers: Ethernet with its tags, LLC and SNAP, Linux cooked captures,
//! PPP, HDLC, NFLOG and others (tcpdump.org/linktypes.html).

use crate::{
    layer::{Layer, Unwrapped, be16, be32, next},
    obstacle::Obstacle,
    trace::LinkType,
};

/// EtherTypes of IPv4 and IPv6.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Largest value of the type field of Ethernet that is a length (IEEE 802.3).
const LARGEST_LENGTH: u16 = 1500;

/// Removes the header of the capture's link layer.
pub(crate) fn link(link: LinkType, bytes: &[u8]) -> Unwrapped {
    match link {
        LinkType::Ethernet => ethernet(bytes),
        LinkType::Cooked => cooked(be16(bytes, 2), be16(bytes, 14), 16),
        LinkType::Cooked2 => cooked(be16(bytes, 8), be16(bytes, 0), 20),
        LinkType::Ip => next(Layer::Ip, 0),
        LinkType::Loopback => next(Layer::Ip, 4),
        LinkType::Ppp => next(Layer::Ppp, 0),
        LinkType::PppDirected => next(Layer::Ppp, 1),
        // The direction replaces the address byte.
        LinkType::PppPppd => next(Layer::Ppp, if bytes.get(1) == Some(&0x03) { 2 } else { 0 }),
        LinkType::PppHdlc if matches!(bytes.first(), Some(0x0f | 0x8f)) => next(Layer::CiscoHdlc, 0),
        LinkType::PppHdlc => next(Layer::Ppp, 0),
        LinkType::PppEther => next(Layer::EtherType(0x8864), 0),
        LinkType::CiscoHdlc => next(Layer::CiscoHdlc, 0),
        LinkType::FrameRelay => frame_relay(bytes),
        LinkType::Mpls => next(Layer::Mpls, 0),
        LinkType::Nflog => nflog(bytes),
        // OpenBSD's enc(4): family, SPI, flags.
        LinkType::Enc => next(Layer::Ip, 12),
        LinkType::Wifi | LinkType::Radiotap | LinkType::Prism | LinkType::Avs | LinkType::Ppi => crate::wifi::capture_header(link, bytes),
        LinkType::Unknown(number) => Unwrapped::UnknownLink(number),
    }
}

/// Linux cooked captures: the ARPHRD type of the interface and the protocol.
fn cooked(hardware: Option<u16>, protocol: Option<u16>, skip: usize) -> Unwrapped {
    const RADIOTAP: u16 = 803;
    match (hardware, protocol) {
        (Some(RADIOTAP), Some(_)) => next(Layer::Link(LinkType::Radiotap), skip),
        // Linux: ETH_P_802_2.
        (_, Some(4)) => next(Layer::Llc, skip),
        (_, Some(kind)) => next(Layer::EtherType(kind), skip),
        _ => Unwrapped::Short,
    }
}

/// Ethernet II or IEEE 802.3.
pub(crate) fn ethernet(bytes: &[u8]) -> Unwrapped {
    be16(bytes, 12).map_or(Unwrapped::Short, |kind| next(Layer::EtherType(kind), 14))
}

/// What follows an EtherType, or a length in its place.
pub(crate) fn ether_type(kind: u16, bytes: &[u8]) -> Unwrapped {
    let tag = |skip: usize, network: Option<u32>| match (be16(bytes, skip - 2), network) {
        (Some(kind), Some(network)) => Unwrapped::Next { layer: Layer::EtherType(kind), skip, network: network.into() },
        _ => Unwrapped::Short,
    };
    match kind {
        IPV4 | IPV6 => next(Layer::Ip, 0),
        // VLAN tags, possibly nested.
        0x8100 | 0x88a8 | 0x9100 | 0x9200 | 0x9300 => tag(4, be16(bytes, 0).map(|tag| u32::from(tag & 0x0fff))),
        0x8847 | 0x8848 => next(Layer::Mpls, 0),
        0x8864 => pppoe(bytes),
        0x880b => next(Layer::Ppp, 0),
        // Transparent Ethernet bridging.
        0x6558 => next(Layer::Ethernet, 0),
        0x88e5 => macsec(bytes),
        // Provider backbone bridges (IEEE 802.1ah): service tag, then Ethernet.
        0x88e7 => match be32(bytes, 0) {
            Some(tag) => Unwrapped::Next { layer: Layer::Ethernet, skip: 4, network: (tag & 0x00ff_ffff).into() },
            None => Unwrapped::Short,
        },
        // VN-Tag.
        0x8926 => tag(6, Some(0)),
        0x894f => nsh(bytes),
        0..=LARGEST_LENGTH | 0x8870 => next(Layer::Llc, 0),
        _ => Unwrapped::Other,
    }
}

/// IEEE 802.2 LLC.
pub(crate) fn llc(bytes: &[u8]) -> Unwrapped {
    match bytes {
        // SNAP (RFC 1042, and IEEE 802.1H for bridged frames).
        [0xaa, 0xaa, 0x03, 0, 0, 0 | 0xf8, high, low, ..] => next(Layer::EtherType(u16::from_be_bytes([*high, *low])), 8),
        [0xaa, 0xaa, 0x03, _, _, _, _, _, ..] => Unwrapped::Other,
        [0x06, 0x06, 0x03, ..] => next(Layer::Ip, 3),
        [0xaa, 0xaa, 0x03, ..] | [] | [_] | [_, _] => Unwrapped::Short,
        _ => Unwrapped::Other,
    }
}

/// A PPPoE session (RFC 2516).
fn pppoe(bytes: &[u8]) -> Unwrapped {
    match (bytes, be16(bytes, 2)) {
        ([0x11, 0, _, _, _, _, ..], Some(session)) => Unwrapped::Next { layer: Layer::Ppp, skip: 6, network: session.into() },
        ([0x11, 0, ..], _) | ([] | [_], _) => Unwrapped::Short,
        _ => Unwrapped::Other,
    }
}

/// PPP (RFC 1661, RFC 1662). Address, control and the first byte of the protocol may be omitted.
pub(crate) fn ppp(bytes: &[u8]) -> Unwrapped {
    let at = if bytes.starts_with(&[0xff, 0x03]) { 2 } else { 0 };
    let (protocol, skip) = match bytes.get(at..) {
        Some([short, ..]) if short & 1 == 1 => (u16::from(*short), at + 1),
        Some([high, low, ..]) => (u16::from_be_bytes([*high, *low]), at + 2),
        _ => return Unwrapped::Short,
    };
    match protocol {
        0x0021 | 0x0057 => next(Layer::Ip, skip),
        0x0281 | 0x0283 => next(Layer::Mpls, skip),
        // Bridged Ethernet (RFC 3518): flags and MAC type.
        0x0031 => match bytes.get(skip + 1) {
            Some(1) => next(Layer::Ethernet, skip + 2),
            Some(_) => Unwrapped::Other,
            None => Unwrapped::Short,
        },
        0x0053 | 0x0055 | 0x00fb | 0x00fd => Unwrapped::Unreadable(Obstacle::CompressedPpp),
        0x002d | 0x002f | 0x0003 | 0x0005 | 0x0061 | 0x0063 | 0x0065 | 0x0067 | 0x0069 | 0x2063 | 0x2065 => {
            Unwrapped::Unreadable(Obstacle::CompressedHeaders)
        }
        0x003d => Unwrapped::Unreadable(Obstacle::PppMultilink),
        _ => Unwrapped::Other,
    }
}

/// Cisco HDLC: address, control, EtherType.
pub(crate) fn cisco_hdlc(bytes: &[u8]) -> Unwrapped {
    be16(bytes, 2).map_or(Unwrapped::Short, |kind| next(Layer::EtherType(kind), 4))
}

/// Frame Relay with RFC 2427 or Cisco encapsulation.
fn frame_relay(bytes: &[u8]) -> Unwrapped {
    // The last byte of the address has its lowest bit set.
    let Some(address) = bytes.iter().take(4).position(|byte| byte & 1 == 1).map(|last| last + 1) else {
        return if bytes.len() < 4 { Unwrapped::Short } else { Unwrapped::Other };
    };
    match bytes.get(address..) {
        Some([0x03, 0xcc | 0x8e, ..]) => next(Layer::Ip, address + 2),
        Some([0x03, 0x00, 0x80, 0, 0, 0, high, low, ..]) => next(Layer::EtherType(u16::from_be_bytes([*high, *low])), address + 8),
        Some([0x03, 0x80, 0, 0, 0, high, low, ..]) => next(Layer::EtherType(u16::from_be_bytes([*high, *low])), address + 7),
        Some([0x03, _, ..]) => Unwrapped::Other,
        Some([high, low, ..]) => next(Layer::EtherType(u16::from_be_bytes([*high, *low])), address + 2),
        _ => Unwrapped::Short,
    }
}

/// NFLOG: attributes in the byte order of the capturing host, among them the packet.
fn nflog(bytes: &[u8]) -> Unwrapped {
    const PAYLOAD: u16 = 9;
    let mut at = 4;
    // No attribute type exceeds 255, and none is zero.
    let big_endian = bytes.get(6) == Some(&0);
    let number = |at: usize| {
        let pair: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    };
    while let (Some(length), Some(kind)) = (number(at), number(at + 2)) {
        // The upper two bits are flags.
        match kind & 0x3fff {
            PAYLOAD => return next(Layer::Ip, at + 4),
            _ if length < 4 => return Unwrapped::Other,
            _ => at += usize::from(length).next_multiple_of(4),
        }
    }
    if at == bytes.len() { Unwrapped::Other } else { Unwrapped::Short }
}

/// MACsec (IEEE 802.1AE): readable if it only authenticates.
fn macsec(bytes: &[u8]) -> Unwrapped {
    let Some(flags) = bytes.first() else { return Unwrapped::Short };
    if flags & 0x0c != 0 {
        return Unwrapped::Unreadable(Obstacle::Macsec);
    }
    // Flags, short length, packet number, and perhaps the identifier of the channel.
    let skip = if flags & 0x20 != 0 { 14 } else { 6 };
    be16(bytes, skip).map_or(Unwrapped::Short, |kind| next(Layer::EtherType(kind), skip + 2))
}

/// Network service header (RFC 8300).
pub(crate) fn nsh(bytes: &[u8]) -> Unwrapped {
    let (Some(first), Some(protocol)) = (be16(bytes, 0), bytes.get(3)) else { return Unwrapped::Short };
    let skip = usize::from(first & 0x3f) * 4;
    match protocol {
        _ if skip < 8 => Unwrapped::Other,
        1 | 2 => next(Layer::Ip, skip),
        3 => next(Layer::Ethernet, skip),
        5 => next(Layer::Mpls, skip),
        _ => Unwrapped::Other,
    }
}

/// Whether bytes begin with an Ethernet header that IP, ARP, a tag or LLC follows.
pub(crate) fn looks_like_ethernet(bytes: &[u8]) -> bool {
    let version = bytes.get(14).map(|first| first >> 4);
    match be16(bytes, 12) {
        Some(IPV4) => version.is_none_or(|version| version == 4),
        Some(IPV6) => version.is_none_or(|version| version == 6),
        Some(0x0806 | 0x8100 | 0x88a8 | 0x9100 | 0x8847 | 0x8848 | 0x8863 | 0x8864 | 0x88cc | 0x88e5 | 0x88e7 | 0x894f) => true,
        Some(0..=LARGEST_LENGTH) => matches!(bytes.get(14..17), Some([0xaa, 0xaa, 0x03] | [0x42, 0x42, 0x03] | [0xfe, 0xfe, 0x03])),
        _ => false,
    }
}
