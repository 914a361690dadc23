use super::*;
use std::{
    io::{Read as _, Write as _},
    net::TcpStream as StdStream,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Far longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(limits: Limits, page: impl Fn() -> Option<String> + Send + Sync + 'static) -> Server {
    Server::with_limits(StdListener::bind("127.0.0.1:0").unwrap(), page, limits).unwrap()
}

fn connect(server: &Server) -> StdStream {
    let stream = StdStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(server: &Server, request: &str) -> String {
    let (mut stream, mut answer) = (connect(server), String::new());
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until the server closes a connection; returns the time it took.
fn closed(mut stream: StdStream) -> Duration {
    let begun = Instant::now();
    // A reset is as good.
    let ended = stream.read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|why| why.kind() == io::ErrorKind::ConnectionReset));
    begun.elapsed()
}

#[test]
fn requests_are_answered_by_method_and_path() {
    let server = start(LIMITS, || Some("# EOF\n".into()));
    let page = ask(&server, "GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains(OPEN_METRICS) && page.ends_with("\r\n\r\n# EOF\n"), "{page}");
    let old = ask(&server, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200 ") && old.ends_with("\r\n\r\n# EOF\n"), "{old}");
    let head = ask(&server, "HEAD /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(head.contains("content-length: 6") && head.ends_with("\r\n\r\n"), "{head}");
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /metrics HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 405 "),
        ("how are you?\r\n\r\n", "HTTP/1.1 400 "),
        (&format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000)), "HTTP/1.1 4"),
    ] {
        let mut stream = connect(&server);
        let (_, mut answer) = (stream.write_all(request.as_bytes()), Vec::new());
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        // After a request that is too long, the close may reset the connection before the answer is
        // read.
        assert!(answer.starts_with(expected) || request.len() > LONGEST_REQUEST && answer.is_empty(), "{request:.40}: {answer}");
    }
    let ending = start(LIMITS, || None);
    assert!(ask(&ending, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 503 "));
}

#[test]
fn silent_and_slow_clients_are_closed_in_time() {
    let limits = Limits { request: Duration::from_millis(300), lifetime: Duration::from_millis(900), ..LIMITS };
    // Larger than the socket buffers of a connection.
    let page = "x".repeat(64 << 20);
    let server = start(limits, move || Some(page.clone()));
    let silent = connect(&server);
    let mut half = connect(&server);
    half.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
    for stream in [silent, half] {
        let took = closed(stream);
        assert!(took < PATIENCE, "{took:?}");
    }
    let mut not_reading = connect(&server);
    not_reading.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    thread::sleep(limits.lifetime * 2);
    let mut got = Vec::new();
    let _ = not_reading.read_to_end(&mut got);
    assert!(!got.is_empty() && got.len() < 64 << 20, "{}", got.len());
}

#[test]
fn a_client_beyond_the_limit_replaces_the_oldest() {
    let server = start(Limits { connections: 4, request: PATIENCE * 2, lifetime: PATIENCE * 2, ..LIMITS }, || Some("# EOF\n".into()));
    let mut idle: VecDeque<StdStream> = (0..4).map(|_| connect(&server)).collect();
    for _ in 0..20 {
        idle.push_back(connect(&server));
        assert!(closed(idle.pop_front().unwrap()) < PATIENCE);
    }
    assert!(ask(&server, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").ends_with("# EOF\n"));
    // The other connections are still open.
    let newest = idle.back_mut().unwrap();
    newest.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(newest.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn requests_within_the_page_lifetime_share_one_rendering() {
    let rendered = Arc::new(AtomicUsize::new(0));
    let count = rendered.clone();
    let server = start(Limits { fresh: PATIENCE, ..LIMITS }, move || Some(count.fetch_add(1, SeqCst).to_string()));
    for _ in 0..50 {
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").ends_with("\r\n\r\n0"));
    }
    assert_eq!(rendered.load(SeqCst), 1);
}

#[test]
fn dropping_the_server_closes_all_connections_at_once() {
    let server = start(LIMITS, || Some("x".repeat(64 << 20)));
    let idle: Vec<StdStream> = (0..10).map(|_| connect(&server)).collect();
    let mut not_reading = connect(&server);
    not_reading.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    not_reading.read_exact(&mut [0]).unwrap();
    let (begun, address) = (Instant::now(), server.address());
    drop(server);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    // The port is free again.
    drop(StdListener::bind(address).unwrap());
    drop(idle);
}
