//! The budget of memory holds, whatever the ends of connections do: clients that never read, and
//! idle connections that grow at once, of forwarding and SOCKS listeners, with every kind of B and
//! both families. A program of its own, since it fills the machine's memory for TCP.
//!
//! What the sockets of the proxy take is measured by `ss`, in a network namespace.

mod common;

use common::{PATIENCE, on_own_host, wait_until};
use proxy::{BufferSetting, Ending, ListenerConfig, Proxy, ProxyConfig};
use socket2::{Domain, Socket, Type};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

const LIMIT: u64 = 64 << 20;
/// The most that the sockets may take in a test, bytes, also on a busy machine where the worker
/// runs late. Without the budget they take four to six times the limit.
const MOST: u64 = LIMIT + LIMIT / 10;
/// Time without progress after which the proxy may end a flow while memory is short.
const STUCK_FOR: Duration = Duration::from_secs(30);

/// Kernel memory of the proxy's sockets, bytes: those with the port of its listener, and those to
/// the server.
fn memory_of_sockets(at: SocketAddr, server: SocketAddr) -> u64 {
    let ends = |address: &str, port: u16| address.ends_with(&format!(":{port}"));
    memory_where(|local, peer| ends(local, at.port()) || ends(peer, server.port()))
}

/// Kernel memory of the sockets of this network namespace with such a local address and peer,
/// bytes.
fn memory_where(counts: impl Fn(&str, &str) -> bool) -> u64 {
    let output = Command::new("ss").args(["-tmnOH"]).output().expect("ss runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (local, peer) = (words.next()?, words.next()?);
        let fields = line.split_once("skmem:(")?.1.split_once(')')?.0.split(',');
        // r1,rb2,t3,tb4,f5,w6,o7,bl8,d9
        let number = |field: &str| {
            let (name, digits) = field.split_at(field.find(|c: char| c.is_ascii_digit())?);
            // What is reserved may be negative, as an unsigned number.
            let counts = |bytes: &u64| ["r", "f", "w", "bl"].contains(&name) && *bytes < 1 << 31;
            digits.parse::<u64>().ok().filter(counts)
        };
        counts(local, peer).then(|| fields.filter_map(number).sum::<u64>())
    };
    text.lines().filter_map(of_line).sum()
}

/// A server that sends to each connection as much as it takes, once it has received a byte.
struct Flood {
    at: SocketAddr,
    /// Nothing is sent before this is set.
    begins: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(listener: TcpListener, begins: bool) -> Self {
        let at = listener.local_addr().unwrap();
        let (begins, ends, accepted) = (Arc::new(AtomicBool::new(begins)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let shared = (begins.clone(), ends.clone(), accepted.clone());
        listener.set_nonblocking(true).unwrap();
        let work = move || {
            let ((begins, ends, accepted), mut open) = (shared, Vec::<TcpStream>::new());
            let bytes = vec![7u8; 256 * 1024];
            while !ends.load(Relaxed) {
                while let Ok((connection, _)) = listener.accept() {
                    connection.set_nonblocking(true).unwrap();
                    // What waits here counts in the host's TCP memory as well: hundreds of buffers
                    // that the kernel tunes make that short, not the proxy's.
                    socket2::SockRef::from(&connection).set_send_buffer_size(128 << 10).unwrap();
                    open.push(connection);
                    accepted.fetch_add(1, Relaxed);
                }
                let floods = begins.load(Relaxed);
                open.retain_mut(|connection| match if floods { connection.write(&bytes) } else { connection.read(&mut [0; 16]) } {
                    Ok(_) => true,
                    Err(why) => why.kind() == ErrorKind::WouldBlock,
                });
                thread::sleep(Duration::from_millis(2));
            }
        };
        Flood { at, begins, accepted, ends, thread: Some(thread::spawn(work)) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How a client reaches the server.
#[derive(Debug, Clone, Copy)]
enum Listens {
    Forward,
    Socks,
}

/// Connects through the proxy and sends a byte; none: not within `patience`.
fn dial(listens: Listens, at: SocketAddr, to: SocketAddr, patience: Duration) -> Option<TcpStream> {
    request(listens, TcpStream::connect_timeout(&at, patience).ok()?, to, patience)
}

/// The same from this address.
fn dial_from(from: Ipv4Addr, listens: Listens, at: SocketAddr, to: SocketAddr, patience: Duration) -> Option<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect_timeout(&at.into(), patience).ok()?;
    request(listens, socket.into(), to, patience)
}

/// Asks a listener for the server, and sends that a byte.
fn request(listens: Listens, mut client: TcpStream, to: SocketAddr, patience: Duration) -> Option<TcpStream> {
    client.set_read_timeout(Some(patience)).unwrap();
    if let Listens::Socks = listens {
        let mut request = vec![5, 1, 0];
        client.write_all(&request).ok()?;
        client.read_exact(&mut [0; 2]).ok()?;
        request = vec![5, 1, 0];
        match to {
            SocketAddr::V4(to) => [&[1], &to.ip().octets()[..]].concat(),
            SocketAddr::V6(to) => [&[4], &to.ip().octets()[..]].concat(),
        }
        .into_iter()
        .chain(to.port().to_be_bytes())
        .for_each(|byte| request.push(byte));
        client.write_all(&request).ok()?;
        client.read_exact(&mut [0; 10]).ok()?;
    }
    client.write_all(b"?").ok()?;
    Some(client)
}

fn config(buffer: BufferSetting) -> ProxyConfig {
    let mut config = ProxyConfig { memory: Some(Bytes(LIMIT)), ..ProxyConfig::default() };
    config.set_buffer(buffer, None);
    config
}

/// A proxy, the server behind it, and what the proxy's sockets have taken at most, bytes.
struct Bench {
    proxy: Arc<Proxy>,
    listens: Listens,
    at: SocketAddr,
    flood: Flood,
    most: Arc<AtomicU64>,
    ended: Mutex<mpsc::Receiver<Ending>>,
    over: Arc<AtomicBool>,
    meter: Option<thread::JoinHandle<()>>,
}

impl Bench {
    /// `host` is the loopback address of the family.
    fn start(listens: Listens, host: &str, buffer: BufferSetting, floods: bool) -> Self {
        let open = || TcpListener::bind(format!("{host}:0")).unwrap();
        let flood = Flood::start(open(), floods);
        let at = open().local_addr().unwrap();
        let listen = match listens {
            Listens::Forward => ListenerConfig::forward(at, flood.at),
            Listens::Socks => format!("socks5={at},allow=127.0.0.0/8,allow=::1").parse().unwrap(),
        };
        let (report, ended) = mpsc::channel();
        let config = ProxyConfig { listen: vec![listen], ..config(buffer) };
        let proxy = Arc::new(
            Proxy::start(config, move |record| {
                let _ = report.send(record.ending);
            })
            .unwrap(),
        );
        let (most, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (record, is_over, server) = (most.clone(), over.clone(), flood.at);
        let meter = thread::spawn(move || {
            while !is_over.load(Relaxed) {
                record.fetch_max(memory_of_sockets(at, server), Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        Bench { proxy, listens, at, flood, most, ended: Mutex::new(ended), over, meter: Some(meter) }
    }

    fn dial_many(&self, count: usize, patience: Duration) -> Vec<TcpStream> {
        let (listens, at, to) = (self.listens, self.at, self.flood.at);
        let dialled: Vec<_> = (0..count).map(|_| thread::spawn(move || dial(listens, at, to, patience))).collect();
        dialled.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    }

    /// What the proxy's sockets have taken at most so far, in MiB.
    fn most(&self) -> f64 {
        self.most.load(Relaxed) as f64 / f64::from(1 << 20)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        let _ = self.meter.take().map(thread::JoinHandle::join);
    }
}

/// Waits until the memory of the proxy's sockets stays the same.
fn settle(bench: &Bench) {
    let begun = Instant::now();
    let mut last = (Instant::now(), 0);
    while last.0.elapsed() < Duration::from_secs(2) && begun.elapsed() < Duration::from_secs(20) {
        let now = memory_of_sockets(bench.at, bench.flood.at) >> 20;
        if now != last.1 {
            last = (Instant::now(), now);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn clients_that_never_read_stay_within_the_budget_and_make_room_in_the_end() {
    on_own_host("clients_that_never_read_stay_within_the_budget_and_make_room_in_the_end", || {
        let fixed = BufferSetting::Bytes(Bytes(4 << 20));
        let settings = [
            (Listens::Socks, "127.0.0.1", fixed),
            (Listens::Socks, "127.0.0.1", BufferSetting::Auto),
            (Listens::Forward, "[::1]", fixed),
            (Listens::Forward, "127.0.0.1", BufferSetting::Unlimited),
        ];
        for (listens, host, buffer) in settings {
            let bench = Bench::start(listens, host, buffer, true);
            let clients = bench.dial_many(160, Duration::from_secs(3));
            settle(&bench);
            let (most, view) = (bench.most(), bench.proxy.memory());
            eprintln!("{listens:?} {host} {buffer:?}: {} of 160 clients accepted, at most {most:.1} MiB; {view:?}", clients.len());
            assert!(bench.most.load(Relaxed) <= MOST, "{most} MiB, {view:?}");
            assert!(view.level != "free", "{view:?}");
            // An honest client is served once flows that are stuck have ended.
            let begun = Instant::now();
            let mut honest = loop {
                if let Some(client) = dial(listens, bench.at, bench.flood.at, Duration::from_secs(5)) {
                    break client;
                }
                assert!(begun.elapsed() < 2 * PATIENCE, "no room was made: {:?}", bench.proxy.memory());
            };
            honest.set_read_timeout(Some(PATIENCE)).unwrap();
            honest.read_exact(&mut vec![0; 4 << 20]).unwrap();
            let ended: Vec<Ending> = bench.ended.lock().unwrap().try_iter().collect();
            eprintln!("after {:.0} s an honest client has its answer; {} flows have ended", begun.elapsed().as_secs_f64(), ended.len());
            assert!(ended.iter().all(|ending| matches!(ending, Ending::Stuck | Ending::NearFailed(_))), "{ended:?}");
            assert!(bench.most.load(Relaxed) <= MOST, "{} MiB", bench.most());
            drop(clients);
        }
    });
}

/// Clients share the connections that memory has room for: those of an address that has most of
/// them wait, and others are served beside them, before flows end that have been stuck for 30 s.
#[test]
fn a_client_beside_one_that_never_reads_is_served() {
    on_own_host("a_client_beside_one_that_never_reads_is_served", || {
        // As often as clients do by default.
        std::fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "6").unwrap();
        for listens in [Listens::Socks, Listens::Forward] {
            let bench = Bench::start(listens, "127.0.0.1", BufferSetting::Bytes(Bytes(4 << 20)), true);
            let mut clients = Vec::new();
            // Until memory stays short: at first buffers that shrink make room again.
            loop {
                let more = bench.dial_many(40, Duration::from_secs(2));
                if more.is_empty() {
                    break;
                }
                clients.extend(more);
                assert!(clients.len() < 2000, "all have been accepted: {:?}", bench.proxy.memory());
            }
            let begun = Instant::now();
            let dial_from = |last: u8, patience| dial_from([127, 0, 0, last].into(), listens, bench.at, bench.flood.at, patience);
            for last in 2..12 {
                let mut honest = dial_from(last, PATIENCE).unwrap_or_else(|| panic!("127.0.0.{last}: {:?}", bench.proxy.memory()));
                honest.read_exact(&mut vec![0; 64 * 1024]).unwrap();
            }
            let stuck = bench.ended.lock().unwrap().try_iter().filter(|ending| *ending == Ending::Stuck).count();
            let (accepted, took, most) = (clients.len(), begun.elapsed(), bench.most());
            eprintln!(
                "{listens:?}: {accepted} accepted, at most {most:.1} MiB; ten others served in {took:.1?}, {stuck} ended; {:?}",
                bench.proxy.memory()
            );
            assert!(took < STUCK_FOR, "others were served only once {stuck} flows had ended");
            assert!(bench.most.load(Relaxed) <= MOST, "{most} MiB");
        }
    });
}

#[test]
fn idle_flows_that_grow_at_once_stay_within_the_budget() {
    on_own_host("idle_flows_that_grow_at_once_stay_within_the_budget", || {
        for buffer in [BufferSetting::Bytes(Bytes(4 << 20)), BufferSetting::Auto] {
            let bench = Bench::start(Listens::Forward, "127.0.0.1", buffer, false);
            let clients = bench.dial_many(120, PATIENCE);
            wait_until(|| bench.flood.accepted.load(Relaxed) == 120);
            assert_eq!((clients.len(), bench.proxy.memory().level.as_str()), (120, "free"));
            bench.flood.begins.store(true, Relaxed);
            settle(&bench);
            eprintln!("{buffer:?}: at most {:.1} MiB; {:?}", bench.most(), bench.proxy.memory());
            assert!(bench.most.load(Relaxed) <= MOST, "{} MiB", bench.most());
            // Once they read, all of them get on, and at their own B again.
            let readers: Vec<_> = clients
                .into_iter()
                .map(|mut client| thread::spawn(move || client.read_exact(&mut vec![0; 1 << 20]).map(|()| client)))
                .collect();
            readers.into_iter().for_each(|reader| drop(reader.join().unwrap().unwrap()));
            bench.flood.begins.store(false, Relaxed);
            wait_until(|| bench.proxy.memory().level == "free");
        }
    });
}

/// Client, router and server in namespaces of their own, joined by links.
struct Routed {
    names: [String; 3],
}

impl Routed {
    fn new() -> Result<Self, String> {
        let names = ["c", "r", "s"].map(|end| format!("tm{}{end}", std::process::id()));
        let routed = Routed { names };
        let [client, router, server] = &routed.names;
        let commands = [
            format!("ip netns add {client}; ip netns add {router}; ip netns add {server}"),
            format!("ip link add near netns {client} type veth peer name near netns {router}"),
            format!("ip link add far netns {router} type veth peer name far netns {server}"),
            format!("ip -n {client} addr add 10.81.1.2/24 dev near; ip -n {client} link set near up; ip -n {client} link set lo up"),
            format!("ip -n {router} addr add 10.81.1.1/24 dev near; ip -n {router} link set near up; ip -n {router} link set lo up"),
            format!("ip -n {router} addr add 10.81.2.1/24 dev far; ip -n {router} link set far up"),
            format!("ip -n {server} addr add 10.81.2.2/24 dev far; ip -n {server} link set far up; ip -n {server} link set lo up"),
            format!("ip -n {client} route add default via 10.81.1.1; ip -n {server} route add default via 10.81.2.1"),
            format!("ip netns exec {router} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward && nft list tables > /dev/null'"),
        ];
        for command in commands {
            let output = Command::new("sh").args(["-ec", &command]).output().map_err(|why| why.to_string())?;
            if !output.status.success() {
                return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim()));
            }
        }
        Ok(routed)
    }

    /// Runs `work` on a thread in one of the namespaces: 0, the client's; 1, the router's; 2, the
    /// server's.
    fn on<T: Send>(&self, index: usize, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let namespace = std::fs::File::open(format!("/run/netns/{}", self.names[index])).unwrap();
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Transparent connections pass unsplit while memory is short: every client gets its answer.
#[test]
fn transparent_connections_stay_within_the_budget_and_pass_unsplit_beyond_it() {
    let test = "transparent_connections_stay_within_the_budget_and_pass_unsplit_beyond_it";
    let routed = match Routed::new() {
        Ok(routed) => routed,
        Err(reason) => return testing::skipped(test, &reason),
    };
    for idle_first in [false, true] {
        let flood = routed.on(2, || Flood::start(TcpListener::bind("10.81.2.2:0").unwrap(), !idle_first));
        let proxy = routed.on(1, || {
            let listen = vec![ListenerConfig::transparent("0.0.0.0:5444".parse().unwrap())];
            Proxy::start(ProxyConfig { listen, ..config(BufferSetting::Bytes(Bytes(4 << 20))) }, |_| {}).unwrap()
        });
        let (most, over, to) = (AtomicU64::new(0), AtomicBool::new(false), flood.at);
        thread::scope(|scope| {
            scope.spawn(|| {
                routed.on(1, || {
                    while !over.load(Relaxed) {
                        most.fetch_max(memory_where(|_, _| true), Relaxed);
                        thread::sleep(Duration::from_millis(20));
                    }
                });
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let clients: Vec<TcpStream> = routed.on(0, || {
                    let dialled: Vec<_> = (0..160).map(|_| thread::spawn(move || dial(Listens::Forward, to, to, PATIENCE))).collect();
                    dialled.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
                });
                assert_eq!(clients.len(), 160);
                if idle_first {
                    wait_until(|| flood.accepted.load(Relaxed) == 160);
                    flood.begins.store(true, Relaxed);
                }
                wait_until(|| proxy.memory().level != "free");
                thread::sleep(Duration::from_secs(5));
                let view = proxy.memory();
                eprintln!(
                    "idle first: {idle_first}: {} flows split, at most {} MiB; {view:?}",
                    proxy.flows().len(),
                    most.load(Relaxed) >> 20
                );
                assert!(most.load(Relaxed) <= MOST, "{} MiB, {view:?}", most.load(Relaxed) >> 20);
                let mut late = routed.on(0, || dial(Listens::Forward, to, to, PATIENCE)).expect("it is connected");
                late.set_read_timeout(Some(PATIENCE)).unwrap();
                late.read_exact(&mut vec![0; 4 << 20]).unwrap();
            }));
            over.store(true, Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}
