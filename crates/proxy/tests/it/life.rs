//! The state machine of a connection, one test for each cell of the table at the top of
//! `connection.rs`. Each test checks the recorded ending and what the other end reads.
//!
//! To stay in `Dialling`, the server does not answer: its backlog is full, or the firewall of its
//! own namespace drops packets. To stay in `Settling`, one end does not read and so stops
//! acknowledging. The opposite end has read end of file by then, after everything it sent was
//! acknowledged: its connection has ended cleanly and cannot be reset any more.

use crate::common::{
    CLOSE_WAIT, CLOSED, ESTABLISHED, ForwardBench, LAST_ACK, PATIENCE, SYN_SENT, UNREACHABLE, abort, accept_past, cut, fill, forward,
    free_port, full_listener, kind, listener, on_own_host, payload, read_out, run, wait_until, write_until_error,
};
use intercept::{LegProfile, Policy, sys};
use proxy::{Buffer, Ending, FlowStats, ListenerConfig, Proxy, ProxyConfig};
use socket2::SockRef;
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// A configuration without a connect timeout.
fn without_connect_timeout() -> ProxyConfig {
    ProxyConfig { connect_timeout: Duration::from_secs(3600), ..ProxyConfig::default() }
}

fn is_dialling(flow: &FlowStats) -> bool {
    flow.far.state == SYN_SENT
}

fn is_reset<T: std::fmt::Debug>(read: Result<T, ErrorKind>) -> bool {
    matches!(read, Err(ErrorKind::ConnectionReset))
}

// ---- Dialling

#[test]
fn near_fin_while_dialling() {
    let (server, fillers) = full_listener();
    let bench = ForwardBench::before(server, without_connect_timeout());
    let mut client = bench.dial();
    client.write_all(b"kept").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    bench.wait_for_flow(|flow| is_dialling(flow) && flow.near.state == CLOSE_WAIT);
    let mut server = accept_past(&fillers, &bench.server);
    assert_eq!(read_out(&server).unwrap(), b"kept");
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(read_out(&client).unwrap(), b"answer");
    drop(client);
    assert_eq!(bench.ending(), Ending::Finished);
}

/// When a kept FIN cannot be passed on, the client reads a reset.
#[test]
fn near_fin_while_dialling_in_vain() {
    let (server, _fillers) = full_listener();
    let bench = ForwardBench::before(server, ProxyConfig { connect_timeout: Duration::from_millis(600), ..ProxyConfig::default() });
    let client = bench.dial();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(is_reset(read_out(&client)));
    assert_eq!(bench.ending(), Ending::FarNotReached(ErrorKind::TimedOut));
}

#[test]
fn near_rst_while_dialling() {
    for after_fin in [false, true] {
        let (server, fillers) = full_listener();
        let bench = ForwardBench::before(server, without_connect_timeout());
        let client = bench.dial();
        if after_fin {
            client.shutdown(Shutdown::Write).unwrap();
        }
        bench.wait_for_flow(is_dialling);
        abort(client);
        assert!(matches!(bench.ending(), Ending::NearFailed(_)));
        assert!(bench.proxy.flows().is_empty());
        // The far leg was aborted: the server never sees this connection.
        let mut second = bench.dial();
        second.write_all(b"second").unwrap();
        second.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_out(&accept_past(&fillers, &bench.server)).unwrap(), b"second");
    }
}

/// The server reads the bytes that the client sent before the reset, then a reset.
#[test]
fn near_rst_after_bytes_while_dialling() {
    let (server, fillers) = full_listener();
    let bench = ForwardBench::before(server, without_connect_timeout());
    let mut client = bench.dial();
    client.write_all(b"first").unwrap();
    bench.wait_for_flow(is_dialling);
    wait_until(|| sys::unacknowledged(&client).unwrap() == 0);
    abort(client);
    let mut server = accept_past(&fillers, &bench.server);
    let mut received = Vec::new();
    let read = kind(server.read_to_end(&mut received));
    assert_eq!(received, b"first");
    assert!(is_reset(read));
    assert!(matches!(bench.ending(), Ending::NearFailed(_)));
}

/// Nothing is sent to the near end while the far end does not answer. Its silence shows once there
/// is data for it.
#[test]
fn near_silent_while_dialling() {
    on_own_host("near_silent_while_dialling", || {
        let (server, fillers) = full_listener();
        let bench = ForwardBench::before(server, without_connect_timeout());
        let _client = bench.dial();
        bench.wait_for_flow(is_dialling);
        cut(bench.at.port(), "drop");
        let mut server = accept_past(&fillers, &bench.server);
        server.write_all(b"anybody?").unwrap();
        assert!(is_reset(read_out(&server)));
        assert_eq!(bench.ending(), Ending::NearFailed(ErrorKind::TimedOut));
    });
}

/// A refusal is a reset of a SYN.
#[test]
fn far_rst_while_dialling() {
    let (_proxy, at, ended) = forward(free_port(), ProxyConfig::default());
    let client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_reset(read_out(&client)));
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::FarNotReached(ErrorKind::ConnectionRefused));
}

#[test]
fn far_unreachable_while_dialling() {
    on_own_host("far_unreachable_while_dialling", || {
        let bench = ForwardBench::before(listener(), without_connect_timeout());
        cut(bench.server.local_addr().unwrap().port(), UNREACHABLE);
        assert!(is_reset(read_out(&bench.dial())));
        assert_eq!(bench.ending(), Ending::FarNotReached(ErrorKind::HostUnreachable));
    });
}

/// The proxy's host has no route, so that dialling fails at once.
#[test]
fn far_unreachable_before_dialling() {
    on_own_host("far_unreachable_before_dialling", || {
        run("ip", "route add unreachable 192.0.2.0/24");
        let (_proxy, at, ended) = forward("192.0.2.1:9".parse().unwrap(), without_connect_timeout());
        let client = TcpStream::connect(at).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(is_reset(read_out(&client)));
        let record = ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!(record.ending, Ending::FarNotReached(ErrorKind::HostUnreachable));
        assert_eq!(record.last.client, client.local_addr().unwrap());
    });
}

/// The proxy's connect timeout passes.
#[test]
fn far_timed_out_while_dialling() {
    let (server, _fillers) = full_listener();
    let bench = ForwardBench::before(server, ProxyConfig { connect_timeout: Duration::from_millis(300), ..ProxyConfig::default() });
    assert!(is_reset(read_out(&bench.dial())));
    assert_eq!(bench.ending(), Ending::FarNotReached(ErrorKind::TimedOut));
}

/// The kernel's limit passes before the proxy's.
#[test]
fn far_black_hole_while_dialling() {
    on_own_host("far_black_hole_while_dialling", || {
        let bench = ForwardBench::before(listener(), without_connect_timeout());
        cut(bench.server.local_addr().unwrap().port(), "drop");
        assert!(is_reset(read_out(&bench.dial())));
        assert_eq!(bench.ending(), Ending::FarNotReached(ErrorKind::TimedOut));
    });
}

// ---- Relaying

/// A FIN is passed after the last byte; the other direction stays open.
fn fin_while_relaying(order: impl Fn((TcpStream, TcpStream)) -> (TcpStream, TcpStream)) {
    for buffer in [Some(Bytes(30_000)), Some(Bytes(1 << 20)), None] {
        let bench = ForwardBench::new(buffer);
        let (mut first, mut second) = order(bench.connect());
        let bytes = payload(300_000);
        let sending = thread::spawn({
            let bytes = bytes.clone();
            move || {
                first.write_all(&bytes).unwrap();
                first.shutdown(Shutdown::Write).unwrap();
                first
            }
        });
        assert!(read_out(&second).unwrap() == bytes, "{buffer:?}");
        let first = sending.join().unwrap();
        assert!(!bench.has_ended());
        second.write_all(b"still open").unwrap();
        second.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_out(&first).unwrap(), b"still open");
        assert_eq!(bench.ending(), Ending::Finished);
    }
}

#[test]
fn near_fin_while_relaying() {
    fin_while_relaying(|(client, server)| (client, server));
}

#[test]
fn far_fin_while_relaying() {
    fin_while_relaying(|(client, server)| (server, client));
}

/// Which bytes are unread when an end aborts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unread {
    Nothing,
    /// Sent by the aborting end, unread by the other.
    OfAborter,
    /// Sent by the other end, unread by the aborting one, whose close then sends a reset.
    OfOther,
    /// All queues in both directions are full.
    Everywhere,
}

/// One end aborts: the other reads a reset, whichever bytes are unread.
fn rst_while_relaying(order: impl Fn((TcpStream, TcpStream)) -> (TcpStream, TcpStream), is_right: impl Fn(Ending) -> bool) {
    const MOST: usize = 64 << 20;
    for buffer in [Some(Bytes(30_000)), Some(Bytes(1 << 20)), None] {
        let bench = ForwardBench::new(buffer);
        for unread in [Unread::Nothing, Unread::OfAborter, Unread::OfOther, Unread::Everywhere] {
            let (aborter, other) = order(bench.connect());
            let sent = if matches!(unread, Unread::OfAborter | Unread::Everywhere) { fill(&aborter, MOST) } else { 0 };
            if unread == Unread::Everywhere {
                fill(&other, MOST);
            }
            if unread == Unread::OfOther {
                (&other).write_all(&payload(1000)).unwrap();
                assert_eq!(aborter.peek(&mut [0]).unwrap(), 1);
                drop(aborter);
            } else {
                abort(aborter);
            }
            let mut received = Vec::new();
            let read = kind((&other).read_to_end(&mut received));
            assert!(is_reset(read), "{buffer:?}, {unread:?}: {read:?}");
            assert!(received.len() <= sent && received.chunks(65_536).all(|part| part == &payload(65_536)[..part.len()]));
            let ending = bench.ending();
            assert!(is_right(ending), "{buffer:?}, {unread:?}: {ending}");
        }
    }
}

#[test]
fn near_rst_while_relaying() {
    rst_while_relaying(|(client, server)| (client, server), |ending| matches!(ending, Ending::NearFailed(_)));
}

#[test]
fn far_rst_while_relaying() {
    rst_while_relaying(|(client, server)| (server, client), |ending| matches!(ending, Ending::FarFailed(_)));
}

/// An end that has read the other's FIN does not read its reset, but gets an error when it writes.
fn rst_after_fin_while_relaying(order: impl Fn((TcpStream, TcpStream)) -> (TcpStream, TcpStream)) -> Ending {
    let bench = ForwardBench::new(Some(Bytes(1 << 20)));
    let (aborter, mut other) = order(bench.connect());
    aborter.shutdown(Shutdown::Write).unwrap();
    assert!(read_out(&other).unwrap().is_empty());
    other.write_all(b"half open").unwrap();
    assert_eq!(aborter.peek(&mut [0]).unwrap(), 1);
    drop(aborter);
    let why = write_until_error(&other);
    assert!(matches!(why, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{why}");
    bench.ending()
}

#[test]
fn near_rst_after_near_fin_while_relaying() {
    assert!(matches!(rst_after_fin_while_relaying(|(client, server)| (client, server)), Ending::NearFailed(_)));
}

#[test]
fn far_rst_after_far_fin_while_relaying() {
    assert!(matches!(rst_after_fin_while_relaying(|(client, server)| (server, client)), Ending::FarFailed(_)));
}

/// In a namespace, one leg is cut in the middle of a stream: the other end reads a reset.
fn cut_while_relaying(test: &str, which: fn(&ForwardBench) -> u16, verdict: &str, expected: Ending) {
    on_own_host(test, || {
        let bench = ForwardBench::new(Some(Bytes(1 << 20)));
        let (client, server) = bench.connect();
        let (cut_off, mut other) = if matches!(expected, Ending::NearFailed(_)) { (client, server) } else { (server, client) };
        // Both directions have been in use.
        other.write_all(b"before").unwrap();
        (&cut_off).read_exact(&mut [0; 6]).unwrap();
        (&cut_off).write_all(b"before").unwrap();
        other.read_exact(&mut [0; 6]).unwrap();
        cut(which(&bench), verdict);
        other.write_all(b"after").unwrap();
        assert!(is_reset(read_out(&other)));
        assert_eq!(bench.ending(), expected);
    });
}

fn near_port(bench: &ForwardBench) -> u16 {
    bench.at.port()
}

fn far_port(bench: &ForwardBench) -> u16 {
    bench.server.local_addr().unwrap().port()
}

#[test]
fn near_silent_while_relaying() {
    cut_while_relaying("near_silent_while_relaying", near_port, "drop", Ending::NearFailed(ErrorKind::TimedOut));
}

#[test]
fn far_timed_out_while_relaying() {
    cut_while_relaying("far_timed_out_while_relaying", far_port, "drop", Ending::FarFailed(ErrorKind::TimedOut));
}

#[test]
fn far_unreachable_while_relaying() {
    cut_while_relaying("far_unreachable_while_relaying", far_port, UNREACHABLE, Ending::FarFailed(ErrorKind::HostUnreachable));
}

/// Silence alone does not end a connection.
#[test]
fn near_idle_while_relaying() {
    let bench = ForwardBench::new(Some(Bytes(1 << 20)));
    let (mut client, mut server) = bench.connect();
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(ErrorKind::WouldBlock));
    bench.wait_for_flow(|flow| flow.near.state == ESTABLISHED && flow.far.state == ESTABLISHED);
    client.write_all(b"!").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

// ---- Settling

/// A connection in `Settling`: both FINs were passed on, but one end has not read, so that bytes
/// are unacknowledged.
struct Settling {
    bench: ForwardBench,
    /// The end that does not read.
    unread: TcpStream,
    /// The end that has finished and has read end of file.
    finished: TcpStream,
}

/// Bytes sent to the end that does not read.
const UNREAD: usize = 500_000;

impl Settling {
    fn new(near_is_unread: bool) -> Self {
        // The send queue holds the bytes that the end does not take.
        let roomy = LegProfile { send_buffer: Some(Bytes(2 << 20)), ..LegProfile::default() };
        let policy = Policy { near: roomy.clone(), far: roomy, ..Policy::default() };
        let bench = ForwardBench::before(listener(), ProxyConfig { buffer: Buffer::Unlimited, policy, ..ProxyConfig::default() });
        let (client, server) = bench.connect();
        let (unread, finished) = if near_is_unread { (client, server) } else { (server, client) };
        unread.shutdown(Shutdown::Write).unwrap();
        assert!(read_out(&finished).unwrap().is_empty());
        (&finished).write_all(&payload(UNREAD)).unwrap();
        finished.shutdown(Shutdown::Write).unwrap();
        bench.wait_for_flow(|flow| {
            let (unread, finished) = if near_is_unread { (flow.near, flow.far) } else { (flow.far, flow.near) };
            unread.state == LAST_ACK && finished.state == CLOSED
        });
        assert!(!bench.has_ended());
        Settling { bench, unread, finished }
    }

    /// The ending after the end that does not read does `act`. The other end has ended cleanly and
    /// gets no error afterwards.
    fn ending_after(self, act: impl FnOnce(&ForwardBench, TcpStream)) -> Ending {
        let Settling { bench, unread, mut finished } = self;
        act(&bench, unread);
        let ending = bench.ending();
        assert!(bench.proxy.flows().is_empty());
        assert!(finished.take_error().unwrap().is_none());
        assert_eq!(kind(finished.read(&mut [0])), Ok(0));
        ending
    }
}

#[test]
fn both_acknowledged_while_settling() {
    for near_is_unread in [true, false] {
        let ending = Settling::new(near_is_unread).ending_after(|_, unread| assert!(read_out(&unread).unwrap() == payload(UNREAD)));
        assert_eq!(ending, Ending::Finished);
    }
}

#[test]
fn near_rst_while_settling() {
    let ending = Settling::new(true).ending_after(|_, unread| abort(unread));
    assert!(matches!(ending, Ending::NearFailed(_)), "{ending}");
}

#[test]
fn far_rst_while_settling() {
    let ending = Settling::new(false).ending_after(|_, unread| abort(unread));
    assert!(matches!(ending, Ending::FarFailed(_)), "{ending}");
}

/// In a namespace, the leg whose end does not read is cut. That end stays open.
fn cut_while_settling(test: &str, near: bool, verdict: &str, expected: Ending) {
    on_own_host(test, || {
        let mut kept = None;
        let ending = Settling::new(near).ending_after(|bench, unread| {
            cut(if near { near_port(bench) } else { far_port(bench) }, verdict);
            kept = Some(unread);
        });
        assert_eq!(ending, expected);
    });
}

#[test]
fn near_silent_while_settling() {
    cut_while_settling("near_silent_while_settling", true, "drop", Ending::NearFailed(ErrorKind::TimedOut));
}

#[test]
fn far_timed_out_while_settling() {
    cut_while_settling("far_timed_out_while_settling", false, "drop", Ending::FarFailed(ErrorKind::TimedOut));
}

#[test]
fn far_unreachable_while_settling() {
    cut_while_settling("far_unreachable_while_settling", false, UNREACHABLE, Ending::FarFailed(ErrorKind::HostUnreachable));
}

// ---- In every state

#[test]
fn refused_connections_do_not_disturb_others() {
    let (server, absent) = (listener(), free_port());
    let (at, refused) = (free_port(), free_port());
    let listen = vec![ListenerConfig::forward(at, server.local_addr().unwrap()), ListenerConfig::forward(refused, absent)];
    let (report, ended) = mpsc::channel();
    let proxy = Proxy::start(ProxyConfig { listen, ..ProxyConfig::default() }, move |record| drop(report.send(record))).unwrap();
    let client = TcpStream::connect(at).unwrap();
    let accepted = server.accept().unwrap().0;
    for end in [&client, &accepted] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let bytes = payload(20_000_000);
    let sending = thread::spawn({
        let (bytes, mut client) = (bytes.clone(), client.try_clone().unwrap());
        move || {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        }
    });
    let (mut received, mut part) = (Vec::new(), vec![0; 1_000_000]);
    for _ in 0..12 {
        (&accepted).read_exact(&mut part).unwrap();
        received.extend_from_slice(&part);
        let hopeless = TcpStream::connect(refused).unwrap();
        hopeless.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(is_reset(read_out(&hopeless)));
        assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::FarNotReached(ErrorKind::ConnectionRefused));
    }
    assert_eq!(proxy.flows().len(), 1);
    received.extend(read_out(&accepted).unwrap());
    sending.join().unwrap();
    assert!(received == bytes);
    drop(accepted);
    assert!(read_out(&client).unwrap().is_empty());
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::Finished);
}

#[test]
fn a_byte_is_relayed_quickly() {
    for buffer in [Some(Bytes(6000)), Some(Bytes(1 << 20)), None] {
        let bench = ForwardBench::new(buffer);
        let (mut client, mut server) = bench.connect();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let mut times: Vec<Duration> = (0..200)
            .map(|_| {
                let begun = Instant::now();
                client.write_all(b"?").unwrap();
                server.read_exact(&mut [0]).unwrap();
                server.write_all(b"!").unwrap();
                client.read_exact(&mut [0]).unwrap();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        let median = times[times.len() / 2];
        eprintln!("round trip with B = {buffer:?}: {median:?}");
        assert!(median < Duration::from_millis(20), "{buffer:?}: {median:?}");
    }
}

/// The worker thread of this process that holds the listener at `at`. Workers have descriptor
/// tables of their own.
fn worker_of(at: SocketAddr) -> PathBuf {
    let SocketAddr::V4(v4) = at else { unreachable!("tests listen on IPv4") };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    const LISTENS: &str = "0A";
    let inode = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words[1] == local && words[3] == LISTENS)
        .map(|words| format!("socket:[{}]", words[9]))
        .expect("the proxy listens");
    let holds = |task: &PathBuf| {
        // Other threads of a proxy, such as that of its log, have the main thread's descriptors.
        let number = |name: &str| name.trim_end().strip_prefix("tandem-")?.parse::<usize>().ok();
        let is_worker = fs::read_to_string(task.join("comm")).is_ok_and(|name| number(&name).is_some());
        let open = fs::read_dir(task.join("fd")).into_iter().flatten().flatten();
        is_worker && open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target.as_os_str() == inode.as_str())
    };
    // A worker of another test holds it for a moment, too, until its descriptors are its own.
    let begun = Instant::now();
    loop {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
        let mut holders: Vec<PathBuf> = tasks.filter(holds).collect();
        if let (Some(holder), true) = (holders.pop(), holders.is_empty()) {
            return holder;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "one worker holds the listener");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Processor time that a thread has used.
fn processor_time(task: &Path) -> Duration {
    let stat = fs::read_to_string(task.join("stat")).unwrap();
    // After the name, which ends with a parenthesis: state, ten numbers, then user and system time
    // in ticks.
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[test]
fn urgent_data_causes_no_busy_loop() {
    for buffer in [Some(Bytes(30_000)), Some(Bytes(1 << 20)), None] {
        let bench = ForwardBench::new(buffer);
        let worker = worker_of(bench.at);
        let rest = |what: &str| {
            // Let running transfers end, then measure for a second.
            thread::sleep(Duration::from_millis(200));
            let before = processor_time(&worker);
            thread::sleep(Duration::from_secs(1));
            let used = processor_time(&worker) - before;
            eprintln!("a second after urgent data with B = {buffer:?}, {what}: {used:?} of a core");
            assert!(used < Duration::from_millis(50), "{buffer:?}, {what}: {used:?} in a second");
        };
        // A byte alone, then one at the end of a stream, both ways.
        let (mut client, mut server) = bench.connect();
        for length in [0, 1_000_000] {
            for client_sends in [true, false] {
                let (from, to) = if client_sends { (&mut client, &mut server) } else { (&mut server, &mut client) };
                let sent = [payload(length), b"!".to_vec()].concat();
                let mut received = vec![0; sent.len()];
                thread::scope(|scope| {
                    scope.spawn(|| {
                        from.write_all(&sent[..length]).unwrap();
                        SockRef::from(&*from).send_out_of_band(b"!").unwrap();
                    });
                    to.read_exact(&mut received).unwrap();
                });
                assert!(received == sent);
            }
            rest("read");
        }
        // It is not read.
        fill(&client, 64 << 20);
        while SockRef::from(&client).send_out_of_band(b"!").is_err() {
            let _ = server.read(&mut vec![0; 1 << 20]).unwrap();
        }
        rest("unread");
        // A FIN follows it.
        client.shutdown(Shutdown::Write).unwrap();
        rest("unread, after a FIN");
        drop((client, server));
        bench.ending();
        rest("closed");
    }
}

/// When a reader stops.
#[derive(Debug, Clone, Copy)]
enum Stop {
    FromTheStart,
    /// After a second of reading as fast as possible, so that buffers and windows have grown.
    AtFullSpeed,
}

/// What the proxy holds while a sender writes for two seconds after the reader has stopped, bytes.
struct Held {
    most: u64,
    last: u64,
    /// Packets that the proxy received out of order. Linux 6.16 and later enlarges a receive buffer
    /// for them, beyond the bound (docs/limitations.md).
    out_of_order: u32,
}

fn held(buffer: u64, stop: Stop, upwards: bool) -> Held {
    let bench = ForwardBench::new(Some(Bytes(buffer)));
    let (client, server) = bench.connect();
    let (sender, reader) = if upwards { (client, server) } else { (server, client) };
    let held = || bench.proxy.flows().iter().map(|flow| if upwards { flow.up.held().0 } else { flow.down.held().0 }).max().unwrap_or(0);
    sender.set_nonblocking(true).unwrap();
    reader.set_nonblocking(true).unwrap();
    let (begun, bytes, mut room) = (Instant::now(), payload(65_536), vec![0; 1 << 20]);
    let (reads_for, mut most) = (Duration::from_secs(if matches!(stop, Stop::AtFullSpeed) { 1 } else { 0 }), 0);
    let mut looked = begun;
    while begun.elapsed() < reads_for + Duration::from_secs(2) {
        if begun.elapsed() < reads_for {
            let _ = (&reader).read(&mut room);
        }
        if (&sender).write(&bytes).is_err() || looked.elapsed() > Duration::from_millis(5) {
            looked = Instant::now();
            most = most.max(held());
        }
    }
    let flow = bench.proxy.flows().pop().expect("the connection is open");
    let source = if upwards { flow.near } else { flow.far };
    Held { most, last: held(), out_of_order: source.rcv_ooopack }
}

#[test]
fn backpressure_keeps_held_bytes_within_the_bound() {
    const SEGMENT: u64 = 65_536;
    for (buffer, slack) in [(64 << 10, 2 * SEGMENT), (256 << 10, SEGMENT), (1 << 20, SEGMENT), (4 << 20, SEGMENT)] {
        for stop in [Stop::FromTheStart, Stop::AtFullSpeed] {
            for upwards in [true, false] {
                let bound = buffer + slack;
                let within = |held: &Held| held.most <= bound || held.out_of_order == 0;
                let mut attempts = (0..5).map(|_| held(buffer, stop, upwards));
                let Held { most, last, .. } = attempts.find(within).expect("the bound holds in one of five attempts");
                eprintln!("B = {buffer}, {stop:?}, up {upwards}: at most {most}, at last {last}");
                assert!(most <= bound, "{most} bytes held of {buffer}, {stop:?}");
                assert!(last >= buffer / 4, "only {last} bytes held of {buffer}, {stop:?}");
            }
        }
    }
}

/// The receive window of either leg grows up to what the bound allows: a path with a large BDP
/// needs it.
#[test]
fn the_window_grows_with_the_bound() {
    for (buffer, least) in [(1 << 20, 256 << 10), (4 << 20, 1 << 20)] {
        for upwards in [true, false] {
            let bench = ForwardBench::new(Some(Bytes(buffer)));
            let (client, server) = bench.connect();
            let (mut source, mut sink) = if upwards { (client, server) } else { (server, client) };
            let reader = thread::spawn(move || io::copy(&mut sink, &mut io::sink()).unwrap());
            let (begun, piece, mut sent) = (Instant::now(), vec![0; 1 << 20], 0);
            while intercept::tcp_info(&source).unwrap().snd_wnd < least {
                assert!(
                    begun.elapsed() < PATIENCE,
                    "B = {buffer}, up {upwards}: {} at last",
                    intercept::tcp_info(&source).unwrap().snd_wnd
                );
                source.write_all(&piece).unwrap();
                sent += piece.len() as u64;
            }
            drop(source);
            assert_eq!(reader.join().unwrap(), sent);
        }
    }
}
