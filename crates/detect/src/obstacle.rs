//! Encapsulations whose content cannot be read: their names, and where to capture instead.

use serde::Serialize;

/// Why the content of a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// 802.11 frames with the "protected" bit.
    EncryptedWifi,
    /// IPsec Encapsulating Security Payload (RFC 4303), also in UDP (RFC 3948).
    Esp,
    /// IP payload compression (RFC 3173).
    IpComp,
    /// MACsec (IEEE 802.1AE) with encryption.
    Macsec,
    /// WireGuard.
    WireGuard,
    /// OpenVPN.
    OpenVpn,
    /// L2TPv3 (RFC 3931): the length of its cookie is not in the packet.
    L2tpV3,
    /// PPP with compression or encryption (RFC 1962, RFC 1968, RFC 3078).
    CompressedPpp,
    /// TCP/IP headers compressed by PPP (RFC 1144, RFC 2507, RFC 3095).
    CompressedHeaders,
    /// PPP Multilink (RFC 1990), which divides packets.
    PppMultilink,
    /// GRE with an unknown payload, source routing, or an unknown version.
    Gre,
    /// MPLS with a payload that is neither IP nor Ethernet.
    Mpls,
    /// More nested headers than are followed.
    Nesting,
}

impl Obstacle {
    /// What the frames are.
    pub fn name(self) -> &'static str {
        match self {
            Obstacle::EncryptedWifi => "encrypted 802.11",
            Obstacle::Esp => "IPsec ESP",
            Obstacle::IpComp => "IPComp (compressed IP)",
            Obstacle::Macsec => "encrypted MACsec",
            Obstacle::WireGuard => "WireGuard",
            Obstacle::OpenVpn => "OpenVPN",
            Obstacle::L2tpV3 => "L2TPv3",
            Obstacle::CompressedPpp => "PPP with compression or encryption",
            Obstacle::CompressedHeaders => "PPP with compressed TCP/IP headers",
            Obstacle::PppMultilink => "PPP Multilink",
            Obstacle::Gre => "GRE with an unknown payload",
            Obstacle::Mpls => "MPLS with an unknown payload",
            Obstacle::Nesting => "nested in too many headers",
        }
    }

    /// Whether it is counted among the datagrams too. IPsec ESP and L2TPv3 may be in IP directly.
    pub(crate) fn is_in_udp(self) -> bool {
        matches!(self, Obstacle::WireGuard | Obstacle::OpenVpn)
    }

    /// What to do instead.
    pub fn cure(self) -> &'static str {
        match self {
            Obstacle::EncryptedWifi => {
                "capture on the network interface of the station or the access point without monitor mode, or decrypt the file with airdecap-ng"
            }
            Obstacle::Esp => {
                "capture on a host of the tunnel, where packets are in clear text: on its xfrm, vti or ipsec interface, or behind it"
            }
            Obstacle::IpComp => "capture behind the hosts that compress",
            Obstacle::Macsec => "capture on the macsec interface",
            Obstacle::WireGuard => "capture on the WireGuard interface, for instance wg0",
            Obstacle::OpenVpn => "capture on the tun or tap interface of OpenVPN",
            Obstacle::L2tpV3 => "capture on the l2tp interface, or behind the tunnel",
            Obstacle::CompressedPpp | Obstacle::CompressedHeaders | Obstacle::PppMultilink => "capture on the ppp interface, or behind it",
            Obstacle::Gre | Obstacle::Mpls => "capture behind the tunnel, where packets are plain IP",
            Obstacle::Nesting => "capture behind the outermost tunnels",
        }
    }
}
