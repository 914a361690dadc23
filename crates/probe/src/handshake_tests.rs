//! Strangers at the responder's door: they keep nobody waiting, and get nothing.

use super::*;
use crate::pending_connections::listen;
use std::{io::Write as _, net::Ipv4Addr, thread};

/// How long the kernel may take to bring something from one socket to another, which takes no time.
const PATIENCE: Duration = Duration::from_secs(10);

fn control() -> (u16, Socket) {
    listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap()
}

/// Somebody comes, and is let in.
fn comes(door: &(u16, Socket), knocking: &mut Vec<Knocking>) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, door.0)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let here = stream.local_addr().unwrap().to_string();
    soon(|| {
        let_in(&door.1, knocking);
        knocking.iter().any(|one| one.from == here).then_some(())
    });
    stream
}

/// What `find` finds, soon.
fn soon<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The word of somebody who knows the token, in answer to the challenge.
fn word(stream: &TcpStream, token: &str) -> Vec<u8> {
    let challenge: Challenge = framing::hear(stream).unwrap();
    let mut word = Vec::new();
    framing::tell(&mut word, &Hello { version: protocol::VERSION, proof: token::proof(token, &challenge.nonce) }).unwrap();
    word
}

/// Whether the responder has left this connection.
fn is_left(stream: &TcpStream) -> bool {
    let _: Challenge = framing::hear(stream).unwrap();
    matches!((&*stream).read(&mut [0]), Ok(0))
}

#[test]
fn who_says_nothing_keeps_nobody_waiting() {
    let (door, mut knocking) = (control(), Vec::new());
    let _silent = comes(&door, &mut knocking);
    let mut prober = comes(&door, &mut knocking);
    let word = word(&prober, "secret");
    assert!(whoever_is_first(&mut knocking).is_none());
    // Nor does who has begun a word, and does not end it.
    let mut slow = comes(&door, &mut knocking);
    slow.write_all(&word[..word.len() - 1]).unwrap();
    prober.write_all(&word).unwrap();
    let (first, hello) = soon(|| whoever_is_first(&mut knocking));
    assert_eq!(first.from, prober.local_addr().unwrap().to_string());
    assert!(token::proves("secret", &first.nonce, &hello.unwrap().proof));
    assert_eq!(knocking.len(), 2);
}

#[test]
fn of_too_many_the_oldest_goes() {
    let (door, mut knocking) = (control(), Vec::new());
    let came: Vec<TcpStream> = (0..KNOCKING + 3).map(|_| comes(&door, &mut knocking)).collect();
    assert_eq!(knocking.len(), KNOCKING);
    assert!(came[..3].iter().all(is_left));
    let last = came.last().unwrap();
    (&*last).write_all(&word(last, "")).unwrap();
    let (first, hello) = soon(|| whoever_is_first(&mut knocking));
    assert_eq!(first.from, last.local_addr().unwrap().to_string());
    assert!(hello.is_ok());
}

#[test]
fn who_says_too_much_or_nothing_or_leaves_is_done_with() {
    let said = |does: fn(&mut Knocking, TcpStream) -> Option<TcpStream>| {
        let (door, mut knocking) = (control(), Vec::new());
        let came = comes(&door, &mut knocking);
        let _open = does(&mut knocking[0], came);
        let (_, hello) = soon(|| whoever_is_first(&mut knocking));
        hello.unwrap_err().kind()
    };
    let left = said(|_, came| {
        let _: Challenge = framing::hear(&came).unwrap();
        None
    });
    // A word that would be longer than it may: it is not waited for.
    let long = said(|_, mut came| {
        came.write_all(&(HELLO as u32).to_be_bytes()).unwrap();
        Some(came)
    });
    assert_eq!(long, ErrorKind::InvalidData);
    let late = said(|knocking, mut came| {
        came.write_all(&[0, 0]).unwrap();
        knocking.since = Instant::now().checked_sub(WORD).unwrap();
        Some(came)
    });
    assert_eq!(late, ErrorKind::TimedOut);
    assert_eq!(left, ErrorKind::UnexpectedEof);
}
