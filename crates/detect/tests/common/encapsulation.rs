//! Puts IP packets into tunnels and link layers, byte by byte.

const MAC: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// Makes a frame of an IP packet.
pub(crate) type Wrap = fn(&[u8]) -> Vec<u8>;

/// A name, a link type, and the frame around an IP packet.
pub(crate) type Encapsulation = (&'static str, u32, Wrap);

fn kind(ip: &[u8]) -> [u8; 2] {
    if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] }
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub(crate) fn ether_of(kind: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&MAC, &kind.to_be_bytes(), payload])
}

pub(crate) fn ether(ip: &[u8]) -> Vec<u8> {
    ether_of(u16::from_be_bytes(kind(ip)), ip)
}

/// An outer IPv4 packet between two routers.
pub(crate) fn ip4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap_or(0).to_be_bytes();
    join(&[&[0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2], payload])
}

pub(crate) fn ip6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let address = |last: u8| [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    join(&[&[0x60, 0, 0, 0, length[0], length[1], protocol, 64], &address(1), &address(2), payload])
}

pub(crate) fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap_or(0).to_be_bytes();
    join(&[&[0xc3, 0x50], &port.to_be_bytes(), &length, &[0, 0], payload])
}

pub(crate) fn in_udp(port: u16, payload: &[u8]) -> Vec<u8> {
    ether(&ip4(17, &udp(port, payload)))
}

/// VXLAN with this network number.
pub(crate) fn vxlan(network: u8, ip: &[u8]) -> Vec<u8> {
    in_udp(4789, &join(&[&[0x08, 0, 0, 0, 0, 0, network, 0], &ether(ip)]))
}

/// GRE with these flags, as many bytes of optional fields, and the protocol.
pub(crate) fn gre(flags: u16, fields: usize, protocol: u16, payload: &[u8]) -> Vec<u8> {
    ether(&ip4(47, &join(&[&flags.to_be_bytes(), &protocol.to_be_bytes(), &vec![7; fields], payload])))
}

fn gre_ip(flags: u16, fields: usize, ip: &[u8]) -> Vec<u8> {
    gre(flags, fields, u16::from_be_bytes(kind(ip)), ip)
}

fn label(number: u32, bottom: bool) -> [u8; 4] {
    ((number << 12) | (u32::from(bottom) << 8) | 64).to_be_bytes()
}

fn mpls(payload: &[u8]) -> Vec<u8> {
    ether_of(0x8847, &join(&[&label(16, false), &label(17, true), payload]))
}

fn snap(ip: &[u8]) -> Vec<u8> {
    join(&[&[0xaa, 0xaa, 0x03, 0, 0, 0], &kind(ip), ip])
}

fn ppp_protocol(ip: &[u8]) -> [u8; 2] {
    if ip[0] >> 4 == 4 { [0x00, 0x21] } else { [0x00, 0x57] }
}

fn ppp(ip: &[u8]) -> Vec<u8> {
    join(&[&[0xff, 0x03], &ppp_protocol(ip), ip])
}

fn ppp_short(ip: &[u8]) -> Vec<u8> {
    join(&[&ppp_protocol(ip)[1..], ip])
}

fn pppoe(ip: &[u8]) -> Vec<u8> {
    let length = (ip.len() as u16 + 2).to_be_bytes();
    join(&[&[0x11, 0, 0, 5], &length, &ppp_protocol(ip), ip])
}

fn gtp(flags: u8, fields: &[u8], ip: &[u8]) -> Vec<u8> {
    let length = ((fields.len() + ip.len()) as u16).to_be_bytes();
    in_udp(2152, &join(&[&[0x30 | flags, 255], &length, &[0, 0, 0, 9], fields, ip]))
}

fn nflog(ip: &[u8], number: fn(u16) -> [u8; 2]) -> Vec<u8> {
    let padding = vec![0; ip.len().next_multiple_of(4) - ip.len()];
    let packet_header = join(&[&number(8), &number(1), &[0x08, 0, 3, 0]]);
    let prefix = join(&[&number(7), &number(10), b"ab\0\0"]);
    join(&[&[2, 0, 0, 5], &packet_header, &prefix, &number(4 + ip.len() as u16), &number(9), ip, &padding])
}

/// An 802.11 data frame: frame control, and what follows the three addresses.
fn wifi(control: [u8; 2], rest: &[u8], body: &[u8]) -> Vec<u8> {
    join(&[&control, &[0x2c, 0], &MAC, &MAC[..6], &[0x10, 0], rest, body])
}

fn radiotap(header: &[u8], frame: &[u8]) -> Vec<u8> {
    join(&[&[0, 0], &(4 + header.len() as u16).to_le_bytes(), header, frame])
}

fn cooked2(interface: u8, ip: &[u8]) -> Vec<u8> {
    join(&[&kind(ip), &[0, 0, 0, 0, 0, interface, 0, 1, 0, 6], &MAC[..6], &[0, 0], ip])
}

/// Linux cooked, version 2, captured on this interface.
pub(crate) fn on_interface(interface: u8, kind: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&kind.to_be_bytes(), &[0, 0, 0, 0, 0, interface, 0, 1, 0, 6], &MAC[..6], &[0, 0], payload])
}

const ERSPAN_2: [u8; 8] = [0x10, 5, 0, 7, 0, 0, 0, 9];
const ERSPAN_3: [u8; 12] = [0x20, 5, 0, 7, 0, 0, 0, 9, 0, 0, 0x80, 0];
const ERSPAN_3_PLATFORM: [u8; 20] = [0x20, 5, 0, 7, 0, 0, 0, 9, 0, 0, 0x80, 1, 1, 2, 3, 4, 5, 6, 7, 8];

/// Every encapsulation that is read.
pub(crate) const READ: &[Encapsulation] = &[
    ("Ethernet", 1, ether),
    ("VLAN", 1, |ip| ether_of(0x8100, &join(&[&[0, 42], &kind(ip), ip]))),
    ("QinQ", 1, |ip| ether_of(0x88a8, &join(&[&[0, 100, 0x81, 0, 0, 42], &kind(ip), ip]))),
    ("provider backbone bridge", 1, |ip| ether_of(0x88e7, &join(&[&[0, 0, 0, 9], &ether(ip)]))),
    ("MACsec without encryption", 1, |ip| {
        ether_of(0x88e5, &join(&[&[0x20, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], &kind(ip), ip, &[9; 16]]))
    }),
    ("VN-Tag", 1, |ip| ether_of(0x8926, &join(&[&[0, 0, 0, 1], &kind(ip), ip]))),
    ("802.3 with LLC and SNAP", 1, |ip| ether_of(ip.len() as u16 & 0x3ff, &snap(ip))),
    ("802.3 with LLC", 1, |ip| ether_of(ip.len() as u16 & 0x3ff, &join(&[&[6, 6, 3], ip]))),
    ("VLAN with LLC and SNAP", 1, |ip| ether_of(0x8100, &join(&[&[0, 42, 1, 0], &snap(ip)]))),
    ("MPLS", 1, mpls),
    ("MPLS without link layer", 219, |ip| join(&[&label(16, false), &label(0, true), ip])),
    ("MPLS pseudowire", 1, |ip| mpls(&ether(ip))),
    ("MPLS pseudowire with control word", 1, |ip| mpls(&join(&[&[0; 4], &ether(ip)]))),
    ("MPLS pseudowire, address 00:…", 1, |ip| mpls(&join(&[&[0; 6], &MAC[..6], &kind(ip), ip]))),
    ("MPLS pseudowire, address 45:…", 1, |ip| mpls(&join(&[&[0x45, 0, 5, 0xdc, 0, 1], &MAC[..6], &kind(ip), ip]))),
    ("MPLS pseudowire, address 60:…", 1, |ip| mpls(&join(&[&[0x60, 0, 5, 0xdc, 0, 1, 99], &MAC[..5], &kind(ip), ip]))),
    ("MPLS in IP", 1, |ip| ether(&ip4(137, &join(&[&label(17, true), ip])))),
    ("MPLS in UDP", 1, |ip| in_udp(6635, &join(&[&label(17, true), ip]))),
    ("PPPoE", 1, |ip| ether_of(0x8864, &pppoe(ip))),
    ("PPPoE without Ethernet", 51, pppoe),
    ("PPP", 9, ppp),
    ("PPP without address and control", 9, |ip| ppp(ip)[2..].to_vec()),
    ("PPP with a short protocol", 9, ppp_short),
    ("PPP with direction", 204, |ip| join(&[&[1], &ppp(ip)])),
    ("PPP of pppd", 166, |ip| join(&[&[0], &ppp(ip)[1..]])),
    ("PPP on a serial line", 50, ppp),
    ("PPP bridging", 9, |ip| join(&[&[0xff, 0x03, 0x00, 0x31, 0, 1], &ether(ip)])),
    ("HDLC on a serial line", 50, |ip| join(&[&[0x0f, 0], &kind(ip), ip])),
    ("Cisco HDLC", 104, |ip| join(&[&[0x8f, 0], &kind(ip), ip])),
    ("Frame Relay", 107, |ip| join(&[&[0x18, 0x41, 0x03], if ip[0] >> 4 == 4 { &[0xcc] } else { &[0x8e] }, ip])),
    ("Frame Relay of Cisco", 107, |ip| join(&[&[0x18, 0x41], &kind(ip), ip])),
    ("GRE", 1, |ip| gre_ip(0, 0, ip)),
    ("GRE with checksum", 1, |ip| gre_ip(0x8000, 4, ip)),
    ("GRE with key", 1, |ip| gre_ip(0x2000, 4, ip)),
    ("GRE with sequence number", 1, |ip| gre_ip(0x1000, 4, ip)),
    ("GRE with checksum, key and sequence number", 1, |ip| gre_ip(0xb000, 12, ip)),
    ("GRE with Ethernet", 1, |ip| gre(0, 0, 0x6558, &ether(ip))),
    ("NVGRE", 1, |ip| gre(0x2000, 4, 0x6558, &ether(ip))),
    ("GRE with MPLS", 1, |ip| gre(0, 0, 0x8847, &join(&[&label(17, true), ip]))),
    ("PPTP", 1, |ip| gre(0x3001, 8, 0x880b, &ppp(ip))),
    ("PPTP with acknowledgement", 1, |ip| gre(0x3081, 12, 0x880b, &ppp(ip))),
    ("ERSPAN type I", 1, |ip| gre(0, 0, 0x88be, &ether(ip))),
    ("ERSPAN type II", 1, |ip| gre(0x1000, 4, 0x88be, &join(&[&ERSPAN_2, &ether(ip)]))),
    ("ERSPAN type III", 1, |ip| gre(0x1000, 4, 0x22eb, &join(&[&ERSPAN_3, &ether(ip)]))),
    ("ERSPAN type III with platform", 1, |ip| gre(0x1000, 4, 0x22eb, &join(&[&ERSPAN_3_PLATFORM, &ether(ip)]))),
    ("WCCP", 1, |ip| gre(0, 0, 0x883e, &join(&[if ip[0] >> 4 == 4 { &[][..] } else { &[0; 4] }, ip]))),
    ("WCCP version 2", 1, |ip| gre(0, 0, 0x883e, &join(&[&[0; 4], ip]))),
    ("IP in IPv4", 1, |ip| ether(&ip4(if ip[0] >> 4 == 4 { 4 } else { 41 }, ip))),
    ("IP in IPv6", 1, |ip| ether(&ip6(if ip[0] >> 4 == 4 { 4 } else { 41 }, ip))),
    ("IP in IPv6 with a destination option", 1, |ip| {
        ether(&ip6(60, &join(&[&[if ip[0] >> 4 == 4 { 4 } else { 41 }, 0, 4, 1, 4, 1, 1, 0], ip])))
    }),
    ("EtherIP", 1, |ip| ether(&ip4(97, &join(&[&[0x30, 0], &ether(ip)])))),
    ("authentication header", 1, |ip| {
        ether(&ip4(51, &join(&[&[if ip[0] >> 4 == 4 { 4 } else { 41 }, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], &[9; 12], ip])))
    }),
    ("VXLAN", 1, |ip| vxlan(42, ip)),
    ("VXLAN at port 8472", 1, |ip| in_udp(8472, &join(&[&[0x08, 0, 0, 0, 0, 0, 42, 0], &ether(ip)]))),
    ("VXLAN over IPv6", 1, |ip| ether(&ip6(17, &udp(4789, &join(&[&[0x08, 0, 0, 0, 0, 0, 42, 0], &ether(ip)]))))),
    ("VXLAN with a protocol", 1, |ip| in_udp(4790, &join(&[&[0x0c, 0, 0, if ip[0] >> 4 == 4 { 1 } else { 2 }, 0, 0, 42, 0], ip]))),
    ("VXLAN with a service header", 1, |ip| {
        in_udp(4790, &join(&[&[0x0c, 0, 0, 4, 0, 0, 42, 0], &[0, 2, 1, if ip[0] >> 4 == 4 { 1 } else { 2 }, 0, 0, 7, 255], ip]))
    }),
    ("Geneve", 1, |ip| in_udp(6081, &join(&[&[0, 0, 0x65, 0x58, 0, 0, 42, 0], &ether(ip)]))),
    ("Geneve with options, without Ethernet", 1, |ip| {
        in_udp(6081, &join(&[&[2, 0], &kind(ip), &[0, 0, 42, 0, 1, 2, 3, 1, 9, 9, 9, 9], ip]))
    }),
    ("GTP-U", 1, |ip| gtp(0, &[], ip)),
    ("GTP-U with sequence number", 1, |ip| gtp(2, &[0, 1, 0, 0], ip)),
    ("GTP-U with extension headers", 1, |ip| gtp(4, &[0, 0, 0, 0x85, 1, 0x10, 9, 0xc0, 2, 1, 2, 3, 4, 5, 6, 0], ip)),
    ("GTP-U with Ethernet", 1, |ip| gtp(0, &[], &ether(ip))),
    ("L2TP", 1, |ip| in_udp(1701, &join(&[&[0x40, 2, 0, 9, 0, 1, 0, 2], &ppp(ip)]))),
    ("L2TP with all fields", 1, |ip| in_udp(1701, &join(&[&[0x4a, 2, 0, 9, 0, 1, 0, 2, 0, 3, 0, 4, 0, 2, 9, 9], &ppp(ip)]))),
    ("loopback", 0, |ip| join(&[&[if ip[0] >> 4 == 4 { 2 } else { 10 }, 0, 0, 0], ip])),
    ("loopback of OpenBSD", 108, |ip| join(&[&[0, 0, 0, 2], ip])),
    ("IPsec of OpenBSD", 109, |ip| join(&[&[2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], ip])),
    ("raw IP", 101, <[u8]>::to_vec),
    ("Linux cooked", 113, |ip| join(&[&[0, 0, 0, 1, 0, 6], &MAC[..6], &[0, 0], &kind(ip), ip])),
    ("Linux cooked with LLC", 113, |ip| join(&[&[0, 0, 0, 1, 0, 6], &MAC[..6], &[0, 0, 0, 4], &snap(ip)])),
    ("Linux cooked, version 2", 276, |ip| cooked2(3, ip)),
    ("Linux cooked with a VLAN", 113, |ip| join(&[&[0, 0, 0, 1, 0, 6], &MAC[..6], &[0, 0, 0x81, 0, 0, 42], &kind(ip), ip])),
    ("Linux cooked with radiotap", 113, |ip| {
        join(&[&[0, 0, 3, 0x23, 0, 6], &MAC[..6], &[0, 0, 0, 4], &radiotap(&[0; 4], &wifi([0x08, 0x01], &[], &snap(ip)))])
    }),
    ("NFLOG", 239, |ip| nflog(ip, u16::to_le_bytes)),
    ("NFLOG, big-endian", 239, |ip| nflog(ip, u16::to_be_bytes)),
    ("802.11", 105, |ip| wifi([0x08, 0x01], &[], &snap(ip))),
    ("802.11 with QoS", 105, |ip| wifi([0x88, 0x02], &[0, 0], &snap(ip))),
    ("802.11 with QoS and HT control", 105, |ip| wifi([0x88, 0x82], &[0, 0, 1, 2, 3, 4], &snap(ip))),
    ("802.11 with four addresses", 105, |ip| wifi([0x88, 0x03], &[2, 0, 0, 0, 0, 9, 0, 0], &snap(ip))),
    ("802.11, decrypted by the driver", 105, |ip| wifi([0x08, 0x41], &[], &snap(ip))),
    ("radiotap", 127, |ip| radiotap(&[0; 4], &wifi([0x08, 0x01], &[], &snap(ip)))),
    ("radiotap, padded", 127, |ip| {
        let flags = [3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x30];
        // The time begins at a multiple of eight bytes.
        radiotap(&[&flags[..4], &flags[4..]].concat(), &wifi([0x88, 0x01], &[0, 0, 0, 0], &snap(ip)))
    }),
    ("radiotap with two words", 127, |ip| radiotap(&[2, 0, 0, 0x80, 0, 0, 0, 0, 0x10], &wifi([0x08, 0x01], &[], &snap(ip)))),
    ("Prism", 119, |ip| join(&[&[0, 0, 0, 0x44, 0, 0, 0, 144], &[0; 136], &wifi([0x08, 0x01], &[], &snap(ip))])),
    ("AVS", 163, |ip| join(&[&[0x80, 0x21, 0x10, 0x01, 0, 0, 0, 64], &[0; 56], &wifi([0x08, 0x01], &[], &snap(ip))])),
    ("per-packet information", 192, |ip| join(&[&[0, 0, 8, 0, 105, 0, 0, 0], &wifi([0x08, 0x01], &[], &snap(ip))])),
    ("VXLAN in GRE in a VLAN", 1, |ip| {
        let inner = vxlan(42, ip);
        let outer = gre(0, 0, 0x6558, &inner);
        join(&[&outer[..12], &[0x81, 0, 0, 42], &outer[12..]])
    }),
];

/// An 802.11 A-MSDU of several IP packets.
pub(crate) fn amsdu(packets: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for packet in packets {
        body.resize(body.len().next_multiple_of(4), 0);
        let frame = snap(packet);
        body.extend([&MAC[..], &(frame.len() as u16).to_be_bytes(), &frame].concat());
    }
    wifi([0x88, 0x01], &[0x80, 0], &body)
}

/// Frames that cannot be read: link type, frame, and what the message must contain.
pub(crate) fn unreadable() -> Vec<(u32, Vec<u8>, [&'static str; 2])> {
    let body = [9; 60];
    vec![
        (105, wifi([0x08, 0x41], &[], &body), ["encrypted 802.11", "airdecap-ng"]),
        (1, ether(&ip4(50, &body)), ["IPsec ESP", "in clear text"]),
        (1, in_udp(4500, &body), ["IPsec ESP", "in clear text"]),
        (1, ether(&ip6(108, &body)), ["IPComp", "behind the hosts"]),
        (1, ether_of(0x88e5, &[&[0x2c, 0][..], &body].concat()), ["MACsec", "macsec interface"]),
        (1, in_udp(51820, &[&[4, 0, 0, 0][..], &body].concat()), ["WireGuard", "wg0"]),
        (1, in_udp(1194, &[&[0x48][..], &body].concat()), ["OpenVPN", "tun or tap"]),
        (1, ether(&ip4(115, &body)), ["L2TPv3", "l2tp interface"]),
        (1, in_udp(1701, &[&[0, 3][..], &body].concat()), ["L2TPv3", "l2tp interface"]),
        (9, [&[0xff, 0x03, 0x00, 0xfd][..], &body].concat(), ["PPP with compression or encryption", "ppp interface"]),
        (9, [&[0xff, 0x03, 0x00, 0x2d][..], &body].concat(), ["compressed TCP/IP headers", "ppp interface"]),
        (9, [&[0xff, 0x03, 0x00, 0x3d][..], &body].concat(), ["PPP Multilink", "ppp interface"]),
        (1, gre(0, 0, 0x9999, &body), ["GRE with an unknown payload", "behind the tunnel"]),
        (1, mpls(&[0x95; 60]), ["MPLS with an unknown payload", "behind the tunnel"]),
        (1, (0..40).fold(ip4(6, &body), |inner, _| ip4(4, &inner)), ["other protocols", "filter"]),
        (1, ether(&(0..40).fold(ip4(6, &body), |inner, _| ip4(4, &inner))), ["nested in too many headers", "outermost"]),
    ]
}
