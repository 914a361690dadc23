//! Writes packets and capture files, byte by byte.

use std::net::{IpAddr, SocketAddr};

pub(crate) const SYN: u8 = 2;
pub(crate) const FIN: u8 = 1;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
pub(crate) const PSH: u8 = 8;

/// The link-layer header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    Ethernet,
    /// Two VLAN tags (service and customer).
    Vlan,
    Raw,
    Cooked,
    Cooked2,
}

impl Linked {
    pub(crate) fn number(self) -> u32 {
        match self {
            Linked::Ethernet | Linked::Vlan => 1,
            Linked::Raw => 101,
            Linked::Cooked => 113,
            Linked::Cooked2 => 276,
        }
    }

    fn header(self, v6: bool) -> Vec<u8> {
        let kind: [u8; 2] = if v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        match self {
            Linked::Ethernet => [&[2u8; 12][..], &kind].concat(),
            Linked::Vlan => [&[2u8; 12][..], &[0x88, 0xa8, 0, 7, 0x81, 0x00, 0, 9], &kind].concat(),
            Linked::Raw => vec![],
            Linked::Cooked => [&[0u8; 14][..], &kind].concat(),
            Linked::Cooked2 => [&kind[..], &[0u8; 18]].concat(),
        }
    }
}

/// A captured packet.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Time, ns by the capture's clock.
    pub(crate) at: i64,
    pub(crate) bytes: Vec<u8>,
}

/// A TCP segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) ttl: u8,
    pub(crate) id: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Encodes the segment as a frame. IPv6 has a hop-by-hop and a destination header before TCP.
pub(crate) fn frame(segment: &Segment, link: Linked) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(segment.from.port().to_be_bytes());
    tcp.extend(segment.to.port().to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.to_be_bytes());
    assert_eq!(segment.options.len() % 4, 0);
    tcp.extend([(5 + segment.options.len() as u8 / 4) << 4, segment.flags]);
    tcp.extend(segment.window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(&segment.options);
    tcp.extend(&segment.payload);
    let v6 = segment.from.is_ipv6();
    let mut frame = link.header(v6);
    match (segment.from.ip(), segment.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // A length that exceeds the field belongs to a TSO packet, which has none yet.
            let total = u16::try_from(20 + tcp.len()).unwrap_or(0).to_be_bytes();
            let id = segment.id.to_be_bytes();
            frame.extend([0x45, 0, total[0], total[1], id[0], id[1], 0x40, 0, segment.ttl, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(16 + tcp.len()).unwrap_or(0).to_be_bytes();
            frame.extend([0x60, 0, 0, 0, length[0], length[1], 0, segment.ttl]);
            frame.extend(from.octets());
            frame.extend(to.octets());
            frame.extend([60, 0, 1, 4, 0, 0, 0, 0]);
            frame.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        }
        _ => panic!("one version only"),
    }
    frame.extend(tcp);
    frame
}

/// An IPv4 UDP datagram with the given payload length.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, length: u16, link: Linked) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 alone") };
    let (total, udp) = ((28 + length).to_be_bytes(), (8 + length).to_be_bytes());
    let mut frame = link.header(false);
    frame.extend([0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 57, 17, 0, 0]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend([from.port().to_be_bytes(), to.port().to_be_bytes(), udp, [0; 2]].concat());
    frame.resize(frame.len() + usize::from(length), 0);
    frame
}

/// A pcap file with micro- or nanoseconds.
pub(crate) fn pcap(records: &[Record], link: u32, snaplen: usize, nanos: bool) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(if nanos { 0xa1b2_3c4du32 } else { 0xa1b2_c3d4 }.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend((snaplen as u32).to_le_bytes());
    file.extend(link.to_le_bytes());
    for record in records {
        let kept = record.bytes.len().min(snaplen);
        file.extend(((record.at / 1_000_000_000) as u32).to_le_bytes());
        file.extend((((record.at % 1_000_000_000) / if nanos { 1 } else { 1000 }) as u32).to_le_bytes());
        file.extend((kept as u32).to_le_bytes());
        file.extend((record.bytes.len() as u32).to_le_bytes());
        file.extend(&record.bytes[..kept]);
    }
    file
}
