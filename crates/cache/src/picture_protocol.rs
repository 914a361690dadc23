//! The protocol between the cache and a picture worker, over a Unix stream socket.
//!
//! The worker begins with a hello. Then, for each picture, the cache sends a request header and the
//! picture, and the worker sends a reply header and either the smaller picture or the reason why
//! the picture passes unchanged. Each side bounds the lengths that it accepts.

use crate::shrink::PictureFormat;

/// Size of a picture, bytes at most. Larger ones pass unchanged.
pub(crate) const MAX_PICTURE_BYTES: u64 = 32 << 20;
/// Length of a reason, bytes at most.
pub(crate) const MAX_REASON_BYTES: usize = 1024;

/// A header: two codes, two zero bytes, and the length of what follows (32 bits, little-endian).
pub(crate) type FrameHeader = [u8; 8];

/// The first seven bytes of a hello. The eighth is 1 if system calls are filtered, else 0.
const GREETING: [u8; 7] = *b"tandem1";
const SMALLER: u8 = 1;
const UNCHANGED: u8 = 2;

/// The first message of a worker: it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerHello {
    /// Whether its system calls are filtered.
    pub(crate) filtered: bool,
}

/// The request to transcode the picture of `length` bytes that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TranscodeRequest {
    pub(crate) from: PictureFormat,
    pub(crate) to: PictureFormat,
    pub(crate) length: usize,
}

/// The reply of a worker, with the length of what follows, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TranscodeReply {
    /// A smaller picture.
    Smaller(usize),
    /// The reason why the picture passes unchanged.
    Unchanged(usize),
}

impl WorkerHello {
    pub(crate) fn encode(self) -> FrameHeader {
        let mut bytes = [0; 8];
        bytes[..7].copy_from_slice(&GREETING);
        bytes[7] = self.filtered.into();
        bytes
    }

    pub(crate) fn decode(bytes: FrameHeader) -> Option<Self> {
        let filtered = match bytes[7] {
            0 => false,
            1 => true,
            _ => return None,
        };
        (bytes[..7] == GREETING).then_some(WorkerHello { filtered })
    }
}

impl TranscodeRequest {
    pub(crate) fn encode(self) -> FrameHeader {
        header(code(self.from), code(self.to), self.length)
    }

    pub(crate) fn decode(bytes: FrameHeader) -> Option<Self> {
        let (from, to, length) = fields(bytes)?;
        (length as u64 <= MAX_PICTURE_BYTES).then_some(TranscodeRequest { from: format(from)?, to: format(to)?, length })
    }
}

impl TranscodeReply {
    pub(crate) fn encode(self) -> FrameHeader {
        match self {
            TranscodeReply::Smaller(length) => header(SMALLER, 0, length),
            TranscodeReply::Unchanged(length) => header(UNCHANGED, 0, length),
        }
    }

    /// Decodes the reply to a picture of `original` bytes. None where it is invalid.
    pub(crate) fn decode(bytes: FrameHeader, original: usize) -> Option<Self> {
        match fields(bytes)? {
            (SMALLER, 0, length) if length < original => Some(TranscodeReply::Smaller(length)),
            (UNCHANGED, 0, length) if length <= MAX_REASON_BYTES => Some(TranscodeReply::Unchanged(length)),
            _ => None,
        }
    }
}

/// `length` is at most [`MAX_PICTURE_BYTES`], which fits into 32 bits.
fn header(first: u8, second: u8, length: usize) -> FrameHeader {
    let [a, b, c, d] = (length as u32).to_le_bytes();
    [first, second, 0, 0, a, b, c, d]
}

fn fields(bytes: FrameHeader) -> Option<(u8, u8, usize)> {
    let [first, second, 0, 0, a, b, c, d] = bytes else { return None };
    Some((first, second, usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?))
}

fn code(format: PictureFormat) -> u8 {
    match format {
        PictureFormat::Jpeg => 1,
        PictureFormat::Png => 2,
        PictureFormat::WebP => 3,
    }
}

fn format(code: u8) -> Option<PictureFormat> {
    [PictureFormat::Jpeg, PictureFormat::Png, PictureFormat::WebP].into_iter().find(|format| self::code(*format) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_encoded() {
        for filtered in [false, true] {
            assert_eq!(WorkerHello::decode(WorkerHello { filtered }.encode()), Some(WorkerHello { filtered }));
        }
        let request = TranscodeRequest { from: PictureFormat::Png, to: PictureFormat::WebP, length: MAX_PICTURE_BYTES as usize };
        assert_eq!(TranscodeRequest::decode(request.encode()), Some(request));
        for reply in [TranscodeReply::Smaller(99), TranscodeReply::Unchanged(MAX_REASON_BYTES)] {
            assert_eq!(TranscodeReply::decode(reply.encode(), 100), Some(reply));
        }
    }

    #[test]
    fn lengths_and_codes_out_of_bounds_are_refused() {
        let request = TranscodeRequest { from: PictureFormat::Jpeg, to: PictureFormat::Jpeg, length: MAX_PICTURE_BYTES as usize + 1 };
        assert_eq!(TranscodeRequest::decode(request.encode()), None);
        assert_eq!(TranscodeRequest::decode(header(9, 1, 0)), None);
        assert_eq!(TranscodeReply::decode(TranscodeReply::Smaller(100).encode(), 100), None, "not smaller");
        assert_eq!(TranscodeReply::decode(TranscodeReply::Unchanged(MAX_REASON_BYTES + 1).encode(), 100), None);
        assert_eq!(TranscodeReply::decode([0xff; 8], 100), None);
        assert_eq!(WorkerHello::decode([0; 8]), None);
    }
}
