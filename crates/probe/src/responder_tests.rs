//! Strangers at the responder's door: they keep nobody waiting, and get nothing.

use super::*;
use std::net::Ipv4Addr;

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
        thread::sleep(TICK);
    }
}

/// The word of somebody who knows the token, in answer to the challenge.
fn word(stream: &TcpStream, token: &str) -> Vec<u8> {
    let challenge: Challenge = protocol::hear(stream).unwrap();
    let mut word = Vec::new();
    protocol::tell(&mut word, &Hello { version: protocol::VERSION, proof: protocol::proof(token, &challenge.nonce) }).unwrap();
    word
}

/// Whether the responder has left this connection.
fn is_left(stream: &TcpStream) -> bool {
    let _: Challenge = protocol::hear(stream).unwrap();
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
    assert!(protocol::proves("secret", &first.nonce, &hello.unwrap().proof));
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
        let _: Challenge = protocol::hear(&came).unwrap();
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

/// Ends a responder, however a test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn strangers_hold_no_responder() {
    // An address that no other run of this test has at once.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low);
    let how = Responder { listen: address.into(), control: protocol::CONTROL_PORT, ports: vec![0], token: Some("secret".into()) };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let responds = scope.spawn(|| respond(&how, &over, |_| ()));
        let ends = Ends(&over);
        let connect = || {
            soon(|| {
                let stream = TcpStream::connect((how.listen, how.control)).ok()?;
                // Less than a stranger's time: who had to wait for one would not be answered.
                stream.set_read_timeout(Some(WORD / 2)).unwrap();
                Some(stream)
            })
        };
        let welcome = |token: &str| {
            let prober = connect();
            (&prober).write_all(&word(&prober, token)).unwrap();
            let welcome: Welcome = protocol::hear(&prober).unwrap();
            welcome.refused
        };
        let _strangers: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
        assert!(welcome("another").is_some());
        assert_eq!(welcome("secret"), None);
        drop(ends);
        responds.join().unwrap().unwrap();
    });
}
