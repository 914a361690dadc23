//! Hostile clients beside the honest ones: they never read, reset connections, send urgent data, send
//! garbage to a SOCKS5 listener, and flood the proxy with forged packets. All traffic passes a
//! stateful firewall and NAT on the proxy's host.

use crate::endpoints::{DOOMED, PORTS, SERVERS, World};
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
use testbed::{Dice, Network};

/// The address of hostile clients that make connections. An honest client never has it.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 66);
/// The address of honest clients, for packets that are forged in their name.
const HONEST: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
/// The ports of the server that hostile clients use: what is said there is in nobody's books.
const TARGETS: std::ops::Range<u16> = 9300..9304;
/// Where the proxy speaks SOCKS5.
pub(crate) const SOCKS: &str = "10.79.1.2:1080";
/// Forged SYNs come from here; the client's host drops what is answered to them.
const FORGED: &str = "10.66.0.0/16";
/// Packets a second, and for how long, in a flood of one kind.
const RATE: u32 = 10_000;
const FLOOD: Duration = Duration::from_secs(4);
const STEP: Duration = Duration::from_millis(500);

/// What hostile clients do, and how many of them do it.
#[derive(Debug, Clone, Copy)]
enum Habit {
    /// Has much sent to it and reads nothing.
    Slow,
    /// Says nothing, or little, after its handshake, and resets.
    Reset,
    /// Mixes urgent data with others.
    Urgent,
    /// Says what is no SOCKS5.
    Garbage,
    /// Sends forged packets.
    Flood,
}

const HABITS: [(Habit, usize); 5] = [(Habit::Slow, 24), (Habit::Reset, 2), (Habit::Urgent, 2), (Habit::Garbage, 6), (Habit::Flood, 1)];

/// How often each was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    slow: AtomicU64,
    resets: AtomicU64,
    urgent: AtomicU64,
    garbage: AtomicU64,
    forged: AtomicU64,
    refused: AtomicU64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [slow, resets, urgent, garbage, forged, refused] =
            [&self.slow, &self.resets, &self.urgent, &self.garbage, &self.forged, &self.refused].map(|count| count.load(Relaxed));
        write!(f, "never read {slow} reset {resets} urgent {urgent} garbage {garbage} forged {forged} not connected {refused}")
    }
}

/// Whether a flow is one of a hostile client.
pub(crate) fn is_hostile(client: SocketAddr) -> bool {
    client.ip() == ADDRESS
}

/// Gives hosts the addresses, and the middle its firewall. Doomed connections are not masqueraded:
/// the servers know them by their address.
pub(crate) fn prepare(network: &Network) -> Result<()> {
    network.client.ip(&[format!("addr add {ADDRESS}/24 dev near"), format!("route add blackhole {FORGED}")])?;
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
                 oifname far ip saddr != {DOOMED} masquerade
             }}
         }}\n"
    );
    testbed::pipe(network.middle.command("nft").args(["-f", "-"]), &rules)?;
    // Each leg of an ended connection keeps an entry that conntrack does not evict. At this rate they
    // would fill the default table, and every new connection would fail, split or not.
    Ok(network.middle.sysctl(&[("netfilter/nf_conntrack_tcp_timeout_time_wait", "10".into())])?)
}

/// Starts the servers that hostile clients connect to: they send zeros without end, and take whatever
/// is sent.
pub(crate) fn serve(world: &World) -> Result<()> {
    for port in TARGETS {
        let listener = world.server.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?.with_context(|| format!("port {port}"))?;
        let inner = world.clone();
        world.server.spawn("target", move || {
            for stream in listener.incoming().flatten() {
                let world = inner.clone();
                // Without one, the client sees a reset: nobody's books have it.
                let _ = thread::Builder::new().stack_size(128 * 1024).spawn(move || answer(&world, &stream));
            }
        })?;
    }
    Ok(())
}

fn answer(world: &World, mut stream: &TcpStream) {
    let zeros = [0; 16 * 1024];
    let _ = (stream.set_write_timeout(Some(STEP)), stream.set_read_timeout(Some(Duration::from_millis(1))));
    let goes_on = |why: io::ErrorKind| matches!(why, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    let mut heard = [0; 16 * 1024];
    while !world.is_over() {
        let read = stream.read(&mut heard).map_err(|why| why.kind());
        let written = stream.write(&zeros).map_err(|why| why.kind());
        if read == Ok(0) || read.is_err_and(|why| !goes_on(why)) || written.is_err_and(|why| !goes_on(why)) {
            return;
        }
    }
}

/// Starts the hostile clients; they end with the soak.
pub(crate) fn start(world: &World, dice: &mut Dice, counts: &Arc<Counts>) -> Result<Vec<thread::JoinHandle<()>>> {
    let mut clients = Vec::new();
    for (habit, count) in HABITS {
        for _ in 0..count {
            let (inner, mut dice, counts) = (world.clone(), Dice::new(dice.next()), counts.clone());
            let work = move || {
                while !inner.is_over() {
                    if habit.act(&inner, &mut dice, &counts).is_err() {
                        counts.refused.fetch_add(1, Relaxed);
                        inner.rest(STEP);
                    }
                }
            };
            clients.push(world.client.spawn("hostile", work)?);
        }
    }
    Ok(clients)
}

impl Habit {
    fn act(self, world: &World, dice: &mut Dice, counts: &Counts) -> io::Result<()> {
        let (count, done) = match self {
            Habit::Slow => (&counts.slow, never_read(world, dice)),
            Habit::Reset => (&counts.resets, reset(world, dice)),
            Habit::Urgent => (&counts.urgent, send_urgent(world, dice)),
            Habit::Garbage => (&counts.garbage, say_garbage(world, dice)),
            Habit::Flood => {
                let sent = flood(world, dice)?;
                counts.forged.fetch_add(sent, Relaxed);
                world.rest(Duration::from_secs(dice.between(5, 20)));
                return Ok(());
            }
        };
        done?;
        count.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    socket.bind(&SockAddr::from(SocketAddrV4::new(ADDRESS, 0)))?;
    socket.connect_timeout(&SockAddr::from(to), Duration::from_secs(20))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    Ok(stream)
}

fn target(dice: &mut Dice) -> SocketAddr {
    SocketAddr::new(SERVERS[0].into(), dice.between(TARGETS.start.into(), u64::from(TARGETS.end) - 1) as u16)
}

/// Closes by a reset now and then.
fn end(stream: TcpStream, dice: &mut Dice) -> io::Result<()> {
    if dice.chance(0.5) {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    drop(stream);
    Ok(())
}

/// Its window stays at zero for a long time; sometimes a byte is read, which opens it by little.
fn never_read(world: &World, dice: &mut Dice) -> io::Result<()> {
    let mut stream = dial(target(dice))?;
    for _ in 0..dice.between(1, 8) {
        world.rest(Duration::from_millis(dice.spread(500, 20_000)));
        if dice.chance(0.3) {
            let _ = stream.read(&mut [0]);
        }
    }
    end(stream, dice)
}

fn reset(world: &World, dice: &mut Dice) -> io::Result<()> {
    let mut stream = dial(target(dice))?;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    if dice.chance(0.5) {
        let _ = stream.write(&vec![1; dice.spread(1, 100_000) as usize]);
    }
    drop(stream);
    world.rest(Duration::from_millis(dice.between(10, 200)));
    Ok(())
}

fn send_urgent(world: &World, dice: &mut Dice) -> io::Result<()> {
    let mut stream = dial(target(dice))?;
    for _ in 0..dice.between(1, 50) {
        let _ = rustix::net::send(&stream, &[7], rustix::net::SendFlags::OOB | rustix::net::SendFlags::NOSIGNAL);
        let _ = (stream.write(&[8; 100]), stream.read(&mut [0; 4096]));
        world.rest(Duration::from_millis(dice.between(1, 20)));
    }
    let _ = stream.shutdown(Shutdown::Write);
    end(stream, dice)
}

/// Random bytes, a greeting that is cut short, one that comes byte by byte.
fn say_garbage(world: &World, dice: &mut Dice) -> io::Result<()> {
    let mut stream = dial(SOCKS.parse().map_err(io::Error::other)?)?;
    let mut bytes: Vec<u8> = (0..dice.spread(1, 600)).map(|_| dice.next() as u8).collect();
    if dice.chance(0.5) {
        let greeting = [5, 1, 0, 5, 1, 0, 3, 9];
        let kept = greeting.len().min(bytes.len());
        bytes[..kept].copy_from_slice(&greeting[..kept]);
    }
    let piece = if dice.chance(0.3) { 1 } else { bytes.len() };
    for piece in bytes.chunks(piece) {
        if stream.write_all(piece).is_err() || world.is_over() {
            break;
        }
        world.rest(Duration::from_millis(dice.between(0, 20)));
    }
    if dice.chance(0.5) {
        let _ = stream.read(&mut [0; 64]);
    }
    end(stream, dice)
}

/// Sends forged packets of one kind for a while; how many.
fn flood(world: &World, dice: &mut Dice) -> io::Result<u64> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?;
    let (kind, begun, mut sent) = (dice.between(0, 3), Instant::now(), 0u64);
    while begun.elapsed() < FLOOD && !world.is_over() {
        while (sent as f64) < begun.elapsed().as_secs_f64() * f64::from(RATE) {
            let server = SocketAddrV4::new(*dice.one_of(&SERVERS), dice.between(PORTS.start.into(), u64::from(PORTS.end) - 1) as u16);
            let (port, sequence) = (dice.between(2000, 65_535) as u16, dice.next() as u32);
            let from = if kind == 0 { Ipv4Addr::new(10, 66, dice.next() as u8, dice.next() as u8) } else { HONEST };
            let packet = PacketBuilder::ipv4(from.octets(), server.ip().octets(), 64).tcp(port, server.port(), sequence, 65_535);
            let packet = match kind {
                0 => packet.syn(),
                // With the address of honest clients, and sequence numbers that are guessed.
                1 => packet.rst(),
                2 => packet.fin().ack(dice.next() as u32),
                _ => packet.ack(dice.next() as u32),
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
