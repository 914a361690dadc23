//! Messages with descriptors over a Unix socket.
//!
//! A message is a header (the length of its text, the number of its descriptors), one byte for each
//! batch of descriptors, which carries them (SCM_RIGHTS), and its text, as JSON.

use rustix::{
    fd::{AsFd as _, BorrowedFd, OwnedFd},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// Descriptors in a batch. The kernel's limit is 253.
const BATCH: usize = 128;
/// The longest text of a message, bytes.
const LONGEST: usize = 16 << 20;
/// The most descriptors of a message.
const MOST_DESCRIPTORS: usize = 16 << 10;

/// Sends a message with descriptors.
///
/// # Errors
/// The peer has closed the connection, or does not read for as long as `timeout`.
pub(super) fn send(mut stream: &UnixStream, message: &impl Serialize, descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(timeout))?;
    let text = serde_json::to_vec(message)?;
    let length = |count: usize| u32::try_from(count).map_err(|_| io::Error::from(ErrorKind::InvalidInput));
    stream.write_all(&length(text.len())?.to_be_bytes())?;
    stream.write_all(&length(descriptors.len())?.to_be_bytes())?;
    for batch in descriptors.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(batch)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    }
    stream.write_all(&text)
}

/// Receives a message with its descriptors.
///
/// # Errors
/// [`ErrorKind::UnexpectedEof`] when the peer has closed the connection, [`ErrorKind::TimedOut`]
/// when the message is not complete at the deadline, [`ErrorKind::InvalidData`] when it is no such
/// message, [`ErrorKind::Other`] when this process cannot have its descriptors.
pub(super) fn receive<T: DeserializeOwned>(stream: &UnixStream, deadline: Instant) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut header = [0; 8];
    read_exact(stream, &mut header, deadline)?;
    let [length, count] = [&header[..4], &header[4..]].map(|part| part.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)));
    let bad = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
    if length > LONGEST || count > MOST_DESCRIPTORS {
        return Err(bad("the message is too long"));
    }
    let mut descriptors = Vec::with_capacity(count);
    while descriptors.len() < count {
        let before = descriptors.len();
        receive_batch(stream, &mut descriptors, deadline)?;
        if descriptors.len() == before {
            return Err(io::Error::other("descriptors are missing: the limit of open files is too low (ulimit -n, LimitNOFILE=)"));
        }
    }
    let mut text = vec![0; length];
    read_exact(stream, &mut text, deadline)?;
    Ok((serde_json::from_slice(&text)?, descriptors))
}

/// Sets the read timeout to the time that is left.
fn wait_until(stream: &UnixStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(ErrorKind::TimedOut, "it has not answered in time"));
    }
    stream.set_read_timeout(Some(left))
}

fn read_exact(mut stream: &UnixStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        wait_until(stream, deadline)?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has ended")),
            Ok(count) => buffer = &mut buffer[count..],
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn receive_batch(stream: &UnixStream, descriptors: &mut Vec<OwnedFd>, deadline: Instant) -> io::Result<()> {
    loop {
        wait_until(stream, deadline)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let (mut control, mut byte) = (RecvAncillaryBuffer::new(&mut space), [0]);
        match recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has ended")),
            Ok(_) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        descriptors.extend(received);
                    }
                }
                return Ok(());
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::pipe, thread};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn descriptors_arrive_in_their_order() {
        let (near, far) = UnixStream::pair().unwrap();
        // More than one batch, and a text that does not fit into the socket's buffer.
        let (pipes, text) = ((0..300).map(|_| pipe().unwrap()).collect::<Vec<_>>(), "x".repeat(1 << 20));
        let sent = text.clone();
        let (inputs, outputs): (Vec<_>, Vec<_>) = pipes.into_iter().map(|(read, write)| (OwnedFd::from(read), write)).unzip();
        let sending = thread::spawn(move || {
            let borrowed: Vec<_> = inputs.iter().map(OwnedFd::as_fd).collect();
            send(&far, &sent, &borrowed, Duration::from_secs(20)).unwrap();
            far
        });
        let (received, descriptors) = receive::<String>(&near, soon()).unwrap();
        assert_eq!((received, descriptors.len()), (text, 300));
        for (number, (mut write, read)) in outputs.into_iter().zip(descriptors).enumerate() {
            write.write_all(&number.to_be_bytes()).unwrap();
            let mut back = [0; size_of::<usize>()];
            std::fs::File::from(read).read_exact(&mut back).unwrap();
            assert_eq!(usize::from_be_bytes(back), number);
        }
        drop(sending.join().unwrap());
        assert_eq!(receive::<String>(&near, soon()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn silence_and_other_messages_are_errors() {
        let (near, far) = UnixStream::pair().unwrap();
        let soon_over = Instant::now() + Duration::from_millis(50);
        assert_eq!(receive::<String>(&near, soon_over).unwrap_err().kind(), ErrorKind::TimedOut);
        send(&far, &7, &[], Duration::from_secs(20)).unwrap();
        assert_eq!(receive::<String>(&near, soon()).unwrap_err().kind(), ErrorKind::InvalidData);
        // A descriptor is announced that does not come, as when there are too many.
        (&far).write_all(&[0, 0, 0, 1, 0, 0, 0, 1, 0, b'7']).unwrap();
        let error = receive::<u8>(&near, soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Other && error.to_string().contains("LimitNOFILE="), "{error}");
        let (near, far) = UnixStream::pair().unwrap();
        (&far).write_all(&[255; 8]).unwrap();
        assert_eq!(receive::<String>(&near, soon()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
