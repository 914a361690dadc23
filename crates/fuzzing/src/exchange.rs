//! Whole connections through the cache: clients send and servers answer arbitrary bytes, in pieces
//! of any size. Nothing panics, every connection ends, and the memory stays within its limit.

use cache::{Cache, Config, Listen};
use socket2::SockRef;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// Separates what a client sends, what the server answers, what the next client sends, …
const SEPARATOR: u8 = 0xff;
/// Client connections in one run, at most.
const MAX_CLIENTS: usize = 4;
const MEMORY: u64 = 1 << 20;
/// Much longer than any step of a run.
const DEADLINE: Duration = Duration::from_secs(20);

/// How an end behaves.
#[derive(Clone, Copy)]
struct EndBehaviour {
    /// Bytes of one write.
    write_bytes: usize,
    /// Whether it resets its connection at the end, instead of closing it.
    resets: bool,
}

/// Sends `bytes` and ends the sending direction. Failed writes are ignored: the peer may have
/// closed the connection.
fn send(stream: &mut TcpStream, bytes: &[u8], behaviour: EndBehaviour) {
    stream.set_nodelay(true).expect("a socket can be set");
    let sent = bytes.chunks(behaviour.write_bytes).try_for_each(|piece| stream.write_all(piece));
    if sent.is_ok() && behaviour.resets {
        let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Reads until the peer ends the connection. Returns false if it does not.
fn read_to_end(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket can be set");
    let mut part = [0; 16 * 1024];
    loop {
        match stream.read(&mut part) {
            Ok(1..) => {}
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Ok(0) | Err(_) => return true,
        }
    }
}

/// A server that answers each connection with the next of `answers`, whatever the request.
fn serve(listener: &TcpListener, answers: &[Vec<u8>], behaviour: EndBehaviour, over: &AtomicBool) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        while let Ok((mut stream, _)) = listener.accept() {
            if over.load(Ordering::Acquire) {
                break;
            }
            let answer = answers.get(next.fetch_add(1, Ordering::Relaxed)).map_or(&[][..], Vec::as_slice);
            scope.spawn(move || {
                stream.set_read_timeout(Some(DEADLINE)).expect("a socket can be set");
                let _ = stream.read(&mut [0; 16 * 1024]);
                send(&mut stream, answer, behaviour);
                if !behaviour.resets {
                    // If the cache does not end the connection, a client or the cache waits
                    // forever.
                    read_to_end(&mut stream);
                }
            });
        }
    });
}

fn wait(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Runs connections through a cache, as described at the top of this file.
///
/// # Panics
/// When a connection does not end, or the memory exceeds its limit.
pub fn exchange(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let parts: Vec<Vec<u8>> = rest.split(|byte| *byte == SEPARATOR).take(2 * MAX_CLIENTS).map(<[u8]>::to_vec).collect();
    let requests: Vec<&Vec<u8>> = parts.iter().step_by(2).collect();
    let answers: Vec<Vec<u8>> = parts.iter().skip(1).step_by(2).cloned().collect();
    let write_bytes = if flags & 1 == 0 { usize::MAX } else { 7 };
    let behaviour = |reset_flag: u8| EndBehaviour { write_bytes, resets: flags & reset_flag != 0 };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a port");
    let server = listener.local_addr().expect("it has an address");
    let config = Config {
        listen: vec![Listen::Forward(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), server)],
        memory: Bytes(MEMORY),
        disk: Bytes(MEMORY),
        largest: Bytes(MEMORY / 4),
        hold: flags & 8 != 0,
        most_pixels: 1 << 16,
        threads: 1,
        install_rules: false,
        ..Config::default()
    };
    let over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &answers, behaviour(4), &over));
        let cache = Cache::start(config).expect("it starts");
        for request in requests {
            let mut client = TcpStream::connect(cache.addresses()[0]).expect("it listens");
            send(&mut client, request, behaviour(2));
            if flags & 2 == 0 {
                assert!(read_to_end(&mut client), "a client waits forever");
            }
        }
        cache.begin_drain();
        wait("a connection never ends", || cache.is_idle());
        assert!(cache.stats().memory_bytes <= MEMORY, "the cache holds {} bytes in memory", cache.stats().memory_bytes);
        drop(cache);
        over.store(true, Ordering::Release);
        // Wakes the server.
        let _ = TcpStream::connect(server);
    });
}
