//! What the other end of a bond says, any bytes: read at once or in parts it is the same, and frames are what they were written as.

use bond::{Decoded, Frame, FrameReader};

/// All frames, how many bytes of payload came, and whether it ended in an error.
fn heard(bytes: &[u8], part: usize) -> (Vec<Frame>, u64, bool) {
    let (mut reader, mut frames, mut payload) = (FrameReader::default(), Vec::new(), 0);
    for mut rest in bytes.chunks(part) {
        loop {
            let Ok((used, step)) = reader.read(rest) else { return (frames, payload, true) };
            rest = &rest[used..];
            match step {
                Decoded::Incomplete => {
                    assert!(rest.is_empty(), "it asks for more while there is some");
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

/// See the top of this file.
///
/// # Panics
/// When what it says there is not so.
pub fn frames(data: &[u8]) {
    let Some((&part, bytes)) = data.split_first() else { return };
    let whole = heard(bytes, bytes.len().max(1));
    assert_eq!(whole, heard(bytes, usize::from(part) + 1));
    for frame in whole.0 {
        let header = frame.header();
        let (used, step) = FrameReader::default().read(&header).expect("what was read can be read again");
        assert_eq!((used, step), (header.len(), Decoded::Frame(frame)));
    }
}
