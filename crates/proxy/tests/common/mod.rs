//! What tests of the proxy share: a proxy before a server socket, ends that abort or do not answer,
//! hosts to cut off.
#![allow(dead_code)]

use proxy::{Config, Ending, FlowRecord, FlowStats, Listen, Proxy};
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

/// How long anything may take. It bounds a failure; no test waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// TCP_INFO's numbers of states.
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const SYN_SENT: u8 = 2;
/// Over, or in TIME_WAIT, which the kernel keeps without the socket.
pub(crate) const CLOSED: u8 = 7;
/// The peer's FIN has come.
pub(crate) const CLOSE_WAIT: u8 = 8;
/// Both have sent a FIN, ours is not acknowledged yet.
pub(crate) const LAST_ACK: u8 = 9;

/// A proxy before a server socket, and what it says of flows that ended.
pub(crate) struct Bench {
    pub(crate) proxy: Proxy,
    pub(crate) at: SocketAddr,
    pub(crate) server: TcpListener,
    ended: mpsc::Receiver<FlowRecord>,
}

impl Bench {
    pub(crate) fn new(buffer: Option<Bytes>) -> Self {
        Self::before(listener(), Config { buffer, ..Config::default() })
    }

    /// A proxy as `config` has it, which forwards to `server`.
    pub(crate) fn before(server: TcpListener, config: Config) -> Self {
        let to = server.local_addr().unwrap();
        let (proxy, at, ended) = forward(to, config);
        Bench { proxy, at, server, ended }
    }

    /// The client's end of a new connection.
    pub(crate) fn dial(&self) -> TcpStream {
        let client = TcpStream::connect(self.at).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// A connection through the proxy: the client's end and the server's.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        let client = self.dial();
        let server = self.server.accept().unwrap().0;
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    }

    pub(crate) fn ending(&self) -> Ending {
        self.ended.recv_timeout(PATIENCE).expect("the flow ends").ending
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.try_recv().is_ok()
    }

    /// Waits until a flow is as `condition` wants it.
    pub(crate) fn wait_for_flow(&self, condition: impl Fn(&FlowStats) -> bool) {
        wait_until(|| self.proxy.flows().iter().any(&condition));
    }
}

/// A proxy that forwards to `to`: itself, its address, what it says of flows that ended.
pub(crate) fn forward(to: SocketAddr, config: Config) -> (Proxy, SocketAddr, mpsc::Receiver<FlowRecord>) {
    let at = free_port();
    let (tell, ended) = mpsc::channel();
    let config = Config { listen: vec![Listen::forward(at, to)], ..config };
    (Proxy::start(config, move |record| drop(tell.send(record))).unwrap(), at, ended)
}

pub(crate) fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// An address nobody listens on, and nobody else will: each has a loopback address of its own.
pub(crate) fn free_port() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let own = Ipv4Addr::new(127, 1, NUMBER.fetch_add(1, Relaxed), 1);
    TcpListener::bind((own, 0)).unwrap().local_addr().unwrap()
}

/// A listener whose backlog is full: it answers no SYN until somebody accepts. And who fills it.
pub(crate) fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let to = listener.local_addr().unwrap();
    let fillers = (0..4).filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok()).collect();
    (listener, fillers)
}

/// The first connection that `listener` accepts after those who filled it.
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

pub(crate) fn payload(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) fn kind<T>(result: io::Result<T>) -> Result<T, io::ErrorKind> {
    result.map_err(|why| why.kind())
}

/// What an end reads until its end, or how that failed.
pub(crate) fn read_out(mut end: &TcpStream) -> Result<Vec<u8>, io::ErrorKind> {
    let mut bytes = Vec::new();
    kind(end.read_to_end(&mut bytes)).map(|_| bytes)
}

/// Writes until no more is taken for a moment; returns how much that was.
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

/// Writes until that fails, as it does once a reset has come.
pub(crate) fn write_until_error(mut end: &TcpStream) -> io::ErrorKind {
    let begun = Instant::now();
    loop {
        if let Err(why) = end.write(b"?") {
            return why.kind();
        }
        assert!(begun.elapsed() < PATIENCE, "no write ever failed");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never came to pass");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes closing send a reset.
pub(crate) fn abort(end: TcpStream) {
    SockRef::from(&end).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Runs `work` on a thread in a new network namespace, whose loopback interface is up and whose TCP
/// gives up on a peer that went silent after about a second. Where that can't be done the test is
/// skipped.
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

/// A namespace that only its descriptor holds.
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

/// What becomes of packets to and from `port` on this host from now on: `drop`, or a rejection of
/// those to it.
pub(crate) fn cut(port: u16, fate: &str) {
    for arguments in [
        "add table ip cut".to_string(),
        "add chain ip cut in { type filter hook input priority 0; }".into(),
        format!("add rule ip cut in tcp dport {port} {fate}"),
        format!("add rule ip cut in tcp sport {port} drop"),
    ] {
        run("nft", &arguments);
    }
}

pub(crate) const UNREACHABLE: &str = "reject with icmp type host-unreachable";

/// Runs a program, in the namespace of this thread.
pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
