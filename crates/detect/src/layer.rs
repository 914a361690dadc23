//! What a header is followed by: the type that the modules for link layers, 802.11 and tunnels
//! share. Each of their functions gets the bytes from its own header on.

use crate::{obstacle::Obstacle, trace::LinkType};

/// A layer whose header comes next in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The link layer of the capture.
    Link(LinkType),
    /// Ethernet, as payload of a tunnel or of the link layer.
    Ethernet,
    /// What an EtherType announces.
    EtherType(u16),
    /// IEEE 802.2 LLC, with or without SNAP.
    Llc,
    /// PPP, with or without address and control bytes.
    Ppp,
    /// Cisco HDLC.
    CiscoHdlc,
    /// A stack of MPLS labels.
    Mpls,
    /// An 802.11 header. `padded`: it is followed by padding to four bytes.
    Wifi { padded: bool },
    /// Several 802.11 frames in one (A-MSDU).
    Amsdu,
    /// IPv4 or IPv6.
    Ip,
    /// GRE, version 0 or 1.
    Gre,
    /// A tunnel in UDP.
    Udp(UdpTunnel),
}

/// Tunnels in UDP that are known by their port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UdpTunnel {
    Vxlan,
    Geneve,
    GtpU,
    Mpls,
    L2tp,
    Teredo,
}

/// A header, removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwrapped {
    /// The next header is `skip` bytes farther. `network` is a number that distinguishes networks
    /// in which the same addresses may mean different hosts (VLAN, VNI, key), or 0.
    Next { layer: Layer, skip: usize, network: u64 },
    /// The content cannot be read.
    Unreadable(Obstacle),
    /// A protocol that carries no TCP, or that is not known.
    Other,
    /// A part of a frame that was divided.
    Fragment,
    /// The frame is truncated within this header.
    Short,
    /// The link type is not supported.
    UnknownLink(i32),
}

/// The next header, in the same network.
pub(crate) fn next(layer: Layer, skip: usize) -> Unwrapped {
    Unwrapped::Next { layer, skip, network: 0 }
}

/// Big-endian number at an offset, or `None` past the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// As [`be16`], for 32 bits.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
