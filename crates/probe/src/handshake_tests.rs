//! Unauthenticated peers block no other peer and obtain nothing.

use super::*;
use crate::pending_connections::listen;
use std::{io::Write as _, net::Ipv4Addr, thread};

/// Upper bound on what the kernel needs to carry data between two local sockets.
const PATIENCE: Duration = Duration::from_secs(10);

fn control() -> (u16, Socket) {
    listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Connects a peer and accepts it.
fn connect(door: &(u16, Socket), pending: &mut Vec<PendingProber>) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, door.0)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let here = stream.local_addr().unwrap().to_string();
    poll_until(|| {
        accept_probers(&door.1, pending);
        pending.iter().any(|one| one.from == here).then_some(())
    });
    stream
}

/// Polls until `find` returns something.
fn poll_until<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The hello of a peer that knows the token, in answer to the challenge.
fn hello_for(stream: &TcpStream, token: &str) -> Vec<u8> {
    let challenge: ResponderChallenge = framing::read_message(stream).unwrap();
    let mut word = Vec::new();
    framing::write_message(&mut word, &ProberHello { version: protocol::VERSION, proof: token::proof(token, &challenge.nonce) }).unwrap();
    word
}

/// Whether the responder has closed this connection.
fn is_closed(stream: &TcpStream) -> bool {
    let _: ResponderChallenge = framing::read_message(stream).unwrap();
    matches!((&*stream).read(&mut [0]), Ok(0))
}

#[test]
fn a_silent_peer_blocks_no_other_peer() {
    let (door, mut pending) = (control(), Vec::new());
    let _silent = connect(&door, &mut pending);
    let mut prober = connect(&door, &mut pending);
    let word = hello_for(&prober, "secret");
    assert!(take_ready(&mut pending).is_none());
    // An incomplete hello does not block others either.
    let mut slow = connect(&door, &mut pending);
    slow.write_all(&word[..word.len() - 1]).unwrap();
    prober.write_all(&word).unwrap();
    let (first, hello) = poll_until(|| take_ready(&mut pending));
    assert_eq!(first.from, prober.local_addr().unwrap().to_string());
    assert!(token::verify_proof("secret", &first.nonce, &hello.unwrap().proof));
    assert_eq!(pending.len(), 2);
}

#[test]
fn the_oldest_pending_peer_is_dropped_first() {
    let (door, mut pending) = (control(), Vec::new());
    let came: Vec<TcpStream> = (0..MAX_PENDING + 3).map(|_| connect(&door, &mut pending)).collect();
    assert_eq!(pending.len(), MAX_PENDING);
    assert!(came[..3].iter().all(is_closed));
    let last = came.last().unwrap();
    (&*last).write_all(&hello_for(last, "")).unwrap();
    let (first, hello) = poll_until(|| take_ready(&mut pending));
    assert_eq!(first.from, last.local_addr().unwrap().to_string());
    assert!(hello.is_ok());
}

#[test]
fn oversized_late_and_closed_handshakes_fail() {
    let said = |does: fn(&mut PendingProber, TcpStream) -> Option<TcpStream>| {
        let (door, mut pending) = (control(), Vec::new());
        let came = connect(&door, &mut pending);
        let _open = does(&mut pending[0], came);
        let (_, hello) = poll_until(|| take_ready(&mut pending));
        hello.unwrap_err().kind()
    };
    let left = said(|_, came| {
        let _: ResponderChallenge = framing::read_message(&came).unwrap();
        None
    });
    // A hello that announces too large a length fails at once.
    let long = said(|_, mut came| {
        came.write_all(&(MAX_HELLO_BYTES as u32).to_be_bytes()).unwrap();
        Some(came)
    });
    assert_eq!(long, ErrorKind::InvalidData);
    let late = said(|pending, mut came| {
        came.write_all(&[0, 0]).unwrap();
        pending.since = Instant::now().checked_sub(MESSAGE_TIMEOUT).unwrap();
        Some(came)
    });
    assert_eq!(late, ErrorKind::TimedOut);
    assert_eq!(left, ErrorKind::UnexpectedEof);
}
