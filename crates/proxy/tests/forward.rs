//! A forwarding proxy on loopback, where nobody needs privileges: bytes, half-closes, resets, refusals, the bound.

use proxy::{Config, Ending, FlowRecord, Listen, Proxy};
use scenario::Bytes;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        atomic::{AtomicU8, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy before a server socket, and what it says of flows that ended.
struct Bench {
    proxy: Proxy,
    at: SocketAddr,
    server: TcpListener,
    ended: mpsc::Receiver<FlowRecord>,
}

impl Bench {
    fn new(buffer: Option<Bytes>) -> Self {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let at = free_port();
        let (tell, ended) = mpsc::channel();
        let config = Config { buffer, listen: vec![Listen::forward(at, to)], ..Config::default() };
        let proxy = Proxy::start(config, move |record| drop(tell.send(record))).unwrap();
        Bench { proxy, at, server, ended }
    }

    /// A connection through the proxy: the client's end and the server's.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.at).unwrap();
        let server = self.server.accept().unwrap().0;
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (client, server)
    }

    fn ending(&self) -> Ending {
        self.ended.recv_timeout(PATIENCE).expect("the flow ends").ending
    }
}

/// An address nobody listens on, and nobody else will: each has a loopback address of its own.
fn free_port() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let own = Ipv4Addr::new(127, 1, NUMBER.fetch_add(1, Relaxed), 1);
    TcpListener::bind((own, 0)).unwrap().local_addr().unwrap()
}

fn payload(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn kind(result: io::Result<usize>) -> Result<usize, io::ErrorKind> {
    result.map_err(|why| why.kind())
}

/// TCP_INFO's number of the state in which the peer's FIN has come.
const CLOSE_WAIT: u8 = 8;

fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never came to pass");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes closing send a reset.
fn abort(end: TcpStream) {
    socket2::SockRef::from(&end).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn bytes_arrive_as_they_were_sent_both_ways_at_once() {
    // Loopback's segments are of 64 KiB: less than a few of them is a test of patience.
    for buffer in [Some(Bytes(200_000)), Some(Bytes(256 * 1024)), Some(Bytes(1 << 20)), None] {
        let bench = Bench::new(buffer);
        for length in [0, 1, 65_535, 65_536, 65_537, 3_000_001] {
            let (client, server) = bench.connect();
            let sent = payload(length);
            let exchange = |end: TcpStream| {
                let sent = sent.clone();
                thread::spawn(move || {
                    let (mut out, mut received) = (end.try_clone().unwrap(), Vec::new());
                    let writer = thread::spawn(move || {
                        out.write_all(&sent).unwrap();
                        out.shutdown(Shutdown::Write).unwrap();
                    });
                    (&end).read_to_end(&mut received).unwrap();
                    writer.join().unwrap();
                    received
                })
            };
            let (at_client, at_server) = (exchange(client), exchange(server));
            assert!(at_client.join().unwrap() == sent && at_server.join().unwrap() == sent, "{buffer:?}, {length} bytes");
            assert_eq!(bench.ending(), Ending::Finished);
        }
    }
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    let bench = Bench::new(Some(Bytes(1 << 20)));
    let (mut client, mut server) = bench.connect();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    drop(client);
    assert_eq!(bench.ending(), Ending::Finished);
}

#[test]
fn a_byte_crosses_without_company() {
    for buffer in [6000, 1 << 20] {
        let bench = Bench::new(Some(Bytes(buffer)));
        let (mut client, mut server) = bench.connect();
        for _ in 0..100 {
            client.write_all(b"?").unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(b"!").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
    }
}

#[test]
fn urgent_data_stops_nothing() {
    for buffer in [30_000, 1 << 20] {
        let bench = Bench::new(Some(Bytes(buffer)));
        let (mut client, mut server) = bench.connect();
        let (before, after) = (payload(100_000), payload(300_001));
        let sending = thread::spawn({
            let (before, after) = (before.clone(), after.clone());
            move || {
                client.write_all(&before).unwrap();
                socket2::SockRef::from(&client).send_out_of_band(b"!").unwrap();
                client.write_all(&after).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                client
            }
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert!(received == [before, b"!".to_vec(), after].concat(), "{} bytes", received.len());
        drop((sending.join().unwrap(), server));
        assert_eq!(bench.ending(), Ending::Finished);
    }
}

#[test]
fn a_reset_reaches_the_other_end_as_a_reset() {
    let bench = Bench::new(Some(Bytes(1 << 20)));
    let (client, mut server) = bench.connect();
    abort(client);
    assert_eq!(kind(server.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
    assert!(matches!(bench.ending(), Ending::NearFailed(_)));

    let (mut client, server) = bench.connect();
    abort(server);
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
    assert!(matches!(bench.ending(), Ending::FarFailed(_)));
}

#[test]
fn a_refusing_server_resets_the_client() {
    let (at, nobody) = (free_port(), free_port());
    let config = Config { listen: vec![Listen::forward(at, nobody)], ..Config::default() };
    let (tell, ended) = mpsc::channel();
    let _proxy = Proxy::start(config, move |record| drop(tell.send(record))).unwrap();
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::FarNotReached(io::ErrorKind::ConnectionRefused));
}

#[test]
fn a_server_that_never_answers_times_out() {
    let server = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    server.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    server.listen(0).unwrap();
    let to = server.local_addr().unwrap().as_socket().unwrap();
    // A full backlog answers no SYN.
    let _filler: Vec<TcpStream> = (0..4).filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok()).collect();
    let at = free_port();
    let listen = vec![Listen::forward(at, to)];
    let config = Config { listen, connect_timeout: Duration::from_millis(300), ..Config::default() };
    let (tell, ended) = mpsc::channel();
    let _proxy = Proxy::start(config, move |record| drop(tell.send(record))).unwrap();
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::FarNotReached(io::ErrorKind::TimedOut));
}

/// An end that has finished sending and then reads a clean end knows that all of it was delivered.
#[test]
fn there_is_no_clean_end_before_delivery() {
    let bench = Bench::new(Some(Bytes(256 * 1024)));
    let (mut client, server) = bench.connect();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "a half-close passes at once to an end that has not finished");

    // The client finishes; all of it is in the proxy and in the server's socket, unread. The server ends its own direction:
    // the client must not hear of it before the server's TCP has everything.
    let (mut client, server) = bench.connect();
    socket2::SockRef::from(&server).set_recv_buffer_size(4096).unwrap();
    client.write_all(&payload(180_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_until(|| bench.proxy.flows().iter().any(|flow| flow.near.state == CLOSE_WAIT && flow.up.held().0 > 0));
    server.shutdown(Shutdown::Write).unwrap();
    wait_until(|| bench.proxy.flows().iter().any(|flow| flow.far.state == CLOSE_WAIT && flow.up.held().0 > 0));
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::WouldBlock), "nothing is heard of the server's end");
    // Closing with data unread is a reset, and so it arrives.
    drop(server);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
}

#[test]
fn a_stopped_reader_leaves_no_more_than_the_bound_in_the_proxy() {
    // On loopback a segment is 64 KiB.
    for (buffer, slack) in [(30_000, 2 * 65_536), (256 * 1024, 65_536), (1 << 20, 65_536), (4 << 20, 65_536)] {
        let bench = Bench::new(Some(Bytes(buffer)));
        let (client, _server) = bench.connect();
        client.set_nonblocking(true).unwrap();
        let (begun, mut still_since, bytes) = (Instant::now(), Instant::now(), payload(65_536));
        while still_since.elapsed() < Duration::from_millis(500) && begun.elapsed() < PATIENCE {
            if (&client).write(&bytes).unwrap_or(0) > 0 {
                still_since = Instant::now();
            }
            let held = bench.proxy.flows().iter().map(|flow| flow.up.held().0).max().unwrap_or(0);
            assert!(held <= buffer + slack, "{held} bytes held of {buffer}");
        }
        let held = bench.proxy.flows()[0].up.held().0;
        assert!(held >= buffer / 3, "only {held} bytes held of {buffer}");
    }
}

#[test]
fn a_drained_proxy_ends_with_its_last_flow() {
    let mut bench = Bench::new(Some(Bytes(1 << 20)));
    let (mut client, mut server) = bench.connect();
    bench.proxy.begin_drain();
    let begun = Instant::now();
    while TcpStream::connect(bench.at).is_ok() && begun.elapsed() < PATIENCE {}
    assert!(!bench.proxy.is_idle());
    client.write_all(b"still here").unwrap();
    server.read_exact(&mut [0; 10]).unwrap();
    // Connections that came before the listener closed were never accepted: they end with the server.
    drop((client, server, bench.server));
    bench.proxy.drain();
    assert!(bench.proxy.is_idle());
}

#[test]
fn a_busy_address_is_named_with_its_cure() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    let config = Config { listen: vec![Listen::forward(at, at)], ..Config::default() };
    let error = Proxy::start(config, |_| {}).unwrap_err().to_string();
    assert!(error.contains(&at.to_string()) && error.contains("another program listens there"), "{error}");
}
