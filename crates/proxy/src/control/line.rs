//! Messages on a Unix socket, one JSON value on a line, bounded in length and time.

use serde::Serialize;
use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// Time until `deadline`.
///
/// # Errors
/// [`ErrorKind::TimedOut`] when it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(ErrorKind::TimedOut, "the time limit has passed")) } else { Ok(left) }
}

/// Whether a call ended early and is to be repeated. [`left`] then checks the deadline.
fn is_late(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Reads a line of at most `longest` bytes, without its end. End of file also ends a line.
///
/// # Errors
/// [`ErrorKind::InvalidData`] for a longer line, [`ErrorKind::TimedOut`] at the deadline, or an
/// error of the socket.
pub(crate) fn read_line(mut stream: &UnixStream, longest: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut line, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = match stream.read(&mut part) {
            Err(why) if is_late(&why) => continue,
            read => read?,
        };
        let part = &part[..count];
        let end = part.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..end.unwrap_or(count)]);
        if line.len() > longest {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("received a line of more than {longest} bytes")));
        }
        if end.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

/// Writes `value` as a line of JSON.
///
/// # Errors
/// [`ErrorKind::TimedOut`] at the deadline, or an error of the socket.
pub(crate) fn write_line(mut stream: &UnixStream, value: &impl Serialize, deadline: Instant) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    let mut rest = &text[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(rest) {
            Err(why) if is_late(&why) => {}
            written => rest = &rest[written?..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn lines_are_bounded_in_length_and_time() {
        let (near, far) = UnixStream::pair().unwrap();
        let soon = || Instant::now() + Duration::from_secs(20);
        write_line(&far, &"hello", soon()).unwrap();
        assert_eq!(read_line(&near, 100, soon()).unwrap(), b"\"hello\"");
        // A byte at a time, without end.
        let dripping = thread::spawn(move || {
            while (&far).write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let error = read_line(&near, usize::MAX, Instant::now() + Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = read_line(&near, 3, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(near);
        dripping.join().unwrap();
        // A client that does not read its answers.
        let (near, _far) = UnixStream::pair().unwrap();
        let error = write_line(&near, &"x".repeat(8 << 20), Instant::now() + Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
