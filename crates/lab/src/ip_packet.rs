//! Fields of IP packets that the emulator reads and writes.

use link::Ecn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The version of a packet: 4, 6, or another value for what is no IP packet.
fn version(packet: &[u8]) -> u8 {
    packet.first().map_or(0, |byte| byte >> 4)
}

/// Whether a packet is unicast. Others are the kernel's own (neighbour discovery, group
/// membership): passed on, they would shift every later draw of a loss process.
pub(crate) fn is_unicast(packet: &[u8]) -> bool {
    match version(packet) {
        4 => packet.get(16).is_some_and(|byte| *byte < 224),
        6 => packet.get(24).is_some_and(|byte| *byte != 0xff),
        _ => false,
    }
}

/// Source and destination port of a TCP packet; `None` for other packets.
pub(crate) fn tcp_ports(packet: &[u8]) -> Option<[u16; 2]> {
    let (protocol, ports) = transport(packet)?;
    let ports = ports.filter(|_| protocol == TCP)?;
    Some([u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])])
}

/// The transport protocol of a packet, and its ports if it has some.
fn transport(packet: &[u8]) -> Option<(u8, Option<&[u8]>)> {
    let (protocol, start) = match version(packet) {
        4 => (*packet.get(9)?, usize::from(packet[0] & 0xf) * 4),
        6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    Some((protocol, packet.get(start..start + 4).filter(|_| matches!(protocol, TCP | UDP))))
}

/// A number of the packet's flow: of its addresses, its protocol and its ports.
pub(crate) fn flow(packet: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    match version(packet) {
        4 => packet.get(12..20).hash(&mut hasher),
        _ => packet.get(8..40).hash(&mut hasher),
    }
    transport(packet).hash(&mut hasher);
    hasher.finish()
}

/// The ECN field (RFC 3168 section 5).
pub(crate) fn ecn(packet: &[u8]) -> Ecn {
    let bits = match version(packet) {
        4 => packet.get(1).copied(),
        // The traffic class lies across two bytes.
        6 => packet.get(1).map(|byte| byte >> 4),
        _ => None,
    };
    match bits.unwrap_or(0) & 3 {
        0 => Ecn::NotEct,
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        _ => Ecn::Ce,
    }
}

/// Sets the ECN field to Congestion Experienced.
pub(crate) fn mark_congestion(packet: &mut [u8]) {
    match version(packet) {
        4 if packet.len() >= 20 => {
            let before = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] |= 3;
            let after = u16::from_be_bytes([packet[0], packet[1]]);
            // RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
            let checksum = u16::from_be_bytes([packet[10], packet[11]]);
            let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        }
        6 if packet.len() >= 40 => packet[1] |= 3 << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header with a right checksum, and the ports of TCP.
    fn ipv4(ecn: u8) -> Vec<u8> {
        let mut packet = vec![0x45, ecn, 0, 40, 0x12, 0x34, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let checksum = checksum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend([0x1f, 0x90, 0, 80, 0, 0, 0, 0]);
        packet
    }

    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }

    #[test]
    fn a_marked_header_has_a_right_checksum() {
        for tos in [0b01, 0b10, 0xb9, 0xfe] {
            let mut packet = ipv4(tos);
            mark_congestion(&mut packet);
            assert_eq!((packet[1], ecn(&packet)), (tos | 3, Ecn::Ce));
            assert_eq!(checksum(&packet[..20]), 0);
        }
    }

    #[test]
    fn the_ecn_field_of_both_versions_is_read() {
        assert_eq!([0, 1, 2, 3].map(|bits| ecn(&ipv4(0xa4 | bits))), [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]);
        let mut ipv6 = vec![0u8; 44];
        ipv6[0] = 0x6a;
        ipv6[1] = 0x9f;
        assert_eq!(ecn(&ipv6), Ecn::Ect1);
        mark_congestion(&mut ipv6);
        assert_eq!((ipv6[0], ipv6[1], ecn(&ipv6)), (0x6a, 0xbf, Ecn::Ce));
        assert_eq!(ecn(&[]), Ecn::NotEct);
    }

    #[test]
    fn flows_differ_by_their_ports() {
        let (one, mut other) = (ipv4(0), ipv4(0));
        assert_eq!(tcp_ports(&one), Some([8080, 80]));
        assert_eq!(flow(&one), flow(&ipv4(3)), "not by the ECN field");
        other[21] = 0x91;
        assert_ne!(flow(&one), flow(&other));
    }

    #[test]
    fn ports_are_found_in_both_families() {
        let mut v4 = vec![0x46; 28];
        v4[9] = 6;
        v4[24..28].copy_from_slice(&[0x30, 0x39, 0, 80]);
        assert_eq!(tcp_ports(&v4), Some([12345, 80]));
        let mut v6 = vec![0x60; 44];
        v6[6] = 6;
        v6[40..44].copy_from_slice(&[0, 80, 0x30, 0x39]);
        assert_eq!(tcp_ports(&v6), Some([80, 12345]));
        assert_eq!(tcp_ports(&v6[..42]), None, "cut short");
        v6[6] = 17;
        assert_eq!(tcp_ports(&v6), None, "not TCP");
    }
}
