//! The ends of a soak's connections: what clients do, the servers that answer them, and what each end saw.
//!
//! Every byte is known to both ends beforehand, so that each end finds a byte that is wrong, missing or too many. An end that is to
//! be killed counts what it moves and kills itself: by a reset, or without a word, its packets being dropped from then on.

use crate::{
    ledger::Ledger,
    payload::Payload,
    plan::{End, HEADER, Kind, Plan, Report},
};
use anyhow::{Context as _, Result};
use lab::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::Dice;

/// Ports of the servers; connections to the last bypass by a rule of the configuration.
pub(crate) const PORTS: std::ops::Range<u16> = 9200..9217;
pub(crate) const BYPASSED: u16 = 9216;
/// Where the servers are; connections to the second bypass now and then.
pub(crate) const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 2, 2), Ipv4Addr::new(10, 79, 2, 3)];
/// The address of clients whose connection is to be killed, so that the dead keep nobody else's ports.
pub(crate) const DOOMED: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 3);
/// How long an end waits for the other. A cut of 20 s holds TCP up for 41 s at most, since its pauses double.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often an end that waits looks whether it has been killed, or is to end.
const STEP: Duration = Duration::from_millis(500);

/// What all ends share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) payload: Arc<Payload>,
    pub(crate) ledger: Arc<Ledger>,
    /// Conversations are to come to their end, and no new connections to be made.
    pub(crate) stop: Arc<AtomicBool>,
    /// Connections that servers have open.
    pub(crate) open: Arc<AtomicU64>,
    /// How long clients rest between connections, in microseconds: what keeps the machine at half load.
    pub(crate) pause_us: Arc<AtomicU64>,
    pub(crate) client: Arc<Host>,
    pub(crate) server: Arc<Host>,
}

impl World {
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Sleeps so long, or until all is over.
    pub(crate) fn rest(&self, time: Duration) {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero() && !self.is_over()) {
            thread::sleep(left.min(STEP));
        }
    }

    /// From now on a host drops all packets of a doomed connection, in and out.
    fn silence(&self, host: &Host, port: u16) {
        let element = format!("{{ {port} timeout 10m }}");
        let done = host.command("nft").args(["add", "element", "inet", "soak", "dead", &element]).stdin(Stdio::null()).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            self.ledger.violation(format!("the soak could not silence a connection: {done:?}"));
        }
    }
}

/// Prepares hosts for connections that die without a word.
pub(crate) fn prepare(client: &Host, server: &Host) -> Result<()> {
    for (host, inward, outward) in [
        (client, format!("ip daddr {DOOMED} tcp dport"), format!("ip saddr {DOOMED} tcp sport")),
        (server, format!("ip saddr {DOOMED} tcp sport"), format!("ip daddr {DOOMED} tcp dport")),
    ] {
        let rules = format!(
            "table inet soak {{ set dead {{ type inet_service; flags timeout; }}\n\
             chain in {{ type filter hook input priority 0; {inward} @dead drop; }}\n\
             chain out {{ type filter hook output priority 0; {outward} @dead drop; }}\n}}\n"
        );
        testbed::pipe(host.command("nft").args(["-f", "-"]), &rules)?;
    }
    client.ip(&[format!("addr add {DOOMED}/24 dev near")])?;
    Ok(server.ip(&[format!("addr add {}/24 dev far", SERVERS[1])])?)
}

/// One end's view of a transfer. One thread reads and writes, so that an error is seen before the end of file that the kernel makes
/// of it once somebody has been told.
struct Moving<'a> {
    stream: &'a TcpStream,
    world: &'a World,
    plan: &'a Plan,
    client: bool,
    to_send: u64,
    to_receive: u64,
    sent: u64,
    received: u64,
    closed: bool,
}

impl<'a> Moving<'a> {
    fn new(stream: &'a TcpStream, world: &'a World, plan: &'a Plan, client: bool) -> Self {
        let (to_send, to_receive) = if client { (plan.up, plan.down) } else { (plan.down, plan.up) };
        Moving { stream, world, plan, client, to_send, to_receive, sent: 0, received: 0, closed: false }
    }

    /// The two directions carry different bytes.
    fn seed(&self, sends: bool) -> u64 {
        u64::from(self.plan.seed) + if sends == self.client { 0 } else { 7919 }
    }

    /// Whether this end's time has come; if so it is dead from now on.
    fn is_killed(&self) -> bool {
        let moved = self.sent + self.received;
        let Some(kill) = self.plan.kill.filter(|kill| kill.client == self.client && moved >= kill.after) else { return false };
        if kill.silent {
            let (host, end) =
                if self.client { (&self.world.client, self.stream.local_addr()) } else { (&self.world.server, self.stream.peer_addr()) };
            // Without an address it has been reset already.
            let _ = end.inspect(|end| self.world.silence(host, end.port()));
        }
        let _ = socket2::SockRef::from(self.stream).set_linger(Some(Duration::ZERO));
        true
    }

    /// Closes when that is due. Who may close first, both ends know.
    fn close(&mut self) {
        let received = self.received == self.to_receive;
        let due = self.sent == self.to_send && (self.plan.early || (!self.client && received));
        if due && !self.closed {
            self.closed = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Reads once; whether that was the end of file.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, End> {
        let (total, received) = (self.to_receive, self.received);
        match (&mut &*self.stream).read(buffer) {
            Ok(0) if received == total => return Ok(true),
            Ok(0) => return Err(End::Wrong(format!("end of file after {received} of {total} bytes"))),
            Ok(count) if !self.world.payload.is(self.seed(false), received, &buffer[..count]) => {
                return Err(End::Wrong(format!("wrong bytes after {received} of {total}")));
            }
            Ok(count) => self.received += count as u64,
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(why) => return Err(End::Failed(why.kind())),
        }
        if self.received > total { Err(End::Wrong(format!("{} bytes instead of {total}", self.received))) } else { Ok(false) }
    }

    fn send(&mut self) -> Result<(), End> {
        let piece = self.world.payload.piece(self.seed(true), self.sent, self.to_send - self.sent);
        match (&mut &*self.stream).write(piece) {
            Ok(count) => self.sent += count as u64,
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(why) => return Err(End::Failed(why.kind())),
        }
        Ok(())
    }

    /// How long it must not send yet, to keep to its rate.
    fn too_early(&self, begun: Instant) -> Option<Duration> {
        let due = Duration::from_secs_f64(self.sent as f64 / self.plan.rate.max(1) as f64);
        (self.plan.rate > 0).then(|| due.checked_sub(begun.elapsed())).flatten().filter(|wait| *wait > Duration::from_millis(1))
    }

    fn run(&mut self) -> Result<End, End> {
        self.stream.set_nonblocking(true).map_err(|why| End::Failed(why.kind()))?;
        let mut buffer = vec![0; if self.to_receive < 4096 { 4096 } else { 256 * 1024 }];
        let (begun, mut moved, mut moved_at, mut ended) = (Instant::now(), 0, Instant::now(), false);
        loop {
            if self.is_killed() {
                return Ok(End::Killed);
            }
            self.close();
            if ended && self.sent == self.to_send {
                return Ok(End::Complete);
            }
            let wait = self.too_early(begun);
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, !ended);
            flags.set(PollFlags::OUT, self.sent < self.to_send && wait.is_none());
            let timeout = wait.unwrap_or(STEP).min(STEP);
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
            let mut polled = [PollFd::new(self.stream, flags)];
            let _ = poll(&mut polled, Some(&timeout));
            let found = polled[0].revents();
            if !ended && found.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
                ended = self.receive(&mut buffer)?;
            }
            if flags.contains(PollFlags::OUT) && found.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
                self.send()?;
            }
            if self.sent + self.received != moved {
                (moved, moved_at) = (self.sent + self.received, Instant::now());
            } else if moved_at.elapsed() > PATIENCE {
                return Err(End::Failed(io::ErrorKind::TimedOut));
            }
        }
    }
}

/// A conversation with pauses: who speaks next, and when, both ends know; who speaks last says so.
fn converse(stream: &TcpStream, world: &World, plan: &Plan, client: bool) -> Report {
    let (mut dice, mut report) = (Dice::new(u64::from(plan.seed)), Report { end: End::Complete, sent: 0, received: 0 });
    let rounds = dice.between(5, 400);
    for round in 0..rounds {
        let (client_speaks, pause, length) =
            (dice.chance(0.5), Duration::from_millis(dice.spread(300, 40_000)), dice.spread(1, 20_000) as usize);
        let seed = u64::from(plan.seed) + round;
        let outcome = if client_speaks == client {
            world.rest(pause);
            let last = world.is_over() || round + 1 == rounds;
            speak(stream, world, seed, length, last).map(|()| {
                report.sent += length as u64 + 1;
                last
            })
        } else {
            hear(stream, world, seed, length).inspect(|_| report.received += length as u64 + 1)
        };
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                report.end = part(stream);
                return report;
            }
            Err(end) => {
                report.end = end;
                return report;
            }
        }
    }
    report
}

fn speak(stream: &TcpStream, world: &World, seed: u64, length: usize, last: bool) -> Result<(), End> {
    let mut message = vec![u8::from(last)];
    message.extend_from_slice(world.payload.piece(seed, 0, length as u64));
    let mut rest = &message[..];
    let begun = Instant::now();
    while !rest.is_empty() {
        match (&mut &*stream).write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => return Err(End::Failed(why.kind())),
        }
    }
    Ok(())
}

/// Hears a message; whether it was the last.
fn hear(stream: &TcpStream, world: &World, seed: u64, length: usize) -> Result<bool, End> {
    let mut message = vec![0; length + 1];
    read_whole(stream, &mut message)?;
    if message[0] > 1 || !world.payload.is(seed, 0, &message[1..]) {
        return Err(End::Wrong("wrong bytes in a conversation".into()));
    }
    Ok(message[0] == 1)
}

fn read_whole(stream: &TcpStream, into: &mut [u8]) -> Result<(), End> {
    let (mut filled, begun) = (0, Instant::now());
    while filled < into.len() {
        match (&mut &*stream).read(&mut into[filled..]) {
            Ok(0) => return Err(End::Wrong(format!("end of file after {filled} of {} bytes", into.len()))),
            Ok(count) => filled += count,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => {
                return Err(End::Failed(if why.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut } else { why.kind() }));
            }
        }
    }
    Ok(())
}

/// Both ends close; each sees the other do so.
fn part(stream: &TcpStream) -> End {
    if let Err(why) = stream.shutdown(Shutdown::Write) {
        return End::Failed(why.kind());
    }
    let begun = Instant::now();
    loop {
        match (&mut &*stream).read(&mut [0]) {
            Ok(0) => return End::Complete,
            Ok(_) => return End::Wrong("bytes after the last".into()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => return End::Failed(why.kind()),
        }
    }
}

/// A connection that never speaks: the client lets it be until all is over. A server whose connection was reset during a cut never
/// hears of it, and gives up then.
fn keep_mum(stream: &TcpStream, world: &World, client: bool) -> End {
    let mut over = None;
    loop {
        if client && world.is_over() {
            return part(stream);
        }
        if world.is_over() && over.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return End::Failed(io::ErrorKind::TimedOut);
        }
        match (&mut &*stream).read(&mut [0]) {
            Ok(0) if !client => return End::Complete,
            Ok(0) => return End::Wrong("an end of file that nobody sent".into()),
            Ok(_) => return End::Wrong("bytes that nobody sent".into()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return End::Failed(why.kind()),
        }
    }
}

/// What an end of a connection does after its plan is known.
fn attend(stream: &TcpStream, world: &World, plan: &Plan, client: bool) -> Report {
    let mut report = match plan.kind {
        Kind::Transfer => {
            let mut moving = Moving::new(stream, world, plan, client);
            let end = moving.run().unwrap_or_else(|end| end);
            Report { end, sent: moving.sent, received: moving.received }
        }
        Kind::Idle => converse(stream, world, plan, client),
        Kind::Mute => Report { end: keep_mum(stream, world, client), sent: 0, received: 0 },
    };
    *(if client { &mut report.sent } else { &mut report.received }) += HEADER as u64;
    report
}

fn settle(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))
}

/// One connection of a client, from its beginning to its end.
pub(crate) fn call(world: &World, plan: &Plan, from: Option<SocketAddr>, to: SocketAddr) {
    let begun = Instant::now();
    let dialled = dial(from, to).and_then(|stream| {
        settle(&stream)?;
        let from = stream.local_addr()?;
        Ok((stream, from))
    });
    let (stream, from) = match dialled {
        Ok(dialled) => dialled,
        Err(why) => return world.ledger.not_connected(begun, to, &why),
    };
    world.ledger.begin(plan, from, to);
    let report = match (&mut &stream).write(&plan.pack()) {
        Ok(HEADER) => attend(&stream, world, plan, true),
        Ok(_) => Report { end: End::Wrong("a header was not taken whole".into()), sent: 0, received: 0 },
        Err(why) => Report { end: End::Failed(why.kind()), sent: 0, received: 0 },
    };
    // Gone before it is told: whoever reads the books may rely on it.
    drop(stream);
    world.ledger.client(plan.serial, report);
}

fn dial(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    if let Some(from) = from {
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(from))?;
        // One whose other end died unsplit learns of it by itself.
        socket.set_tcp_user_timeout(Some(PATIENCE))?;
    }
    socket.connect_timeout(&SockAddr::from(to), Duration::from_secs(70))?;
    Ok(socket.into())
}

/// Starts the servers: a thread a port, a thread a connection.
pub(crate) fn serve(world: &World) -> Result<()> {
    for port in PORTS {
        let listener = world.server.enter(|| listen(port))?.with_context(|| format!("cannot listen at port {port}"))?;
        let world = world.clone();
        let host = world.server.clone();
        host.spawn("server", move || {
            for stream in listener.incoming().flatten() {
                let world = world.clone();
                world.open.fetch_add(1, Relaxed);
                let spawned = thread::Builder::new().stack_size(128 * 1024).spawn({
                    let world = world.clone();
                    move || {
                        answer(&world, stream);
                        world.open.fetch_sub(1, Relaxed);
                    }
                });
                if let Err(why) = spawned {
                    world.open.fetch_sub(1, Relaxed);
                    world.ledger.violation(format!("the soak could not start a thread: {why}"));
                }
            }
        })?;
    }
    Ok(())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)))?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn answer(world: &World, stream: TcpStream) {
    let mut header = [0; HEADER];
    let heard = settle(&stream).map_err(|why| End::Failed(why.kind())).and_then(|()| read_whole(&stream, &mut header));
    let plan = match (heard, Plan::unpack(&header)) {
        (Ok(()), Some(plan)) => plan,
        (Ok(()), None) => return world.ledger.violation("a server heard a header that nobody sent".into()),
        (Err(End::Wrong(why)), _) => return world.ledger.violation(format!("a server heard no whole header: {why}")),
        // A connect that was given up on the way.
        (Err(_), _) => return world.ledger.headless(),
    };
    if plan.kill.is_some() {
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(PATIENCE));
    }
    let report = attend(&stream, world, &plan, false);
    drop(stream);
    world.ledger.server(plan.serial, report);
}
