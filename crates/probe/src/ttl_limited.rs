//! Connections whose packets have a limited TTL. The kernel's own TCP sends them: the socket's TTL
//! is changed before the SYN or between data. This needs no root, and leaves nothing behind when
//! the process is killed.

use crate::{clock::now, sys};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

/// The outcome of a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SynOutcome {
    /// Answered by a SYN-ACK.
    Accepted,
    /// Answered by a reset.
    Refused,
    /// A router reported that the TTL expired.
    Exceeded,
    /// A node refused to forward it.
    Barred,
    /// No answer.
    Silent,
}

/// A SYN with its TTL, and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SynProbe {
    /// TTL of the SYN. `None` for the default.
    pub ttl: Option<u8>,
    /// Its outcome.
    pub answer: SynOutcome,
    /// Time to the answer, s, or the timeout.
    pub after_s: f64,
    /// The router that reported the expired TTL.
    pub from: Option<IpAddr>,
}

/// Data with a limited TTL, and whether they were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DataProbe {
    /// TTL of the data.
    pub ttl: u8,
    /// Time to their ACK, s.
    pub acked_s: Option<f64>,
    /// How many times they were sent with this TTL.
    pub sent: u32,
    /// If they were not acknowledged: whether they were with the default TTL.
    pub alive: Option<bool>,
}

/// A SYN and the socket that sent it.
pub(crate) struct SynAttempt {
    pub(crate) seen: SynProbe,
    pub(crate) socket: Socket,
}

/// Sends a SYN for each of `ttls` at once and waits for the answers, at most `patience`.
///
/// # Errors
/// A socket operation fails for a local reason.
pub(crate) fn connect_all(to: SocketAddr, ttls: &[Option<u8>], patience: Duration) -> io::Result<Vec<SynAttempt>> {
    let mut dialled = Vec::new();
    for ttl in ttls {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        // The error queue holds the router's address. Older kernels do not keep the error.
        sys::enable_error_queue(&socket, to.is_ipv6())?;
        sys::set_hops(&socket, to.is_ipv6(), *ttl)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let begun = Instant::now();
        let mut seen = SynProbe { ttl: *ttl, answer: SynOutcome::Silent, after_s: patience.as_secs_f64(), from: None };
        match socket.connect(&to.into()) {
            Ok(()) => (seen.answer, seen.after_s) = (SynOutcome::Accepted, begun.elapsed().as_secs_f64()),
            Err(why) if why.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(why) => (seen.answer, seen.after_s) = (outcome_of(&why)?, begun.elapsed().as_secs_f64()),
        }
        dialled.push((begun, SynAttempt { seen, socket }));
    }
    let deadline = Instant::now() + patience;
    let mut waiting: Vec<usize> = (0..dialled.len()).filter(|index| dialled[*index].1.seen.answer == SynOutcome::Silent).collect();
    while !waiting.is_empty() && Instant::now() < deadline {
        let mut polled: Vec<PollFd<'_>> = waiting.iter().map(|index| PollFd::new(&dialled[*index].1.socket, PollFlags::OUT)).collect();
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(200));
        let _ = poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() }));
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        let mut flags = ready.into_iter();
        for index in waiting.iter().filter(|_| flags.next() == Some(true)) {
            let (begun, one) = &mut dialled[*index];
            one.seen.after_s = begun.elapsed().as_secs_f64();
            one.seen.answer = match one.socket.take_error()? {
                None => SynOutcome::Accepted,
                Some(why) => outcome_of(&why)?,
            };
            if let Ok(got) = sys::receive(&one.socket, &mut [0; 64], true) {
                one.seen.from = got.icmp_error.and_then(|icmp_error| icmp_error.from);
            }
        }
        waiting.retain(|index| dialled[*index].1.seen.answer == SynOutcome::Silent);
    }
    Ok(dialled.into_iter().map(|(_, one)| one).collect())
}

/// Translates a socket error to an outcome. Local failures remain errors.
fn outcome_of(why: &io::Error) -> io::Result<SynOutcome> {
    match why.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Ok(SynOutcome::Refused),
        Some(libc::EHOSTUNREACH) => Ok(SynOutcome::Exceeded),
        Some(libc::EACCES | libc::EPERM | libc::ENETUNREACH | libc::ENOPROTOOPT | libc::EPROTO) => Ok(SynOutcome::Barred),
        Some(libc::ETIMEDOUT) => Ok(SynOutcome::Silent),
        _ => Err(io::Error::from_raw_os_error(why.raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// Opens a connection for each of `ttls` and sends the first byte of `words` with that TTL for
/// `patience`. Then restores the default TTL and sends the rest.
///
/// # Errors
/// A socket operation fails for a local reason.
pub(crate) fn send_data(to: SocketAddr, words: &[u8], ttls: &[u8], patience: Duration) -> io::Result<Vec<DataProbe>> {
    let mut found = Vec::new();
    let connections = connect_all(to, &vec![None; ttls.len()], patience * 2)?;
    let mut running = Vec::new();
    for (ttl, one) in ttls.iter().zip(connections) {
        if one.seen.answer != SynOutcome::Accepted {
            continue;
        }
        sys::set_hops(&one.socket, to.is_ipv6(), Some(*ttl))?;
        let before = sys::tcp_info(&one.socket)?;
        let begun = Instant::now();
        // A connection that the peer has closed shows nothing.
        if (&one.socket).write(&words[..1]).is_ok() {
            running.push((DataProbe { ttl: *ttl, acked_s: None, sent: 1, alive: None }, before, begun, one.socket));
        }
    }
    let wait = |running: &mut Vec<(DataProbe, sys::TcpInfoSample, Instant, Socket)>,
                until: Instant,
                note: &dyn Fn(&mut DataProbe, Instant)|
     -> io::Result<()> {
        let mut left = running.len();
        while left > 0 && Instant::now() < until {
            left = 0;
            for (seen, before, begun, socket) in running.iter_mut() {
                let info = sys::tcp_info(socket)?;
                if seen.acked_s.is_some() || seen.alive == Some(true) {
                    continue;
                }
                if info.bytes_acked > before.bytes_acked {
                    note(seen, *begun);
                } else {
                    left += 1;
                }
                if seen.alive.is_none() {
                    seen.sent = 1 + info.retransmits.saturating_sub(before.retransmits);
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    };
    let until = Instant::now() + patience;
    wait(&mut running, until, &|seen, begun| seen.acked_s = Some(begun.elapsed().as_secs_f64()))?;
    for (seen, _, _, socket) in &mut running {
        sys::set_hops(socket, to.is_ipv6(), None)?;
        if seen.acked_s.is_none() {
            seen.alive = Some(false);
            // The first write may return the ICMP error.
            let _ = socket.write(&words[1..]).or_else(|_| socket.write(&words[1..]));
        }
    }
    // Backoff: the next retransmission is as far away as all retransmissions so far took.
    let until = Instant::now() + patience * 2 + Duration::from_secs(1);
    wait(&mut running, until, &|seen, _| seen.alive = Some(true))?;
    found.extend(running.into_iter().map(|(seen, ..)| seen));
    Ok(found)
}

/// Time from the end of a request to the first byte of the response, s. `None` if there is none.
pub(crate) fn time_to_first_byte(to: SocketAddr, request: &[u8], patience: Duration) -> io::Result<Option<f64>> {
    let Some(one) = connect_all(to, &[None], patience)?.into_iter().find(|one| one.seen.answer == SynOutcome::Accepted) else {
        return Ok(None);
    };
    one.socket.set_nonblocking(false)?;
    one.socket.set_read_timeout(Some(patience))?;
    let at = now();
    if (&one.socket).write_all(request).is_err() {
        return Ok(None);
    }
    Ok(matches!((&one.socket).read(&mut [0; 64]), Ok(1..)).then(|| (now() - at) as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn syn_outcomes_of_open_and_closed_ports() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let answers = |to| -> Vec<SynOutcome> {
            connect_all(to, &[None, Some(1)], Duration::from_secs(2)).unwrap().into_iter().map(|one| one.seen.answer).collect()
        };
        assert_eq!(answers(to), [SynOutcome::Accepted, SynOutcome::Accepted]);
        let data = send_data(to, b"hello", &[1, 2], Duration::from_secs(1)).unwrap();
        assert!(data.len() == 2 && data.iter().all(|seen| seen.acked_s.is_some_and(|after| after < 1.0)), "{data:?}");
        drop(listener);
        assert_eq!(answers(to), [SynOutcome::Refused, SynOutcome::Refused]);
    }
}
