//! The endpoints of flows, which open connections, send, receive and check what arrives; and UDP
//! cross traffic.
//!
//! A flow has two threads, one on each host. They publish their state in [`Flow`], which can be
//! sampled while the flow runs.

use crate::{LabError, host::Host, network::SeriesNetwork, run_context::RunContext, web::WebSession};
use scenario::{Cross, FlowSpec, Opens, Times, WebClient, Writes};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use units::Bytes;
use xxhash_rust::xxh3::Xxh3;

/// Server port of flow 0; flow `id` has this port plus `id`.
pub(crate) const FIRST_PORT: u16 = 10_000;
/// Destination port of cross traffic.
const CROSS_PORT: u16 = 9;
/// Maximum number of bytes in a send buffer that have not been sent yet (TCP_NOTSENT_LOWAT).
const MAX_UNSENT: u32 = 4 << 20;
/// What the receiver of a download sends, if it sends a request.
const REQUEST: [u8; 1] = [b'?'];
/// Bytes of one write or read.
const CHUNK: usize = 128 * 1024;

/// The server port of flow `id`.
pub(crate) fn port(id: u32) -> u16 {
    FIRST_PORT + id as u16
}

/// The flow of a server port.
pub(crate) fn flow_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

/// A flow: its specification and its state.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) spec: FlowSpec,
    /// The sender's congestion controller.
    control: String,
    /// Payload that the receiver has read, bytes.
    pub(crate) read: AtomicU64,
    sending: OnceLock<Arc<Socket>>,
    receiving: OnceLock<Arc<Socket>>,
    listening: OnceLock<Arc<Socket>>,
    pub(crate) result: Mutex<FlowResult>,
}

/// The result of a flow. Times are in seconds since the start of the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowResult {
    /// When the opening end called connect.
    pub(crate) started: Option<f64>,
    /// When the receiver read the last byte.
    pub(crate) ended: Option<f64>,
    pub(crate) error: Option<String>,
    /// Kernel statistics of the sender's connection after its last byte was acknowledged.
    pub(crate) last: Option<intercept::TcpInfo>,
    /// Checksums of what was sent and of what was received.
    sent_sum: Option<u64>,
    received_sum: Option<u64>,
}

impl Flow {
    /// The sending end's socket, once it is connected.
    pub(crate) fn sending(&self) -> Option<&Socket> {
        self.sending.get().map(Arc::as_ref)
    }

    fn fail(&self, what: &str, why: &io::Error) {
        let mut result = self.result.lock().expect("no thread panics while it holds a result");
        result.error.get_or_insert_with(|| format!("{what}: {why}"));
    }

    /// Resets its connections, so that its threads do not block any longer.
    fn interrupt(&self) {
        for socket in [&self.listening, &self.sending, &self.receiving] {
            if let Some(socket) = socket.get() {
                // A reset discards undelivered data. Otherwise the kernel would retransmit them for
                // minutes into a network that no longer exists.
                let _ = socket.set_linger(Some(Duration::ZERO));
                // Fails if the socket is not connected, which needs no shutdown.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}

/// The flows and cross traffic of a run, and their threads. They are stopped when it is dropped.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) context: Arc<RunContext>,
    pub(crate) flows: Vec<Arc<Flow>>,
    /// The web clients, in the order of the scenario.
    pub(crate) web: Vec<Arc<WebSession>>,
    /// Number of flows that are not cross traffic.
    awaited: usize,
    /// Threads of flows and web clients that must finish before the run ends.
    flow_threads: Vec<thread::JoinHandle<()>>,
    /// Threads of cross traffic and web servers.
    cross_threads: Vec<thread::JoinHandle<()>>,
}

/// The flows of a run, with the sender's congestion controller of each of their groups.
pub(crate) struct FlowGroups<'a> {
    pub(crate) specs: &'a [FlowSpec],
    pub(crate) controls: &'a [String],
}

impl Workload {
    /// Starts the threads of all flows and of all cross traffic, over TCP (`cross_flows`) and UDP;
    /// each waits until its start time. The flows are followed by those of cross traffic in
    /// [`flows`](Self::flows).
    pub(crate) fn start(
        network: &SeriesNetwork,
        context: Arc<RunContext>,
        [flows, cross_flows]: [FlowGroups<'_>; 2],
        cross: &[Cross],
    ) -> Result<Self, LabError> {
        let awaited = flows.specs.len();
        let mut workload =
            Workload { context, flows: Vec::new(), web: Vec::new(), awaited, flow_threads: Vec::new(), cross_threads: Vec::new() };
        for (groups, is_cross) in [(flows, false), (cross_flows, true)] {
            for spec in groups.specs {
                let flow = Arc::new(Flow {
                    spec: *spec,
                    control: groups.controls[spec.group].clone(),
                    read: AtomicU64::new(0),
                    sending: OnceLock::new(),
                    receiving: OnceLock::new(),
                    listening: OnceLock::new(),
                    result: Mutex::new(FlowResult::default()),
                });
                let threads = workload.play_flow(network, &flow)?;
                if is_cross { &mut workload.cross_threads } else { &mut workload.flow_threads }.extend(threads);
                workload.flows.push(flow);
            }
        }
        for (index, cross) in (0..).zip(cross) {
            let from = &network.hosts()[cross.link - 1];
            let to = &network.hosts()[cross.link];
            let address = SocketAddr::new(network.link_end(cross.link - 1), CROSS_PORT);
            let sink =
                to.enter(|| UdpSocket::bind(address))?.map_err(|why| LabError::System { what: "open a sink for cross traffic", why })?;
            let (context, times) = (workload.context.clone(), cross.times(workload.context.seed, index));
            workload.cross_threads.push(from.spawn("cross", move || cross_traffic(&context, times, &sink))?);
        }
        Ok(workload)
    }

    /// Starts the web clients and their servers, at the ports that follow those of the flows.
    /// `controls` has the controller of both ends of each client.
    pub(crate) fn start_web(&mut self, network: &SeriesNetwork, clients: Vec<WebClient>, controls: Vec<String>) -> Result<(), LabError> {
        for (client, control) in clients.into_iter().zip(controls) {
            let port = port((self.flows.len() + self.web.len()) as u32);
            let (session, [server, player]) = WebSession::start(network, self.context.clone(), client, control, port)?;
            self.web.push(session);
            self.cross_threads.push(server);
            self.flow_threads.push(player);
        }
        Ok(())
    }

    /// Starts the two ends of a flow.
    fn play_flow(&self, network: &SeriesNetwork, flow: &Arc<Flow>) -> Result<[thread::JoinHandle<()>; 2], LabError> {
        let (opener, server, address) = network.ends_of(flow.spec.path, flow.spec.opens);
        let failed = |why| LabError::System { what: "open a listener for a flow", why };
        // The socket listens before any client connects.
        let listener = self.listener(server, flow, address)?.map_err(failed)?;
        let listener = Arc::new(listener);
        let _ = flow.listening.set(listener.clone());
        let (context, shared) = (self.context.clone(), flow.clone());
        let serving = server.spawn("server", move || match listener.accept() {
            Ok((socket, _)) => play(&context, &shared, socket, shared.spec.opens == Opens::Receiver),
            Err(_) if context.stopped() => {}
            Err(why) => shared.fail("accept", &why),
        })?;
        let (context, shared) = (self.context.clone(), flow.clone());
        let opening = opener.spawn("opener", move || {
            if context.sleep_until(shared.spec.start) {
                open(&context, &shared, SocketAddr::new(address, port(shared.spec.id)));
            }
        })?;
        Ok([serving, opening])
    }

    fn listener(&self, host: &Host, flow: &Flow, address: IpAddr) -> Result<io::Result<Socket>, LabError> {
        let receives = flow.spec.opens == Opens::Sender;
        host.enter(|| {
            let socket = socket(flow, receives)?;
            socket.bind(&SockAddr::from(SocketAddr::new(address, port(flow.spec.id))))?;
            socket.listen(4)?;
            Ok(socket)
        })
    }

    /// The flows that must finish before the run ends.
    pub(crate) fn awaited_flows(&self) -> impl Iterator<Item = &Arc<Flow>> {
        self.flows.iter().take(self.awaited)
    }

    /// Whether all flows and web clients have ended; cross traffic may go on.
    pub(crate) fn is_done(&self) -> bool {
        self.flow_threads.iter().all(thread::JoinHandle::is_finished)
    }

    /// Stops all threads and waits for them, for at most ten seconds.
    pub(crate) fn finish(&mut self) {
        self.context.stop.store(true, Relaxed);
        let begun = Instant::now();
        let mut threads: Vec<_> = self.flow_threads.drain(..).chain(self.cross_threads.drain(..)).collect();
        while !threads.iter().all(thread::JoinHandle::is_finished) && begun.elapsed() < Duration::from_secs(10) {
            self.flows.iter().for_each(|flow| flow.interrupt());
            self.web.iter().for_each(|session| session.interrupt());
            thread::sleep(Duration::from_millis(1));
        }
        for thread in threads.drain(..) {
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("a flow's thread panicked");
            }
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A socket for one end of `flow`, with its options set before it connects.
fn socket(flow: &Flow, receives: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if receives {
        if flow.control.ends_with("dctcp") {
            // The receiver's part of DCTCP belongs to the controller of its socket.
            socket.set_tcp_congestion(flow.control.as_bytes())?;
        }
        if let Some(window) = flow.spec.window {
            intercept::force_receive_buffer(&socket, window.0 as usize * 2)?;
            intercept::clamp_window(&socket, window.0 as usize)?;
        }
    } else {
        socket.set_tcp_congestion(flow.control.as_bytes())?;
        // Send buffers are large enough for the BDP of any path. Without this limit, unlimited
        // flows would fill them with unsent data.
        socket.set_tcp_notsent_lowat(MAX_UNSENT)?;
    }
    Ok(socket)
}

/// Connects, and plays the opening end of the connection.
fn open(context: &RunContext, flow: &Flow, to: SocketAddr) {
    let receives = flow.spec.opens == Opens::Receiver;
    let connected = socket(flow, receives).and_then(|socket| {
        if flow.spec.fast_open {
            // The connect returns at once, and the first write sends the SYN.
            intercept::sys::set_fast_open_connect(&socket)?;
        }
        flow.result.lock().expect("no thread panics while it holds a result").started = Some(context.now());
        socket.connect(&SockAddr::from(to))?;
        if receives && context.requests {
            (&socket).write_all(&REQUEST)?;
        }
        Ok(socket)
    });
    match connected {
        Ok(socket) => play(context, flow, socket, !receives),
        Err(_) if context.stopped() => {}
        Err(why) => flow.fail("connect", &why),
    }
}

/// Plays one end of a connection.
fn play(context: &RunContext, flow: &Flow, socket: Socket, sends: bool) {
    let socket = Arc::new(socket);
    let slot = if sends { &flow.sending } else { &flow.receiving };
    let _ = slot.set(socket.clone());
    let played = if sends { send(context, flow, &socket) } else { receive(context, flow, &socket) };
    match played {
        Err(why) if !context.stopped() => flow.fail(if sends { "send" } else { "receive" }, &why),
        _ => {}
    }
    // The peer waits for this end's FIN. The slot keeps the socket open so that it can be sampled.
    let _ = socket.shutdown(Shutdown::Both);
    let mut result = flow.result.lock().expect("no thread panics while it holds a result");
    if let (Some(sent), Some(received)) = (result.sent_sum, result.received_sum)
        && sent != received
    {
        result.error.get_or_insert_with(|| "the receiver read other bytes than the sender wrote".into());
    }
}

/// Writes the flow's bytes, sends a FIN, and waits for the peer's: a clean close means that all
/// bytes were delivered.
fn send(context: &RunContext, flow: &Flow, mut socket: &Socket) -> io::Result<()> {
    if flow.spec.opens == Opens::Receiver && context.requests {
        socket.read_exact(&mut [0; REQUEST.len()])?;
    }
    let (mut sum, mut sent) = (Xxh3::new(), 0);
    let most = flow.spec.bytes.map_or(u64::MAX, |bytes| bytes.0);
    let mut offered =
        flow.spec.offers.map(|offer| OfferedBytes { writes: offer.writes(context.seed, flow.spec.id, flow.spec.start), until: 0 });
    while sent < most && !context.stopped() {
        let at = ((sent + u64::from(flow.spec.id) * 4099) % context.payload().len() as u64) as usize;
        let end = context.payload().len().min(at + CHUNK).min(at.saturating_add(usize::try_from(most - sent).unwrap_or(usize::MAX)));
        let end = match &mut offered {
            Some(offered) => end.min(at.saturating_add(offered.beyond(context, sent))),
            None => end,
        };
        let count = socket.write(&context.payload()[at..end])?;
        sum.update(&context.payload()[at..at + count]);
        sent += count as u64;
    }
    if flow.spec.bytes.is_some() {
        flow.result.lock().expect("no thread panics while it holds a result").sent_sum = Some(sum.digest());
    }
    socket.shutdown(Shutdown::Write)?;
    let ended = socket.read(&mut [0; 1]);
    flow.result.lock().expect("no thread panics while it holds a result").last = intercept::tcp_info(socket).ok();
    ended.map(|_| ())
}

/// The bytes that an application has written so far, according to its schedule.
struct OfferedBytes {
    writes: Writes,
    /// Total number of these bytes.
    until: u64,
}

impl OfferedBytes {
    /// Number of these bytes beyond the first `sent`. Blocks until there is at least one, or the
    /// run ends.
    fn beyond(&mut self, context: &RunContext, sent: u64) -> usize {
        while self.until <= sent {
            let Some((at, Bytes(bytes))) = self.writes.next() else { break };
            context.sleep_until(at);
            self.until = self.until.saturating_add(bytes);
        }
        usize::try_from(self.until.saturating_sub(sent)).unwrap_or(usize::MAX)
    }
}

/// Reads until end of file.
fn receive(context: &RunContext, flow: &Flow, mut socket: &Socket) -> io::Result<()> {
    let (mut sum, mut bytes, mut last) = (Xxh3::new(), vec![0; CHUNK], context.now());
    loop {
        if let Some(window) = flow.spec.window {
            // The kernel resets the clamp when it receives a segment larger than all before.
            intercept::clamp_window(socket, window.0 as usize)?;
        }
        let count = socket.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        last = context.now();
        sum.update(&bytes[..count]);
        flow.read.fetch_add(count as u64, Relaxed);
    }
    let read = flow.read.load(Relaxed);
    let mut result = flow.result.lock().expect("no thread panics while it holds a result");
    match flow.spec.bytes {
        _ if context.stopped() => {}
        Some(bytes) if read != bytes.0 => {
            result.error.get_or_insert_with(|| format!("the receiver read {read} of {} bytes", bytes.0));
        }
        _ => {
            result.ended = Some(last);
            result.received_sum = Some(sum.digest());
        }
    }
    Ok(())
}

/// Sends UDP packets at the given times across one link. `sink` receives them; it is open so that
/// its host sends no ICMP errors, and is never read.
fn cross_traffic(context: &RunContext, times: Times, sink: &UdpSocket) {
    const HEADERS: u64 = 28;
    let packet = vec![0; (units::PKT.0 - HEADERS) as usize];
    let Ok(to) = sink.local_addr() else { return };
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return };
    for at in times {
        if !context.sleep_until(at) {
            return;
        }
        // A packet that cannot be sent now is dropped, as is usual for UDP.
        let _ = socket.send_to(&packet, to);
    }
}
