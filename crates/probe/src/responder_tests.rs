//! A responder among peers that do not authenticate.

use super::*;
use crate::{
    framing,
    handshake::MESSAGE_TIMEOUT,
    protocol::{self, ProberHello, ResponderChallenge, Welcome},
    token,
};
use std::{
    io::Write as _,
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

/// Upper bound on what the kernel needs to carry data between two local sockets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Polls until `find` returns something.
fn poll_until<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        thread::sleep(TICK);
    }
}

/// The hello of a peer that knows the token, in answer to the challenge.
fn hello_for(stream: &TcpStream, token: &str) -> Vec<u8> {
    let challenge: ResponderChallenge = framing::read_message(stream).unwrap();
    let mut word = Vec::new();
    framing::write_message(&mut word, &ProberHello { version: protocol::VERSION, proof: token::proof(token, &challenge.nonce) }).unwrap();
    word
}

/// Stops a responder, however a test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn unauthenticated_peers_do_not_block_the_responder() {
    // An address that no concurrent run of this test has.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low);
    let how = ResponderOptions { listen: address.into(), control: protocol::CONTROL_PORT, ports: vec![0], token: Some("secret".into()) };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let responds = scope.spawn(|| respond(&how, &over, |_| ()));
        let ends = Ends(&over);
        let connect = || {
            poll_until(|| {
                let stream = TcpStream::connect((how.listen, how.control)).ok()?;
                // Shorter than the time that a silent peer is given: a prober that waited behind
                // one would not be answered.
                stream.set_read_timeout(Some(MESSAGE_TIMEOUT / 2)).unwrap();
                Some(stream)
            })
        };
        let welcome = |token: &str| {
            let prober = connect();
            (&prober).write_all(&hello_for(&prober, token)).unwrap();
            let welcome: Welcome = framing::read_message(&prober).unwrap();
            welcome.refused
        };
        let _strangers: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
        assert!(welcome("another").is_some());
        assert_eq!(welcome("secret"), None);
        drop(ends);
        responds.join().unwrap().unwrap();
    });
}
