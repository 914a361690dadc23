//! Which responses are stored, for which requests and for how long (RFC 9111).

use crate::common::*;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;

#[test]
fn fresh_responses_do_not_reach_the_origin() {
    let fields = [("cache-control", "max-age=60, public"), ("set-cookie", "a=1"), ("set-cookie", "b=2"), ("etag", "\"x\"")];
    let origin = TestOrigin::start(move |_| answer(200, &fields, ScriptedBody::all("hello")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let first = client.get(cache.addresses()[0], "/a?b=c", &[]);
    let second = client.get(cache.addresses()[0], "/a?b=c", &[]);
    assert_eq!(origin.count(), 1);
    assert!(first.cache_status_contains("fwd=uri-miss") && second.cache_status_contains("hit"), "{second:?}");
    for reply in [&first, &second] {
        assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
        assert_eq!(reply.headers.get_all("set-cookie").iter().count(), 2, "all lines of a field are stored");
        assert_eq!(reply.field("content-length"), "5");
    }
    assert_eq!(second.field("age"), "0");
    let other = client.get(cache.addresses()[0], "/a?b=d", &[]);
    assert!(other.cache_status_contains("fwd=uri-miss"));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.kept, stats.origin_bytes), (1, 2, 2, 10));
    eventually("not all bytes are counted", || cache.stats().client_bytes == 15);
}

#[test]
fn personal_responses_are_not_shared() {
    let origin = TestOrigin::start(|request| {
        let who = request.headers().get("cookie").or(request.headers().get("authorization"));
        let user = who.map_or("nobody", |who| who.to_str().unwrap()).to_string();
        let control = match request.uri().path() {
            "/private" => "private, max-age=60",
            "/no-store" => "no-store",
            "/upper" => "PRIVATE",
            "/no-cache" => "no-cache",
            _ => "max-age=60",
        };
        let mut reply = answer(200, &[("cache-control", control)], ScriptedBody::all(user));
        if request.uri().path() == "/cookie" {
            reply.headers_mut().append("set-cookie", "session=1".parse().unwrap());
        }
        reply
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/private", "/no-store", "/upper", "/no-cache", "/cookie"] {
        for who in ["alice", "bob"] {
            let reply = client.get(cache.addresses()[0], path, &[("cookie", who)]);
            assert_eq!(reply.body, who.as_bytes(), "{path}");
        }
    }
    for who in ["alice", "bob"] {
        let reply = client.get(cache.addresses()[0], "/plain", &[("authorization", who)]);
        assert_eq!(reply.body, who.as_bytes());
    }
}

#[test]
fn cookies_are_not_shared_by_revalidation() {
    // As servers with sessions do: a client without a cookie gets one, with a 200 and with a 304.
    let origin = TestOrigin::start(|request| {
        let (has, is_new) = (request.headers().contains_key("if-none-match"), !request.headers().contains_key("cookie"));
        let who = request.headers().get("x-who").map_or("", |who| who.to_str().unwrap()).to_string();
        let mut reply = if has { answer(304, &[], ScriptedBody::all("")) } else { answer(200, &[], ScriptedBody::all("page")) };
        reply.headers_mut().insert("etag", "\"v1\"".parse().unwrap());
        if is_new {
            reply.headers_mut().append("set-cookie", format!("session={who}").parse().unwrap());
        }
        reply
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let cookies = |path: &str, fields: &[(&str, &str)]| {
        let reply = client.get(cache.addresses()[0], path, fields);
        assert_eq!((reply.status, &reply.body[..]), (200, &b"page"[..]), "{reply:?}");
        reply.headers.get_all("set-cookie").iter().map(|cookie| cookie.to_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    // The first client gets a cookie; one with a cookie gets none; one without gets another cookie.
    assert_eq!(cookies("/", &[("x-who", "alice")]), ["session=alice"]);
    assert!(cookies("/", &[("x-who", "bob"), ("cookie", "session=bob")]).is_empty());
    assert_eq!(cookies("/", &[("x-who", "carol")]), ["session=carol"]);
    assert!(cookies("/", &[("x-who", "dave"), ("cookie", "session=dave")]).is_empty());
    // The same where the response was stored for a client with a cookie.
    assert!(cookies("/else", &[("x-who", "alice"), ("cookie", "session=alice")]).is_empty());
    assert_eq!(cookies("/else", &[("x-who", "bob")]), ["session=bob"]);
    assert!(cookies("/else", &[("x-who", "carol"), ("cookie", "session=carol")]).is_empty());
}

#[test]
fn no_cache_overrides_max_stale() {
    let origin = TestOrigin::start(|_| answer(200, &[("cache-control", "no-cache"), ("etag", "\"v1\"")], ScriptedBody::all("body")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for count in 1..=3 {
        let reply = client.get(cache.addresses()[0], "/", &[("cache-control", "max-stale")]);
        assert!(!reply.cache_status_contains("; hit") && origin.count() == count, "{reply:?}");
    }
}

#[test]
fn variants_are_selected_by_vary() {
    let origin = TestOrigin::start(|request| {
        let language = request.headers().get("accept-language").map_or("none", |value| value.to_str().unwrap()).to_string();
        answer(200, &[("cache-control", "max-age=60"), ("vary", "Accept-Language")], ScriptedBody::all(language))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let body_for = |language| String::from_utf8(client.get(cache.addresses()[0], "/", &[("accept-language", language)]).body).unwrap();
    assert_eq!(["de", "en", "de", "en"].map(body_for), ["de", "en", "de", "en"]);
    assert_eq!(origin.count(), 2);
    // All lines of a field count.
    let lines = client.get(cache.addresses()[0], "/", &[("accept-language", "de"), ("accept-language", "fr")]);
    assert!(lines.cache_status_contains("fwd=uri-miss"), "{lines:?}");
}

#[test]
fn stale_responses_are_revalidated() {
    let origin = TestOrigin::start(|request| {
        let fields = [("cache-control", "max-age=0"), ("etag", "\"v1\""), ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT")];
        match request.headers().get("if-none-match").map(|tag| tag.as_bytes() == b"\"v1\"") {
            Some(true) => answer(304, &[("etag", "\"v1\""), ("x-fresh", "yes"), ("cache-control", "max-age=0")], ScriptedBody::all("")),
            _ => answer(200, &fields, ScriptedBody::all("body")),
        }
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    client.get(at, "/", &[]);
    let again = client.get(at, "/", &[]);
    assert_eq!((again.status, &again.body[..], again.field("x-fresh")), (200, &b"body"[..], "yes"));
    assert!(again.cache_status_contains("fwd=stale"));
    assert_eq!(origin.seen()[1].headers()["if-modified-since"], "Tue, 14 Nov 2023 22:00:00 GMT");
    // A client with another version, and one with the current version.
    let old = client.get(at, "/", &[("if-none-match", "\"v0\"")]);
    assert_eq!((old.status, &old.body[..]), (200, &b"body"[..]));
    assert_eq!(client.get(at, "/", &[("if-none-match", "\"v1\"")]).status, 304);
    let stats = cache.stats();
    assert_eq!((stats.revalidated, stats.misses, stats.origin_bytes), (3, 1, 4));
}

#[test]
fn conditional_requests_get_304_from_the_cache() {
    let fields = [
        ("cache-control", "max-age=60"),
        ("etag", "\"v1\""),
        ("content-type", "text/plain"),
        ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT"),
    ];
    let origin = TestOrigin::start(move |_| answer(200, &fields, ScriptedBody::all("body")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    client.get(at, "/", &[]);
    for condition in [("if-none-match", "W/\"v1\""), ("if-modified-since", "Tue, 14 Nov 2023 22:00:00 GMT")] {
        let reply = client.get(at, "/", &[condition]);
        assert_eq!((reply.status, reply.body.len()), (304, 0));
        assert!(
            reply.cache_status_contains("hit") && reply.field("content-type").is_empty() && reply.field("cache-control") == "max-age=60",
            "{reply:?}"
        );
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn ranges_are_served_from_a_whole_response() {
    let body: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let sent = body.clone();
    let fields = [("cache-control", "max-age=60"), ("etag", "\"v1\""), ("accept-ranges", "bytes")];
    let origin = TestOrigin::start(move |_| answer(200, &fields, ScriptedBody::all(sent.clone())));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    client.get(at, "/", &[]);
    let part = client.get(at, "/", &[("range", "bytes=70000-150000")]);
    assert_eq!((part.status, part.field("content-range")), (206, "bytes 70000-150000/200000"));
    assert!(part.body == body[70_000..=150_000] && part.whole);
    assert_eq!(client.get(at, "/", &[("range", "bytes=-5")]).body, body[199_995..]);
    let beyond = client.get(at, "/", &[("range", "bytes=200000-")]);
    assert_eq!((beyond.status, beyond.field("content-range")), (416, "bytes */200000"));
    let changed = client.get(at, "/", &[("range", "bytes=0-1"), ("if-range", "\"v0\"")]);
    assert_eq!((changed.status, changed.body.len()), (200, 200_000));
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_range_that_is_not_stored_comes_from_the_origin() {
    let origin = TestOrigin::start(|request| match request.headers().get("range") {
        Some(_) => answer(206, &[("cache-control", "max-age=60"), ("content-range", "bytes 0-1/4")], ScriptedBody::all("bo")),
        None => answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all("body")),
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let part = client.get(cache.addresses()[0], "/", &[("range", "bytes=0-1")]);
    assert_eq!((part.status, &part.body[..]), (206, &b"bo"[..]));
    // The range is not stored as the whole response.
    assert_eq!(client.get(cache.addresses()[0], "/", &[]).body, b"body");
}

#[test]
fn head_is_answered_from_a_stored_get() {
    let origin = TestOrigin::start(|_| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all("body")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    let before = client.ask(at, request("HEAD", "/", &[]));
    assert_eq!((before.status, before.field("content-length"), before.body.len()), (200, "4", 0));
    client.get(at, "/", &[]);
    let after = client.ask(at, request("HEAD", "/", &[]));
    assert!(after.cache_status_contains("hit") && after.field("content-length") == "4", "{after:?}");
    assert_eq!(origin.count(), 2);
    // `only-if-cached` is answered from the store or with 504.
    assert_eq!(client.get(at, "/else", &[("cache-control", "only-if-cached")]).status, 504);
    assert!(client.get(at, "/", &[("cache-control", "only-if-cached")]).cache_status_contains("hit"));
}

#[test]
fn unsafe_methods_invalidate() {
    let origin = TestOrigin::start(|request| {
        let status = if request.uri().path() == "/fails" { 500 } else { 200 };
        answer(status, &[("cache-control", "max-age=60"), ("content-location", "/beside")], ScriptedBody::all("body"))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        client.get(at, "/here", &[]);
        client.get(at, "/beside", &[]);
        assert!(client.get(at, "/here", &[]).cache_status_contains("hit"));
        client.ask(at, request(method, "/here", &[("content-length", "0")]));
        assert!(client.get(at, "/here", &[]).cache_status_contains("fwd=uri-miss"), "{method}");
        assert!(client.get(at, "/beside", &[]).cache_status_contains("fwd=uri-miss"), "{method}");
    }
    client.ask(at, request("POST", "/fails", &[]));
    assert!(client.get(at, "/here", &[]).cache_status_contains("hit"), "a failed request invalidates nothing");
}

#[test]
fn equal_requests_are_collapsed() {
    let gate = Arc::new(Semaphore::new(0));
    let waits = gate.clone();
    let origin = TestOrigin::start(move |request| {
        // A body of known length is shared while it is received, one of unknown length afterwards.
        let length = (request.uri().path() == "/known").then_some(8);
        let steps = vec![BodyStep::Send(b"half".to_vec()), BodyStep::Gate(waits.clone()), BodyStep::Send(b"half".to_vec())];
        answer(200, &[("cache-control", "max-age=60")], ScriptedBody::new(steps, length))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/known", "/unknown"] {
        let before = origin.count();
        let many: Vec<_> = (0..20).map(|_| client.spawn(cache.addresses()[0], request("GET", path, &[]))).collect();
        eventually("not all requests have been accepted", || cache.stats().connections % 20 == 0 && cache.stats().connections > 0);
        eventually("the origin gets no request", || origin.count() > before);
        gate.add_permits(1);
        for one in many {
            let reply = client.wait(one).unwrap();
            assert!(reply.whole && reply.body == b"halfhalf", "{path}: {reply:?}");
        }
        assert_eq!(origin.count() - before, 1, "{path}");
    }
}

#[test]
fn collapsed_requests_are_forwarded_when_nothing_was_stored() {
    let origin = TestOrigin::start(|_| answer(200, &[("cache-control", "no-store")], ScriptedBody::all("body")));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let many: Vec<_> = (0..10).map(|_| client.spawn(cache.addresses()[0], request("GET", "/", &[]))).collect();
    for one in many {
        assert_eq!(client.wait(one).unwrap().body, b"body");
    }
    assert_eq!(origin.count(), 10);
    assert_eq!(cache.stats().kept, 0);
}

#[test]
fn an_abort_by_the_origin_reaches_the_client_and_is_not_stored() {
    let broken = Arc::new(AtomicUsize::new(0));
    let times = broken.clone();
    let origin = TestOrigin::start(move |request| {
        let length = (request.uri().path() == "/known").then_some(2_000_000);
        if times.fetch_add(1, Ordering::SeqCst) == 0 {
            return answer(
                200,
                &[("cache-control", "max-age=60")],
                ScriptedBody::new(vec![BodyStep::Send(vec![1; 1_500_000]), BodyStep::Abort], length),
            );
        }
        answer(200, &[("cache-control", "max-age=60")], ScriptedBody::new(vec![BodyStep::Send(vec![1; 2_000_000])], length))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/known", "/unknown"] {
        broken.store(0, Ordering::SeqCst);
        let half = client.get(cache.addresses()[0], path, &[]);
        assert!(half.status == 200 && !half.whole, "{path}");
        let whole = client.get(cache.addresses()[0], path, &[]);
        assert!(whole.whole && whole.body.len() == 2_000_000 && whole.cache_status_contains("fwd=uri-miss"), "{path}");
        assert!(client.get(cache.addresses()[0], path, &[]).cache_status_contains("hit"));
    }
}

#[test]
fn an_abort_by_the_client_reaches_the_origin() {
    let alive = Arc::new(AtomicUsize::new(0));
    let sending = alive.clone();
    let origin = TestOrigin::start(move |request| {
        let steps = vec![BodyStep::Send(vec![1; 100_000]), BodyStep::Gate(Arc::new(Semaphore::new(0)))];
        let control = if request.uri().path() == "/kept" { "max-age=60" } else { "no-store" };
        answer(200, &[("cache-control", control)], ScriptedBody::new(steps, Some(10_000_000)).counted(&sending))
    });
    let cache = cache_for(origin.address, |_| {});
    for path in ["/kept", "/passed"] {
        use std::io::{Read as _, Write as _};
        let mut client = std::net::TcpStream::connect(cache.addresses()[0]).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        drop(client);
        eventually("the origin does not notice the abort", || alive.load(Ordering::SeqCst) == 0);
    }
    eventually("something stays stored", || cache.stats().kept == 0 && cache.stats().memory_bytes == 0 && cache.stats().disk_bytes == 0);
}

#[test]
fn responses_to_get_with_a_body_are_not_shared() {
    let origin = TestOrigin::start(|request| answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(request.body().to_vec())));
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for body in ["one", "two"] {
        let request =
            request("GET", "/", &[("transfer-encoding", "chunked")]).map(|_| ScriptedBody::new(vec![BodyStep::Send(body.into())], None));
        assert_eq!(client.ask(cache.addresses()[0], request).body, body.as_bytes());
    }
    assert!(client.get(cache.addresses()[0], "/", &[]).body.is_empty());
    assert_eq!((origin.count(), cache.stats().kept), (3, 1));
}

#[test]
fn stale_if_error_serves_stale_responses() {
    let fails = Arc::new(AtomicUsize::new(0));
    let now = fails.clone();
    let origin = TestOrigin::start(move |request| match now.load(Ordering::SeqCst) {
        0 if request.uri().path() == "/may" => {
            answer(200, &[("cache-control", "max-age=0, stale-if-error=60"), ("etag", "\"a\"")], ScriptedBody::all("body"))
        }
        0 => answer(200, &[("cache-control", "max-age=0"), ("etag", "\"a\"")], ScriptedBody::all("body")),
        _ => answer(503, &[], ScriptedBody::all("down")),
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    client.get(at, "/may", &[]);
    client.get(at, "/may-not", &[]);
    fails.store(1, Ordering::SeqCst);
    let reply = client.get(at, "/may", &[]);
    assert!(reply.status == 200 && reply.body == b"body" && reply.cache_status_contains("stand-in"), "{reply:?}");
    assert_eq!(client.get(at, "/may-not", &[]).status, 503);
    drop(origin);
    assert_eq!(client.get(at, "/may", &[]).body, b"body", "also when the server cannot be reached");
    let gone = client.get(at, "/may-not", &[]);
    assert!(gone.status == 502 && String::from_utf8_lossy(&gone.body).contains("cannot connect to 127.0.0.1"), "{gone:?}");
}

#[test]
fn storage_stays_within_its_limits() {
    let origin = TestOrigin::start(|request| {
        let bytes: usize = request.uri().path()[1..].parse().unwrap();
        answer(200, &[("cache-control", "max-age=60")], ScriptedBody::all(vec![7; bytes]))
    });
    let limit = |config: &mut cache::Config| {
        config.memory = units::Bytes(500_000);
        config.disk = units::Bytes(2_000_000);
        config.largest = units::Bytes(1_000_000);
    };
    let (cache, client) = (cache_for(origin.address, limit), TestClient::new());
    for round in 0..60_u32 {
        // Sizes for memory, sizes for the disk, sizes that are too large.
        let bytes = [3000, 7000, 40_000, 300_000, 999_999, 1_000_001, 3_000_000][round as usize % 7] + round as usize;
        let reply = client.get(cache.addresses()[0], &format!("/{bytes}"), &[]);
        assert!(reply.whole && reply.body.len() == bytes, "{bytes}");
        let stats = cache.stats();
        assert!(stats.memory_bytes <= 500_000 && stats.disk_bytes <= 2_000_000, "{stats:?}");
    }
    assert!(cache.stats().disk_bytes > 0 && cache.stats().kept > 3);
}
