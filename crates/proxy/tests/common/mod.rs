//! Shared parts of the proxy's tests: a proxy in front of a server socket, endpoints that abort or
//! do not answer, hosts in namespaces of their own.
#![allow(dead_code)]

use proxy::{Ending, FlowRecord, FlowStats, ListenerConfig, Proxy, ProxyConfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicU8, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

/// Time limit of every wait. Only failing tests reach it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers of states in TCP_INFO.
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const SYN_SENT: u8 = 2;
/// Closed, or in TIME_WAIT, which the kernel keeps without the socket.
pub(crate) const CLOSED: u8 = 7;
/// The peer's FIN has arrived.
pub(crate) const CLOSE_WAIT: u8 = 8;
/// Both ends have sent a FIN; the own one is not acknowledged yet.
pub(crate) const LAST_ACK: u8 = 9;

/// A forwarding proxy in front of a server socket, and its records of flows that ended.
pub(crate) struct ForwardBench {
    pub(crate) proxy: Proxy,
    pub(crate) at: SocketAddr,
    pub(crate) server: TcpListener,
    ended: mpsc::Receiver<FlowRecord>,
}

impl ForwardBench {
    pub(crate) fn new(buffer: Option<Bytes>) -> Self {
        Self::before(listener(), ProxyConfig { buffer: buffer.into(), ..ProxyConfig::default() })
    }

    /// A proxy with this configuration that forwards to `server`.
    pub(crate) fn before(server: TcpListener, config: ProxyConfig) -> Self {
        let to = server.local_addr().unwrap();
        let (proxy, at, ended) = forward(to, config);
        ForwardBench { proxy, at, server, ended }
    }

    /// Opens a connection; returns the client's end.
    pub(crate) fn dial(&self) -> TcpStream {
        let client = TcpStream::connect(self.at).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// Opens a connection through the proxy; returns the client's end and the server's.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        let client = self.dial();
        let server = self.server.accept().unwrap().0;
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    }

    /// Waits until a flow ends; returns how it ended.
    pub(crate) fn ending(&self) -> Ending {
        self.ended.recv_timeout(PATIENCE).expect("the flow ends").ending
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.try_recv().is_ok()
    }

    /// Waits until a flow fulfils `condition`.
    pub(crate) fn wait_for_flow(&self, condition: impl Fn(&FlowStats) -> bool) {
        wait_until(|| self.proxy.flows().iter().any(&condition));
    }
}

/// A proxy that forwards to `to`: the proxy, its address, and its records of flows that ended.
pub(crate) fn forward(to: SocketAddr, config: ProxyConfig) -> (Proxy, SocketAddr, mpsc::Receiver<FlowRecord>) {
    let at = free_port();
    let (report, ended) = mpsc::channel();
    let config = ProxyConfig { listen: vec![ListenerConfig::forward(at, to)], ..config };
    (Proxy::start(config, move |record| drop(report.send(record))).unwrap(), at, ended)
}

pub(crate) fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// An address without a listener. Each call returns another loopback address, so that no other test
/// uses it.
pub(crate) fn free_port() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let own = Ipv4Addr::new(127, 1, NUMBER.fetch_add(1, Relaxed), 1);
    TcpListener::bind((own, 0)).unwrap().local_addr().unwrap()
}

/// A listener whose backlog is full, so that it answers no SYN before a connection is accepted; and
/// the connections that fill it.
pub(crate) fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let to = listener.local_addr().unwrap();
    let fillers = (0..4).filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok()).collect();
    (listener, fillers)
}

/// Accepts past the connections that filled the backlog; returns the first other one.
pub(crate) fn accept_past(fillers: &[TcpStream], listener: &TcpListener) -> TcpStream {
    let known: Vec<SocketAddr> = fillers.iter().map(|filler| filler.local_addr().unwrap()).collect();
    loop {
        let (accepted, from) = listener.accept().unwrap();
        if !known.contains(&from) {
            accepted.set_read_timeout(Some(PATIENCE)).unwrap();
            return accepted;
        }
    }
}

/// Reproducible bytes.
pub(crate) fn payload(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) fn kind<T>(result: io::Result<T>) -> Result<T, io::ErrorKind> {
    result.map_err(|why| why.kind())
}

/// Reads until end of file; returns the bytes or the kind of the error.
pub(crate) fn read_out(mut end: &TcpStream) -> Result<Vec<u8>, io::ErrorKind> {
    let mut bytes = Vec::new();
    kind(end.read_to_end(&mut bytes)).map(|_| bytes)
}

/// Writes until the socket blocks for 200 ms, at most `most` bytes; returns how many.
pub(crate) fn fill(mut end: &TcpStream, most: usize) -> usize {
    let (bytes, mut written) = (payload(65_536), 0);
    end.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while written < most {
        match end.write(&bytes[..bytes.len().min(most - written)]) {
            Ok(count) => written += count,
            Err(_) => break,
        }
    }
    written
}

/// Writes until that fails, as it does after a reset has arrived.
pub(crate) fn write_until_error(mut end: &TcpStream) -> io::ErrorKind {
    let begun = Instant::now();
    loop {
        if let Err(why) = end.write(b"?") {
            return why.kind();
        }
        assert!(begun.elapsed() < PATIENCE, "no write failed in time");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Polls until `condition` holds.
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "the condition did not hold in time");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Closes with a reset.
pub(crate) fn abort(end: TcpStream) {
    SockRef::from(&end).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Runs `work` on a thread in a new network namespace. Its loopback interface is up, and its TCP
/// times out after about a second without an acknowledgement. Skips the test where namespaces
/// cannot be made.
pub(crate) fn on_own_host(test: &str, work: impl FnOnce() + Send) {
    match own_host() {
        Ok(namespace) => thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work();
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }),
        Err(reason) => testing::skipped(test, &reason),
    }
}

/// Makes a network namespace, which lives as long as the returned descriptor.
fn own_host() -> Result<fs::File, String> {
    let set_up = "ip link set lo up && echo 2 > /proc/sys/net/ipv4/tcp_retries2 && echo 1 > /proc/sys/net/ipv4/tcp_syn_retries \
                  && nft list tables > /dev/null && echo ready && exec cat";
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-c", set_up])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| format!("cannot run unshare: {why}"))?;
    let mut ready = [0; 6];
    let started = child.stdout.take().is_some_and(|mut said| said.read_exact(&mut ready).is_ok());
    let namespace = fs::File::open(format!("/proc/{}/ns/net", child.id()));
    let output = child.wait_with_output().map_err(|why| why.to_string())?;
    if !started {
        return Err(format!("cannot make a network namespace: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    namespace.map_err(|why| format!("cannot open a network namespace: {why}"))
}

/// Applies `verdict` (`drop` or a rejection) to packets to `port` on this host from now on, and
/// drops packets from it.
pub(crate) fn cut(port: u16, verdict: &str) {
    for arguments in [
        "add table ip cut".to_string(),
        "add chain ip cut in { type filter hook input priority 0; }".into(),
        format!("add rule ip cut in tcp dport {port} {verdict}"),
        format!("add rule ip cut in tcp sport {port} drop"),
    ] {
        run("nft", &arguments);
    }
}

pub(crate) const UNREACHABLE: &str = "reject with icmp type host-unreachable";

/// Runs a program in the namespace of this thread.
pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
