//! The messages between the cache and a picture worker, over a Unix stream socket.
//!
//! The worker begins with a hello. Then, for each picture: the cache sends a header and the
//! picture, and the worker answers with a header and either the smaller picture or the reason why
//! the picture stays as it is. Each side bounds the lengths that it accepts.

use crate::shrink::Kind;

/// Pictures with more bytes stay as they are.
pub(crate) const LARGEST: u64 = 32 << 20;
/// Bytes of a reason at most.
pub(crate) const LONGEST_REASON: usize = 1024;

/// A header: two codes, two bytes that are zero, and the length of what follows, little-endian.
pub(crate) type Header = [u8; 8];

/// The first seven bytes of a hello. The eighth says whether system calls are filtered.
const GREETING: [u8; 7] = *b"tandem1";
const SMALLER: u8 = 1;
const UNCHANGED: u8 = 2;

/// What a worker says when it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Whether its system calls are filtered.
    pub(crate) filtered: bool,
}

/// What is to be made of a picture of `length` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) from: Kind,
    pub(crate) to: Kind,
    pub(crate) length: usize,
}

/// What a worker answers; the lengths are those of what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A smaller picture.
    Smaller(usize),
    /// The reason why the picture stays as it is.
    Unchanged(usize),
}

impl Hello {
    pub(crate) fn encode(self) -> Header {
        let mut bytes = [0; 8];
        bytes[..7].copy_from_slice(&GREETING);
        bytes[7] = self.filtered.into();
        bytes
    }

    pub(crate) fn decode(bytes: Header) -> Option<Self> {
        let filtered = match bytes[7] {
            0 => false,
            1 => true,
            _ => return None,
        };
        (bytes[..7] == GREETING).then_some(Hello { filtered })
    }
}

impl Request {
    pub(crate) fn encode(self) -> Header {
        header(code(self.from), code(self.to), self.length)
    }

    pub(crate) fn decode(bytes: Header) -> Option<Self> {
        let (from, to, length) = fields(bytes)?;
        (length as u64 <= LARGEST).then_some(Request { from: kind(from)?, to: kind(to)?, length })
    }
}

impl Reply {
    pub(crate) fn encode(self) -> Header {
        match self {
            Reply::Smaller(length) => header(SMALLER, 0, length),
            Reply::Unchanged(length) => header(UNCHANGED, 0, length),
        }
    }

    /// Understands the reply to a picture of `original` bytes.
    pub(crate) fn decode(bytes: Header, original: usize) -> Option<Self> {
        match fields(bytes)? {
            (SMALLER, 0, length) if length < original => Some(Reply::Smaller(length)),
            (UNCHANGED, 0, length) if length <= LONGEST_REASON => Some(Reply::Unchanged(length)),
            _ => None,
        }
    }
}

/// `length` is at most [`LARGEST`], which fits into four bytes.
fn header(first: u8, second: u8, length: usize) -> Header {
    let [a, b, c, d] = (length as u32).to_le_bytes();
    [first, second, 0, 0, a, b, c, d]
}

fn fields(bytes: Header) -> Option<(u8, u8, usize)> {
    let [first, second, 0, 0, a, b, c, d] = bytes else { return None };
    Some((first, second, usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?))
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Jpeg => 1,
        Kind::Png => 2,
        Kind::WebP => 3,
    }
}

fn kind(code: u8) -> Option<Kind> {
    [Kind::Jpeg, Kind::Png, Kind::WebP].into_iter().find(|kind| self::code(*kind) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_understood_as_they_were_meant() {
        for filtered in [false, true] {
            assert_eq!(Hello::decode(Hello { filtered }.encode()), Some(Hello { filtered }));
        }
        let request = Request { from: Kind::Png, to: Kind::WebP, length: LARGEST as usize };
        assert_eq!(Request::decode(request.encode()), Some(request));
        for reply in [Reply::Smaller(99), Reply::Unchanged(LONGEST_REASON)] {
            assert_eq!(Reply::decode(reply.encode(), 100), Some(reply));
        }
    }

    #[test]
    fn lengths_and_codes_out_of_bounds_are_refused() {
        let request = Request { from: Kind::Jpeg, to: Kind::Jpeg, length: LARGEST as usize + 1 };
        assert_eq!(Request::decode(request.encode()), None);
        assert_eq!(Request::decode(header(9, 1, 0)), None);
        assert_eq!(Reply::decode(Reply::Smaller(100).encode(), 100), None, "not smaller");
        assert_eq!(Reply::decode(Reply::Unchanged(LONGEST_REASON + 1).encode(), 100), None);
        assert_eq!(Reply::decode([0xff; 8], 100), None);
        assert_eq!(Hello::decode([0; 8]), None);
    }
}
