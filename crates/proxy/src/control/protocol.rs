//! The protocol of the control socket: one JSON request on a line, one answer on a line.

use crate::{
    flow_records::RecordCounts,
    meter::Totals,
    running::{Proxy, ProxyLimits},
    takeover::Hello,
};
use intercept::{Counted, LinkView, Prefix, ReceiveCounters, ZeroWindows};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// The longest request, bytes: some five thousand prefixes.
pub(super) const LONGEST_REQUEST: usize = 256 << 10;
/// The longest answer, bytes: some hundred thousand flows.
pub(super) const LONGEST_ANSWER: usize = 512 << 20;

/// Answer to a user that may not query this proxy.
pub(super) const DENIED: &str =
    "cannot use the proxy's control socket: only root and the proxy's own user may; run this command as one of them";

/// A request to a running proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Flows,
    Status,
    /// The prefixes that bypass.
    Bypass,
    /// Adds to the prefixes that bypass.
    BypassAdd(Vec<Prefix>),
    /// Removes from the prefixes that bypass.
    BypassRemove(Vec<Prefix>),
    /// Take over from the proxy: what follows are the messages of `takeover`.
    TakeOver(Hello),
    /// Start a process that takes over.
    Restart,
}

/// Counts of all flows, of the firewall and of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Totals of this proxy's flows.
    pub totals: Totals,
    /// Connections that the firewall's rules counted; none if the operator installs the rules.
    pub counted: Option<Counted>,
    /// The links whose capacity is configured.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// Receive buffer overruns of the proxy's network namespace; none if they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<ReceiveCounters>,
    /// Processes that drain since this one took over from them. Their flows are counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub draining_processes: usize,
    /// What only metrics show.
    #[serde(default)]
    pub details: StatusDetails,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Counts and limits that only metrics show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusDetails {
    /// The limits of the proxy; none: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProxyLimits>,
    /// Zero windows in the proxy's network namespace; none if they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_windows: Option<ZeroWindows>,
    /// Counts of flow records; none: they are not configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_records: Option<RecordCounts>,
}

impl Proxy {
    /// Counts of all flows, of the firewall and of the host.
    pub fn status(&self) -> ProxyStatus {
        ProxyStatus {
            totals: self.totals(),
            counted: self.counted().and_then(Result::ok),
            links: self.links(),
            receive: ReceiveCounters::read().ok(),
            draining_processes: self.draining_processes(),
            details: StatusDetails {
                limits: Some(self.limits()),
                zero_windows: ZeroWindows::read().ok(),
                flow_records: self.flow_records(),
            },
        }
    }
}

/// Whether a proxy may have this name, which becomes part of a file name.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=40).contains(&name.len()) && name.bytes().all(fits)
}

/// File name of a proxy's control socket.
pub(super) fn socket_name(name: &str) -> String {
    format!("{name}.control")
}

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
