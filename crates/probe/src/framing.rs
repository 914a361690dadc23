//! Length-prefixed frames over TCP, bounded in size and time, and messages in JSON within them.

use serde::{Serialize, de::DeserializeOwned};
use socket2::SockRef;
use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Upper bounds on a frame with a message and on one with a trace, bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 10;
pub(crate) const MAX_TRACE_BYTES: usize = 64 << 20;

/// Writes a frame: its length as four bytes, big-endian, then the content.
///
/// # Errors
/// The frame is too large, or the write fails.
pub(crate) fn write_frame(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("the frame is too large"))?;
    to.write_all(&[&length.to_be_bytes(), bytes].concat())
}

/// Reads a frame of at most `most` bytes.
///
/// # Errors
/// The frame is larger than `most`, or the read fails or ends early.
pub(crate) fn read_frame(mut from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes exceeds the limit of {most}")));
    }
    let mut bytes = Vec::new();
    if from.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// A socket with a deadline. A peer that trickles single bytes cannot extend it.
pub(crate) struct DeadlineSocket<'a> {
    socket: SockRef<'a>,
    end: Instant,
    silence: Duration,
}

impl<'a> DeadlineSocket<'a> {
    /// Limits the whole use to `all`, and each read or write to `silence`.
    pub(crate) fn new<S: AsFd>(socket: &'a S, all: Duration, silence: Duration) -> Self {
        DeadlineSocket { socket: SockRef::from(socket), end: Instant::now() + all, silence }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now()).min(self.silence);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for DeadlineSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        (&*self.socket).read(buffer)
    }
}

impl Write for DeadlineSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        (&*self.socket).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a message.
pub(crate) fn write_message(to: impl Write, words: &impl Serialize) -> io::Result<()> {
    write_frame(to, &serde_json::to_vec(words)?)
}

/// Reads a message.
pub(crate) fn read_message<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_frame(from, MAX_MESSAGE_BYTES)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ResponderEvent;

    #[test]
    fn frames_are_bounded() {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &ResponderEvent::Ready).unwrap();
        assert!(matches!(read_message(bytes.as_slice()), Ok(ResponderEvent::Ready)));
        for bad in [&bytes[..bytes.len() - 1], &[0, 0][..], &[0, 0, 0, 1, b'?'], &[255; 8]] {
            assert!(read_message::<ResponderEvent>(bad).is_err(), "{bad:?}");
        }
    }
}
