//! The ends of a soak's connections: what clients do, the servers that answer them, and what each end saw.
//!
//! Every byte is known to both ends beforehand, so that each end finds a byte that is wrong, missing or too many. An end that is to
//! be killed counts what it moves and kills itself: by a reset, or without a word, its packets being dropped from then on.

use crate::{
    addresses::{ABORTING_CLIENT, PORTS, SERVERS},
    plan::{ConnectionKind, ConnectionPlan, EndpointOutcome, EndpointReport, HEADER},
    shared::{STEP, SoakState},
};
use anyhow::{Context as _, Result};
use lab::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};
use testbed::SplitMix64;

/// How long an end waits for the other. A cut of 20 s holds TCP up for 41 s at most, since its pauses double.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often an end that waits looks whether it has been killed, or is to end.

/// Prepares hosts for connections that die without a word.
pub(crate) fn prepare(client: &Host, server: &Host) -> Result<()> {
    for (host, inward, outward) in [
        (client, format!("ip daddr {ABORTING_CLIENT} tcp dport"), format!("ip saddr {ABORTING_CLIENT} tcp sport")),
        (server, format!("ip saddr {ABORTING_CLIENT} tcp sport"), format!("ip daddr {ABORTING_CLIENT} tcp dport")),
    ] {
        let rules = format!(
            "table inet soak {{ set dead {{ type inet_service; flags timeout; }}\n\
             chain in {{ type filter hook input priority 0; {inward} @dead drop; }}\n\
             chain out {{ type filter hook output priority 0; {outward} @dead drop; }}\n}}\n"
        );
        testbed::load_rules(host, &rules)?;
    }
    client.ip(&[format!("addr add {ABORTING_CLIENT}/24 dev near")])?;
    Ok(server.ip(&[format!("addr add {}/24 dev far", SERVERS[1])])?)
}

/// One end's view of a transfer. One thread reads and writes, so that an error is seen before the end of file that the kernel makes
/// of it once somebody has been reported.
struct TransferEndpoint<'a> {
    stream: &'a TcpStream,
    state: &'a SoakState,
    plan: &'a ConnectionPlan,
    client: bool,
    to_send: u64,
    to_receive: u64,
    sent: u64,
    received: u64,
    closed: bool,
}

impl<'a> TransferEndpoint<'a> {
    fn new(stream: &'a TcpStream, state: &'a SoakState, plan: &'a ConnectionPlan, client: bool) -> Self {
        let (to_send, to_receive) = if client { (plan.up, plan.down) } else { (plan.down, plan.up) };
        TransferEndpoint { stream, state, plan, client, to_send, to_receive, sent: 0, received: 0, closed: false }
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
                if self.client { (&self.state.client, self.stream.local_addr()) } else { (&self.state.server, self.stream.peer_addr()) };
            // Without an address it has been reset already.
            let _ = end.inspect(|end| self.state.silence(host, end.port()));
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
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, EndpointOutcome> {
        let (total, received) = (self.to_receive, self.received);
        match (&mut &*self.stream).read(buffer) {
            Ok(0) if received == total => return Ok(true),
            Ok(0) => return Err(EndpointOutcome::Violation(format!("end of file after {received} of {total} bytes"))),
            Ok(count) if !self.state.payload.is(self.seed(false), received, &buffer[..count]) => {
                return Err(EndpointOutcome::Violation(format!("wrong bytes after {received} of {total}")));
            }
            Ok(count) => self.received += count as u64,
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(why) => return Err(EndpointOutcome::Failed(why.kind())),
        }
        if self.received > total {
            Err(EndpointOutcome::Violation(format!("{} bytes instead of {total}", self.received)))
        } else {
            Ok(false)
        }
    }

    fn send(&mut self) -> Result<(), EndpointOutcome> {
        let piece = self.state.payload.piece(self.seed(true), self.sent, self.to_send - self.sent);
        match (&mut &*self.stream).write(piece) {
            Ok(count) => self.sent += count as u64,
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(why) => return Err(EndpointOutcome::Failed(why.kind())),
        }
        Ok(())
    }

    /// How long it must not send yet, to keep to its rate.
    fn too_early(&self, begun: Instant) -> Option<Duration> {
        let due = Duration::from_secs_f64(self.sent as f64 / self.plan.rate.max(1) as f64);
        (self.plan.rate > 0).then(|| due.checked_sub(begun.elapsed())).flatten().filter(|wait| *wait > Duration::from_millis(1))
    }

    fn run(&mut self) -> Result<EndpointOutcome, EndpointOutcome> {
        self.stream.set_nonblocking(true).map_err(|why| EndpointOutcome::Failed(why.kind()))?;
        let mut buffer = vec![0; if self.to_receive < 4096 { 4096 } else { 256 * 1024 }];
        let (begun, mut moved, mut moved_at, mut ended) = (Instant::now(), 0, Instant::now(), false);
        loop {
            if self.is_killed() {
                return Ok(EndpointOutcome::Aborted);
            }
            self.close();
            if ended && self.sent == self.to_send {
                return Ok(EndpointOutcome::Complete);
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
                return Err(EndpointOutcome::Failed(io::ErrorKind::TimedOut));
            }
        }
    }
}

/// A conversation with pauses: who speaks next, and when, both ends know; who speaks last says so.
fn converse(stream: &TcpStream, state: &SoakState, plan: &ConnectionPlan, client: bool) -> EndpointReport {
    let (mut random, mut report) =
        (SplitMix64::new(u64::from(plan.seed)), EndpointReport { end: EndpointOutcome::Complete, sent: 0, received: 0 });
    let rounds = random.uniform(5, 400);
    for round in 0..rounds {
        let (client_speaks, pause, length) =
            (random.chance(0.5), Duration::from_millis(random.log_uniform(300, 40_000)), random.log_uniform(1, 20_000) as usize);
        let seed = u64::from(plan.seed) + round;
        let outcome = if client_speaks == client {
            state.rest(pause);
            let last = state.is_over() || round + 1 == rounds;
            speak(stream, state, seed, length, last).map(|()| {
                report.sent += length as u64 + 1;
                last
            })
        } else {
            hear(stream, state, seed, length).inspect(|_| report.received += length as u64 + 1)
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

fn speak(stream: &TcpStream, state: &SoakState, seed: u64, length: usize, last: bool) -> Result<(), EndpointOutcome> {
    let mut message = vec![u8::from(last)];
    message.extend_from_slice(state.payload.piece(seed, 0, length as u64));
    let mut rest = &message[..];
    let begun = Instant::now();
    while !rest.is_empty() {
        match (&mut &*stream).write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => return Err(EndpointOutcome::Failed(why.kind())),
        }
    }
    Ok(())
}

/// Hears a message; whether it was the last.
fn hear(stream: &TcpStream, state: &SoakState, seed: u64, length: usize) -> Result<bool, EndpointOutcome> {
    let mut message = vec![0; length + 1];
    read_whole(stream, &mut message)?;
    if message[0] > 1 || !state.payload.is(seed, 0, &message[1..]) {
        return Err(EndpointOutcome::Violation("wrong bytes in a conversation".into()));
    }
    Ok(message[0] == 1)
}

fn read_whole(stream: &TcpStream, into: &mut [u8]) -> Result<(), EndpointOutcome> {
    let (mut filled, begun) = (0, Instant::now());
    while filled < into.len() {
        match (&mut &*stream).read(&mut into[filled..]) {
            Ok(0) => return Err(EndpointOutcome::Violation(format!("end of file after {filled} of {} bytes", into.len()))),
            Ok(count) => filled += count,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => {
                return Err(EndpointOutcome::Failed(if why.kind() == io::ErrorKind::WouldBlock {
                    io::ErrorKind::TimedOut
                } else {
                    why.kind()
                }));
            }
        }
    }
    Ok(())
}

/// Both ends close; each sees the other do so.
fn part(stream: &TcpStream) -> EndpointOutcome {
    if let Err(why) = stream.shutdown(Shutdown::Write) {
        return EndpointOutcome::Failed(why.kind());
    }
    let begun = Instant::now();
    loop {
        match (&mut &*stream).read(&mut [0]) {
            Ok(0) => return EndpointOutcome::Complete,
            Ok(_) => return EndpointOutcome::Violation("bytes after the last".into()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {}
            Err(why) => return EndpointOutcome::Failed(why.kind()),
        }
    }
}

/// A connection that never speaks: the client lets it be until all is over. A server whose connection was reset during a cut never
/// hears of it, and gives up then.
fn keep_mum(stream: &TcpStream, state: &SoakState, client: bool) -> EndpointOutcome {
    let mut over = None;
    loop {
        if client && state.is_over() {
            return part(stream);
        }
        if state.is_over() && over.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return EndpointOutcome::Failed(io::ErrorKind::TimedOut);
        }
        match (&mut &*stream).read(&mut [0]) {
            Ok(0) if !client => return EndpointOutcome::Complete,
            Ok(0) => return EndpointOutcome::Violation("an end of file that nobody sent".into()),
            Ok(_) => return EndpointOutcome::Violation("bytes that nobody sent".into()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return EndpointOutcome::Failed(why.kind()),
        }
    }
}

/// What an end of a connection does after its plan is known.
fn attend(stream: &TcpStream, state: &SoakState, plan: &ConnectionPlan, client: bool) -> EndpointReport {
    let mut report = match plan.kind {
        ConnectionKind::Transfer => {
            let mut moving = TransferEndpoint::new(stream, state, plan, client);
            let end = moving.run().unwrap_or_else(|end| end);
            EndpointReport { end, sent: moving.sent, received: moving.received }
        }
        ConnectionKind::Conversation => converse(stream, state, plan, client),
        ConnectionKind::Silent => EndpointReport { end: keep_mum(stream, state, client), sent: 0, received: 0 },
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
pub(crate) fn call(state: &SoakState, plan: &ConnectionPlan, from: Option<SocketAddr>, to: SocketAddr) {
    let begun = Instant::now();
    let dialled = dial(from, to).and_then(|stream| {
        settle(&stream)?;
        let from = stream.local_addr()?;
        Ok((stream, from))
    });
    let (stream, from) = match dialled {
        Ok(dialled) => dialled,
        Err(why) => return state.ledger.not_connected(begun, to, &why),
    };
    state.ledger.begin(plan, from, to);
    let report = match (&mut &stream).write(&plan.pack()) {
        Ok(HEADER) => attend(&stream, state, plan, true),
        Ok(_) => EndpointReport { end: EndpointOutcome::Violation("a header was not taken whole".into()), sent: 0, received: 0 },
        Err(why) => EndpointReport { end: EndpointOutcome::Failed(why.kind()), sent: 0, received: 0 },
    };
    // Gone before it is reported: whoever reads the state may rely on it.
    drop(stream);
    state.ledger.client(plan.id, report);
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
pub(crate) fn serve(state: &SoakState) -> Result<()> {
    for port in PORTS {
        let listener = state.server.enter(|| listen(port))?.with_context(|| format!("cannot listen at port {port}"))?;
        let state = state.clone();
        let host = state.server.clone();
        host.spawn("server", move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                state.open.fetch_add(1, Relaxed);
                let spawned = thread::Builder::new().stack_size(128 * 1024).spawn({
                    let state = state.clone();
                    move || {
                        answer(&state, stream);
                        state.open.fetch_sub(1, Relaxed);
                    }
                });
                if let Err(why) = spawned {
                    state.open.fetch_sub(1, Relaxed);
                    state.ledger.violation(format!("the soak could not start a thread: {why}"));
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

fn answer(state: &SoakState, stream: TcpStream) {
    let mut header = [0; HEADER];
    let heard = settle(&stream).map_err(|why| EndpointOutcome::Failed(why.kind())).and_then(|()| read_whole(&stream, &mut header));
    let plan = match (heard, ConnectionPlan::unpack(&header)) {
        (Ok(()), Some(plan)) => plan,
        (Ok(()), None) => return state.ledger.violation("a server heard a header that nobody sent".into()),
        (Err(EndpointOutcome::Violation(why)), _) => return state.ledger.violation(format!("a server heard no whole header: {why}")),
        // A connect that was given up on the way.
        (Err(_), _) => return state.ledger.no_header(),
    };
    if plan.kill.is_some() {
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(PATIENCE));
    }
    let report = attend(&stream, state, &plan, false);
    drop(stream);
    state.ledger.server(plan.id, report);
}
