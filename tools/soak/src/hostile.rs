//! Hostile clients: they never read, reset connections, send urgent data, send garbage to the
//! SOCKS5 listener, and flood the proxy with forged packets. All traffic passes a stateful firewall
//! and NAT on the proxy's host.

use crate::{
    addresses::{ABORTING_CLIENT, HONEST, HOSTILE, PORTS, SERVERS, SOCKS, TARGETS},
    shared::{STEP, SoakState},
};
use anyhow::{Context as _, Result};
use etherparse::PacketBuilder;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{SplitMix64, ThreeHosts};

/// Source of forged SYNs. The client's host drops the answers.
const FORGED: &str = "10.66.0.0/16";
/// Packets per second in a flood, and its duration.
const RATE: u32 = 10_000;
const FLOOD: Duration = Duration::from_secs(4);

/// What a hostile client does again and again, and how many clients do so.
#[derive(Debug, Clone, Copy)]
enum Attack {
    /// Requests much data and reads nothing.
    Slow,
    /// Sends little or nothing after the handshake, then resets.
    Reset,
    /// Mixes urgent with normal data.
    Urgent,
    /// Sends invalid SOCKS5 requests.
    Garbage,
    /// Sends forged packets.
    Flood,
}

const ATTACKS: [(Attack, usize); 5] =
    [(Attack::Slow, 24), (Attack::Reset, 2), (Attack::Urgent, 2), (Attack::Garbage, 6), (Attack::Flood, 1)];

/// How often each attack was made.
#[derive(Debug, Default)]
pub(crate) struct AttackCounts {
    slow: AtomicU64,
    resets: AtomicU64,
    urgent: AtomicU64,
    garbage: AtomicU64,
    forged: AtomicU64,
    refused: AtomicU64,
}

impl fmt::Display for AttackCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [slow, resets, urgent, garbage, forged, refused] =
            [&self.slow, &self.resets, &self.urgent, &self.garbage, &self.forged, &self.refused].map(|count| count.load(Relaxed));
        write!(f, "never read {slow} reset {resets} urgent {urgent} garbage {garbage} forged {forged} not connected {refused}")
    }
}

/// Adds the addresses of hostile clients, and a firewall with NAT on the middle host. Connections
/// that abort are not masqueraded: servers identify them by their address.
pub(crate) fn prepare(network: &ThreeHosts) -> Result<()> {
    network.client.ip(&[format!("addr add {HOSTILE}/24 dev near"), format!("route add blackhole {FORGED}")])?;
    network.middle.ip(&[format!("route add {FORGED} via {HONEST}")])?;
    let rules = format!(
        "table inet home {{
             chain input {{
                 type filter hook input priority filter; policy drop;
                 ct state invalid drop
                 ct state established,related accept
                 iifname {{ lo, near }} accept
                 ip protocol icmp accept
             }}
             chain forward {{
                 type filter hook forward priority filter; policy drop;
                 ct state invalid drop
                 ct state established,related accept
                 iifname near accept
             }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat; policy accept;
                 oifname far ip saddr != {ABORTING_CLIENT} masquerade
             }}
         }}\n"
    );
    testbed::load_rules(&network.middle, &rules)?;
    // Each leg of an ended connection keeps an entry that conntrack does not evict. At this rate
    // such entries would fill the default table, and every new connection would fail, split or not.
    Ok(network.middle.sysctl(&[("netfilter/nf_conntrack_tcp_timeout_time_wait", "10".into())])?)
}

/// Starts the servers for hostile clients. They send zeros without end and discard what they
/// receive.
pub(crate) fn serve(state: &SoakState) -> Result<()> {
    for port in TARGETS {
        let listener = state.server.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?.with_context(|| format!("port {port}"))?;
        let inner = state.clone();
        state.server.spawn("target", move || {
            for stream in listener.incoming().flatten() {
                let state = inner.clone();
                // If no thread can be started, the client sees a reset. The ledger does not track
                // it.
                let _ = thread::Builder::new().stack_size(128 * 1024).spawn(move || serve_connection(&state, &stream));
            }
        })?;
    }
    Ok(())
}

fn serve_connection(state: &SoakState, mut stream: &TcpStream) {
    let zeros = [0; 16 * 1024];
    let _ = (stream.set_write_timeout(Some(STEP)), stream.set_read_timeout(Some(Duration::from_millis(1))));
    let goes_on = |why: io::ErrorKind| matches!(why, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    let mut received = [0; 16 * 1024];
    while !state.is_over() {
        let read = stream.read(&mut received).map_err(|why| why.kind());
        let written = stream.write(&zeros).map_err(|why| why.kind());
        if read == Ok(0) || read.is_err_and(|why| !goes_on(why)) || written.is_err_and(|why| !goes_on(why)) {
            return;
        }
    }
}

/// Starts the hostile clients, which run until the end of the soak.
pub(crate) fn start(state: &SoakState, random: &mut SplitMix64, counts: &Arc<AttackCounts>) -> Result<Vec<thread::JoinHandle<()>>> {
    let mut clients = Vec::new();
    for (attack, count) in ATTACKS {
        for _ in 0..count {
            let (inner, mut random, counts) = (state.clone(), SplitMix64::new(random.next_u64()), counts.clone());
            let work = move || {
                while !inner.is_over() {
                    if attack.act(&inner, &mut random, &counts).is_err() {
                        counts.refused.fetch_add(1, Relaxed);
                        inner.rest(STEP);
                    }
                }
            };
            clients.push(state.client.spawn("hostile", work)?);
        }
    }
    Ok(clients)
}

impl Attack {
    fn act(self, state: &SoakState, random: &mut SplitMix64, counts: &AttackCounts) -> io::Result<()> {
        let (count, done) = match self {
            Attack::Slow => (&counts.slow, never_read(state, random)),
            Attack::Reset => (&counts.resets, reset(state, random)),
            Attack::Urgent => (&counts.urgent, send_urgent(state, random)),
            Attack::Garbage => (&counts.garbage, send_garbage(state, random)),
            Attack::Flood => {
                let sent = flood(state, random)?;
                counts.forged.fetch_add(sent, Relaxed);
                state.rest(Duration::from_secs(random.uniform(5, 20)));
                return Ok(());
            }
        };
        done?;
        count.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    socket.bind(&SockAddr::from(SocketAddrV4::new(HOSTILE, 0)))?;
    socket.connect_timeout(&SockAddr::from(to), Duration::from_secs(20))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    Ok(stream)
}

fn target(random: &mut SplitMix64) -> SocketAddr {
    SocketAddr::new(SERVERS[0].into(), random.uniform(TARGETS.start.into(), u64::from(TARGETS.end) - 1) as u16)
}

/// Closes, by a reset in half of the cases.
fn end(stream: TcpStream, random: &mut SplitMix64) -> io::Result<()> {
    if random.chance(0.5) {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    drop(stream);
    Ok(())
}

/// Keeps the window at zero for a long time. Reading a byte now and then opens it slightly.
fn never_read(state: &SoakState, random: &mut SplitMix64) -> io::Result<()> {
    let mut stream = connect(target(random))?;
    for _ in 0..random.uniform(1, 8) {
        state.rest(Duration::from_millis(random.log_uniform(500, 20_000)));
        if random.chance(0.3) {
            let _ = stream.read(&mut [0]);
        }
    }
    end(stream, random)
}

fn reset(state: &SoakState, random: &mut SplitMix64) -> io::Result<()> {
    let mut stream = connect(target(random))?;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    if random.chance(0.5) {
        let _ = stream.write(&vec![1; random.log_uniform(1, 100_000) as usize]);
    }
    drop(stream);
    state.rest(Duration::from_millis(random.uniform(10, 200)));
    Ok(())
}

fn send_urgent(state: &SoakState, random: &mut SplitMix64) -> io::Result<()> {
    let mut stream = connect(target(random))?;
    for _ in 0..random.uniform(1, 50) {
        let _ = rustix::net::send(&stream, &[7], rustix::net::SendFlags::OOB | rustix::net::SendFlags::NOSIGNAL);
        let _ = (stream.write(&[8; 100]), stream.read(&mut [0; 4096]));
        state.rest(Duration::from_millis(random.uniform(1, 20)));
    }
    let _ = stream.shutdown(Shutdown::Write);
    end(stream, random)
}

/// Sends random bytes, a truncated greeting, or a greeting byte by byte.
fn send_garbage(state: &SoakState, random: &mut SplitMix64) -> io::Result<()> {
    let mut stream = connect(SOCKS.parse().map_err(io::Error::other)?)?;
    let mut bytes: Vec<u8> = (0..random.log_uniform(1, 600)).map(|_| random.next_u64() as u8).collect();
    if random.chance(0.5) {
        let greeting = [5, 1, 0, 5, 1, 0, 3, 9];
        let kept = greeting.len().min(bytes.len());
        bytes[..kept].copy_from_slice(&greeting[..kept]);
    }
    let piece = if random.chance(0.3) { 1 } else { bytes.len() };
    for piece in bytes.chunks(piece) {
        if stream.write_all(piece).is_err() || state.is_over() {
            break;
        }
        state.rest(Duration::from_millis(random.uniform(0, 20)));
    }
    if random.chance(0.5) {
        let _ = stream.read(&mut [0; 64]);
    }
    end(stream, random)
}

/// Sends forged packets of one kind for a while. Returns how many.
fn flood(state: &SoakState, random: &mut SplitMix64) -> io::Result<u64> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let (kind, begun, mut sent) = (random.uniform(0, 3), Instant::now(), 0u64);
    while begun.elapsed() < FLOOD && !state.is_over() {
        while (sent as f64) < begun.elapsed().as_secs_f64() * f64::from(RATE) {
            let server = SocketAddrV4::new(*random.choose(&SERVERS), random.uniform(PORTS.start.into(), u64::from(PORTS.end) - 1) as u16);
            let (port, sequence) = (random.uniform(2000, 65_535) as u16, random.next_u64() as u32);
            let from = if kind == 0 { Ipv4Addr::new(10, 66, random.next_u64() as u8, random.next_u64() as u8) } else { HONEST };
            let packet = PacketBuilder::ipv4(from.octets(), server.ip().octets(), 64).tcp(port, server.port(), sequence, 65_535);
            let packet = match kind {
                0 => packet.syn(),
                // From an honest client's address, with guessed sequence numbers.
                1 => packet.rst(),
                2 => packet.fin().ack(random.next_u64() as u32),
                _ => packet.ack(random.next_u64() as u32),
            };
            let mut bytes = Vec::with_capacity(packet.size(0));
            packet.write(&mut bytes, &[]).map_err(io::Error::other)?;
            match socket.send_to(&bytes, &SockAddr::from(server)) {
                Err(why) if why.raw_os_error() != Some(rustix::io::Errno::NOBUFS.raw_os_error()) => return Err(why),
                _ => sent += 1,
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(sent)
}
