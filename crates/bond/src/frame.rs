//! What is said over a connection: frames, each a byte that says which, and numbers, the most significant byte first; behind the header of a piece come
//! its bytes. The version is agreed upon before, with the key (see [`Dialled`](crate::Dialled)). Both ends speak like this: a stream goes each way.
//!
//! | frame | first byte | numbers |
//! |---|---|---|
//! | a piece of the stream | 1 | offset (8 bytes), length (4), its bytes |
//! | the stream ends | 2 | where (8) |
//! | what has come | 3 | payload over this connection (8), all below this offset (8), room for all below this (8) |
//! | all was delivered | 4 | |
//! | the stream is given up | 5 | why (1) |
//! | this connection is of that stream | 6 | its number, random (16), whether that is known (1), the network it goes over (1), the connection's tier (1) |

/// The longest piece.
const MOST_PIECE: u64 = 1 << 24;
/// No stream is longer.
const MOST_OFFSET: u64 = 1 << 62;

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A piece of the stream follows.
    Piece {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// The stream ends here.
    End(u64),
    /// What has come.
    Ack {
        /// Payload over this connection.
        got: u64,
        /// All below was received.
        next: u64,
        /// There is room for all below.
        limit: u64,
    },
    /// All of it was delivered to whom it is for.
    Done,
    /// The stream is given up.
    Reset(u8),
    /// The connection is one of a stream's: the first that is said over one, by who dialled.
    Join {
        /// Which stream: a number that nobody can guess.
        stream: u128,
        /// Who accepts knows of the stream already, if it ever did: it has been heard of since.
        known: bool,
        /// Which of the networks of who dialled it goes over: another over the same one takes its place.
        network: u8,
        /// Cheap connections have low numbers.
        tier: u8,
    },
}

/// Why what came is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// There is none that begins so.
    #[error("the other end of the bond said something that begins with {0:#04x}, which no frame does: give the connection up")]
    Unknown(u8),
    /// A number that cannot be.
    #[error("the other end of the bond said {number}, which cannot be the {what}: give the connection up")]
    Number {
        /// What it would be.
        what: &'static str,
        /// What it is.
        number: u64,
    },
}

/// A frame's header, as it goes over the wire.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    bytes: [u8; Header::MOST],
    len: usize,
}

impl Header {
    /// The longest.
    pub const MOST: usize = 25;
    /// That of a piece.
    pub const PIECE: usize = 13;
}

impl std::ops::Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Frame {
    /// How long the first frame of a connection is, which says of which stream it is.
    pub const JOIN: usize = 20;

    /// As it goes over the wire.
    pub fn header(&self) -> Header {
        let mut header = Header { bytes: [0; Header::MOST], len: 1 };
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
            Frame::Ack { got, next, limit } => {
                [got, next, limit].iter().for_each(|number| put(&number.to_be_bytes()));
                3
            }
            Frame::Done => 4,
            Frame::Reset(why) => {
                put(&[why]);
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

    /// How long the header is that begins so.
    fn header_len(kind: u8) -> Result<usize, BadFrame> {
        match kind {
            1 => Ok(Header::PIECE),
            2 => Ok(9),
            3 => Ok(25),
            4 => Ok(1),
            5 => Ok(2),
            6 => Ok(Frame::JOIN),
            _ => Err(BadFrame::Unknown(kind)),
        }
    }

    /// Of a whole header.
    fn parse(header: &[u8]) -> Result<Frame, BadFrame> {
        let number = |at: usize, len: usize| header[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let offset = |at: usize, what: &'static str| {
            let number = number(at, 8);
            if number > MOST_OFFSET { Err(BadFrame::Number { what, number }) } else { Ok(number) }
        };
        match header[0] {
            1 => {
                let (offset, len) = (offset(1, "offset of a piece")?, number(9, 4));
                if len == 0 || len > MOST_PIECE {
                    return Err(BadFrame::Number { what: "length of a piece", number: len });
                }
                Ok(Frame::Piece { offset, len })
            }
            2 => Ok(Frame::End(offset(1, "end of a stream")?)),
            3 => Ok(Frame::Ack {
                got: offset(1, "number of bytes that came")?,
                next: offset(9, "number of bytes that are there")?,
                limit: offset(17, "end of the room")?,
            }),
            4 => Ok(Frame::Done),
            5 => Ok(Frame::Reset(header[1])),
            6 => {
                let stream = header[1..17].iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
                Ok(Frame::Join { stream, known: header[17] != 0, network: header[18], tier: header[19] })
            }
            kind => Err(BadFrame::Unknown(kind)),
        }
    }
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// This was said. Of a piece, its bytes follow.
    Said(Frame),
    /// The next bytes are those of a piece: from this offset on, so many of which are still to come.
    Payload {
        /// Where the next one belongs.
        offset: u64,
        /// How many are left.
        left: u64,
    },
}

/// Reads frames out of bytes that come in parts of any size.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    header: [u8; Header::MOST],
    have: usize,
    /// The piece whose bytes come: where the next one belongs, and how many are left.
    payload: (u64, u64),
}

impl Reader {
    /// What the next bytes are, of which those of a header are consumed: how many, and what they said. Bytes of a piece are left where they are: whoever
    /// took some of them [says](Reader::took) so.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Step), BadFrame> {
        if let Some((offset, left)) = self.payload() {
            return Ok((0, Step::Payload { offset, left }));
        }
        let mut used = 0;
        if self.have == 0 {
            let Some(kind) = bytes.first() else { return Ok((0, Step::More)) };
            (self.header[0], self.have, used) = (*kind, 1, 1);
        }
        let len = Frame::header_len(self.header[0])?;
        let more = (len - self.have).min(bytes.len() - used);
        self.header[self.have..self.have + more].copy_from_slice(&bytes[used..used + more]);
        self.have += more;
        used += more;
        if self.have < len {
            return Ok((used, Step::More));
        }
        self.have = 0;
        let frame = Frame::parse(&self.header[..len])?;
        if let Frame::Piece { offset, len } = frame {
            self.payload = (offset, len);
        }
        Ok((used, Step::Said(frame)))
    }

    /// The piece whose bytes come next, if they do: where the next one belongs, and how many are left. They may be read right to where they belong.
    pub fn payload(&self) -> Option<(u64, u64)> {
        Some(self.payload).filter(|(_, left)| *left > 0)
    }

    /// So many bytes of a piece were taken.
    pub fn took(&mut self, bytes: u64) {
        let (offset, left) = &mut self.payload;
        let bytes = bytes.min(*left);
        (*offset, *left) = (*offset + bytes, *left - bytes);
    }

    /// Whether it stands between two frames: a connection may end here, and nowhere else.
    pub fn is_between(&self) -> bool {
        self.have == 0 && self.payload.1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let offset = 0..=MOST_OFFSET;
        prop_oneof![
            (offset.clone(), 1u64..2000).prop_map(|(offset, len)| Frame::Piece { offset, len }),
            offset.clone().prop_map(Frame::End),
            (offset.clone(), offset.clone(), offset).prop_map(|(got, next, limit)| Frame::Ack { got, next, limit }),
            Just(Frame::Done),
            any::<u8>().prop_map(Frame::Reset),
            any::<(u128, bool, u8, u8)>().prop_map(|(stream, known, network, tier)| Frame::Join { stream, known, network, tier }),
        ]
    }

    /// Frames, the payload between them by offset, and whether the end is between two.
    type Heard = (Vec<Frame>, Vec<(u64, u8)>, bool);

    /// What a reader makes of bytes that come in parts of these sizes.
    fn read(bytes: &[u8], parts: &[usize]) -> Result<Heard, BadFrame> {
        let (mut reader, mut frames, mut payload, mut at) = (Reader::default(), Vec::new(), Vec::new(), 0);
        for part in parts.iter().cycle() {
            let mut rest = &bytes[at..bytes.len().min(at + part)];
            at += rest.len();
            loop {
                let (used, step) = reader.read(rest)?;
                rest = &rest[used..];
                match step {
                    Step::More => break,
                    Step::Said(frame) => frames.push(frame),
                    Step::Payload { .. } if rest.is_empty() => break,
                    Step::Payload { offset, left } => {
                        let here = rest.len().min(left as usize);
                        payload.extend((offset..).zip(rest[..here].iter().copied()));
                        reader.took(here as u64);
                        rest = &rest[here..];
                    }
                }
            }
            if at == bytes.len() {
                break;
            }
        }
        Ok((frames, payload, reader.is_between()))
    }

    #[test]
    fn it_looks_like_this_on_the_wire() {
        assert_eq!(&*Frame::Piece { offset: 0x0102, len: 0x0304 }.header(), &[1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4]);
        assert_eq!(&*Frame::End(7).header(), &[2, 0, 0, 0, 0, 0, 0, 0, 7]);
        let ack = Frame::Ack { got: 1, next: 2, limit: 3 }.header();
        assert_eq!(&*ack, &[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!((&*Frame::Done.header(), &*Frame::Reset(9).header()), (&[4][..], &[5, 9][..]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |bytes: &[u8]| read(bytes, &[1]).expect_err("it is no frame");
        assert_eq!(refused(&[0]), BadFrame::Unknown(0));
        assert_eq!(refused(&[4, 0x47]), BadFrame::Unknown(0x47));
        let mut empty = [0; 13];
        empty[0] = 1;
        assert_eq!(refused(&empty), BadFrame::Number { what: "length of a piece", number: 0 });
        assert_eq!(refused(&[&[1; 9][..], &[0xff; 4]].concat()), BadFrame::Number { what: "length of a piece", number: 0xffff_ffff });
        assert_eq!(refused(&[&[2][..], &[0xff; 8]].concat()), BadFrame::Number { what: "end of a stream", number: u64::MAX });
        assert_eq!(read(&Frame::End(7).header()[..5], &[2]), Ok((vec![], vec![], false)));
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(frames in prop::collection::vec(frame(), 1..20), parts in prop::collection::vec(1usize..3000, 1..20)) {
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
        fn garbage_is_heard_or_refused(bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..200), parts in prop::collection::vec(1usize..50, 1..5)) {
            // However it comes, what is made of it is the same.
            prop_assert_eq!(read(&bytes, &parts), read(&bytes, &[usize::MAX / 2]));
        }
    }
}
