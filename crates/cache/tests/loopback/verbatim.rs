//! What hyper cannot represent is passed on as it came.

use crate::common::*;
use cache::{Cache, Config};
use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Reads a header section, byte by byte.
fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    head
}

/// Sends `bytes`, and returns what comes until the connection is closed.
fn exchange(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(at);
    stream.write_all(bytes).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    received
}

/// A server that reads header sections and answers each as `answer` says (its path, and how many
/// came before on the connection), until that returns none; and the header sections.
fn server(answer: impl Fn(&str, usize) -> Option<Vec<u8>> + Send + Sync + 'static) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (answer, seen) = (Arc::new(answer), Arc::new(Mutex::new(Vec::new())));
    let kept = seen.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer, kept) = (stream.unwrap(), answer.clone(), kept.clone());
            thread::spawn(move || {
                for number in 0.. {
                    let head = read_head(&mut stream).escape_ascii().to_string();
                    if head.is_empty() {
                        return;
                    }
                    kept.lock().unwrap().push(head.clone());
                    let path = head.split(' ').nth(1).unwrap_or_default();
                    let Some(bytes) = answer(path, number) else { return };
                    stream.write_all(&bytes).unwrap();
                }
            });
        }
    });
    (at, seen)
}

fn ok(body: &str) -> Option<Vec<u8>> {
    Some(format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// Targets that are not URIs, also on a connection that has had other requests, and pipelined: the
/// server gets them as they came.
#[test]
fn targets_that_are_not_uris_reach_the_server() {
    let (at, seen) = server(|path, _| ok(path));
    let cache = cache_for(at, |_| {});
    for target in [&b"/a<b>"[..], b"/search?q=<i>\"x\"</i>", b"/a`b", b"/caf\xe9?q=\xff", b"/a#part", b"/up{job=\"node\"}|^`"] {
        let mut stream = connect(cache.addresses()[0]);
        let odd = [b"GET ", target, b" HTTP/1.1\r\nhOST: A.example\r\nx-Odd:   1\r\n\r\n"].concat();
        let all = [&b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n"[..], &odd[..], b"GET /last HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        stream.write_all(&all).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        let received = String::from_utf8(received).unwrap();
        let paths = ["/first", &target.escape_ascii().to_string(), "/last"];
        let bodies = paths.map(|path| received.find(&format!("\r\n\r\n{path}")).unwrap_or_else(|| panic!("{path}: {received}")));
        assert!(bodies.is_sorted(), "{received}");
        assert!(seen.lock().unwrap().contains(&odd.escape_ascii().to_string()), "{:?}", seen.lock().unwrap());
    }
    assert_eq!(cache.stats().hits, 5, "the first requests are still answered from the store");
    assert_eq!(cache.stats().kept, 1, "what is passed on is not stored");
}

/// The rest of what hyper does not parse.
#[test]
fn other_requests_that_are_not_parsed_reach_the_server() {
    let (at, seen) = server(|_, _| ok("body"));
    let cache = cache_for(at, |_| {});
    let long = format!("GET /long?{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET /many HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(300));
    for request in [
        &b"GET /none HTTP/1.1\r\n\r\n"[..],
        b"GET /empty HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /host HTTP/1.1\r\nHost: b\xc3\xbccher.example\r\n\r\n",
        b"GET /line HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET /name HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n",
        b"GET /value HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
        b"GET /version HTTP/1.2\r\nHost: a\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = connect(cache.addresses()[0]);
        // As the second one: of another first line the connection would not be HTTP.
        stream.write_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_head(&mut stream);
        stream.read_exact(&mut [0; 4]).unwrap();
        stream.write_all(request).unwrap();
        assert!(read_head(&mut stream).starts_with(b"HTTP/1.1 200"), "{}", request.escape_ascii());
        assert_eq!(seen.lock().unwrap().last().unwrap(), &request.escape_ascii().to_string());
    }
}

/// RFC 9112 §5.2: a folded line is joined, and the request is handled as any other.
#[test]
fn folded_fields_of_requests_are_joined() {
    let (at, seen) = server(|_, _| ok("body"));
    let cache = cache_for(at, |_| {});
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nX-Folded: 1\r\n\t2\r\nConnection: close\r\n\r\n";
    assert!(exchange(cache.addresses()[0], request).ends_with(b"body"));
    assert!(seen.lock().unwrap()[0].contains("x-folded: 1  \\t2"), "{:?}", seen.lock().unwrap());
    assert_eq!(cache.stats().misses, 1);
}

/// Source clients of Icecast send an endless body without a length.
#[test]
fn bodies_without_a_length_reach_the_server() {
    for request in [
        "SOURCE /live HTTP/1.0\r\nContent-Type: audio/mpeg\r\n\r\n",
        "PUT /live HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        "PUT /live HTTP/1.0\r\n\r\n",
        "POST /live HTTP/1.0\r\n\r\n",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cache = cache_for(listener.local_addr().unwrap(), |_| {});
        let mut client = connect(cache.addresses()[0]);
        client.write_all(request.as_bytes()).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(read_head(&mut server), request.as_bytes());
        server.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        assert_eq!(read_head(&mut client), b"HTTP/1.0 200 OK\r\n\r\n");
        client.write_all(&[7; 100_000]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut body = Vec::new();
        server.read_to_end(&mut body).unwrap();
        assert_eq!(body, [7; 100_000], "{request}");
    }
}

/// An unsafe request that is passed on invalidates what is stored (RFC 9111 §4.4).
#[test]
fn a_request_that_is_passed_on_invalidates() {
    let (at, _) = server(|_, _| ok("body"));
    let (cache, client) = (cache_for(at, |_| {}), TestClient::new());
    client.get(cache.addresses()[0], "/a", &[("host", "h")]);
    assert!(client.get(cache.addresses()[0], "/a", &[("host", "h")]).cache_status_contains("hit"));
    let mut stream = connect(cache.addresses()[0]);
    stream.write_all(b"PUT /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).starts_with(b"HTTP/1.1 200"));
    assert!(!client.get(cache.addresses()[0], "/a", &[("host", "h")]).cache_status_contains("hit"));
}

/// Responses that hyper does not parse: the client gets the same bytes, and its next request on the
/// connection goes the same way.
#[test]
fn responses_that_are_not_parsed_reach_the_client() {
    for response in [
        &b"ICY 200 OK\r\nicy-name: radio\r\nContent-Length: 4\r\n\r\nbody"[..],
        b"HTTP/1.1 200 OK\r\nSecured by Example\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nX Powered By: a\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\n: empty\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 1000 Long\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.2 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 100 Continue\r\n\r\nICY 200 OK\r\n\r\nbody",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"just a body",
    ] {
        let (at, seen) = server(move |path, _| if path == "/odd" { Some(response.to_vec()) } else { ok("plain") });
        let cache = cache_for(at, |_| {});
        let mut client = connect(cache.addresses()[0]);
        // On a new connection to the server, and on one that has been used before.
        let without_interim = response.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(response);
        for before in [0, 1] {
            if before == 1 {
                client = connect(cache.addresses()[0]);
                client.write_all(b"GET /plain HTTP/1.1\r\nCache-Control: no-store\r\nHost: a\r\n\r\n").unwrap();
                read_head(&mut client);
                client.read_exact(&mut [0; 5]).unwrap();
            }
            client.write_all(b"GET /odd HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let mut received = vec![0; without_interim.len()];
            client.read_exact(&mut received).unwrap();
            assert_eq!(received.escape_ascii().to_string(), without_interim.escape_ascii().to_string());
            // What follows is not parsed any more.
            client.write_all(b"GET /next<> HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert!(read_head(&mut client).starts_with(b"HTTP/1.1 200"));
            assert!(seen.lock().unwrap().last().unwrap().starts_with("GET /next<>"));
        }
        assert_eq!(cache.stats().refused, 0);
    }
}

/// RFC 9112 §5.1, §5.2, §4: white space before a colon is removed, folded lines are joined, and the
/// server's reason phrase is kept, in the store too.
/// A 304 that cannot be parsed, to a condition of the cache's own: the client has asked for the
/// response, and gets it.
#[test]
fn an_unusable_answer_to_a_validation_is_not_passed_on() {
    let asked = AtomicUsize::new(0);
    let (at, seen) = server(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Some(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=0\r\nETag: \"1\"\r\nContent-Length: 3\r\n\r\nold".to_vec()),
        1 => Some(b"HTTP/1.1 304 Not Modified\r\nnot a field\r\n\r\n".to_vec()),
        _ => ok("new"),
    });
    let (cache, client) = (cache_for(at, |_| {}), TestClient::new());
    assert_eq!(client.get(cache.addresses()[0], "/", &[]).body, b"old");
    assert_eq!(client.get(cache.addresses()[0], "/", &[]).body, b"new");
    let conditions: Vec<bool> = seen.lock().unwrap().iter().map(|head| head.to_lowercase().contains("if-none-match")).collect();
    assert_eq!(conditions, [false, true, false]);
}

#[test]
fn tolerable_responses_are_repaired() {
    let (at, seen) = server(|path, _| {
        let line = match path {
            "/unknown" => "520 Origin Error",
            "/empty" => "520 ",
            "/own" => "200 Fine",
            "/latin" => "200 tr\u{e8}s bien",
            _ => "200 OK",
        };
        Some(
            format!("HTTP/1.1 {line}\r\nX-Space \t: 1; mode=block\r\nX-Folded: a;\r\n  b\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nbody")
                .into_bytes(),
        )
    });
    let cache = cache_for(at, |_| {});
    for (path, line) in [
        ("/", "HTTP/1.1 200 OK\r\n"),
        ("/unknown", "HTTP/1.1 520 Origin Error\r\n"),
        ("/empty", "HTTP/1.1 520 \r\n"),
        ("/own", "HTTP/1.1 200 Fine\r\n"),
        ("/own", "HTTP/1.1 200 Fine\r\n"),
        ("/latin", "HTTP/1.1 200 tr\u{e8}s bien\r\n"),
    ] {
        let received = exchange(cache.addresses()[0], format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
        let received = String::from_utf8(received).unwrap();
        assert!(received.starts_with(line) && received.ends_with("\r\n\r\nbody"), "{path}: {received}");
        assert!(received.contains("X-Space: 1; mode=block\r\n") && received.contains("X-Folded: a; b\r\n"), "{received}");
    }
    assert_eq!(
        seen.lock().unwrap().iter().filter(|head| head.starts_with("GET /own")).count(),
        1,
        "the second time it comes from the store"
    );
}

/// What an upload was answered with is passed on as well, and the connection ends then.
#[test]
fn an_upload_may_be_answered_by_a_response_that_is_not_parsed() {
    let (at, _) = server(|_, _| Some(b"ICY 413 No\r\n\r\ngo away".to_vec()));
    let cache = cache_for(at, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n").unwrap();
    let mut received = [0; 21];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ICY 413 No\r\n\r\ngo away");
}

fn explicit(
    origin: impl Fn(&str, usize) -> Option<Vec<u8>> + Send + Sync + 'static,
    options: &str,
) -> (Cache, SocketAddr, Arc<Mutex<Vec<String>>>) {
    let (at, seen) = server(origin);
    let listen = vec![format!("http=127.0.0.1:0{options}").parse().unwrap()];
    (Cache::start(Config { listen, ..Config::default() }).unwrap(), at, seen)
}

/// An explicit proxy passes on one request: its credentials stay here, and the next request, which
/// could be for another server, is not sent to the same one.
#[test]
fn an_explicit_proxy_passes_on_one_request() {
    let (cache, origin, seen) = explicit(|path, _| ok(path), ",allow=127.0.0.0/8,user=alice:secret");
    let at = cache.addresses()[0];
    let authorization = "Proxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
    let send = |head: &str, more: &str| {
        let mut stream = connect(at);
        write!(stream, "POST http://{origin}/a<b> HTTP/1.1\r\nHost: other\r\n{head}Content-Length: 3\r\n\r\nabc{more}").unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        String::from_utf8(received).unwrap()
    };
    for wrong in ["", "Proxy-Authorization: Basic YWxpY2U6d3Jvbmc=\r\n"] {
        let refused = send(wrong, "");
        assert!(refused.starts_with("HTTP/1.1 407") && refused.contains("proxy-authenticate: Basic realm="), "{refused}");
    }
    assert!(seen.lock().unwrap().is_empty());
    // The server does not close: the exchange ends once the client has sent more.
    let received = send(authorization, &format!("GET http://{origin}/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(received.starts_with("HTTP/1.1 200") && received.ends_with("/a<b>"), "{received}");
    let heads = seen.lock().unwrap().clone();
    assert_eq!(heads[0], format!("POST /a<b> HTTP/1.1\\r\\nHost: {origin}\\r\\nContent-Length: 3\\r\\nConnection: close\\r\\n\\r\\n"));
    assert!(heads.iter().all(|head| !head.contains("smuggled") && !head.contains("Authorization")), "{heads:?}");
}

#[test]
fn an_explicit_proxy_checks_the_destination_of_what_it_passes_on() {
    let (cache, origin, seen) = explicit(|path, _| ok(path), "");
    let received = exchange(cache.addresses()[0], format!("GET http://{origin}/a<b> HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    assert!(received.starts_with(b"HTTP/1.1 403"), "{}", received.escape_ascii());
    assert!(seen.lock().unwrap().is_empty());
    eventually("the refusal is not counted", || cache.stats().refused == 1);
}

/// Connections that are passed on end with the cache's limits, and release what they hold.
#[test]
fn connections_that_are_passed_on_are_accounted() {
    let (at, _) = server(|path, _| ok(path));
    let cache = cache_for(at, |_| {});
    let mut stream = connect(cache.addresses()[0]);
    stream.write_all(b"GET /a<b> HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_head(&mut stream);
    cache.begin_drain();
    assert!(!cache.is_idle());
    drop(stream);
    eventually("the connection does not end", || cache.is_idle());
    let stats = cache.stats();
    assert_eq!((stats.raw_connections, stats.reserved_bytes, stats.memory_bytes), (1, 0, 0));
    assert!(stats.raw_bytes > 0);
}
