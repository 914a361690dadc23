//! What is between the two ends of a connection: framing, trailers, expectations, tunnels, HTTP/2.

use crate::common::*;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    io::{BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The lines up to an empty one.
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

/// A server by hand, for one connection.
fn by_hand(serve: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (at, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

#[test]
fn fields_of_a_connection_end_with_it() {
    let origin =
        Origin::start(|_| answer(200, &[("keep-alive", "timeout=9"), ("x-own", "1"), ("proxy-connection", "x")], Steps::all("body")));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
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
fn what_servers_want_to_hear_is_said() {
    let origin = Origin::start(|_| answer(200, &[], Steps::all("")));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    // That a request that may have a body has none; and cookies in one field, which HTTP/2 may send apart.
    for method in ["POST", "PUT", "PATCH", "GET", "DELETE"] {
        client.ask(cache.addresses()[0], request(method, "/", &[("cookie", "a=1"), ("cookie", "b=2")]));
        let seen = origin.seen().pop().unwrap();
        let length = seen.headers().get("content-length").map(|value| value.to_str().unwrap());
        assert_eq!(length, if ["GET", "DELETE"].contains(&method) { None } else { Some("0") }, "{method}");
        assert_eq!(seen.headers().get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"], "{method}");
    }
    eventually("all came whole", || cache.stats().client_bytes == 0 && cache.stats().requests == 5);
    assert_eq!(cache.stats().aborted, 0);
}

#[test]
fn chunks_and_trailers_come_through() {
    let origin = Origin::start(|request| {
        let trailers = [("x-sum".parse().unwrap(), "42".parse().unwrap())].into_iter().collect();
        let steps = vec![Step::Send(b"one".to_vec()), Step::Send(b"two".to_vec()), Step::Trailers(trailers)];
        let control = if request.uri().path() == "/kept" { "max-age=60" } else { "no-store" };
        answer(200, &[("cache-control", control), ("trailer", "x-sum")], Steps::new(steps, None))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    for path in ["/passed", "/kept", "/kept"] {
        let reply = client.get(cache.addresses()[0], path, &[("te", "trailers")]);
        assert!(reply.whole && reply.body == b"onetwo", "{path}: {reply:?}");
        assert_eq!(reply.trailers.as_ref().map(|trailers| trailers["x-sum"].to_str().unwrap()), Some("42"), "{path}: {reply:?}");
    }
    assert_eq!(origin.count(), 2);
}

#[test]
fn uploads_arrive_whole_with_and_without_a_length() {
    let origin = Origin::start(|request| answer(200, &[], Steps::all(request.body().to_vec())));
    for hold in [false, true] {
        let (cache, client) = (before(origin.address, |config| config.hold = hold), Client::new());
        let upload: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 253) as u8).collect();
        for length in [None, Some(upload.len() as u64)] {
            let steps = upload.chunks(10_000).map(|piece| Step::Send(piece.to_vec())).collect();
            let request = request("POST", "/", &[]).map(|_| Steps::new(steps, length));
            let reply = client.ask(cache.addresses()[0], request);
            assert!(reply.whole && reply.body == upload, "hold {hold}, {length:?}");
        }
        // A request may have a body whatever its method.
        let request =
            request("GET", "/", &[("transfer-encoding", "chunked")]).map(|_| Steps::new(vec![Step::Send(b"strange".to_vec())], None));
        assert_eq!(client.ask(cache.addresses()[0], request).body, b"strange");
    }
}

#[test]
fn a_client_that_wants_to_be_asked_for_its_body_is_asked_by_its_server() {
    for (answers, continues) in
        [("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n", false), ("HTTP/1.1 100 Continue\r\n\r\n", true)]
    {
        let (at, server) = by_hand(move |stream| {
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
        let cache = before(at, |_| {});
        let mut client = BufReader::new(connect(cache.addresses()[0]));
        client.get_mut().write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n").unwrap();
        let first = head(&mut client);
        if continues {
            assert_eq!(first[0], "HTTP/1.1 100 Continue");
            client.get_mut().write_all(b"hello").unwrap();
            assert_eq!(head(&mut client)[0], "HTTP/1.1 200 OK");
        } else {
            assert_eq!(first[0], "HTTP/1.1 417 Expectation Failed", "without a word of going on");
        }
        server.join().unwrap();
    }
}

#[test]
fn requests_in_a_row_are_answered_in_a_row() {
    let origin = Origin::start(|request| answer(200, &[("cache-control", "max-age=60")], Steps::all(request.uri().path().to_string())));
    let cache = before(origin.address, |_| {});
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
fn a_client_that_has_said_all_still_hears_all() {
    let origin = Origin::start(|_| answer(200, &[("cache-control", "no-store")], Steps::new(vec![Step::Send(vec![1; 300_000])], None)));
    let cache = before(origin.address, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(all.len() > 300_000 && all.ends_with(&[1; 100]));
}

#[test]
fn a_break_is_seen_where_only_the_end_of_the_connection_ends_a_body() {
    let (at, server) = by_hand(|mut stream| {
        head(&mut BufReader::new(&stream));
        stream.write_all(b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap();
        // A chunk that never comes.
    });
    let cache = before(at, |_| {});
    let mut client = connect(cache.addresses()[0]);
    client.write_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    let mut all = Vec::new();
    let ending = client.read_to_end(&mut all);
    server.join().unwrap();
    assert_eq!(ending.map_err(|why| why.kind()), Err(std::io::ErrorKind::ConnectionReset), "{}", String::from_utf8_lossy(&all));
}

#[test]
fn another_protocol_gets_its_tunnel() {
    let (at, server) = by_hand(|stream| {
        let mut reader = BufReader::new(stream);
        let lines = head(&mut reader);
        assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("upgrade: echo")), "{lines:?}");
        // The first words of the new protocol come with the answer.
        reader.get_mut().write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello ").unwrap();
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        reader.get_mut().write_all(said.to_uppercase().as_bytes()).unwrap();
    });
    let cache = before(at, |_| {});
    let mut client = BufReader::new(connect(cache.addresses()[0]));
    client.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n").unwrap();
    let lines = head(&mut client);
    assert!(lines[0].starts_with("HTTP/1.1 101") && lines.iter().any(|line| line.eq_ignore_ascii_case("upgrade: echo")), "{lines:?}");
    client.get_mut().write_all(b"world").unwrap();
    client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello WORLD");
    server.join().unwrap();
    eventually("it is counted", || cache.stats().tunnels == 1 && cache.stats().raw_bytes == 16);
}

#[test]
fn an_explicit_proxy_is_asked_for_whole_uris_and_tunnels() {
    let origin = Origin::start(|request| answer(200, &[("cache-control", "max-age=60")], Steps::all(request.uri().to_string())));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let at = cache.addresses()[1];
    let whole = client.get(at, &format!("http://{}/x?y", origin.address), &[]);
    assert_eq!((whole.status, &whole.body[..]), (200, &b"/x?y"[..]), "the server is asked for the path");
    let path_only = client.get(at, "/x", &[]);
    assert!(path_only.status == 400 && String::from_utf8_lossy(&path_only.body).contains("this is a proxy"), "{path_only:?}");
    assert_eq!(client.get(at, "ftp://a.example/", &[]).status, 400);
    let nobody = client.get(at, "http://nobody.invalid/", &[]);
    assert!(nobody.status == 502 && String::from_utf8_lossy(&nobody.body).contains("nobody.invalid"), "{nobody:?}");

    let mut tunnel = BufReader::new(connect(at));
    write!(tunnel.get_mut(), "CONNECT {} HTTP/1.1\r\nHost: a\r\n\r\n", origin.address).unwrap();
    assert!(head(&mut tunnel)[0].starts_with("HTTP/1.1 200"));
    write!(tunnel.get_mut(), "GET /inside HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    tunnel.read_to_string(&mut said).unwrap();
    assert!(said.ends_with("\r\n\r\n/inside"), "{said}");
    // Not where it is known already where connections go.
    let mut other = BufReader::new(connect(cache.addresses()[0]));
    write!(other.get_mut(), "CONNECT {} HTTP/1.1\r\nHost: a\r\n\r\n", origin.address).unwrap();
    assert!(head(&mut other)[0].starts_with("HTTP/1.1 405"));
}

/// RFC 9112 §3.2.1: a target without a path is asked for as `/`, with its query.
#[test]
fn a_query_without_a_path_stays() {
    let origin = Origin::start(|request| answer(200, &[("cache-control", "max-age=60")], Steps::all(request.uri().to_string())));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    for (target, asked) in [("?q=1", "/?q=1"), ("", "/"), ("?", "/?"), ("/?q=1", "/?q=1")] {
        let mut stream = connect(cache.addresses()[1]);
        let host = origin.address;
        write!(stream, "GET http://{host}{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.ends_with(&format!("\r\n\r\n{asked}")), "{target:?}: {said}");
    }
    // Both spellings are one resource.
    assert!(client.get(cache.addresses()[1], &format!("http://{}/?q=1", origin.address), &[]).is("hit"));
}

#[test]
fn a_request_that_comes_back_is_stopped() {
    let (cache, client) = (before("127.0.0.1:1".parse().unwrap(), |_| {}), Client::new());
    let at = cache.addresses()[1];
    let reply = client.get(at, &format!("http://{at}/"), &[]);
    // Sent to itself it comes without a host to go to; whole, it would come round.
    assert_eq!(reply.status, 400, "{reply:?}");
    let via = reply.field("via").to_string();
    let own = reply.field("cache-status").split(';').next().unwrap().to_string();
    let round = client.get(at, "http://a.example/", &[("via", &format!("1.1 {own}"))]);
    assert_eq!(round.status, 508, "{via} {round:?}");
}

#[test]
fn requests_that_are_counted_end_where_they_are_to() {
    let origin = Origin::start(|request| {
        let left = request.headers().get("max-forwards").map_or("none", |value| value.to_str().unwrap());
        answer(200, &[], Steps::all(left.to_string()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let ask = |method, left| client.ask(cache.addresses()[0], request(method, "/", &[("max-forwards", left)]));
    assert_eq!(ask("OPTIONS", "3").body, b"2");
    assert_eq!((ask("OPTIONS", "0").status, ask("TRACE", "0").status), (200, 405));
    assert_eq!(ask("GET", "3").body, b"3");
}

#[test]
fn http_2_in_clear_text() {
    let origin = Origin::start(|request| {
        answer(200, &[("cache-control", "max-age=60"), ("connection", "x"), ("x", "1")], Steps::all(request.uri().path().to_string()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
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
    // What HTTP/2 has brought is good for HTTP/1.1.
    assert!(client.get(at, "/3", &[]).is("hit"));
}

#[test]
fn what_is_held_is_forwarded_when_it_is_whole() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let origin = Origin::start(move |request| {
        let last = if request.uri().path() == "/breaks" { Step::Break } else { Step::Send(b"b".to_vec()) };
        let steps = vec![Step::Send(b"a".to_vec()), Step::Gate(waits.clone()), last];
        answer(200, &[("cache-control", "max-age=60")], Steps::new(steps, None))
    });
    let (cache, client) = (before(origin.address, |config| config.hold = true), Client::new());
    let mut early = connect(cache.addresses()[0]);
    early.write_all(b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("its first half has come", || cache.stats().origin_bytes == 1);
    early.set_nonblocking(true).unwrap();
    assert_eq!(early.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing goes on before the rest");
    gate.add_permits(1);
    early.set_nonblocking(false).unwrap();
    let lines = head(&mut BufReader::new(early));
    assert!(lines.iter().any(|line| line.eq_ignore_ascii_case("content-length: 2")), "its length is known by then: {lines:?}");
    gate.add_permits(1);
    let broken = client.get(cache.addresses()[0], "/breaks", &[]);
    assert_eq!(broken.status, 502, "instead of half of it");
}
