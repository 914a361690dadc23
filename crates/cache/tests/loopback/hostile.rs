//! Ends that mean harm, or know no better.

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
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What comes back for these bytes, up to the end of the connection.
fn say(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(at);
    // It may be ended before all has been said.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// A server that writes the same to everybody and keeps what it has read.
fn parrot(says: Vec<u8>) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
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
fn garbage_is_refused_by_an_http_proxy() {
    let origin = Origin::start(|_| answer(200, &[], Steps::all("")));
    let cache = before(origin.address, |_| {});
    let at = cache.addresses()[1];
    for garbage in [
        &b"\0\x01\x02\x03\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET http://a/ HTTP/9.9\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ] {
        let said = say(at, garbage);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    }
    assert_eq!(origin.count(), 0);
    assert!(
        say(at, format!("GET http://{}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", origin.address).as_bytes())
            .starts_with("HTTP/1.1 200")
    );
}

/// RFC 9112 §6.3, §11.2: whatever two ends could understand differently is refused, or made plain.
#[test]
fn no_request_is_smuggled() {
    let origin = Origin::start(|request| answer(200, &[], Steps::all(request.body().to_vec())));
    let cache = before(origin.address, |_| {});
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
        let said = say(at, format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n{body}{smuggled}").as_bytes());
        assert!(!said.starts_with("HTTP/1.1 200"), "{framing:?}: {said}");
    }
    assert!(origin.seen().iter().all(|request| request.uri().path() != "/smuggled"), "{:?}", origin.seen());
    // Both: the coding counts, and the length is gone further on.
    let both = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n{smuggled}"
    );
    let said = say(at, both.as_bytes());
    assert!(said.contains("hello") || said.starts_with("HTTP/1.1 400"), "{said}");
    for request in origin.seen() {
        let fields = request.headers();
        assert!(!(fields.contains_key("content-length") && fields.contains_key("transfer-encoding")), "{request:?}");
        assert!(request.uri().path() != "/smuggled");
    }
}

#[test]
fn answers_that_could_be_two_are_none() {
    for says in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"",
    ] {
        let (at, _) = parrot(says.to_vec());
        let (cache, client) = (before(at, |_| {}), Client::new());
        let reply = client.get(cache.addresses()[0], "/", &[]);
        assert_eq!(reply.status, 502, "{}: {reply:?}", says.escape_ascii());
    }
}

/// RFC 9110 §15.2.2: only who asks for another protocol gets one.
#[test]
fn a_protocol_that_was_not_asked_for_is_no_answer() {
    let (origin, _) = parrot(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello".to_vec());
    let cache = before(origin, |_| {});
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        // Of a request with a body it is not clear to which protocol that belongs: such a wish is not passed on.
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        // A body that breaks off while the answer comes.
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\nno end",
    ] {
        let said = say(cache.addresses()[0], request.as_bytes());
        assert!(said.starts_with("HTTP/1.1 502") && !said.contains("hello"), "{request}: {said}");
    }
    cache.begin_drain();
    eventually("a connection does not end", || cache.is_idle());
}

/// A server that answers a request that expects to be asked for its body without asking, says more than it should, and leaves its connection open.
#[test]
fn a_body_that_is_not_asked_for_keeps_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = before(listener.local_addr().unwrap(), |_| {});
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\nmore").unwrap();
        // Reset or closed: not open for ever.
        stream.read(&mut [0; 1]).map_err(|why| why.kind())
    });
    let request = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody";
    let said = say(cache.addresses()[0], request.as_bytes());
    assert!(said.starts_with("HTTP/1.1 417"), "{said}");
    assert!(matches!(server.join().unwrap(), Ok(0) | Err(std::io::ErrorKind::ConnectionReset)));
    cache.begin_drain();
    eventually("a connection does not end", || cache.is_idle());
}

#[test]
fn header_sections_without_an_end_end_it() {
    let endless: Vec<u8> = (0..5000).flat_map(|number| format!("X-{number}: {}\r\n", "y".repeat(50)).into_bytes()).collect();
    let (at, _) = parrot([b"HTTP/1.1 200 OK\r\n".to_vec(), endless.clone()].concat());
    let (cache, client) = (before(at, |_| {}), Client::new());
    assert_eq!(client.get(cache.addresses()[0], "/", &[]).status, 502);
    let said = say(cache.addresses()[1], &[b"GET http://a/ HTTP/1.1\r\n".to_vec(), endless].concat());
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    let long = say(cache.addresses()[1], format!("GET http://a/{} HTTP/1.1\r\n\r\n", "x".repeat(200_000)).as_bytes());
    assert!(long.is_empty() || long.starts_with("HTTP/1.1 4"), "{long}");
}

#[test]
fn who_is_too_slow_is_left() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (cache, client) = (before(silent.local_addr().unwrap(), |config| config.patience = Duration::from_millis(200)), Client::new());
    // A client that never finishes what it asks.
    let mut slow = connect(cache.addresses()[1]);
    slow.write_all(b"GET http://a/ HTTP/1.1\r\nX: ").unwrap();
    let mut all = Vec::new();
    let _ = slow.read_to_end(&mut all);
    assert!(all.is_empty() || all.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&all));
    // A server that never answers.
    let late = client.get(cache.addresses()[0], "/", &[]);
    assert!(late.status == 504 && String::from_utf8_lossy(&late.body).contains("has not answered in 0.2 s"), "{late:?}");
    drop(silent);
}

#[test]
fn half_a_line_is_not_waited_for() {
    // A protocol whose first message could be the beginning of a request, and who says that waits for an answer.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
    });
    let cache = before(at, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"PING").unwrap();
    let mut word = [0; 4];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"PING");
}

#[test]
fn a_body_without_an_end_takes_no_more_than_there_is() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    // Sends for ever, as fast as it is taken.
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
    let cache = before(at, limit);
    for path in ["/kept", "/passed"] {
        let mut client = connect(cache.addresses()[0]);
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: image/webp\r\n\r\n").unwrap();
        let mut part = vec![0; 100_000];
        for _ in 0..100 {
            client.read_exact(&mut part).unwrap();
            let stats = cache.stats();
            assert!(stats.memory_bytes <= 1_000_000 && stats.disk_bytes <= 2_000_000, "{stats:?}");
        }
        // What nobody takes is not fetched either.
        eventually("it waits", || {
            let before = cache.stats().origin_bytes;
            thread::sleep(Duration::from_millis(100));
            before == cache.stats().origin_bytes
        });
        assert!(cache.stats().origin_bytes < 100_000_000, "{:?}", cache.stats());
    }
    eventually("nothing is left of it", || cache.stats().memory_bytes == 0 && cache.stats().disk_bytes == 0);
}

#[test]
fn what_is_on_disk_has_no_name() {
    let origin = Origin::start(|_| answer(200, &[("cache-control", "max-age=60")], Steps::all(vec![7; 3_000_000])));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    client.get(cache.addresses()[0], "/", &[]);
    assert_eq!(cache.stats().disk_bytes, 3_000_000);
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let its = paths.filter(|path| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 3_000_000));
    let names: Vec<String> = its.filter_map(|path| Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned())).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name.ends_with("(deleted)")), "{names:?}");
}

/// Requests with bytes changed, cut and put together at random, always the same ones: the cache answers the next one as if nothing had been.
#[test]
fn broken_requests_do_no_harm() {
    let origin = Origin::start(|request| {
        answer(
            200,
            &[("cache-control", "max-age=60"), ("content-type", "text/html")],
            Steps::all(vec![b'a'; request.uri().path().len() * 100]),
        )
    });
    let (cache, client) = (before(origin.address, |config| config.patience = Duration::from_secs(2)), Client::new());
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
        say(cache.addresses()[1], &bytes);
        if round % 50 == 0 {
            let fine = client.get(cache.addresses()[0], "/fine", &[]);
            assert!(fine.status == 200 && fine.body.len() == 500, "after round {round}: {fine:?}");
        }
    }
    eventually("all of them have ended", || {
        let stats = cache.stats();
        stats.memory_bytes < 1 << 20
    });
}
