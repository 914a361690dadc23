//! The share of the cache that one client can use. Other clients are served meanwhile.

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

/// A server that sends endless responses, and the number of open connections to it.
fn endless_server() -> (SocketAddr, Arc<AtomicUsize>) {
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

/// Opens HTTP/2 connections with receive windows of zero and sends requests on them. The tasks hold
/// the responses until they are aborted.
fn stalled_requests(client: &TestClient, at: SocketAddr, connections: usize, streams: usize) -> Vec<tokio::task::JoinHandle<()>> {
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
                // The body is never read.
                std::future::pending::<()>().await;
                drop(answer);
            }));
        }
    }
    held
}

/// Waits until a number stops growing, and returns it.
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
fn connections_to_servers_are_limited_per_client() {
    let (origin, open) = endless_server();
    let (cache, hostile, honest) = (cache_for(origin, |_| {}), TestClient::new(), TestClient::new());
    let held = stalled_requests(&hostile, cache.addresses()[0], 4, 100);
    let servers = settled(|| open.load(Ordering::SeqCst));
    eprintln!("{servers} connections to servers for one client; {:?}", cache.stats());
    assert!(servers <= 64, "{servers} connections to servers for one client");
    // Another client is served meanwhile.
    for _ in 0..10 {
        let reply = honest.get_from([127, 0, 0, 2], cache.addresses()[0], "/short", &[]);
        assert!(reply.status == 200 && reply.body == b"short", "{reply:?}");
    }
    // Its connections to servers are closed with its own.
    held.iter().for_each(tokio::task::JoinHandle::abort);
    drop(hostile);
    eventually("connections to servers stay open", || open.load(Ordering::SeqCst) <= 10);
}

/// A connection from 127.0.0.1 on which a request has been sent. The response is read only by the
/// test.
fn connection_with_request(at: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

/// A cache with room for four requests of each client at a time.
fn small_cache(origin: SocketAddr, wait: Duration) -> Cache {
    cache_for(origin, |config| {
        config.memory = units::Bytes(1 << 20);
        config.connect_timeout = wait;
    })
}

#[test]
fn requests_beyond_a_share_get_503() {
    let (origin, open) = endless_server();
    let (cache, client) = (small_cache(origin, Duration::from_millis(200)), TestClient::new());
    let at = cache.addresses()[0];
    let mut held: Vec<_> = (0..3).map(|_| connection_with_request(at, "/")).collect();
    eventually("the server gets no requests", || open.load(Ordering::SeqCst) == 3);
    // What exceeds the share is refused, after it has waited.
    held.extend((0..3).map(|_| connection_with_request(at, "/")));
    let refused = client.get(at, "/short", &[]);
    assert!(refused.status == 503 && refused.field("retry-after") == "5" && refused.cache_status_contains("detail=refused"), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.body).contains("try again later") && cache.stats().waited > 0, "{refused:?}");
    assert!(open.load(Ordering::SeqCst) <= 4);
    // Another client has its own share.
    let served = client.get_from([127, 0, 0, 2], at, "/short", &[]);
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
    drop(held);
    eventually("the share is not returned", || client.get(at, "/short", &[]).status == 200);
    eventually("something stays reserved", || cache.stats().reserved_bytes == 0);
}

#[test]
fn requests_beyond_a_share_wait_for_their_turn() {
    let (origin, open) = endless_server();
    let (cache, client) = (small_cache(origin, DEADLINE), TestClient::new());
    let at = cache.addresses()[0];
    let held: Vec<_> = (0..6).map(|_| connection_with_request(at, "/")).collect();
    eventually("no request waits", || cache.stats().waited > 0 && open.load(Ordering::SeqCst) >= 3);
    let waits = client.spawn(at, request("GET", "/short", &[]));
    eventually("the request does not wait", || cache.stats().waited > 2);
    drop(held);
    let served = client.wait(waits).unwrap();
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
}

#[test]
fn idle_connections_to_servers_are_closed_for_requests() {
    let (origin, open) = endless_server();
    let cache = small_cache(origin, DEADLINE);
    // Each client connection keeps its connection to the server. The share has room for eight of
    // them.
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut stream = connection_with_request(cache.addresses()[0], "/short");
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\nshort") {
            let mut part = [0; 1024];
            let length = stream.read(&mut part).unwrap();
            received.extend_from_slice(&part[..length]);
            assert!(length > 0 && received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&received));
        }
        kept.push(stream);
    }
    eventually("too many connections stay open", || open.load(Ordering::SeqCst) <= 8);
    assert!(cache.stats().reserved_bytes <= 256 << 10);
}

/// A server that sends first, and without end.
fn flooding_server() -> SocketAddr {
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
    let (talking, (origin, _)) = (flooding_server(), endless_server());
    let cache = cache_for(talking, |config| {
        config.memory = units::Bytes(4 << 20);
        config.raw = cache::RawMode::Stream;
        config.connect_timeout = Duration::from_millis(500);
    });
    // The clients read nothing. Half of the share is 128 KiB: four reads.
    let mut held: Vec<_> = (0..20).map(|_| TcpStream::connect(cache.addresses()[0]).unwrap()).collect();
    eventually("unread bytes are not reserved", || cache.stats().reserved_bytes == 128 << 10);
    thread::sleep(Duration::from_millis(200));
    assert!(cache.stats().reserved_bytes <= 128 << 10, "{:?}", cache.stats());
    let served = TestClient::new().get(cache.addresses()[1], &format!("http://{origin}/short"), &[]);
    assert!(served.status == 200 && served.body == b"short", "{served:?}");
    // Connections without a reservation make progress too.
    for stream in &mut held {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        std::io::copy(&mut stream.take(20 << 20), &mut std::io::sink()).unwrap();
    }
    drop(held);
    eventually("something stays reserved", || cache.stats().reserved_bytes == 0);
}

/// A picture whose transcoding takes a while.
fn slow_picture() -> Vec<u8> {
    let (width, height) = (1400_u32, 1000_u32);
    let pixels: Vec<u8> =
        (0..width * height).flat_map(|at| [(at % width / 6) as u8, (at / width / 4) as u8, (at.wrapping_mul(at) % 97) as u8]).collect();
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&pixels, width, height, ExtendedColorType::Rgb8).unwrap();
    png
}

#[test]
fn pictures_of_one_client_do_not_delay_those_of_another() {
    let png = slow_picture();
    let origin = TestOrigin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], ScriptedBody::all(png.clone()))
    });
    let (cache, busy, other) = (cache_for(origin.address, |_| {}), TestClient::new(), TestClient::new());
    let at = cache.addresses()[0];
    let ask = |path: &str| request("GET", path, &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..8).map(|number| busy.spawn(at, ask(&format!("/{number}")))).collect();
    eventually("not all requests have arrived", || origin.count() == 8 && cache.stats().pictures >= 1);
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
    let png = slow_picture();
    let sent = png.clone();
    let origin = TestOrigin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], ScriptedBody::all(sent.clone()))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let ask = |number: usize| request("GET", &format!("/{number}"), &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..30).map(|number| client.spawn(cache.addresses()[0], ask(number))).collect();
    let replies: Vec<TestReply> = asked.into_iter().map(|one| client.wait(one).unwrap()).collect();
    let unchanged = replies.iter().filter(|reply| reply.field("content-type") == "image/png").count();
    eprintln!("{unchanged} of 30 pictures unchanged");
    assert!(unchanged > 0 && unchanged < 30, "{unchanged} of 30 pictures unchanged");
    assert!(replies.iter().all(|reply| reply.status == 200 && (reply.field("content-type") == "image/webp" || reply.body == png)));
    // A picture that was skipped is transcoded when it is requested again.
    eventually("the picture is never transcoded", || client.ask(cache.addresses()[0], ask(29)).field("content-type") == "image/webp");
}
