//! Whole connections through the cache: what clients say and what servers answer, any bytes, in any pieces. Nothing panics, every connection comes to its
//! end, and no more is held than may be.

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

/// Between what a client says, what is answered, what the next client says, …
const NEXT: u8 = 0xff;
/// Connections of clients in one run, at most.
const CLIENTS: usize = 4;
const MEMORY: u64 = 1 << 20;
/// Much longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the ends behave.
#[derive(Clone, Copy)]
struct Manner {
    /// Bytes that are written at once.
    piece: usize,
    /// It resets its connection when it has said all, or closes it.
    aborts: bool,
}

/// Says all it has to say. That nobody listens is no failure.
fn say(stream: &mut TcpStream, bytes: &[u8], manner: Manner) {
    stream.set_nodelay(true).expect("a socket can be set");
    let said = bytes.chunks(manner.piece).try_for_each(|piece| stream.write_all(piece));
    if said.is_ok() && manner.aborts {
        let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Hears until the other end has finished; false if it does not.
fn hear(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket can be set");
    let mut part = [0; 16 * 1024];
    loop {
        match stream.read(&mut part) {
            Ok(1..) => {}
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Ok(0) | Err(_) => return true,
        }
    }
}

/// A server that answers each connection with the next of `answers`, whatever it is asked.
fn serve(listener: &TcpListener, answers: &[Vec<u8>], manner: Manner, over: &AtomicBool) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        while let Ok((mut stream, _)) = listener.accept() {
            if over.load(Ordering::Acquire) {
                break;
            }
            let answer = answers.get(next.fetch_add(1, Ordering::Relaxed)).map_or(&[][..], Vec::as_slice);
            scope.spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket can be set");
                let _ = stream.read(&mut [0; 16 * 1024]);
                say(&mut stream, answer, manner);
                if !manner.aborts {
                    // A cache that does not come to an end with it keeps a client waiting, or a connection.
                    hear(&mut stream);
                }
            });
        }
    });
}

fn wait(what: &str, come: impl Fn() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// See the top of this file.
///
/// # Panics
/// When what it says there is not so.
pub fn exchange(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let parts: Vec<Vec<u8>> = rest.split(|byte| *byte == NEXT).take(2 * CLIENTS).map(<[u8]>::to_vec).collect();
    let said: Vec<&Vec<u8>> = parts.iter().step_by(2).collect();
    let answers: Vec<Vec<u8>> = parts.iter().skip(1).step_by(2).cloned().collect();
    let manner = |aborts: u8| Manner { piece: if flags & 1 == 0 { usize::MAX } else { 7 }, aborts: flags & aborts != 0 };
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
        scope.spawn(|| serve(&listener, &answers, manner(4), &over));
        let cache = Cache::start(config).expect("it starts");
        for said in said {
            let mut client = TcpStream::connect(cache.addresses()[0]).expect("it listens");
            say(&mut client, said, manner(2));
            if flags & 2 == 0 {
                assert!(hear(&mut client), "a client waits for ever");
            }
        }
        cache.begin_drain();
        wait("a connection never ends", || cache.is_idle());
        assert!(cache.stats().memory_bytes <= MEMORY, "it holds {} bytes in memory", cache.stats().memory_bytes);
        drop(cache);
        over.store(true, Ordering::Release);
        // Wakes the server.
        let _ = TcpStream::connect(server);
    });
}
