//! Connections whose packets go only so far: the kernel's own TCP, with a socket's TTL changed before its SYN or between its data. No packet is made by hand,
//! so that nothing of it needs root, and nothing is left to be cleared when the process is killed: the kernel closes its sockets.

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

/// How a SYN was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SynOutcome {
    /// By a SYN-ACK.
    Accepted,
    /// By a reset.
    Refused,
    /// A router gave it up.
    Exceeded,
    /// Somebody would not let it pass.
    Barred,
    /// Not at all.
    Silent,
}

/// A SYN that could go so many hops, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SynProbe {
    /// Hops that it could go; None: as many as usual.
    pub ttl: Option<u8>,
    /// How it was answered.
    pub answer: SynOutcome,
    /// After what time, s.
    pub after_s: f64,
    /// Who gave it up.
    pub from: Option<IpAddr>,
}

/// Data that could go so many hops, and whether they were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DataProbe {
    /// Hops that they could go.
    pub ttl: u8,
    /// After what time they were acknowledged, s.
    pub acked_s: Option<f64>,
    /// How often they were sent with that few hops.
    pub sent: u32,
    /// If they were not: whether they were when they could go as far as usual.
    pub alive: Option<bool>,
}

/// A SYN on its way, or answered.
pub(crate) struct SynAttempt {
    pub(crate) seen: SynProbe,
    pub(crate) socket: Socket,
}

/// Sends SYNs at once, one for each of `ttls`, and waits for answers.
pub(crate) fn connect_all(to: SocketAddr, ttls: &[Option<u8>], patience: Duration) -> io::Result<Vec<SynAttempt>> {
    let mut dialled = Vec::new();
    for ttl in ttls {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        // Should the kernel keep it, it has the routers' names; an older one keeps none.
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

/// What an error says of the answer; an error of this machine's own is one.
fn outcome_of(why: &io::Error) -> io::Result<SynOutcome> {
    match why.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Ok(SynOutcome::Refused),
        Some(libc::EHOSTUNREACH) => Ok(SynOutcome::Exceeded),
        Some(libc::EACCES | libc::EPERM | libc::ENETUNREACH | libc::ENOPROTOOPT | libc::EPROTO) => Ok(SynOutcome::Barred),
        Some(libc::ETIMEDOUT) => Ok(SynOutcome::Silent),
        _ => Err(io::Error::from_raw_os_error(why.raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// Opens a connection for each of `ttls`, sends the first byte of `words` on it with that few hops for so long as `patience`, and then lets it go as far as
/// usual, with the rest of the words.
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
        // Who has been left already has nothing to show.
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
            // The first call may be told that a router gave the byte up.
            let _ = socket.write(&words[1..]).or_else(|_| socket.write(&words[1..]));
        }
    }
    // The next time the kernel tries is as far off as all of its tries so far.
    let until = Instant::now() + patience * 2 + Duration::from_secs(1);
    wait(&mut running, until, &|seen, _| seen.alive = Some(true))?;
    found.extend(running.into_iter().map(|(seen, ..)| seen));
    Ok(found)
}

/// The time from the last word of a request to the first byte of what comes, s; or, without a request, from the connection's begin.
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
    fn a_listener_accepts_and_nobody_refuses() {
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
