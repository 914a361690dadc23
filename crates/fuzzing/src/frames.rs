//! Arbitrary bytes from the peer of a bond. The frames do not depend on how the bytes are split,
//! and a frame that is encoded and decoded again is the same.

use bond::{Decoded, Frame, FrameReader};

/// Decodes bytes in parts of this size. Returns all frames, the number of payload bytes, and
/// whether decoding ended with an error.
fn decode(bytes: &[u8], part: usize) -> (Vec<Frame>, u64, bool) {
    let (mut reader, mut frames, mut payload) = (FrameReader::default(), Vec::new(), 0);
    for mut rest in bytes.chunks(part) {
        loop {
            let Ok((used, step)) = reader.read(rest) else { return (frames, payload, true) };
            rest = &rest[used..];
            match step {
                Decoded::Incomplete => {
                    assert!(rest.is_empty(), "the reader asks for more bytes although some are left");
                    break;
                }
                Decoded::Frame(frame) => frames.push(frame),
                Decoded::Payload { .. } if rest.is_empty() => break,
                Decoded::Payload { left, .. } => {
                    assert!(left > 0);
                    let here = (rest.len() as u64).min(left);
                    reader.consume_payload(here);
                    payload += here;
                    rest = &rest[here as usize..];
                }
            }
        }
    }
    (frames, payload, false)
}

/// Decodes arbitrary bytes.
///
/// # Panics
/// If one of the properties at the top of this file does not hold.
pub fn frames(data: &[u8]) {
    let Some((&part, bytes)) = data.split_first() else { return };
    let whole = decode(bytes, bytes.len().max(1));
    assert_eq!(whole, decode(bytes, usize::from(part) + 1));
    for frame in whole.0 {
        let header = frame.header();
        let (used, step) = FrameReader::default().read(&header).expect("an encoded frame can be decoded");
        assert_eq!((used, step), (header.len(), Decoded::Frame(frame)));
    }
}
