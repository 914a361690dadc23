//! Store and forward for protocols other than HTTP.

use crate::common::*;
use cache::{Cache, Config, RawMode};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const LULL: RawMode = RawMode::StoreAndForward(Some(Duration::from_millis(50)));
const NEVER: RawMode = RawMode::StoreAndForward(None);

/// A cache with a connected client and server. The client has sent `hello`.
fn connected(raw: RawMode, hello: &[u8], change: impl FnOnce(&mut Config)) -> (Cache, TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = cache_for(server.local_addr().unwrap(), |config| {
        config.raw = raw;
        change(config);
    });
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    client.write_all(hello).unwrap();
    let (far, _) = server.accept().unwrap();
    for stream in [&client, &far] {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
    }
    (cache, client, far)
}

fn assert_nothing_received(stream: &mut TcpStream) {
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
fn nothing_is_forwarded_before_the_sender_has_finished() {
    let (cache, mut client, mut server) = connected(NEVER, b"\0", |_| {});
    client.write_all(&file(3_000_000)).unwrap();
    eventually("not all of it is stored", || cache.stats().disk_bytes + cache.stats().memory_bytes >= 3_000_001);
    assert_nothing_received(&mut server);
    client.shutdown(Shutdown::Write).unwrap();
    let came = all(&mut server).unwrap();
    assert!(came[0] == 0 && came[1..] == file(3_000_000));
    // The other direction as well.
    server.write_all(&file(500_000)).unwrap();
    eventually("not all of it is stored", || cache.stats().memory_bytes + cache.stats().disk_bytes >= 500_000);
    assert_nothing_received(&mut client);
    drop(server);
    assert!(all(&mut client).unwrap() == file(500_000));
    eventually("storage is not released", || {
        cache.stats().memory_bytes + cache.stats().disk_bytes == 0 && cache.stats().raw_bytes == 3_500_001
    });
}

#[test]
fn messages_are_forwarded_at_each_lull() {
    let (_cache, mut client, mut server) = connected(LULL, b"\x01hello", |_| {});
    let mut received = [0; 6];
    server.read_exact(&mut received).unwrap();
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
    let cache = cache_for(server.local_addr().unwrap(), |config| config.raw = LULL);
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    let (mut far, _) = server.accept().unwrap();
    far.write_all(b"220 at your service\r\n").unwrap();
    let mut received = [0; 21];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"220 at your service\r\n");
}

#[test]
fn a_silent_client_may_still_speak_http() {
    let origin = TestOrigin::start(|_| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all("body")));
    let cache = cache_for(origin.address, |_| {});
    let mut client = TcpStream::connect(cache.addresses()[0]).unwrap();
    // Until the cache has dialled the server, which might send first.
    thread::sleep(Duration::from_millis(600));
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    assert!(all(&mut client).unwrap().ends_with(b"body"));
    assert_eq!((cache.stats().misses, cache.stats().raw_connections), (1, 0));
}

#[test]
fn tls_is_streamed_unchanged() {
    let (_cache, mut client, mut server) = connected(NEVER, b"\x16\x03\x01\x00\x05hello", |_| {});
    let mut received = [0; 10];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"\x16\x03\x01\x00\x05hello");
    server.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

#[test]
fn what_exceeds_the_storage_is_streamed() {
    let limit = |config: &mut Config| {
        config.memory = units::Bytes(300_000);
        config.disk = units::Bytes(1_000_000);
        config.largest = units::Bytes(1_000_000);
    };
    let (cache, mut client, mut server) = connected(NEVER, b"\0", limit);
    let mut sender = client.try_clone().unwrap();
    let sends = thread::spawn(move || {
        sender.write_all(&file(20_000_000)).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    eventually("it does not overflow", || cache.stats().overflows == 1);
    let came = all(&mut server).unwrap();
    sends.join().unwrap();
    assert!(came.len() == 20_000_001 && came[1..] == file(20_000_000));
    let stats = cache.stats();
    assert!(stats.memory_bytes <= 300_000 && stats.disk_bytes <= 1_000_000, "{stats:?}");
    drop(server);
    assert_eq!(all(&mut client).unwrap(), b"");
}

#[test]
fn a_failure_of_one_leg_resets_the_other() {
    // Resets `victim`, and expects a reset at `other`.
    let abort = |mut victim: TcpStream, cache: &Cache, other: &mut TcpStream| {
        let socket = socket2::Socket::from(victim.try_clone().unwrap());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        let _ = victim.flush();
        drop((socket, victim));
        assert_eq!(all(other).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
        eventually("storage is not released", || cache.stats().memory_bytes == 0);
    };
    for raw in [NEVER, LULL, RawMode::Stream] {
        let (cache, client, mut server) = connected(raw, b"\0", |_| {});
        abort(client, &cache, &mut server);
        let (cache, mut client, server) = connected(raw, b"\0", |_| {});
        abort(server, &cache, &mut client);
    }
    // Also when the client has finished, and the server reads nothing.
    let (_cache, mut client, server) = connected(NEVER, b"\0", |_| {});
    client.write_all(&file(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let socket = socket2::Socket::from(server);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
    assert_eq!(all(&mut client).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
}

/// One end sends and aborts: the other one gets all that the cache has acknowledged, then the
/// reset.
#[test]
fn what_was_received_before_a_reset_is_forwarded() {
    for raw in [NEVER, LULL, RawMode::Stream] {
        for bytes in [10, 300_000] {
            for client_aborts in [false, true] {
                let (_cache, client, server) = connected(raw, b"\0", |_| {});
                let (mut aborter, mut other) = if client_aborts { (client, server) } else { (server, client) };
                aborter.write_all(&file(bytes)).unwrap();
                eventually("the cache does not acknowledge it", || intercept::sys::unacknowledged(&aborter).unwrap() == 0);
                socket2::SockRef::from(&aborter).set_linger(Some(Duration::ZERO)).unwrap();
                drop(aborter);
                let mut received = Vec::new();
                let read = other.read_to_end(&mut received).map_err(|why| why.kind());
                let came = if client_aborts { &received[1..] } else { &received[..] };
                assert!(came == file(bytes), "{raw:?}, {client_aborts}: {} of {bytes} bytes, then {read:?}", came.len());
                assert_eq!(read, Err(ErrorKind::ConnectionReset), "{raw:?}, {client_aborts}");
            }
        }
    }
}

#[test]
fn a_clean_close_means_delivered() {
    let (cache, mut client, mut server) = connected(NEVER, b"\0", |_| {});
    client.write_all(&file(5_000_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    // The client must finish first: only the later FIN waits until everything is acknowledged.
    eventually("not all of it is stored", || cache.stats().memory_bytes + cache.stats().disk_bytes >= 5_000_001);
    thread::sleep(Duration::from_millis(200));
    server.shutdown(Shutdown::Write).unwrap();
    // The server has finished, and reads nothing: the client must not get a FIN yet.
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = client.read(&mut [0]).map_err(|why| why.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock));
    assert!(all(&mut server).unwrap().len() == 5_000_001);
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(all(&mut client).unwrap(), b"");
}

#[test]
fn a_draining_cache_is_idle_after_the_last_connection() {
    let (cache, mut client, mut server) = connected(LULL, b"\0", |_| {});
    cache.begin_drain();
    eventually("connections are still accepted", || TcpStream::connect(cache.addresses()[0]).is_err());
    assert!(!cache.is_idle());
    client.write_all(b"still").unwrap();
    let mut received = [0; 6];
    server.read_exact(&mut received).unwrap();
    drop(client);
    assert_eq!(all(&mut server).unwrap(), b"");
    drop(server);
    eventually("the cache does not become idle", || cache.is_idle());
}

#[test]
fn dropping_the_cache_resets_its_connections() {
    let (cache, mut client, _server) = connected(NEVER, b"\0", |_| {});
    drop(cache);
    assert_eq!(all(&mut client).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
}
