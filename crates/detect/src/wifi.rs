//! Removes 802.11 headers, and those that a capture in monitor mode puts before them.

use crate::{
    layer::{Layer, Unwrapped, be16, be32, next},
    obstacle::Obstacle,
    trace::LinkType,
};

/// Removes what a capture puts before the 802.11 header.
pub(crate) fn capture_header(link: LinkType, bytes: &[u8]) -> Unwrapped {
    let wifi = |skip: usize| if skip < 8 { Unwrapped::Other } else { next(Layer::Wifi { padded: false }, skip) };
    match link {
        LinkType::Radiotap => radiotap(bytes),
        LinkType::Prism | LinkType::Avs => match (be32(bytes, 0), be32(bytes, 4)) {
            // The header of AVS begins with a magic number, then its length.
            (Some(0x8021_1001 | 0x8021_1002), Some(length)) => wifi(length as usize),
            (Some(_), Some(_)) => wifi(144),
            _ => Unwrapped::Short,
        },
        // Per-packet information: length and link type in little-endian byte order.
        LinkType::Ppi => match (bytes.get(2..4), bytes.get(4..8)) {
            (Some(length), Some(kind)) => {
                let (length, kind) =
                    (usize::from(u16::from_le_bytes([length[0], length[1]])), i32::from_le_bytes([kind[0], kind[1], kind[2], kind[3]]));
                if length < 8 { Unwrapped::Other } else { next(Layer::Link(LinkType::of(kind)), length) }
            }
            _ => Unwrapped::Short,
        },
        _ => next(Layer::Wifi { padded: false }, 0),
    }
}

/// Radiotap (radiotap.org): its length, and whether the 802.11 header is padded.
fn radiotap(bytes: &[u8]) -> Unwrapped {
    const TIMER: u32 = 1;
    const FLAGS: u32 = 2;
    const MORE: u32 = 1 << 31;
    const PADDED: u8 = 0x20;
    let le32 = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (Some(length), Some(present)) = (bytes.get(2..4), le32(4)) else { return Unwrapped::Short };
    let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
    if length < 8 {
        return Unwrapped::Other;
    }
    let mut at = 8;
    let mut words = present;
    while words & MORE != 0 {
        let Some(word) = le32(at) else { return Unwrapped::Short };
        (words, at) = (word, at + 4);
    }
    if present & TIMER != 0 {
        at = at.next_multiple_of(8) + 8;
    }
    let padded = present & FLAGS != 0 && at < length && bytes.get(at).is_some_and(|flags| flags & PADDED != 0);
    next(Layer::Wifi { padded }, length)
}

/// The 802.11 header of a data frame (IEEE 802.11 §9.3.2). `padded`: padding to four bytes follows.
pub(crate) fn header(padded: bool, bytes: &[u8]) -> Unwrapped {
    const TO_AND_FROM: u8 = 0x03;
    const MORE_FRAGMENTS: u8 = 0x04;
    const PROTECTED: u8 = 0x40;
    const ORDER: u8 = 0x80;
    const AMSDU: u8 = 0x80;
    let (Some(&kind), Some(&flags)) = (bytes.first(), bytes.get(1)) else { return Unwrapped::Short };
    let (is_data, has_no_data, has_qos) = (kind & 0x0f == 0x08, kind & 0x40 != 0, kind & 0x80 != 0);
    if !is_data || has_no_data {
        return Unwrapped::Other;
    }
    let addresses = if flags & TO_AND_FROM == TO_AND_FROM { 30 } else { 24 };
    let qos = if has_qos { 2 + if flags & ORDER != 0 { 4 } else { 0 } } else { 0 };
    let skip: usize = addresses + qos;
    let skip = if padded { skip.next_multiple_of(4) } else { skip };
    let (Some(control), Some(body)) = (bytes.get(22..24), bytes.get(skip..).filter(|body| !body.is_empty())) else {
        return Unwrapped::Short;
    };
    if flags & MORE_FRAGMENTS != 0 || control[0] & 0x0f != 0 {
        return Unwrapped::Fragment;
    }
    // Some drivers decrypt a frame and leave the bit set.
    if flags & PROTECTED != 0 && !body.starts_with(&[0xaa, 0xaa, 0x03]) {
        return Unwrapped::Unreadable(Obstacle::EncryptedWifi);
    }
    let is_aggregate = has_qos && bytes.get(addresses).is_some_and(|control| control & AMSDU != 0);
    next(if is_aggregate { Layer::Amsdu } else { Layer::Llc }, skip)
}

/// The first frame of an A-MSDU (IEEE 802.11 §9.3.2.2): where its LLC header begins, and where the
/// next frame does.
pub(crate) fn subframe(bytes: &[u8]) -> Option<(usize, usize)> {
    const HEADER: usize = 14;
    let length = usize::from(be16(bytes, 12)?);
    Some((HEADER, (HEADER + length).next_multiple_of(4)))
}
