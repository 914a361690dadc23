//! Malicious and broken clients and servers.

use crate::common::*;
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends these bytes, and returns what is received until the connection ends.
fn send_bytes(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(at);
    // The cache may close the connection before all bytes have been sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// A server that sends the same response to every request, and records what it has read.
fn fixed_response_server(says: Vec<u8>) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let kept = heard.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, says, kept) = (stream.unwrap(), says.clone(), kept.clone());
            thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut part) {
                    let mut kept = kept.lock().unwrap();
                    kept.extend_from_slice(&part[..length]);
                    if kept.ends_with(b"\r\n\r\n") {
                        drop(kept);
                        let _ = stream.write_all(&says);
                        return;
                    }
                }
            });
        }
    });
    (at, heard)
}

#[test]
fn invalid_requests_are_refused_by_an_http_proxy() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("")));
    let cache = cache_for(origin.address, |_| {});
    let at = cache.addresses()[1];
    for garbage in [
        &b"\0\x01\x02\x03\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET http://a/ HTTP/9.9\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nX : y\r\n\r\n",
        b"GET /path<b> HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nHost: a\r\n",
        b"\x16\x03\x01\x02\x00",
    ] {
        let received = send_bytes(at, garbage);
        assert!(received.starts_with("HTTP/1.1 400") && received.contains("\r\n\r\ntandem cache: "), "{received}");
    }
    assert_eq!(origin.count(), 0);
    eventually("a refusal is not counted", || cache.stats().refused == 7);
    assert!(
        send_bytes(at, format!("GET http://{}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", origin.address).as_bytes())
            .starts_with("HTTP/1.1 200")
    );
}

/// RFC 9112 §6.3, §11.2: framing that two recipients could parse differently is refused or
/// normalised.
#[test]
fn requests_cannot_be_smuggled() {
    let origin = TestOrigin::start(|request| answer(200, &[], ScriptedBody::all(request.body().to_vec())));
    let cache = cache_for(origin.address, |_| {});
    let at = cache.addresses()[0];
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (framing, body) in [
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "helloX"),
        ("Content-Length: +5\r\n", "hello"),
        ("Content-Length: 5, 6\r\n", "helloX"),
        ("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "g\r\n"),
        ("Host: b\r\n", ""),
    ] {
        let received = send_bytes(at, format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n{body}{smuggled}").as_bytes());
        assert!(!received.starts_with("HTTP/1.1 200"), "{framing:?}: {received}");
    }
    assert!(origin.seen().iter().all(|request| request.uri().path() != "/smuggled"), "{:?}", origin.seen());
    // With both, the coding takes precedence, and the length is not forwarded.
    let both = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n{smuggled}"
    );
    let received = send_bytes(at, both.as_bytes());
    assert!(received.contains("hello") || received.starts_with("HTTP/1.1 400"), "{received}");
    for request in origin.seen() {
        let fields = request.headers();
        assert!(!(fields.contains_key("content-length") && fields.contains_key("transfer-encoding")), "{request:?}");
        assert!(request.uri().path() != "/smuggled");
    }
}

/// A body that cannot be decoded is the client's fault, and the log and the response say so.
#[test]
fn an_invalid_request_body_is_a_bad_request() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("")));
    let cache = cache_for(origin.address, |_| {});
    let received =
        send_bytes(cache.addresses()[0], b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n");
    assert!(received.starts_with("HTTP/1.1 400") && received.contains("the body of the request"), "{received}");
}

#[test]
fn ambiguous_responses_are_rejected() {
    for says in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"",
    ] {
        let (at, _) = fixed_response_server(says.to_vec());
        let (cache, client) = (cache_for(at, |_| {}), TestClient::new());
        let reply = client.get(cache.addresses()[0], "/", &[]);
        assert_eq!(reply.status, 502, "{}: {reply:?}", says.escape_ascii());
    }
}

/// RFC 9110 §15.2.2: a server may switch protocols only if the request asks for it.
#[test]
fn an_unrequested_protocol_switch_is_rejected() {
    let (origin, _) =
        fixed_response_server(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello".to_vec());
    let cache = cache_for(origin, |_| {});
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        // It is unclear to which protocol a request body belongs: such an upgrade is not forwarded.
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        // A request body that is aborted while the response is received.
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\nno end",
    ] {
        let received = send_bytes(cache.addresses()[0], request.as_bytes());
        // Of an invalid body and of an invalid response the first one decides.
        let is_refused = received.starts_with("HTTP/1.1 502") || (request.ends_with("no end") && received.starts_with("HTTP/1.1 400"));
        assert!(is_refused && !received.contains("hello"), "{request}: {received}");
    }
    cache.begin_drain();
    eventually("a connection does not end", || cache.is_idle());
}

/// A server that responds to `Expect: 100-continue` without a 100, sends bytes after its response,
/// and leaves the connection open.
#[test]
fn an_unread_request_body_does_not_keep_connections_open() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = cache_for(listener.local_addr().unwrap(), |_| {});
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\nmore").unwrap();
        // The connection is reset or closed.
        stream.read(&mut [0; 1]).map_err(|why| why.kind())
    });
    let request = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody";
    let received = send_bytes(cache.addresses()[0], request.as_bytes());
    assert!(received.starts_with("HTTP/1.1 417"), "{received}");
    assert!(matches!(server.join().unwrap(), Ok(0) | Err(std::io::ErrorKind::ConnectionReset)));
    cache.begin_drain();
    eventually("a connection does not end", || cache.is_idle());
}

#[test]
fn endless_header_sections_are_not_parsed() {
    let endless: Vec<u8> = (0..5000).flat_map(|number| format!("X-{number}: {}\r\n", "y".repeat(50)).into_bytes()).collect();
    let (at, _) = fixed_response_server([b"HTTP/1.1 200 OK\r\n".to_vec(), endless.clone()].concat());
    let cache = cache_for(at, |_| {});
    // A response is passed on as it came.
    let received = send_bytes(cache.addresses()[0], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(received == String::from_utf8([b"HTTP/1.1 200 OK\r\n".to_vec(), endless.clone()].concat()).unwrap(), "{}", received.len());
    let received = send_bytes(cache.addresses()[1], &[b"GET http://a/ HTTP/1.1\r\n".to_vec(), endless].concat());
    assert!(received.is_empty() || received.starts_with("HTTP/1.1 431"), "{received}");
    let long = send_bytes(cache.addresses()[1], format!("GET http://a/{} HTTP/1.1\r\n\r\n", "x".repeat(200_000)).as_bytes());
    assert!(long.is_empty() || long.starts_with("HTTP/1.1 4"), "{long}");
}

#[test]
fn slow_peers_time_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (cache, client) =
        (cache_for(silent.local_addr().unwrap(), |config| config.patience = Duration::from_millis(200)), TestClient::new());
    // A client that never completes its request.
    let mut slow = connect(cache.addresses()[1]);
    slow.write_all(b"GET http://a/ HTTP/1.1\r\nX: ").unwrap();
    let mut all = Vec::new();
    let _ = slow.read_to_end(&mut all);
    assert!(all.is_empty() || all.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&all));
    // A server that never responds.
    let late = client.get(cache.addresses()[0], "/", &[]);
    assert!(late.status == 504 && String::from_utf8_lossy(&late.body).contains("has not answered in 0.2 s"), "{late:?}");
    drop(silent);
}

#[test]
fn an_incomplete_request_line_is_relayed() {
    // A protocol whose first message could be the beginning of a request, and needs a reply.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
    });
    let cache = cache_for(at, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"PING").unwrap();
    let mut word = [0; 4];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"PING");
}

#[test]
fn an_endless_body_stays_within_the_limits() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    // Sends without end, as fast as the cache reads.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut asked = [0; 4096];
                let length = stream.read(&mut asked).unwrap_or(0);
                let control = if asked[..length].starts_with(b"GET /kept") { "max-age=60" } else { "no-store" };
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
                );
                while stream.write_all(b"10000\r\n").is_ok()
                    && stream.write_all(&[b'x'; 0x10000]).is_ok()
                    && stream.write_all(b"\r\n").is_ok()
                {}
            });
        }
    });
    let limit = |config: &mut cache::Config| {
        config.memory = units::Bytes(1_000_000);
        config.disk = units::Bytes(2_000_000);
        config.largest = units::Bytes(1_500_000);
    };
    let cache = cache_for(at, limit);
    for path in ["/kept", "/passed"] {
        let mut client = connect(cache.addresses()[0]);
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: image/webp\r\n\r\n").unwrap();
        let mut part = vec![0; 100_000];
        for _ in 0..100 {
            client.read_exact(&mut part).unwrap();
            let stats = cache.stats();
            assert!(stats.memory_bytes <= 1_000_000 && stats.disk_bytes <= 2_000_000, "{stats:?}");
        }
        // When the client stops reading, the cache stops fetching.
        eventually("the cache does not stop fetching", || {
            let before = cache.stats().origin_bytes;
            thread::sleep(Duration::from_millis(100));
            before == cache.stats().origin_bytes
        });
        assert!(cache.stats().origin_bytes < 100_000_000, "{:?}", cache.stats());
    }
    eventually("storage is not released", || cache.stats().memory_bytes == 0 && cache.stats().disk_bytes == 0);
}

#[test]
fn files_on_disk_are_unlinked() {
    let origin = TestOrigin::start(|_| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(vec![7; 3_000_000])));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    client.get(cache.addresses()[0], "/", &[]);
    assert_eq!(cache.stats().disk_bytes, 3_000_000);
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let its = paths.filter(|path| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 3_000_000));
    let names: Vec<String> = its.filter_map(|path| Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned())).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name.ends_with("(deleted)")), "{names:?}");
}

/// Requests with bytes changed, cut off and spliced, by a fixed random sequence: the cache still
/// answers valid requests.
#[test]
fn damaged_requests_do_not_affect_later_ones() {
    let origin = TestOrigin::start(|request| {
        answer(
            200,
            &[("cache-control", "max-age=60"), ("content-type", "text/html")],
            ScriptedBody::all(vec![b'a'; request.uri().path().len() * 100]),
        )
    });
    let (cache, client) = (cache_for(origin.address, |config| config.patience = Duration::from_secs(2)), TestClient::new());
    let seeds = [
        format!("GET http://{}/a HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip;q=0.3, br\r\nRange: bytes=0-9\r\n\r\n", origin.address),
        format!(
            "POST http://{}/b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
            origin.address
        ),
        format!(
            "GET http://{}/c HTTP/1.0\r\nCache-Control: max-stale=5, no-transform\r\nIf-None-Match: W/\"a\", *\r\nConnection: x, close\r\n\r\n",
            origin.address
        ),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\x20\0\0\0\x02\0\0\0\0".to_string(),
    ];
    let mut random = 42_u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let rounds = std::env::var("TANDEM_CACHE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    for round in 0..rounds {
        let mut bytes = seeds[next(seeds.len())].clone().into_bytes();
        for _ in 0..next(6) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = next(256) as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, b"\r\n :,;=\"\0\xff0"[next(11)]),
                _ => {
                    let other = seeds[next(seeds.len())].as_bytes();
                    bytes.splice(at..at, other[next(other.len())..].iter().copied());
                }
            }
        }
        send_bytes(cache.addresses()[1], &bytes);
        if round % 50 == 0 {
            let fine = client.get(cache.addresses()[0], "/fine", &[]);
            assert!(fine.status == 200 && fine.body.len() == 500, "after round {round}: {fine:?}");
        }
    }
    eventually("storage is not released", || {
        let stats = cache.stats();
        stats.memory_bytes < 1 << 20
    });
}
