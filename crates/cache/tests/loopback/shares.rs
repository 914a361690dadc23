//! Shares: what one client can take of the cache, and that others are served meanwhile.

use crate::common::*;
use cache::Cache;
use hyper_util::rt::{TokioExecutor, TokioIo};
use image::{ExtendedColorType, ImageEncoder as _, codecs::png::PngEncoder};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// A server that sends endless answers, and the number of open connections to it.
fn endless() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, open) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = open.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), count.clone());
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                let mut asked = [0; 4096];
                let length = stream.read(&mut asked).unwrap_or(0);
                if asked[..length].starts_with(b"GET /short") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 5\r\n\r\nshort");
                } else if stream
                    .write_all(
                        b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: image/gif\r\nContent-Length: 999999999\r\n\r\n",
                    )
                    .is_ok()
                {
                    while stream.write_all(&[b'x'; 0x10000]).is_ok() {}
                }
                let _ = stream.read(&mut asked);
                count.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (at, open)
}

/// Opens HTTP/2 connections with receive windows of zero and makes requests on them. The tasks hold
/// the answers until they are aborted.
fn stuck(client: &Client, at: SocketAddr, connections: usize, streams: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let mut held = Vec::new();
    for connection in 0..connections {
        let sender = client.wait(async {
            let stream = tokio::net::TcpStream::connect(at).await.unwrap();
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(0);
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        for stream in 0..streams {
            let (mut sender, path) = (sender.clone(), format!("http://{at}/{connection}/{stream}"));
            held.push(client.start(async move {
                let answer = sender.send_request(request("GET", &path, &[])).await;
                // The answer is never read.
                std::future::pending::<()>().await;
                drop(answer);
            }));
        }
    }
    held
}

/// Waits until a number has stopped growing.
fn settled(number: impl Fn() -> usize) -> usize {
    let mut last = number();
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(400));
        let now = number();
        if now == last && now > 0 {
            return now;
        }
        last = now;
    }
    last
}

#[test]
fn one_client_takes_its_share_of_servers_and_no_more() {
    let (origin, open) = endless();
    let (cache, hostile, honest) = (before(origin, |_| {}), Client::new(), Client::new());
    let held = stuck(&hostile, cache.addresses()[0], 4, 100);
    let servers = settled(|| open.load(Ordering::SeqCst));
    eprintln!("{servers} connections to servers for one client; {:?}", cache.stats());
    assert!(servers <= 64, "{servers} connections to servers for one client");
    // Another client is served meanwhile.
    for _ in 0..10 {
        let reply = honest.get_from([127, 0, 0, 2], cache.addresses()[0], "/short", &[]);
        assert!(reply.status == 200 && reply.body == b"short", "{reply:?}");
    }
    // Its connections to servers end with it.
    held.iter().for_each(tokio::task::JoinHandle::abort);
    drop(hostile);
    eventually("connections to servers stay open", || open.load(Ordering::SeqCst) <= 10);
}

/// A connection from 127.0.0.1 that has made a request. It reads the answer only if the test does.
fn asking(at: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

/// A cache that bounds each client to four requests at once.
fn small(origin: SocketAddr, wait: Duration) -> Cache {
    before(origin, |config| {
        config.memory = units::Bytes(1 << 20);
        config.connect_timeout = wait;
    })
}

#[test]
fn requests_beyond_a_share_are_told_to_come_later() {
    let (origin, open) = endless();
    let (cache, client) = (small(origin, Duration::from_millis(200)), Client::new());
    let at = cache.addresses()[0];
    let mut held: Vec<_> = (0..3).map(|_| asking(at, "/")).collect();
    eventually("they are asked for", || open.load(Ordering::SeqCst) == 3);
    // More than the rest of the share is refused, after it has waited.
    held.extend((0..3).map(|_| asking(at, "/")));
    let refused = client.get(at, "/short", &[]);
    assert!(refused.status == 503 && refused.field("retry-after") == "5" && refused.is("detail=refused"), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.body).contains("ask again later") && cache.stats().waited > 0, "{refused:?}");
    assert!(open.load(Ordering::SeqCst) <= 4);
    // Another client has its own share.
    let served = client.get_from([127, 0, 0, 2], at, "/short", &[]);
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
    drop(held);
    eventually("the share is not given back", || client.get(at, "/short", &[]).status == 200);
    eventually("something stays reserved", || cache.stats().reserved_bytes == 0);
}

#[test]
fn requests_beyond_a_share_wait_for_their_turn() {
    let (origin, open) = endless();
    let (cache, client) = (small(origin, PATIENCE), Client::new());
    let at = cache.addresses()[0];
    let held: Vec<_> = (0..6).map(|_| asking(at, "/")).collect();
    eventually("they wait", || cache.stats().waited > 0 && open.load(Ordering::SeqCst) >= 3);
    let waits = client.spawn(at, request("GET", "/short", &[]));
    eventually("it waits", || cache.stats().waited > 2);
    drop(held);
    let served = client.wait(waits).unwrap();
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
}

#[test]
fn idle_connections_to_servers_give_way() {
    let (origin, open) = endless();
    let cache = small(origin, PATIENCE);
    // Each keeps its connection to the server after its answer. The share has room for eight of
    // them.
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut stream = asking(cache.addresses()[0], "/short");
        let mut said = Vec::new();
        while !said.ends_with(b"\r\n\r\nshort") {
            let mut part = [0; 1024];
            let length = stream.read(&mut part).unwrap();
            said.extend_from_slice(&part[..length]);
            assert!(length > 0 && said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
        }
        kept.push(stream);
    }
    eventually("too many connections stay open", || open.load(Ordering::SeqCst) <= 8);
    assert!(cache.stats().reserved_bytes <= 256 << 10);
}

/// A server that speaks first, and without end.
fn talking() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || while stream.write_all(&[b'x'; 0x10000]).is_ok() {});
        }
    });
    at
}

#[test]
fn connections_that_are_not_http_leave_half_to_requests() {
    let (talking, (origin, _)) = (talking(), endless());
    let cache = before(talking, |config| {
        config.memory = units::Bytes(4 << 20);
        config.raw = cache::Raw::Stream;
        config.connect_timeout = Duration::from_millis(500);
    });
    // Their clients read nothing. Half of the share is 128 KiB: four pieces.
    let mut held: Vec<_> = (0..20).map(|_| TcpStream::connect(cache.addresses()[0]).unwrap()).collect();
    eventually("what is not taken is not counted", || cache.stats().reserved_bytes == 128 << 10);
    thread::sleep(Duration::from_millis(200));
    assert!(cache.stats().reserved_bytes <= 128 << 10, "{:?}", cache.stats());
    let served = Client::new().get(cache.addresses()[1], &format!("http://{origin}/short"), &[]);
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
    // Those without a reservation go on, too.
    for stream in &mut held {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::io::copy(&mut stream.take(20 << 20), &mut std::io::sink()).unwrap();
    }
    drop(held);
    eventually("something stays reserved", || cache.stats().reserved_bytes == 0);
}

/// A picture that takes a while to be made smaller.
fn drawing() -> Vec<u8> {
    let (width, height) = (1400_u32, 1000_u32);
    let pixels: Vec<u8> =
        (0..width * height).flat_map(|at| [(at % width / 6) as u8, (at / width / 4) as u8, (at.wrapping_mul(at) % 97) as u8]).collect();
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&pixels, width, height, ExtendedColorType::Rgb8).unwrap();
    png
}

#[test]
fn pictures_of_one_client_do_not_delay_anothers() {
    let png = drawing();
    let origin =
        Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], Steps::all(png.clone())));
    let (cache, busy, other) = (before(origin.address, |_| {}), Client::new(), Client::new());
    let at = cache.addresses()[0];
    let ask = |path: &str| request("GET", path, &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..8).map(|number| busy.spawn(at, ask(&format!("/{number}")))).collect();
    eventually("all of them have come", || origin.count() == 8 && cache.stats().pictures >= 1);
    let reply = other.ask_from([127, 0, 0, 2], at, ask("/other"));
    let made = cache.stats().pictures;
    eprintln!("{made} pictures made until the other client had its own");
    assert_eq!(reply.field("content-type"), "image/webp");
    // In the order of the requests it would have been the ninth, or the eighth.
    assert!(made < 8, "{made} pictures were made until the other client had its own");
    for one in asked {
        assert_eq!(busy.wait(one).unwrap().status, 200);
    }
}

#[test]
fn pictures_beyond_the_bound_pass_unchanged() {
    let png = drawing();
    let sent = png.clone();
    let origin =
        Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], Steps::all(sent.clone())));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let ask = |number: usize| request("GET", &format!("/{number}"), &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..30).map(|number| client.spawn(cache.addresses()[0], ask(number))).collect();
    let replies: Vec<Reply> = asked.into_iter().map(|one| client.wait(one).unwrap()).collect();
    let unchanged = replies.iter().filter(|reply| reply.field("content-type") == "image/png").count();
    eprintln!("{unchanged} of 30 pictures unchanged");
    assert!(unchanged > 0 && unchanged < 30, "{unchanged} of 30 pictures unchanged");
    assert!(replies.iter().all(|reply| reply.status == 200 && (reply.field("content-type") == "image/webp" || reply.body == png)));
    // A picture that was skipped is made when it is asked for again.
    eventually("it is never made", || client.ask(cache.addresses()[0], ask(29)).field("content-type") == "image/webp");
}
