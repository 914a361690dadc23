//! A relay without descriptors for pipes. The limit is of the process, so that this is a test
//! program of its own.

use intercept::leg::{LegProfile, Shares};
use relay::{Direction, PlainLeg, Scratch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::Socket;
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

/// A leg of the relay, and the socket of its peer.
fn leg() -> (PlainLeg, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    (PlainLeg::new(Socket::from(socket), &LegProfile::default(), None), peer)
}

#[test]
fn bulk_data_is_copied_without_a_pipe() {
    let ((mut source, mut sender), (mut destination, mut receiver)) = (leg(), leg());
    let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let expected = sent.clone();
    let writer = thread::spawn(move || sender.write_all(&sent));
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).map(|_| got)
    });
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    assert!(std::io::pipe().is_err(), "a descriptor is left");
    let (mut direction, mut scratch) = (Direction::new(Some(Shares::of(4 << 20)), Vec::new(), Vec::new()), Scratch::new());
    while !direction.finished() {
        (source.readable, destination.writable) = (true, true);
        direction.pump(&mut source, &mut destination, &mut scratch).unwrap();
        thread::yield_now();
    }
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(destination);
    writer.join().unwrap().unwrap();
    assert!(reader.join().unwrap().unwrap() == expected, "bytes differ");
}
