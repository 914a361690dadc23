//! Messages on the wire: framing, trailers, expectations, tunnels, HTTP/2.

use crate::common::*;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    io::{BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// The lines of a header section.
fn head(reader: &mut impl std::io::BufRead) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
            return lines;
        }
        lines.push(line.trim_end().to_string());
    }
}

/// A server for one connection.
fn serve_once(serve: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (at, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let origin = TestOrigin::start(|_| {
        answer(200, &[("keep-alive", "timeout=9"), ("x-own", "1"), ("proxy-connection", "x")], ScriptedBody::all("body"))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let fields = [
        ("connection", "x-secret"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic x"),
        ("x-own", "2"),
        ("host", "Some.Host:80"),
    ];
    let reply = client.get(cache.addresses()[0], "/", &fields);
    assert!(reply.field("keep-alive").is_empty() && reply.field("proxy-connection").is_empty() && reply.field("x-own") == "1", "{reply:?}");
    assert!(reply.field("via").starts_with("1.1 tandem-"));
    let seen = &origin.seen()[0];
    let of = |name: &str| seen.headers().get(name).map_or("", |value| value.to_str().unwrap());
    assert_eq!((of("x-secret"), of("proxy-authorization"), of("x-own"), of("host")), ("", "", "2", "some.host"));
    assert!(of("via").starts_with("1.1 tandem-") && of("te") == "trailers", "{seen:?}");
}

#[test]
fn requests_are_normalized_for_servers() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    // A length of zero for methods that usually have a body, and cookies joined in one field.
    for method in ["POST", "PUT", "PATCH", "GET", "DELETE"] {
        // A PUT without a length is passed on as it came: see `verbatim`.
        let mut request = request(method, "/", &[("cookie", "a=1"), ("cookie", "b=2")]);
        if method == "PUT" {
            request.headers_mut().insert("content-length", 0.into());
        }
        client.ask(cache.addresses()[0], request);
        let seen = origin.seen().pop().unwrap();
        let length = seen.headers().get("content-length").map(|value| value.to_str().unwrap());
        assert_eq!(length, if ["GET", "DELETE"].contains(&method) { None } else { Some("0") }, "{method}");
        assert_eq!(seen.headers().get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"], "{method}");
    }
    eventually("not all responses are counted as complete", || cache.stats().client_bytes == 0 && cache.stats().requests == 5);
    assert_eq!(cache.stats().aborted, 0);
}

#[test]
fn chunks_and_trailers_are_forwarded() {
    let origin = TestOrigin::start(|request| {
        let trailers = [("x-sum".parse().unwrap(), "42".parse().unwrap())].into_iter().collect();
        let steps = vec![BodyStep::Send(b"one".to_vec()), BodyStep::Send(b"two".to_vec()), BodyStep::Trailers(trailers)];
        let control = if request.uri().path() == "/kept" { "max-age=60" } else { "no-store" };
        answer(200, &[("cache-control", control), ("trailer", "x-sum")], ScriptedBody::new(steps, None))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/passed", "/kept", "/kept"] {
        let reply = client.get(cache.addresses()[0], path, &[("te", "trailers")]);
        assert!(reply.whole && reply.body == b"onetwo", "{path}: {reply:?}");
        assert_eq!(reply.trailers.as_ref().map(|trailers| trailers["x-sum"].to_str().unwrap()), Some("42"), "{path}: {reply:?}");
    }
    assert_eq!(origin.count(), 2);
}

#[test]
fn uploads_are_complete_with_and_without_a_length() {
    let origin = TestOrigin::start(|request| answer(200, &[], ScriptedBody::all(request.body().to_vec())));
    for hold in [false, true] {
        let (cache, client) = (cache_for(origin.address, |config| config.hold = hold), TestClient::new());
        let upload: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 253) as u8).collect();
        for length in [None, Some(upload.len() as u64)] {
            let steps = upload.chunks(10_000).map(|piece| BodyStep::Send(piece.to_vec())).collect();
            let request = request("POST", "/", &[]).map(|_| ScriptedBody::new(steps, length));
            let reply = client.ask(cache.addresses()[0], request);
            assert!(reply.whole && reply.body == upload, "hold {hold}, {length:?}");
        }
        // A GET with a body.
        let request = request("GET", "/", &[("transfer-encoding", "chunked")])
            .map(|_| ScriptedBody::new(vec![BodyStep::Send(b"upload".to_vec())], None));
        assert_eq!(client.ask(cache.addresses()[0], request).body, b"upload");
    }
}

#[test]
fn expect_continue_is_answered_by_the_server() {
    for (answers, continues) in
        [("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n", false), ("HTTP/1.1 100 Continue\r\n\r\n", true)]
    {
        let (at, server) = serve_once(move |stream| {
            let mut reader = BufReader::new(stream);
            let lines = head(&mut reader);
            assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("expect: 100-continue")), "{lines:?}");
            reader.get_mut().write_all(answers.as_bytes()).unwrap();
            if continues {
                let mut body = [0; 5];
                reader.read_exact(&mut body).unwrap();
                assert_eq!(&body, b"hello");
                reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            }
        });
        let cache = cache_for(at, |_| {});
        let mut client = BufReader::new(connect(cache.addresses()[0]));
        client.get_mut().write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n").unwrap();
        let first = head(&mut client);
        if continues {
            assert_eq!(first[0], "HTTP/1.1 100 Continue");
            client.get_mut().write_all(b"hello").unwrap();
            assert_eq!(head(&mut client)[0], "HTTP/1.1 200 OK");
        } else {
            assert_eq!(first[0], "HTTP/1.1 417 Expectation Failed", "no 100 is sent");
        }
        server.join().unwrap();
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin =
        TestOrigin::start(|request| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(request.uri().path().to_string())));
    let cache = cache_for(origin.address, |_| {});
    let mut client = BufReader::new(connect(cache.addresses()[0]));
    let all: String = (0..20).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.get_mut().write_all(all.as_bytes()).unwrap();
    for number in 0..20 {
        let lines = head(&mut client);
        let length: usize = lines.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok()).unwrap();
        let mut body = vec![0; length];
        client.read_exact(&mut body).unwrap();
        assert_eq!(body, format!("/{number}").as_bytes());
    }
}

#[test]
fn a_half_closed_client_gets_the_whole_response() {
    let origin = TestOrigin::start(|_| {
        answer(200, &[("cache-control", "no-store")], ScriptedBody::new(vec![BodyStep::Send(vec![1; 300_000])], None))
    });
    let cache = cache_for(origin.address, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(all.len() > 300_000 && all.ends_with(&[1; 100]));
}

#[test]
fn an_abort_of_a_close_delimited_body_is_a_reset() {
    let (at, server) = serve_once(|mut stream| {
        head(&mut BufReader::new(&stream));
        stream.write_all(b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap();
        // The last chunk is never sent.
    });
    let cache = cache_for(at, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    let mut all = Vec::new();
    let ending = client.read_to_end(&mut all);
    server.join().unwrap();
    assert_eq!(ending.map_err(|why| why.kind()), Err(std::io::ErrorKind::ConnectionReset), "{}", String::from_utf8_lossy(&all));
}

/// A server answers before it has read the request, and closes: its kernel sends a reset, since
/// bytes are unread.
#[test]
fn an_answer_that_precedes_a_reset_reaches_the_client() {
    for size in [100_000, 3_000_000].into_iter().cycle().take(12) {
        let (at, server) = serve_once(|mut stream| {
            head(&mut BufReader::new(&stream));
            stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbig\n").unwrap();
            eventually("the body does not arrive", || intercept::sys::received(&stream) > 0);
        });
        let cache = cache_for(at, |_| {});
        let mut client = connect(cache.addresses()[0]);
        client.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n").as_bytes()).unwrap();
        // The answer may come, and the connection be closed, before all is written.
        let _ = client.write_all(&vec![0; size]);
        let mut all = Vec::new();
        let _ = client.read_to_end(&mut all);
        server.join().unwrap();
        assert!(all.starts_with(b"HTTP/1.1 413 ") && all.ends_with(b"big\n"), "{size}: {}", String::from_utf8_lossy(&all));
    }
}

/// The same in a tunnel of an HTTP/2 client. After the reset, forwarding the client's bytes fails.
#[test]
fn an_answer_that_precedes_a_reset_reaches_the_client_of_a_tunnel_over_http2() {
    const ANSWER: usize = 300_000;
    for _ in 0..10 {
        let (at, server) = serve_once(|mut stream| {
            stream.read_exact(&mut [0]).unwrap();
            stream.write_all(&vec![b'a'; ANSWER]).unwrap();
            eventually("the answer is not acknowledged", || intercept::sys::unacknowledged(&stream).unwrap() == 0);
            eventually("the client's bytes do not arrive", || intercept::sys::received(&stream) > 0);
        });
        let cache = cache_for(at, |_| {});
        let proxy = cache.addresses()[1];
        let received = TestClient::new().wait(async move {
            let stream = tokio::net::TcpStream::connect(proxy).await.unwrap();
            let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let request = Request::connect(at.to_string()).body(http_body_util::Empty::<hyper::body::Bytes>::new()).unwrap();
            let reply = sender.send_request(request).await.unwrap();
            assert_eq!(reply.status(), 200);
            let (mut down, mut up) = tokio::io::split(TokioIo::new(hyper::upgrade::on(reply).await.unwrap()));
            let sends = tokio::spawn(async move { while up.write_all(&[0; 10_000]).await.is_ok() {} });
            let mut received = Vec::new();
            let _ = down.read_to_end(&mut received).await;
            sends.abort();
            received.len()
        });
        server.join().unwrap();
        assert_eq!(received, ANSWER);
    }
}

#[test]
fn an_upgrade_opens_a_tunnel() {
    let (at, server) = serve_once(|stream| {
        let mut reader = BufReader::new(stream);
        let lines = head(&mut reader);
        assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("upgrade: echo")), "{lines:?}");
        // The first bytes of the new protocol follow the response at once.
        reader.get_mut().write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello ").unwrap();
        let mut received = String::new();
        reader.read_to_string(&mut received).unwrap();
        reader.get_mut().write_all(received.to_uppercase().as_bytes()).unwrap();
    });
    let cache = cache_for(at, |_| {});
    let mut client = BufReader::new(connect(cache.addresses()[0]));
    client.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n").unwrap();
    let lines = head(&mut client);
    assert!(lines[0].starts_with("HTTP/1.1 101") && lines.iter().any(|line| line.eq_ignore_ascii_case("upgrade: echo")), "{lines:?}");
    client.get_mut().write_all(b"world").unwrap();
    client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).unwrap();
    assert_eq!(received, "hello WORLD");
    server.join().unwrap();
    eventually("the tunnel is not counted", || cache.stats().tunnels == 1 && cache.stats().raw_bytes == 16);
}

#[test]
fn an_explicit_proxy_takes_absolute_uris_and_connect() {
    let origin = TestOrigin::start(|request| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(request.uri().to_string())));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[1];
    let whole = client.get(at, &format!("http://{}/x?y", origin.address), &[]);
    assert_eq!((whole.status, &whole.body[..]), (200, &b"/x?y"[..]), "the server gets the path");
    let path_only = client.get(at, "/x", &[]);
    assert!(path_only.status == 400 && String::from_utf8_lossy(&path_only.body).contains("this is a proxy"), "{path_only:?}");
    assert_eq!(client.get(at, "ftp://a.example/", &[]).status, 400);
    let nobody = client.get(at, "http://nobody.invalid/", &[]);
    assert!(nobody.status == 502 && String::from_utf8_lossy(&nobody.body).contains("nobody.invalid"), "{nobody:?}");

    let mut tunnel = BufReader::new(connect(at));
    write!(tunnel.get_mut(), "CONNECT {} HTTP/1.1\r\nHost: a\r\n\r\n", origin.address).unwrap();
    assert!(head(&mut tunnel)[0].starts_with("HTTP/1.1 200"));
    write!(tunnel.get_mut(), "GET /inside HTTP/1.0\r\n\r\n").unwrap();
    let mut received = String::new();
    tunnel.read_to_string(&mut received).unwrap();
    assert!(received.ends_with("\r\n\r\n/inside"), "{received}");
    // A listener with a fixed destination passes CONNECT on: the destination may be a proxy.
    let mut other = BufReader::new(connect(cache.addresses()[0]));
    write!(other.get_mut(), "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n").unwrap();
    assert!(head(&mut other)[0].starts_with("HTTP/1.1 200"));
    assert!(origin.seen().iter().any(|request| request.method() == "CONNECT" && request.uri() == "b.example:443"));
}

/// A client that sends the absolute form to a server takes it for a proxy: it gets that form.
#[test]
fn absolute_targets_stay_absolute_on_the_way_to_a_known_server() {
    let origin = TestOrigin::start(|request| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(request.uri().to_string())));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let reply = client.get(cache.addresses()[0], "http://b.example/x?y", &[("host", "b.example")]);
    assert_eq!(String::from_utf8_lossy(&reply.body), "http://b.example/x?y");
    assert!(client.get(cache.addresses()[0], "/x?y", &[("host", "b.example")]).cache_status_contains("hit"));
}

/// RFC 9112 §3.2.1: an empty path is forwarded as `/`, with the query.
#[test]
fn a_query_without_a_path_is_forwarded() {
    let origin = TestOrigin::start(|request| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(request.uri().to_string())));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for (target, asked) in [("?q=1", "/?q=1"), ("", "/"), ("?", "/?"), ("/?q=1", "/?q=1")] {
        let mut stream = connect(cache.addresses()[1]);
        let host = origin.address;
        write!(stream, "GET http://{host}{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        assert!(received.ends_with(&format!("\r\n\r\n{asked}")), "{target:?}: {received}");
    }
    // Both spellings are the same resource.
    assert!(client.get(cache.addresses()[1], &format!("http://{}/?q=1", origin.address), &[]).cache_status_contains("hit"));
}

#[test]
fn request_loops_are_detected() {
    let (cache, client) = (cache_for("127.0.0.1:1".parse().unwrap(), |_| {}), TestClient::new());
    let at = cache.addresses()[1];
    let reply = client.get(at, &format!("http://{at}/"), &[]);
    // The request that the proxy sends to itself has no absolute URI. A loop shows in `Via`.
    assert_eq!(reply.status, 400, "{reply:?}");
    let via = reply.field("via").to_string();
    let own = reply.field("cache-status").split(';').next().unwrap().to_string();
    let round = client.get(at, "http://a.example/", &[("via", &format!("1.1 {own}"))]);
    assert_eq!(round.status, 508, "{via} {round:?}");
}

#[test]
fn max_forwards_is_counted_down() {
    let origin = TestOrigin::start(|request| {
        let left = request.headers().get("max-forwards").map_or("none", |value| value.to_str().unwrap());
        answer(200, &[], ScriptedBody::all(left.to_string()))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let ask = |method, left| client.ask(cache.addresses()[0], request(method, "/", &[("max-forwards", left)]));
    assert_eq!(ask("OPTIONS", "3").body, b"2");
    assert_eq!((ask("OPTIONS", "0").status, ask("TRACE", "0").status), (200, 405));
    assert_eq!(ask("GET", "3").body, b"3");
}

#[test]
fn http_2_in_clear_text() {
    let origin = TestOrigin::start(|request| {
        answer(
            200,
            &[("cache-control", "max-age=60"), ("connection", "x"), ("x", "1")],
            ScriptedBody::all(request.uri().path().to_string()),
        )
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    client.wait(async {
        let stream = tokio::net::TcpStream::connect(at).await.unwrap();
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let many: Vec<_> = (0..30)
            .map(|number| {
                let mut sender = sender.clone();
                tokio::spawn(async move {
                    let reply = sender.send_request(request("GET", &format!("http://{at}/{}", number % 10), &[])).await.unwrap();
                    assert!(
                        reply.version() == hyper::Version::HTTP_2 && reply.status() == 200 && !reply.headers().contains_key("connection")
                    );
                    let body = http_body_util::BodyExt::collect(reply.into_body()).await.unwrap().to_bytes();
                    assert_eq!(body, format!("/{}", number % 10));
                })
            })
            .collect();
        for one in many {
            one.await.unwrap();
        }
    });
    assert_eq!(origin.count(), 10);
    // A response fetched over HTTP/2 answers requests of HTTP/1.1.
    assert!(client.get(at, "/3", &[]).cache_status_contains("hit"));
}

#[test]
fn held_messages_are_forwarded_when_complete() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let origin = TestOrigin::start(move |request| {
        let last = if request.uri().path() == "/breaks" { BodyStep::Abort } else { BodyStep::Send(b"b".to_vec()) };
        let steps = vec![BodyStep::Send(b"a".to_vec()), BodyStep::Gate(waits.clone()), last];
        answer(200, &[("cache-control", "max-age=60")], ScriptedBody::new(steps, None))
    });
    let (cache, client) = (cache_for(origin.address, |config| config.hold = true), TestClient::new());
    let mut early = connect(cache.addresses()[0]);
    early.write_all(b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the first half is not received", || cache.stats().origin_bytes == 1);
    early.set_nonblocking(true).unwrap();
    assert_eq!(early.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing is sent before the body is complete");
    gate.add_permits(1);
    early.set_nonblocking(false).unwrap();
    let lines = head(&mut BufReader::new(early));
    assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("content-length: 2")), "the length is known by then: {lines:?}");
    gate.add_permits(1);
    let broken = client.get(cache.addresses()[0], "/breaks", &[]);
    assert_eq!(broken.status, 502, "not half of the response");
}
