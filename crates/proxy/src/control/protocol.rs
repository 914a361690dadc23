//! What is said over the control socket: one JSON request in a line, one answer in a line.

use crate::{meter::Totals, running::Proxy};
use intercept::{Counted, LinkView, Prefix, ReceiveCounters};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// The longest request, in bytes: some five thousand prefixes.
pub(super) const LONGEST_REQUEST: usize = 256 << 10;
/// The longest answer, in bytes: some hundred thousand flows.
pub(super) const LONGEST_ANSWER: usize = 512 << 20;

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Flows,
    Status,
    /// Prefixes that bypass: the list, or a change of it.
    Bypass,
    BypassAdd(Vec<Prefix>),
    BypassRemove(Vec<Prefix>),
}

/// What all flows came to, and what the firewall counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of this proxy's flows.
    pub totals: Totals,
    /// None when the rules are the operator's own.
    pub counted: Option<Counted>,
    /// The links whose capacity is known.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// Of the proxy's network namespace; absent where they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<ReceiveCounters>,
}

impl Proxy {
    /// What all flows came to, and what the firewall counted.
    pub fn status(&self) -> Status {
        Status {
            totals: self.totals(),
            counted: self.counted().and_then(Result::ok),
            links: self.links(),
            receive: ReceiveCounters::read().ok(),
        }
    }
}

/// A name that may be part of a file's name.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=40).contains(&name.len()) && name.bytes().all(fits)
}

/// The name of a proxy's socket, beside which there are sockets for other purposes.
pub(super) fn socket_name(name: &str) -> String {
    format!("{name}.control")
}

/// Time that is left until `deadline`.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(ErrorKind::TimedOut, "it took too long")) } else { Ok(left) }
}

/// Whether a call ended because its time was over, which the next call of `left` tells.
fn is_late(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Reads a line, without its end, of at most `longest` bytes. An end of the stream ends it too.
pub(super) fn read_line(mut stream: &UnixStream, longest: usize, deadline: Instant) -> io::Result<Vec<u8>> {
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
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a line of more than {longest} bytes came")));
        }
        if end.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

/// Writes `value` as a line.
pub(super) fn write_line(mut stream: &UnixStream, value: &impl Serialize, deadline: Instant) -> io::Result<()> {
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
    fn names_of_proxies_stay_within_their_directory() {
        assert!(["default", "a-b_c.9", "x"].into_iter().all(is_name));
        assert!(["", "../x", "a/b", "a b", "\u{1b}[2J", "é", &"x".repeat(41)].into_iter().all(|name| !is_name(name)));
    }

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
