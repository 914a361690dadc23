//! Web pages and request-response over real sockets: the clients decide as in the simulator
//! ([`WebClient`]), and every byte of a response is checked.
//!
//! A request begins with three numbers of eight bytes: its size, the size of the response, and the
//! time in nanoseconds that the server is to take.

use crate::{LabError, network::SeriesNetwork, run_context::RunContext};
use account::{Cause, LegTime, SenderWait, Waits};
use outcome::{WebProgress, WebSamples};
use proxy::FlowStats;
use scenario::{Opens, WebAction, WebClient, WebRequest};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};
use units::{Bytes, Span};

/// Bytes at the beginning of a request that say what the server is to do.
const HEADER: usize = 24;
/// Bytes of one write or read.
const CHUNK: usize = 128 * 1024;
/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 1024;
/// Longest sleep of a client, which then looks whether the run is over.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// A client and its server.
#[derive(Debug)]
pub(crate) struct WebSession {
    context: Arc<RunContext>,
    /// The controller of both ends.
    control: String,
    /// The port of the server.
    port: u16,
    /// The sockets of both ends that are open.
    sockets: Mutex<Vec<Weak<Socket>>>,
    /// Those of them that the server accepted.
    accepted: Mutex<Vec<Weak<Socket>>>,
    /// Number of requests that the server has received and has not begun to answer.
    in_service: AtomicUsize,
    state: Mutex<ClientState>,
    result: Mutex<WebSamples>,
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, Default)]
struct ClientState {
    /// Payload of responses that it has read.
    read: u64,
    /// Connections that it waits for, and those of them that are not open.
    awaited: usize,
    opening: usize,
}

/// What happened on a client's connection.
enum WebEvent {
    /// It is open.
    Connected(u32),
    /// So much was read from it in all, at this time.
    Read(u32, u64, Span),
    /// It failed.
    Failed(String),
}

impl WebSession {
    /// Starts the threads of a client and of its server at `port`: that of the server, which goes
    /// on until [`interrupt`](Self::interrupt), and that of the client.
    pub(crate) fn start(
        network: &SeriesNetwork,
        context: Arc<RunContext>,
        client: WebClient,
        control: String,
        port: u16,
    ) -> Result<(Arc<Self>, [thread::JoinHandle<()>; 2]), LabError> {
        let (host, server, address) = network.ends_of(client.path(), Opens::Receiver);
        let to = SocketAddr::new(address, port);
        let session = Arc::new(WebSession {
            context,
            control,
            port,
            sockets: Mutex::default(),
            accepted: Mutex::default(),
            in_service: AtomicUsize::new(0),
            state: Mutex::default(),
            result: Mutex::new(WebSamples::of(client.table())),
        });
        let listener = server.enter(|| session.listen(to))?;
        let listener = listener.map_err(|why| LabError::System { what: "open a listener for a web server", why })?;
        let serving = session.clone();
        let server = server.spawn("web-server", move || serving.serve(&listener))?;
        let playing = session.clone();
        let client = host.spawn("web-client", move || playing.play(client, to))?;
        Ok((session, [server, client]))
    }

    /// Adds a sample of the client at time `t`. `proxies` has the statistics of all flows of each
    /// proxy, from the server on.
    pub(crate) fn sample(&self, t: f64, proxies: &[Vec<FlowStats>]) {
        let ClientState { read, awaited, opening } = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = (awaited > 0).then(|| {
            let by_model = intercept::leg::sets_window_by_model(&self.control);
            let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            let servers = accepted.iter().filter_map(Weak::upgrade).filter_map(|socket| intercept::tcp_info(&*socket).ok());
            let mut legs = vec![leg_time(servers.map(|info| info.waits_for(false, by_model)))];
            for flows in proxies {
                let of_client = flows.iter().filter(|flow| flow.server.port() == self.port);
                legs.push(leg_time(of_client.map(|flow| {
                    let has_more = flow.down.held().0 > u64::from(flow.near.notsent_bytes);
                    flow.near.waits_for(has_more, intercept::leg::sets_window_by_model(&flow.control[0]))
                })));
            }
            let open = match Waits::of(&legs, true) {
                waits if waits == Waits::all(Cause::Distance) && self.in_service.load(Relaxed) > 0 => Waits::all(Cause::Sender),
                waits => waits,
            };
            let each = std::iter::repeat_n(Waits::all(Cause::Handshake), opening).chain(std::iter::repeat_n(open, awaited - opening));
            Waits::mean(each).unwrap_or(open)
        });
        self.result.lock().unwrap_or_else(PoisonError::into_inner).progress.push(WebProgress { t, read, waits });
    }

    /// What was measured so far.
    pub(crate) fn result(&self) -> WebSamples {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resets all connections and closes the listener, so that no thread blocks any longer.
    pub(crate) fn interrupt(&self) {
        for socket in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade) {
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn now(&self) -> Span {
        Span(self.context.began.elapsed().as_nanos() as u64)
    }

    fn fail(&self, why: String) {
        if !self.context.stopped() {
            self.result.lock().unwrap_or_else(PoisonError::into_inner).error.get_or_insert(why);
        }
    }

    /// Makes a socket known to [`interrupt`](Self::interrupt), for as long as it is in use.
    fn adopt(&self, socket: Socket) -> io::Result<Arc<Socket>> {
        // A request or a response is written at once.
        socket.set_tcp_nodelay(true)?;
        let socket = Arc::new(socket);
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|other| other.strong_count() > 0);
        sockets.push(Arc::downgrade(&socket));
        Ok(socket)
    }

    fn socket(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_tcp_congestion(self.control.as_bytes())?;
        Ok(socket)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Arc<Socket>> {
        let socket = self.adopt(self.socket()?)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    }

    /// Accepts connections until the listener is closed, and answers the requests on each.
    fn serve(self: &Arc<Self>, listener: &Socket) {
        loop {
            let accepted = listener.accept().and_then(|(socket, _)| self.adopt(socket)).inspect(|socket| {
                let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
                accepted.retain(|other| other.strong_count() > 0);
                accepted.push(Arc::downgrade(socket));
            });
            let spawned = accepted.and_then(|socket| {
                let session = self.clone();
                thread::Builder::new().name("web-requests".into()).spawn(move || session.read_requests(&socket))
            });
            if let Err(why) = spawned {
                return self.fail(format!("accept: {why}"));
            }
        }
    }

    /// Reads the requests of a connection until its end; another thread answers them.
    fn read_requests(self: &Arc<Self>, socket: &Arc<Socket>) {
        let (due, answers) = mpsc::channel::<(Instant, u64)>();
        let (session, answering) = (self.clone(), socket.clone());
        let answerer = thread::Builder::new().name("web-responses".into()).spawn(move || session.write_responses(&answering, &answers));
        if let Err(why) = answerer {
            return self.fail(format!("start a thread: {why}"));
        }
        let (mut header, mut rest) = ([0; HEADER], vec![0; CHUNK]);
        let mut read_one = |mut socket: &Socket| -> io::Result<Option<WebRequest>> {
            match socket.read(&mut header[..1])? {
                0 => return Ok(None),
                _ => socket.read_exact(&mut header[1..])?,
            }
            let request = parsed(&header);
            let mut left = request.up.0.saturating_sub(HEADER as u64);
            while left > 0 {
                let part = rest.len().min(left as usize);
                socket.read_exact(&mut rest[..part])?;
                left -= part as u64;
            }
            Ok(Some(request))
        };
        loop {
            match read_one(socket) {
                Ok(Some(request)) => {
                    self.in_service.fetch_add(1, Relaxed);
                    let _ = due.send((Instant::now() + request.service.duration(), request.down.0));
                }
                Ok(None) => return,
                Err(why) => return self.fail(format!("read a request: {why}")),
            }
        }
    }

    /// Writes the responses of a connection when they are due, and a FIN after the last.
    fn write_responses(&self, mut socket: &Socket, answers: &Receiver<(Instant, u64)>) {
        let payload = self.context.payload();
        let mut sent = 0;
        for (due, mut left) in answers {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.in_service.fetch_sub(1, Relaxed);
            while left > 0 {
                let at = (sent % payload.len() as u64) as usize;
                let end = payload.len().min(at + CHUNK).min(at.saturating_add(left as usize));
                match socket.write(&payload[at..end]) {
                    Ok(count) => (sent, left) = (sent + count as u64, left - count as u64),
                    Err(why) => return self.fail(format!("write a response: {why}")),
                }
            }
        }
        let _ = socket.shutdown(Shutdown::Write);
    }

    /// Plays the client until it is done or the run is over.
    fn play(self: &Arc<Self>, mut client: WebClient, to: SocketAddr) {
        let (report, events) = mpsc::channel();
        let mut connections: HashMap<u32, Sender<WebRequest>> = HashMap::new();
        while !self.context.stopped() {
            for action in client.take_actions() {
                match action {
                    WebAction::Open(number) => {
                        let (ask, requests) = mpsc::channel();
                        connections.insert(number, ask);
                        let (session, report) = (self.clone(), report.clone());
                        let open = move || session.write_requests(number, to, &requests, &report);
                        if let Err(why) = thread::Builder::new().name("web-connection".into()).spawn(open) {
                            return self.fail(format!("start a thread: {why}"));
                        }
                    }
                    WebAction::Send(number, request) => {
                        if let Some(connection) = connections.get(&number) {
                            let _ = connection.send(request);
                        }
                    }
                    // The thread of a connection ends with its channel.
                    WebAction::Close(number) => _ = connections.remove(&number),
                }
            }
            self.result.lock().unwrap_or_else(PoisonError::into_inner).times.clone_from(client.times());
            let opening = client.awaited_connections().filter(|(_, is_open)| !is_open).count();
            let state = ClientState { read: client.read_bytes(), awaited: client.awaited_connections().count(), opening };
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
            if client.is_done() {
                return;
            }
            let wakeup = client.next_wakeup().map_or(LONGEST_SLEEP, |at| Span(at.0.saturating_sub(self.now().0)).duration());
            match events.recv_timeout(wakeup.min(LONGEST_SLEEP)) {
                Ok(WebEvent::Connected(number)) => client.connected(number),
                Ok(WebEvent::Read(number, total, at)) => client.received(number, total, at),
                Ok(WebEvent::Failed(why)) => return self.fail(why),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if client.next_wakeup().is_some_and(|at| at <= self.now()) {
                client.wake(self.now());
            }
        }
    }

    /// Opens a connection and writes its requests; another thread reads the responses.
    fn write_requests(self: &Arc<Self>, number: u32, to: SocketAddr, requests: &Receiver<WebRequest>, report: &Sender<WebEvent>) {
        let failed = |what: &str, why: &io::Error| _ = report.send(WebEvent::Failed(format!("{what}: {why}")));
        let connected = self.socket().and_then(|socket| self.adopt(socket)).and_then(|socket| {
            socket.connect(&SockAddr::from(to))?;
            Ok(socket)
        });
        let socket = match connected {
            Ok(socket) => socket,
            Err(why) => return failed("connect", &why),
        };
        let _ = report.send(WebEvent::Connected(number));
        let (session, reading, reads) = (self.clone(), socket.clone(), report.clone());
        let reader = thread::Builder::new().name("web-reader".into()).spawn(move || session.read_responses(number, &reading, &reads));
        if let Err(why) = reader {
            return failed("start a thread", &why);
        }
        for request in requests {
            if let Err(why) = (&*socket).write_all(&written(request)) {
                return failed("write a request", &why);
            }
        }
        let _ = socket.shutdown(Shutdown::Write);
    }

    /// Reads the responses of a connection until its end, and checks them.
    fn read_responses(&self, number: u32, mut socket: &Socket, report: &Sender<WebEvent>) {
        let (payload, mut bytes, mut total) = (self.context.payload(), vec![0; CHUNK], 0);
        let mut read_some = || -> Result<u64, String> {
            let at = (total % payload.len() as u64) as usize;
            let most = bytes.len().min(payload.len() - at);
            let count = socket.read(&mut bytes[..most]).map_err(|why| format!("read a response: {why}"))?;
            if bytes[..count] != payload[at..at + count] {
                return Err("a client read other bytes than the server wrote".into());
            }
            total += count as u64;
            Ok(if count > 0 { total } else { 0 })
        };
        loop {
            let event = match read_some() {
                Ok(0) => return,
                Ok(total) => WebEvent::Read(number, total, self.now()),
                Err(why) => WebEvent::Failed(why),
            };
            let is_over = matches!(event, WebEvent::Failed(_));
            if report.send(event).is_err() || is_over {
                return;
            }
        }
    }
}

/// What the senders of parallel connections over a leg wait for, over those that have data.
fn leg_time(waits: impl Iterator<Item = SenderWait>) -> LegTime {
    let with_data = waits.filter(|wait| !matches!(wait, SenderWait::Data | SenderWait::Handshake));
    LegTime::of(&with_data.map(|wait| (wait, 1.0)).collect::<Vec<_>>()).unwrap_or(LegTime::all(SenderWait::Data))
}

/// The bytes of a request.
fn written(request: WebRequest) -> Vec<u8> {
    let mut bytes = vec![0; request.up.0.max(HEADER as u64) as usize];
    for (place, number) in bytes.chunks_mut(8).zip([request.up.0, request.down.0, request.service.0]) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// The request that begins with these bytes.
fn parsed(header: &[u8; HEADER]) -> WebRequest {
    let number = |index: usize| header[8 * index..8 * index + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    WebRequest { up: Bytes(number(0)), down: Bytes(number(1)), service: Span(number(2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_the_server_is_to_do() {
        let request = WebRequest { up: Bytes(500), down: Bytes(1 << 40), service: Span(7_000_000) };
        let bytes = written(request);
        assert_eq!(bytes.len(), 500);
        assert_eq!(parsed(bytes[..HEADER].try_into().unwrap()), request);
    }
}
