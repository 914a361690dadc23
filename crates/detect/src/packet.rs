//! Headers of a frame, from the link layer through tunnels to the innermost TCP or UDP. A frame may
//! be truncated. Lengths are those on the wire.

use crate::{
    layer::{Layer, Unwrapped, be16, be32},
    link_layer,
    obstacle::Obstacle,
    sketch::spread,
    trace::{CapturedFrame, LinkType},
    tunnel, wifi,
};
use etherparse::{IpNumber, Ipv6ExtensionSlice, LaxIpSlice, ip_number};
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
        /// Where it was captured, as [`TcpSegment::point`].
        point: u64,
        /// What it carries, if that is a tunnel that cannot be read.
        carries: Option<Obstacle>,
    },
    /// Another protocol.
    Other,
    /// An encapsulation that cannot be read.
    Unreadable(Obstacle),
    /// A fragment of an IP packet or of an 802.11 frame.
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
    /// A number for the tunnels and VLANs around the packet. Equal addresses in different networks
    /// may belong to different hosts. 0 without encapsulation.
    pub network: u64,
    /// A number for the place of capture: the network, and the interface where the file names it.
    /// A capture on several interfaces has a packet once for each place that it passed.
    pub point: u64,
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

/// Upper bound on the headers of one frame before TCP or UDP.
const MOST_HEADERS: usize = 32;

/// Parses the headers of a frame. Of several packets in one frame (802.11 A-MSDU) it returns the
/// first.
pub fn dissect<'a>(frame: &CapturedFrame<'a>) -> Dissected<'a> {
    let mut first = None;
    dissect_each(frame, |found| {
        first.get_or_insert(found);
    });
    first.unwrap_or(Dissected::Other)
}

/// Parses the headers of a frame and calls `each` for every packet in it: one, except for an 802.11
/// A-MSDU.
pub fn dissect_each<'a>(frame: &CapturedFrame<'a>, mut each: impl FnMut(Dissected<'a>)) {
    // Fast path: IP directly in Ethernet, or without link layer.
    let (layer, at) = match frame.link {
        LinkType::Ethernet if matches!(be16(frame.bytes, 12), Some(0x0800 | 0x86dd)) => (Layer::Ip, 14),
        LinkType::Ip => (Layer::Ip, 0),
        link => (Layer::Link(link), 0),
    };
    let interface = match frame.link {
        LinkType::Cooked2 => be32(frame.bytes, 4).unwrap_or(0),
        // Version 1 names no interface. A forwarded packet is there twice: as received and as sent.
        LinkType::Cooked => u32::from(be16(frame.bytes, 0) == Some(4)),
        _ => frame.interface,
    };
    let on_wire = frame.length.max(frame.bytes.len());
    Walk { bytes: frame.bytes, on_wire, interface, network: 0, headers: MOST_HEADERS }.run(layer, at, &mut each);
}

/// The way through the headers of a frame.
#[derive(Debug, Clone, Copy)]
struct Walk<'a> {
    bytes: &'a [u8],
    on_wire: usize,
    interface: u32,
    network: u64,
    /// How many headers may still follow.
    headers: usize,
}

impl<'a> Walk<'a> {
    /// Follows the headers from `layer` on, which begins at byte `at`.
    fn run(mut self, mut layer: Layer, mut at: usize, each: &mut impl FnMut(Dissected<'a>)) {
        loop {
            if self.headers == 0 {
                return each(Dissected::Unreadable(Obstacle::Nesting));
            }
            self.headers -= 1;
            let Some(rest) = self.bytes.get(at..) else { return each(Dissected::Short) };
            let unwrapped = match layer {
                Layer::Ip => match self.ip(at, rest) {
                    Ok(found) => return each(found),
                    Err(inner) => inner,
                },
                Layer::Link(link) => link_layer::link(link, rest),
                Layer::Ethernet => link_layer::ethernet(rest),
                Layer::EtherType(kind) => link_layer::ether_type(kind, rest),
                Layer::Llc => link_layer::llc(rest),
                Layer::Ppp => link_layer::ppp(rest),
                Layer::CiscoHdlc => link_layer::cisco_hdlc(rest),
                Layer::Mpls => tunnel::mpls(rest),
                Layer::Gre => tunnel::gre(rest),
                Layer::Udp(kind) => tunnel::udp(kind, rest),
                Layer::Wifi { padded } => wifi::header(padded, rest),
                Layer::Amsdu => return self.amsdu(at, each),
            };
            match unwrapped {
                Unwrapped::Next { layer: inner, skip, network } => {
                    if network != 0 {
                        self.enter(network);
                    }
                    (layer, at) = (inner, at.saturating_add(skip));
                }
                Unwrapped::Unreadable(obstacle) => return each(Dissected::Unreadable(obstacle)),
                Unwrapped::Other => return each(Dissected::Other),
                Unwrapped::Fragment => return each(Dissected::Fragment),
                Unwrapped::Short => return each(Dissected::Short),
                Unwrapped::UnknownLink(number) => return each(Dissected::UnknownLink(number)),
            }
        }
    }

    fn enter(&mut self, network: u64) {
        self.network = spread(self.network ^ spread(network)).max(1);
    }

    fn point(&self) -> u64 {
        if self.network == 0 && self.interface == 0 { 0 } else { spread(self.network ^ spread(u64::from(self.interface) + 1)) }
    }

    /// Follows each frame of an A-MSDU.
    fn amsdu(self, mut at: usize, each: &mut impl FnMut(Dissected<'a>)) {
        let mut rest = self.bytes.get(at..).unwrap_or_default();
        if wifi::subframe(rest).is_none() {
            return each(Dissected::Short);
        }
        while let Some((header, following)) = wifi::subframe(rest) {
            self.run(Layer::Llc, at + header, each);
            at += following;
            rest = rest.get(following..).unwrap_or_default();
        }
    }

    /// Fast path: TCP in an IPv4 packet that is not fragmented. `None` for all else.
    #[inline]
    fn plain_ipv4(&self, at: usize, bytes: &'a [u8]) -> Option<Dissected<'a>> {
        const FRAGMENT: u16 = 0x3fff;
        let fixed: &[u8; 20] = bytes.first_chunk()?;
        let header = usize::from(fixed[0] & 15) * 4;
        let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        if fixed[0] >> 4 != 4 || fixed[9] != ip_number::TCP.0 || number(6) & FRAGMENT != 0 || header < fixed.len() || header > bytes.len() {
            return None;
        }
        let total = usize::from(number(2));
        // A packet prepared for TSO has no total length yet.
        let (total, kept) = if total < header { (self.on_wire.saturating_sub(at), bytes.len()) } else { (total, total.min(bytes.len())) };
        let address = |at: usize| IpAddr::from([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let segment = self.tcp((address(12), address(16)), (fixed[8], Some(number(4))), &bytes[header..kept], total.saturating_sub(header));
        Some(segment.map_or(Dissected::Short, Dissected::Tcp))
    }

    /// An IP packet at byte `at`: what it carries, or the header of a tunnel to follow.
    fn ip(&self, at: usize, bytes: &'a [u8]) -> Result<Dissected<'a>, Unwrapped> {
        if !matches!(bytes.first().map(|first| first >> 4), Some(4 | 6)) {
            return Ok(if bytes.is_empty() { Dissected::Short } else { Dissected::Other });
        }
        if let Some(found) = self.plain_ipv4(at, bytes) {
            return Ok(found);
        }
        let Ok((sliced, stopped)) = LaxIpSlice::from_slice(bytes) else { return Ok(Dissected::Short) };
        if stopped.is_some() {
            return Ok(Dissected::Short);
        }
        let on_wire = self.on_wire.saturating_sub(at);
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
        let upper: &'a [u8] = payload.payload;
        let before = upper.as_ptr() as usize - bytes.as_ptr() as usize;
        let length = length.saturating_sub(before);
        if payload.fragmented {
            // The first fragment of a tunnel's packet has the inner headers. Their lengths are
            // those of the whole inner packet.
            let carries = self.tunnel(payload.ip_number, (from, to), before, (upper, length)).filter(|_| is_first_fragment(&sliced));
            return carries.map_or(Ok(Dissected::Fragment), Err);
        }
        if payload.ip_number == ip_number::TCP {
            return Ok(self.tcp((from, to), (ttl, ip_id), upper, length).map_or(Dissected::Short, Dissected::Tcp));
        }
        let point = self.point();
        if let Some(inner) = self.tunnel(payload.ip_number, (from, to), before, (upper, length)) {
            return Err(inner);
        }
        if payload.ip_number != ip_number::UDP {
            return Ok(Dissected::Other);
        }
        Ok(match (be16(upper, 0), be16(upper, 2)) {
            (Some(source), Some(destination)) => Dissected::Udp {
                from: SocketAddr::new(from, source),
                to: SocketAddr::new(to, destination),
                length: length.saturating_sub(8) as u64,
                point,
                carries: tunnel::obstacle_in_udp(source, destination, upper.get(8..).unwrap_or_default()),
            },
            _ => Dissected::Short,
        })
    }

    /// The tunnel that an IP packet carries after `before` bytes, if it does. `upper` has `length`
    /// bytes on the wire.
    fn tunnel(&self, number: IpNumber, ends: (IpAddr, IpAddr), before: usize, (upper, length): (&[u8], usize)) -> Option<Unwrapped> {
        let follow = |layer, more: usize| Unwrapped::Next { layer, skip: before + more, network: between(ends) };
        Some(match number.0 {
            // RFC 2003, RFC 2473, RFC 4213.
            4 | 41 => follow(Layer::Ip, 0),
            17 => {
                let kind = tunnel::by_port(be16(upper, 0)?, be16(upper, 2)?)?;
                // Other programs use these ports too: only what is a tunnel's header is followed.
                match upper.get(8..).map_or(Unwrapped::Short, |payload| tunnel::udp(kind, payload)) {
                    Unwrapped::Next { .. } => follow(Layer::Udp(kind), 8),
                    Unwrapped::Short if upper.len() < length => Unwrapped::Short,
                    _ => return None,
                }
            }
            47 => follow(Layer::Gre, 0),
            // EtherIP (RFC 3378).
            97 => follow(Layer::Ethernet, 2),
            // MPLS in IP (RFC 4023).
            137 => follow(Layer::Mpls, 0),
            50 => Unwrapped::Unreadable(Obstacle::Esp),
            108 => Unwrapped::Unreadable(Obstacle::IpComp),
            115 => Unwrapped::Unreadable(Obstacle::L2tpV3),
            _ => return None,
        })
    }

    fn tcp(&self, ends: (IpAddr, IpAddr), (ttl, ip_id): (u8, Option<u16>), bytes: &'a [u8], length: usize) -> Option<TcpSegment<'a>> {
        let (offset, flags) = (usize::from(bytes.get(12)? >> 4) * 4, *bytes.get(13)?);
        if offset < 20 || length < offset {
            return None;
        }
        let payload = bytes.get(offset..).unwrap_or_default();
        // No packet has more than 2^30 bytes.
        let length = u32::try_from(length - offset).ok().filter(|length| *length < 1 << 30)?;
        Some(TcpSegment {
            from: SocketAddr::new(ends.0, be16(bytes, 0)?),
            to: SocketAddr::new(ends.1, be16(bytes, 2)?),
            ttl,
            ip_id,
            seq: be32(bytes, 4)?,
            ack: be32(bytes, 8)?,
            flags,
            window: be16(bytes, 14)?,
            options: bytes.get(20..offset.min(bytes.len())).unwrap_or_default(),
            length,
            payload: &payload[..payload.len().min(length as usize)],
            network: self.network,
            point: self.point(),
        })
    }
}

/// A number for the two ends of a tunnel, equal for both directions.
fn between((one, two): (IpAddr, IpAddr)) -> u64 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => spread(u64::from(address.to_bits())),
        IpAddr::V6(address) => spread(address.to_bits() as u64 ^ spread((address.to_bits() >> 64) as u64)),
    };
    spread(of(one).wrapping_add(of(two))).max(1)
}

/// Whether a fragment is the first of its packet.
fn is_first_fragment(sliced: &LaxIpSlice<'_>) -> bool {
    match sliced {
        LaxIpSlice::Ipv4(packet) => packet.header().fragments_offset().value() == 0,
        LaxIpSlice::Ipv6(packet) => packet.extensions().clone().into_iter().all(|extension| match extension {
            Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value() == 0,
            _ => true,
        }),
    }
}
