//! The wire format: frames over the connections of a bond, after the
//! [handshake](crate::DialHandshake).
//!
//! A frame is a type byte and fixed-size fields in network byte order. The payload follows the
//! header of a piece. The version is agreed in the handshake. Both ends use the same frames, as a
//! stream runs in each direction.
//!
//! | frame | type | fields (bytes) |
//! |---|---|---|
//! | [`Piece`](Frame::Piece) | 1 | offset (8), length (4), payload |
//! | [`End`](Frame::End) | 2 | final size of the stream (8) |
//! | [`Ack`](Frame::Ack) | 3 | payload received (8), acknowledged (8), flow-control limit (8) |
//! | [`Delivered`](Frame::Delivered) | 4 | |
//! | [`Reset`](Frame::Reset) | 5 | [reason](crate::ResetReason) (1) |
//! | [`Join`](Frame::Join) | 6 | stream (16), known (1), network (1), tier (1) |

use units::Span;

/// Longest payload of a piece, bytes.
const MAX_PIECE: u64 = 1 << 24;
/// Largest offset in a stream, bytes.
const MAX_OFFSET: u64 = 1 << 62;

/// Longest time for which an [`Ack`](Frame::Ack) is delayed. The sending end allows for it before
/// it takes a path for stalled.
pub const MAX_ACK_DELAY: Span = Span(50_000_000);

/// A frame, without the payload of a piece. Offsets are in bytes from the beginning of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A piece of the stream; its payload follows the header.
    Piece {
        /// Offset of its first byte.
        offset: u64,
        /// Length of the payload, bytes.
        len: u64,
    },
    /// The stream ends at this offset. Sent once on every path, as any of them may fail.
    End(u64),
    /// Acknowledges received bytes and grants credit.
    Ack {
        /// Payload received on this connection, bytes, duplicates included.
        path_received: u64,
        /// All bytes below this offset were received, over whichever path.
        acked: u64,
        /// Flow-control limit: the peer may send up to this offset.
        limit: u64,
    },
    /// The whole stream was delivered: the receiver's TCP has acknowledged it.
    Delivered,
    /// The stream is reset, with the number of a [`ResetReason`](crate::ResetReason).
    Reset(u8),
    /// The first frame on a connection, from the dialling end: the stream that it belongs to.
    Join {
        /// Identifies the stream: a random number.
        stream: u128,
        /// The accepting end must know the stream already, as the dialling end has heard from it.
        /// Otherwise the frame may open the stream.
        known: bool,
        /// Index of the dialling end's network. A later connection over the same network replaces
        /// this one.
        network: u8,
        /// Cost class of the network; cheap ones have low numbers.
        tier: u8,
    },
}

/// What was received is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Unknown type byte.
    #[error("the bond's peer sent a frame of unknown type {0:#04x}: close the connection")]
    UnknownType(u8),
    /// A field is out of range.
    #[error("the bond's peer sent {number} as the {what}, which is out of range: close the connection")]
    OutOfRange {
        /// Name of the field.
        what: &'static str,
        /// Its value.
        number: u64,
    },
}

/// An encoded frame header; dereferences to its bytes.
#[derive(Debug, Clone, Copy)]
pub struct FrameHeader {
    bytes: [u8; FrameHeader::MAX_LEN],
    len: usize,
}

impl FrameHeader {
    /// Length of the longest header, bytes.
    pub const MAX_LEN: usize = 25;
    /// Length of the header of a piece, bytes.
    pub const PIECE_LEN: usize = 13;
}

impl std::ops::Deref for FrameHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Frame {
    /// Length of a [`Join`](Frame::Join) frame, bytes.
    pub const JOIN_LEN: usize = 20;

    /// Encodes the frame, of a piece only its header.
    pub fn header(&self) -> FrameHeader {
        let mut header = FrameHeader { bytes: [0; FrameHeader::MAX_LEN], len: 1 };
        let mut put = |bytes: &[u8]| {
            header.bytes[header.len..header.len + bytes.len()].copy_from_slice(bytes);
            header.len += bytes.len();
        };
        let kind = match *self {
            Frame::Piece { offset, len } => {
                put(&offset.to_be_bytes());
                put(&(len as u32).to_be_bytes());
                1
            }
            Frame::End(end) => {
                put(&end.to_be_bytes());
                2
            }
            Frame::Ack { path_received, acked, limit } => {
                [path_received, acked, limit].iter().for_each(|number| put(&number.to_be_bytes()));
                3
            }
            Frame::Delivered => 4,
            Frame::Reset(reason) => {
                put(&[reason]);
                5
            }
            Frame::Join { stream, known, network, tier } => {
                put(&stream.to_be_bytes());
                put(&[known.into(), network, tier]);
                6
            }
        };
        header.bytes[0] = kind;
        header
    }

    /// Length of the header with this type byte.
    fn header_len(kind: u8) -> Result<usize, BadFrame> {
        match kind {
            1 => Ok(FrameHeader::PIECE_LEN),
            2 => Ok(9),
            3 => Ok(25),
            4 => Ok(1),
            5 => Ok(2),
            6 => Ok(Frame::JOIN_LEN),
            _ => Err(BadFrame::UnknownType(kind)),
        }
    }

    /// Decodes a complete header.
    fn parse(header: &[u8]) -> Result<Frame, BadFrame> {
        let number = |at: usize, len: usize| header[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let offset = |at: usize, what: &'static str| {
            let number = number(at, 8);
            if number > MAX_OFFSET { Err(BadFrame::OutOfRange { what, number }) } else { Ok(number) }
        };
        match header[0] {
            1 => {
                let offset = offset(1, "offset of a piece")?;
                let len = number(9, 4);
                if len == 0 || len > MAX_PIECE {
                    return Err(BadFrame::OutOfRange { what: "length of a piece", number: len });
                }
                Ok(Frame::Piece { offset, len })
            }
            2 => Ok(Frame::End(offset(1, "end of a stream")?)),
            3 => Ok(Frame::Ack {
                path_received: offset(1, "payload received on a connection")?,
                acked: offset(9, "acknowledged offset")?,
                limit: offset(17, "flow-control limit")?,
            }),
            4 => Ok(Frame::Delivered),
            5 => Ok(Frame::Reset(header[1])),
            6 => {
                let stream = header[1..17].iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
                Ok(Frame::Join { stream, known: header[17] != 0, network: header[18], tier: header[19] })
            }
            kind => Err(BadFrame::UnknownType(kind)),
        }
    }
}

/// What a [`FrameReader`] found in its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// The input ends within a header: more bytes are needed.
    Incomplete,
    /// A frame. The payload of a piece follows.
    Frame(Frame),
    /// The next bytes are payload of a piece.
    Payload {
        /// Stream offset of the next byte.
        offset: u64,
        /// Bytes of the piece that are still to come.
        left: u64,
    },
}

/// Decodes frames from a byte stream that arrives in parts of any size.
///
/// The caller passes input to [`read`](FrameReader::read), which consumes headers and leaves
/// payload in place. After [`Decoded::Payload`] the caller takes some payload itself, from the
/// input or right from its socket, and reports it with
/// [`consume_payload`](FrameReader::consume_payload).
#[derive(Debug, Clone, Default)]
pub struct FrameReader {
    header: [u8; FrameHeader::MAX_LEN],
    /// Bytes of `header` received so far.
    header_received: usize,
    /// Payload that is expected next: stream offset of the next byte, and how many are left.
    payload: (u64, u64),
}

impl FrameReader {
    /// Decodes the next item of `bytes`; returns how many bytes were consumed, and the item.
    /// Payload is not consumed.
    ///
    /// # Errors
    /// When the bytes are no frame. The connection cannot go on then.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Decoded), BadFrame> {
        if let Some((offset, left)) = self.payload() {
            return Ok((0, Decoded::Payload { offset, left }));
        }
        let mut used = 0;
        if self.header_received == 0 {
            let Some(kind) = bytes.first() else { return Ok((0, Decoded::Incomplete)) };
            self.header[0] = *kind;
            self.header_received = 1;
            used = 1;
        }
        let len = Frame::header_len(self.header[0])?;
        let more = (len - self.header_received).min(bytes.len() - used);
        self.header[self.header_received..self.header_received + more].copy_from_slice(&bytes[used..used + more]);
        self.header_received += more;
        used += more;
        if self.header_received < len {
            return Ok((used, Decoded::Incomplete));
        }
        self.header_received = 0;
        let frame = Frame::parse(&self.header[..len])?;
        if let Frame::Piece { offset, len } = frame {
            self.payload = (offset, len);
        }
        Ok((used, Decoded::Frame(frame)))
    }

    /// The payload that is expected next, if any: stream offset of its first byte, and how many
    /// bytes are left of the piece. They may be received right to where they belong.
    pub fn payload(&self) -> Option<(u64, u64)> {
        Some(self.payload).filter(|(_, left)| *left > 0)
    }

    /// The caller has taken `bytes` of payload.
    pub fn consume_payload(&mut self, bytes: u64) {
        let (offset, left) = &mut self.payload;
        let bytes = bytes.min(*left);
        *offset += bytes;
        *left -= bytes;
    }

    /// Whether the input so far ends between two frames. Only there may a connection end.
    pub fn is_at_frame_boundary(&self) -> bool {
        self.header_received == 0 && self.payload.1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let offset = 0..=MAX_OFFSET;
        prop_oneof![
            (offset.clone(), 1u64..2000).prop_map(|(offset, len)| Frame::Piece { offset, len }),
            offset.clone().prop_map(Frame::End),
            (offset.clone(), offset.clone(), offset).prop_map(|(path_received, acked, limit)| Frame::Ack { path_received, acked, limit }),
            Just(Frame::Delivered),
            any::<u8>().prop_map(Frame::Reset),
            any::<(u128, bool, u8, u8)>().prop_map(|(stream, known, network, tier)| Frame::Join { stream, known, network, tier }),
        ]
    }

    /// Frames, payload bytes with their offsets, and whether the input ends at a frame boundary.
    type Transcript = (Vec<Frame>, Vec<(u64, u8)>, bool);

    /// Decodes bytes that arrive in parts of these sizes, in turn.
    fn read(bytes: &[u8], parts: &[usize]) -> Result<Transcript, BadFrame> {
        let (mut reader, mut frames, mut payload, mut at) = (FrameReader::default(), Vec::new(), Vec::new(), 0);
        for part in parts.iter().cycle() {
            let mut rest = &bytes[at..bytes.len().min(at + part)];
            at += rest.len();
            loop {
                let (used, decoded) = reader.read(rest)?;
                rest = &rest[used..];
                match decoded {
                    Decoded::Incomplete => break,
                    Decoded::Frame(frame) => frames.push(frame),
                    Decoded::Payload { .. } if rest.is_empty() => break,
                    Decoded::Payload { offset, left } => {
                        let here = rest.len().min(left as usize);
                        payload.extend((offset..).zip(rest[..here].iter().copied()));
                        reader.consume_payload(here as u64);
                        rest = &rest[here..];
                    }
                }
            }
            if at == bytes.len() {
                break;
            }
        }
        Ok((frames, payload, reader.is_at_frame_boundary()))
    }

    #[test]
    fn frames_are_encoded_in_network_byte_order() {
        assert_eq!(&*Frame::Piece { offset: 0x0102, len: 0x0304 }.header(), &[1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4]);
        assert_eq!(&*Frame::End(7).header(), &[2, 0, 0, 0, 0, 0, 0, 0, 7]);
        let ack = Frame::Ack { path_received: 1, acked: 2, limit: 3 }.header();
        assert_eq!(&*ack, &[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!((&*Frame::Delivered.header(), &*Frame::Reset(9).header()), (&[4][..], &[5, 9][..]));
    }

    #[test]
    fn unknown_types_and_impossible_fields_are_refused() {
        let refused = |bytes: &[u8]| read(bytes, &[1]).expect_err("it is not a frame");
        assert_eq!(refused(&[0]), BadFrame::UnknownType(0));
        assert_eq!(refused(&[4, 0x47]), BadFrame::UnknownType(0x47));
        let mut empty = [0; 13];
        empty[0] = 1;
        assert_eq!(refused(&empty), BadFrame::OutOfRange { what: "length of a piece", number: 0 });
        assert_eq!(refused(&[&[1; 9][..], &[0xff; 4]].concat()), BadFrame::OutOfRange { what: "length of a piece", number: 0xffff_ffff });
        assert_eq!(refused(&[&[2][..], &[0xff; 8]].concat()), BadFrame::OutOfRange { what: "end of a stream", number: u64::MAX });
        assert_eq!(read(&Frame::End(7).header()[..5], &[2]), Ok((vec![], vec![], false)));
    }

    proptest! {
        #[test]
        fn encoded_frames_decode_to_themselves(frames in prop::collection::vec(frame(), 1..20), parts in prop::collection::vec(1usize..3000, 1..20)) {
            let (mut bytes, mut payload) = (Vec::new(), Vec::new());
            for frame in &frames {
                bytes.extend_from_slice(&frame.header());
                if let Frame::Piece { offset, len } = frame {
                    let piece: Vec<(u64, u8)> = (*offset..offset + len).map(|at| (at, at as u8)).collect();
                    bytes.extend(piece.iter().map(|(_, byte)| *byte));
                    payload.extend(piece);
                }
            }
            prop_assert_eq!(read(&bytes, &parts), Ok((frames, payload, true)));
        }

        #[test]
        fn decoding_does_not_depend_on_segmentation(bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..200), parts in prop::collection::vec(1usize..50, 1..5)) {
            prop_assert_eq!(read(&bytes, &parts), read(&bytes, &[usize::MAX / 2]));
        }
    }
}
