//! Both endpoints of honest connections.
//!
//! Both endpoints know every byte in advance, so each detects a byte that is wrong, missing or
//! surplus. An endpoint that is to abort counts the bytes it moves and then aborts: by a reset, or
//! silently, by dropping all packets of the connection from then on.

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

/// How long an endpoint waits for the other. A cut of 20 s stalls TCP for at most 41 s, since its
/// retransmission timeouts double.
const PATIENCE: Duration = Duration::from_secs(90);

/// Adds the rules that silence connections, and further addresses.
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

/// One endpoint of a transfer. One thread reads and writes: the kernel reports an error once, and
/// end of file afterwards. A second thread could see only the end of file.
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

    /// Seed of the bytes in one direction; the two directions carry different bytes.
    fn seed(&self, sends: bool) -> u64 {
        u64::from(self.plan.seed) + if sends == self.client { 0 } else { 7919 }
    }

    /// Whether this endpoint is to abort now. If so, it is silenced or will reset the connection.
    fn aborts_now(&self) -> bool {
        let moved = self.sent + self.received;
        let Some(abort) = self.plan.abort.filter(|abort| abort.client == self.client && moved >= abort.after) else { return false };
        if abort.silent {
            let (host, end) =
                if self.client { (&self.state.client, self.stream.local_addr()) } else { (&self.state.server, self.stream.peer_addr()) };
            // A connection without an address has already been reset.
            let _ = end.inspect(|end| self.state.silence(host, end.port()));
        }
        let _ = socket2::SockRef::from(self.stream).set_linger(Some(Duration::ZERO));
        true
    }

    /// Sends the FIN if it is this endpoint's turn. The plan says which endpoint closes first.
    fn close(&mut self) {
        let received = self.received == self.to_receive;
        let due = self.sent == self.to_send && (self.plan.early || (!self.client && received));
        if due && !self.closed {
            self.closed = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Reads once. Returns whether it was end of file.
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

    /// How long to wait before sending more, to keep to the planned rate.
    fn too_early(&self, begun: Instant) -> Option<Duration> {
        let due = Duration::from_secs_f64(self.sent as f64 / self.plan.rate.max(1) as f64);
        (self.plan.rate > 0).then(|| due.checked_sub(begun.elapsed())).flatten().filter(|wait| *wait > Duration::from_millis(1))
    }

    fn run(&mut self) -> Result<EndpointOutcome, EndpointOutcome> {
        self.stream.set_nonblocking(true).map_err(|why| EndpointOutcome::Failed(why.kind()))?;
        let mut buffer = vec![0; if self.to_receive < 4096 { 4096 } else { 256 * 1024 }];
        let (begun, mut moved, mut moved_at, mut ended) = (Instant::now(), 0, Instant::now(), false);
        loop {
            if self.aborts_now() {
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

/// A conversation with pauses. The plan's seed determines which endpoint sends next, and when.
/// Each message says whether it is the last.
fn converse(stream: &TcpStream, state: &SoakState, plan: &ConnectionPlan, client: bool) -> EndpointReport {
    let (mut random, mut report) =
        (SplitMix64::new(u64::from(plan.seed)), EndpointReport { end: EndpointOutcome::Complete, sent: 0, received: 0 });
    let rounds = random.uniform(5, 400);
    for round in 0..rounds {
        let (client_sends, pause, length) =
            (random.chance(0.5), Duration::from_millis(random.log_uniform(300, 40_000)), random.log_uniform(1, 20_000) as usize);
        let seed = u64::from(plan.seed) + round;
        let outcome = if client_sends == client {
            state.rest(pause);
            let last = state.is_over() || round + 1 == rounds;
            send_message(stream, state, seed, length, last).map(|()| {
                report.sent += length as u64 + 1;
                last
            })
        } else {
            receive_message(stream, state, seed, length).inspect(|_| report.received += length as u64 + 1)
        };
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                report.end = close(stream);
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

fn send_message(stream: &TcpStream, state: &SoakState, seed: u64, length: usize, last: bool) -> Result<(), EndpointOutcome> {
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

/// Receives a message. Returns whether it was the last.
fn receive_message(stream: &TcpStream, state: &SoakState, seed: u64, length: usize) -> Result<bool, EndpointOutcome> {
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

/// Sends a FIN and waits for the other one.
fn close(stream: &TcpStream) -> EndpointOutcome {
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

/// A connection without data, which the client keeps open until the end of the soak. A server gives
/// up then if the reset of its connection was lost during a cut.
fn stay_silent(stream: &TcpStream, state: &SoakState, client: bool) -> EndpointOutcome {
    let mut over = None;
    loop {
        if client && state.is_over() {
            return close(stream);
        }
        if state.is_over() && over.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return EndpointOutcome::Failed(io::ErrorKind::TimedOut);
        }
        match (&mut &*stream).read(&mut [0]) {
            Ok(0) if !client => return EndpointOutcome::Complete,
            Ok(0) => return EndpointOutcome::Violation("unexpected end of file".into()),
            Ok(_) => return EndpointOutcome::Violation("unexpected bytes".into()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return EndpointOutcome::Failed(why.kind()),
        }
    }
}

/// Follows the plan at one endpoint.
fn follow_plan(stream: &TcpStream, state: &SoakState, plan: &ConnectionPlan, client: bool) -> EndpointReport {
    let mut report = match plan.kind {
        ConnectionKind::Transfer => {
            let mut moving = TransferEndpoint::new(stream, state, plan, client);
            let end = moving.run().unwrap_or_else(|end| end);
            EndpointReport { end, sent: moving.sent, received: moving.received }
        }
        ConnectionKind::Conversation => converse(stream, state, plan, client),
        ConnectionKind::Silent => EndpointReport { end: stay_silent(stream, state, client), sent: 0, received: 0 },
    };
    *(if client { &mut report.sent } else { &mut report.received }) += HEADER as u64;
    report
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))
}

/// One connection of a client, from connect to close.
pub(crate) fn run_connection(state: &SoakState, plan: &ConnectionPlan, from: Option<SocketAddr>, to: SocketAddr) {
    let begun = Instant::now();
    let dialled = connect(from, to).and_then(|stream| {
        set_timeouts(&stream)?;
        let from = stream.local_addr()?;
        Ok((stream, from))
    });
    let (stream, from) = match dialled {
        Ok(dialled) => dialled,
        Err(why) => return state.ledger.not_connected(begun, to, &why),
    };
    state.ledger.begin(plan, from, to);
    let report = match (&mut &stream).write(&plan.pack()) {
        Ok(HEADER) => follow_plan(&stream, state, plan, true),
        Ok(_) => EndpointReport { end: EndpointOutcome::Violation("the kernel took only part of a plan".into()), sent: 0, received: 0 },
        Err(why) => EndpointReport { end: EndpointOutcome::Failed(why.kind()), sent: 0, received: 0 },
    };
    // Closed before it is reported: the ledger relies on that order.
    drop(stream);
    state.ledger.client(plan.id, report);
}

fn connect(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    if let Some(from) = from {
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(from))?;
        // If the other endpoint died, only this timeout ends a connection that bypassed the proxy.
        socket.set_tcp_user_timeout(Some(PATIENCE))?;
    }
    socket.connect_timeout(&SockAddr::from(to), Duration::from_secs(70))?;
    Ok(socket.into())
}

/// Starts the servers: a thread for each port, and one for each connection.
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
                        serve_connection(&state, stream);
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

fn serve_connection(state: &SoakState, stream: TcpStream) {
    let mut header = [0; HEADER];
    let received_plan =
        set_timeouts(&stream).map_err(|why| EndpointOutcome::Failed(why.kind())).and_then(|()| read_whole(&stream, &mut header));
    let plan = match (received_plan, ConnectionPlan::unpack(&header)) {
        (Ok(()), Some(plan)) => plan,
        (Ok(()), None) => return state.ledger.violation("a server received a plan that no client sent".into()),
        (Err(EndpointOutcome::Violation(why)), _) => return state.ledger.violation(format!("a server received an incomplete plan: {why}")),
        // A client gave up while connecting.
        (Err(_), _) => return state.ledger.no_header(),
    };
    if plan.abort.is_some() {
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(PATIENCE));
    }
    let report = follow_plan(&stream, state, &plan, false);
    drop(stream);
    state.ledger.server(plan.id, report);
}
