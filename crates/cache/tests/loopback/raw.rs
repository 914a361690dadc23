//! What is not HTTP: stored and forwarded.

use crate::common::*;
use cache::{Cache, Config, Raw};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const LULL: Raw = Raw::Store(Some(Duration::from_millis(50)));
const NEVER: Raw = Raw::Store(None);

/// A cache, its client and its server, connected.
fn between(raw: Raw, hello: &[u8], change: impl FnOnce(&mut Config)) -> (Cache, TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = before(server.local_addr().unwrap(), |config| {
        config.raw = raw;
        change(config);
    });
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    client.write_all(hello).unwrap();
    let (far, _) = server.accept().unwrap();
    for stream in [&client, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (cache, client, far)
}

fn nothing_yet(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0]).map_err(|why| why.kind()), Err(ErrorKind::WouldBlock));
    stream.set_nonblocking(false).unwrap();
}

fn all(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

fn file(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn nothing_goes_on_before_all_is_there() {
    let (cache, mut client, mut server) = between(NEVER, b"\0", |_| {});
    client.write_all(&file(3_000_000)).unwrap();
    eventually("all of it is stored", || cache.stats().disk_bytes + cache.stats().memory_bytes >= 3_000_001);
    nothing_yet(&mut server);
    client.shutdown(Shutdown::Write).unwrap();
    let came = all(&mut server).unwrap();
    assert!(came[0] == 0 && came[1..] == file(3_000_000));
    // The other way as well.
    server.write_all(&file(500_000)).unwrap();
    eventually("all of it is stored", || cache.stats().memory_bytes + cache.stats().disk_bytes >= 500_000);
    nothing_yet(&mut client);
    drop(server);
    assert!(all(&mut client).unwrap() == file(500_000));
    eventually("nothing is left", || cache.stats().memory_bytes + cache.stats().disk_bytes == 0 && cache.stats().raw_bytes == 3_500_001);
}

#[test]
fn a_conversation_goes_on_at_each_lull() {
    let (_cache, mut client, mut server) = between(LULL, b"\x01hello", |_| {});
    let mut said = [0; 6];
    server.read_exact(&mut said).unwrap();
    for round in 0..5_u8 {
        server.write_all(&[round; 100]).unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        client.write_all(&[round; 50]).unwrap();
        let mut answer = [0; 50];
        server.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [round; 50]);
    }
}

#[test]
fn a_server_may_speak_first() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = before(server.local_addr().unwrap(), |config| config.raw = LULL);
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut far, _) = server.accept().unwrap();
    far.write_all(b"220 at your service\r\n").unwrap();
    let mut said = [0; 21];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"220 at your service\r\n");
}

#[test]
fn a_silent_client_may_still_speak_http() {
    let origin = Origin::start(|_| answer(200, &[("cache-control", "max-age=60")], Steps::all("body")));
    let cache = before(origin.address, |_| {});
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    // Until its server has been dialled on suspicion.
    thread::sleep(Duration::from_millis(600));
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    assert!(all(&mut client).unwrap().ends_with(b"body"));
    assert_eq!((cache.stats().misses, cache.stats().raw_connections), (1, 0));
}

#[test]
fn tls_passes_at_once_and_unopened() {
    let (_cache, mut client, mut server) = between(NEVER, b"\x16\x03\x01\x00\x05hello", |_| {});
    let mut said = [0; 10];
    server.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"\x16\x03\x01\x00\x05hello");
    server.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

#[test]
fn what_is_too_large_goes_on_as_it_comes() {
    let limit = |config: &mut Config| {
        config.memory = units::Bytes(300_000);
        config.disk = units::Bytes(1_000_000);
        config.largest = units::Bytes(1_000_000);
    };
    let (cache, mut client, mut server) = between(NEVER, b"\0", limit);
    let mut sender = client.try_clone().unwrap();
    let sends = thread::spawn(move || {
        sender.write_all(&file(20_000_000)).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    eventually("it overflows", || cache.stats().overflows == 1);
    let came = all(&mut server).unwrap();
    sends.join().unwrap();
    assert!(came.len() == 20_000_001 && came[1..] == file(20_000_000));
    let stats = cache.stats();
    assert!(stats.memory_bytes <= 300_000 && stats.disk_bytes <= 1_000_000, "{stats:?}");
    drop(server);
    assert_eq!(all(&mut client).unwrap(), b"");
}

#[test]
fn a_failure_of_one_leg_is_a_reset_of_the_other() {
    // What is dropped with something unread in it is reset.
    let abort = |mut victim: TcpStream, cache: &Cache, other: &mut TcpStream| {
        let socket = socket2::Socket::from(victim.try_clone().unwrap());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        let _ = victim.flush();
        drop((socket, victim));
        assert_eq!(all(other).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
        eventually("nothing is left", || cache.stats().memory_bytes == 0);
    };
    for raw in [NEVER, LULL, Raw::Stream] {
        let (cache, client, mut server) = between(raw, b"\0", |_| {});
        abort(client, &cache, &mut server);
        let (cache, mut client, server) = between(raw, b"\0", |_| {});
        abort(server, &cache, &mut client);
    }
    // Also when it had finished, and the other one takes nothing.
    let (_cache, mut client, server) = between(NEVER, b"\0", |_| {});
    client.write_all(&file(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let socket = socket2::Socket::from(server);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
    assert_eq!(all(&mut client).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_clean_close_means_delivered() {
    let (cache, mut client, mut server) = between(NEVER, b"\0", |_| {});
    client.write_all(&file(5_000_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    // Who has finished first is told when the other has everything; so it must be clear who has.
    eventually("all of it is stored", || cache.stats().memory_bytes + cache.stats().disk_bytes >= 5_000_001);
    thread::sleep(Duration::from_millis(200));
    server.shutdown(Shutdown::Write).unwrap();
    // The server has finished, and takes nothing: the client must not be told a clean end yet.
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = client.read(&mut [0]).map_err(|why| why.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock));
    assert!(all(&mut server).unwrap().len() == 5_000_001);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(all(&mut client).unwrap(), b"");
}

#[test]
fn it_ends_when_all_have_ended() {
    let (cache, mut client, mut server) = between(LULL, b"\0", |_| {});
    cache.begin_drain();
    eventually("nobody is let in", || TcpStream::connect(cache.addresses()[0]).is_err());
    assert!(!cache.is_idle());
    client.write_all(b"still").unwrap();
    let mut said = [0; 6];
    server.read_exact(&mut said).unwrap();
    drop(client);
    assert_eq!(all(&mut server).unwrap(), b"");
    drop(server);
    eventually("it is idle", || cache.is_idle());
}

#[test]
fn a_cache_that_goes_resets_what_it_carries() {
    let (cache, mut client, _server) = between(NEVER, b"\0", |_| {});
    drop(cache);
    assert_eq!(all(&mut client).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
}
