//! The memory that a hostile client can make the process use. This is a test binary of its own,
//! since it measures its own process.

use cache::{Cache, Config, Listen};
use http_body_util::Empty;
use hyper::{Request, body::Bytes};
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};
use tokio::net::TcpStream;

const MEMORY: u64 = 64 << 20;

/// A server with large responses: those below `/kept/` can be stored, others cannot.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let serve = move || {
                let mut asked = [0; 4096];
                let length = stream.read(&mut asked).unwrap_or(0);
                let kept = asked[..length].starts_with(b"GET /kept");
                let control = if kept { "max-age=60" } else { "no-store" };
                let (pieces, piece) = (if kept { 14 } else { 100_000 }, [b'x'; 0x10000]);
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nContent-Type: image/gif\r\nContent-Length: {}\r\n\r\n",
                    pieces * piece.len()
                );
                for _ in 0..pieces {
                    if stream.write_all(&piece).is_err() {
                        return;
                    }
                }
                let _ = stream.read(&mut asked);
            };
            thread::Builder::new().stack_size(256 * 1024).spawn(serve).unwrap();
        }
    });
    at
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Waits until the cache fetches no more.
fn settle(cache: &Cache) {
    let begun = Instant::now();
    let mut last = u64::MAX;
    while begun.elapsed() < Duration::from_secs(30) {
        let now = cache.stats().origin_bytes;
        if now == last && now > 0 {
            return;
        }
        last = now;
        thread::sleep(Duration::from_millis(500));
    }
}

/// Bytes that a second client receives for its request.
fn second_client_receives(at: SocketAddr, path: &str) -> u64 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    socket.connect(&at.into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = std::net::TcpStream::from(socket);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
}

/// The client has two HTTP/2 connections with a hundred requests each and receive windows of zero.
#[test]
fn one_client_cannot_exhaust_the_memory() {
    let origin = origin();
    let listen = vec![Listen::Forward("127.0.0.1:0".parse().unwrap(), origin)];
    let cache = Cache::start(Config { listen, memory: units::Bytes(MEMORY), ..Config::default() }).unwrap();
    let at = cache.addresses()[0];
    let client = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for what in ["passed", "kept"] {
        let before = resident();
        let mut held = Vec::new();
        for connection in 0..2 {
            let sender = client.block_on(async {
                let stream = TcpStream::connect(at).await.unwrap();
                let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(0);
                let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
                tokio::spawn(connection);
                sender
            });
            for stream in 0..100 {
                let (mut sender, uri) = (sender.clone(), format!("http://{at}/{what}/{connection}/{stream}"));
                held.push(client.spawn(async move {
                    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
                    let answer = sender.send_request(request).await;
                    // The body is never read.
                    std::future::pending::<()>().await;
                    drop(answer);
                }));
            }
        }
        settle(&cache);
        let (after, stats) = (resident(), cache.stats());
        let grown = after.saturating_sub(before);
        eprintln!("{what}: {} MB resident, {} MB more than before; {stats:?}", after / 1_000_000, grown / 1_000_000);
        assert!(stats.memory_bytes + stats.reserved_bytes <= MEMORY, "{stats:?}");
        // The client's share for requests in progress is a sixteenth; stored responses may take the
        // rest. Clients and servers run in this process, too.
        let bound = if what == "passed" { MEMORY / 2 } else { MEMORY };
        assert!(grown < bound, "{what}: {grown} bytes more than before");
        // Others are served meanwhile, even if there is no room to store their responses.
        for path in ["/kept/other", "/kept/yet-another"] {
            let got = second_client_receives(at, path);
            assert!(got > 14 * 0x10000, "{what}: another client has got {got} bytes of {path}");
        }
        held.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
