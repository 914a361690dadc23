//! The ends: programs that open connections, send, receive and check what arrived; and UDP cross traffic.
//!
//! A flow is two threads, one on each host. What they did is in [`Flow`], which others may look at while it runs.

use crate::{LabError, host::Host, network::Network};
use rand::RngExt;
use scenario::{Cross, FlowSpec, Opens, Purpose, Times, Writes, stream};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use units::{Bytes, Span};
use xxhash_rust::xxh3::Xxh3;

/// The server port of flow 0; the others follow.
const FIRST_PORT: u16 = 10_000;
/// Where cross traffic goes.
const CROSS_PORT: u16 = 9;
/// How much of what a sender has written may wait to be sent for the first time.
const UNSENT: u32 = 4 << 20;
/// What a sender writes and a receiver reads at a time.
const CHUNK: usize = 128 * 1024;

/// The server port of flow `id`.
pub(crate) fn port(id: u32) -> u16 {
    FIRST_PORT + id as u16
}

/// The flow that a server port belongs to.
pub(crate) fn flow_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

/// What all flows of a run share.
#[derive(Debug)]
pub(crate) struct Stage {
    /// When the run began.
    pub(crate) began: Instant,
    /// Set when the run is to end.
    stop: AtomicBool,
    /// What random times are drawn from.
    seed: u64,
    /// What is sent, over and over.
    payload: Vec<u8>,
    /// The sender's congestion controller.
    control: String,
}

impl Stage {
    pub(crate) fn new(seed: u64, control: &str) -> Self {
        let mut payload = vec![0; 1 << 20];
        stream(seed, Purpose::Payload, 0).fill(&mut payload[..]);
        Stage { began: Instant::now(), stop: AtomicBool::new(false), seed, payload, control: control.into() }
    }

    pub(crate) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Sleeps until `at`; false when the run ended before.
    fn sleep_until(&self, at: Span) -> bool {
        loop {
            if self.stopped() {
                return false;
            }
            let left = at.duration().saturating_sub(self.began.elapsed());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// A flow, and what is known of it.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) spec: FlowSpec,
    /// Payload that the receiver has read.
    pub(crate) read: AtomicU64,
    sending: OnceLock<Arc<Socket>>,
    receiving: OnceLock<Arc<Socket>>,
    listening: OnceLock<Arc<Socket>>,
    pub(crate) story: Mutex<Story>,
}

/// What happened to a flow. Times in seconds since the run began.
#[derive(Debug, Clone, Default)]
pub(crate) struct Story {
    pub(crate) started: Option<f64>,
    /// When the receiver read the last byte.
    pub(crate) ended: Option<f64>,
    pub(crate) error: Option<String>,
    /// The sender's connection at its end.
    pub(crate) last: Option<intercept::TcpInfo>,
    sent_sum: Option<u64>,
    received_sum: Option<u64>,
}

impl Flow {
    /// The sending end's socket, once it is connected.
    pub(crate) fn sending(&self) -> Option<&Socket> {
        self.sending.get().map(Arc::as_ref)
    }

    fn fail(&self, what: &str, why: &io::Error) {
        let mut story = self.story.lock().expect("no thread panics while it holds a story");
        story.error.get_or_insert_with(|| format!("{what}: {why}"));
    }

    /// Ends whatever its threads wait for.
    fn interrupt(&self) {
        for socket in [&self.listening, &self.sending, &self.receiving] {
            if let Some(socket) = socket.get() {
                // What it has not delivered goes with it: the kernel would hold it for minutes, for a network that is gone.
                let _ = socket.set_linger(Some(Duration::ZERO));
                // Not connected (any more) is as good as shut down.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Flows at work.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) stage: Arc<Stage>,
    pub(crate) flows: Vec<Arc<Flow>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workload {
    /// Starts every flow and all cross traffic; each waits for its own time.
    pub(crate) fn start(network: &Network, stage: Arc<Stage>, specs: &[FlowSpec], cross: &[Cross]) -> Result<Self, LabError> {
        let mut workload = Workload { stage, flows: Vec::new(), threads: Vec::new() };
        for spec in specs {
            let flow = Arc::new(Flow {
                spec: *spec,
                read: AtomicU64::new(0),
                sending: OnceLock::new(),
                receiving: OnceLock::new(),
                listening: OnceLock::new(),
                story: Mutex::new(Story::default()),
            });
            workload.add(network, &flow)?;
            workload.flows.push(flow);
        }
        for (index, cross) in (0..).zip(cross) {
            let from = &network.hosts()[cross.link - 1];
            let to = &network.hosts()[cross.link];
            let address = SocketAddr::new(network.link_end(cross.link - 1), CROSS_PORT);
            let sink =
                to.enter(|| UdpSocket::bind(address))?.map_err(|why| LabError::System { what: "open a sink for cross traffic", why })?;
            let (stage, times) = (workload.stage.clone(), cross.times(workload.stage.seed, index));
            workload.threads.push(from.spawn("cross", move || cross_traffic(&stage, times, &sink))?);
        }
        Ok(workload)
    }

    fn add(&mut self, network: &Network, flow: &Arc<Flow>) -> Result<(), LabError> {
        let (opener, server, address) = match flow.spec.opens {
            Opens::Sender => (network.sender(), network.receiver(), network.receiver_addresses()[0]),
            Opens::Receiver => (network.receiver(), network.sender(), network.sender_addresses()[0]),
        };
        let failed = |why| LabError::System { what: "open a listener for a flow", why };
        // The listener is there before anybody connects.
        let listener = self.listener(server, flow, address)?.map_err(failed)?;
        let listener = Arc::new(listener);
        let _ = flow.listening.set(listener.clone());
        let (stage, shared) = (self.stage.clone(), flow.clone());
        self.threads.push(server.spawn("server", move || match listener.accept() {
            Ok((socket, _)) => play(&stage, &shared, socket, shared.spec.opens == Opens::Receiver),
            Err(_) if stage.stopped() => {}
            Err(why) => shared.fail("accept", &why),
        })?);
        let (stage, shared) = (self.stage.clone(), flow.clone());
        self.threads.push(opener.spawn("opener", move || {
            if stage.sleep_until(shared.spec.start) {
                open(&stage, &shared, SocketAddr::new(address, port(shared.spec.id)));
            }
        })?);
        Ok(())
    }

    fn listener(&self, host: &Host, flow: &Flow, address: IpAddr) -> Result<io::Result<Socket>, LabError> {
        let receives = flow.spec.opens == Opens::Sender;
        host.enter(|| {
            let socket = socket(&self.stage, flow, receives)?;
            socket.bind(&SockAddr::from(SocketAddr::new(address, port(flow.spec.id))))?;
            socket.listen(4)?;
            Ok(socket)
        })
    }

    /// Whether every flow has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.threads.iter().filter(|thread| thread.thread().name() != Some("cross")).all(thread::JoinHandle::is_finished)
    }

    /// Ends what still runs, and waits for it.
    pub(crate) fn finish(&mut self) {
        self.stage.stop.store(true, Relaxed);
        let begun = Instant::now();
        while !self.threads.iter().all(thread::JoinHandle::is_finished) && begun.elapsed() < Duration::from_secs(10) {
            for flow in &self.flows {
                flow.interrupt();
            }
            thread::sleep(Duration::from_millis(1));
        }
        for thread in self.threads.drain(..) {
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

/// A socket for one end of `flow`, tuned before it connects.
fn socket(stage: &Stage, flow: &Flow, receives: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if receives {
        if let Some(window) = flow.spec.window {
            intercept::force_receive_buffer(&socket, window.0 as usize * 2)?;
            intercept::clamp_window(&socket, window.0 as usize)?;
        }
    } else {
        socket.set_tcp_congestion(stage.control.as_bytes())?;
        // Buffers are as large as a path may need in flight: what a flow without an end would have wait in them is the machine's memory.
        socket.set_tcp_notsent_lowat(UNSENT)?;
    }
    Ok(socket)
}

fn open(stage: &Stage, flow: &Flow, to: SocketAddr) {
    let receives = flow.spec.opens == Opens::Receiver;
    let connected = socket(stage, flow, receives).and_then(|socket| {
        flow.story.lock().expect("no thread panics while it holds a story").started = Some(stage.now());
        socket.connect(&SockAddr::from(to))?;
        Ok(socket)
    });
    match connected {
        Ok(socket) => play(stage, flow, socket, !receives),
        Err(_) if stage.stopped() => {}
        Err(why) => flow.fail("connect", &why),
    }
}

/// Plays one end of a connection.
fn play(stage: &Stage, flow: &Flow, socket: Socket, sends: bool) {
    let socket = Arc::new(socket);
    let slot = if sends { &flow.sending } else { &flow.receiving };
    let _ = slot.set(socket.clone());
    let played = if sends { send(stage, flow, &socket) } else { receive(stage, flow, &socket) };
    match played {
        Err(why) if !stage.stopped() => flow.fail(if sends { "send" } else { "receive" }, &why),
        _ => {}
    }
    // The other end waits for this end's FIN; the slot keeps the socket itself open for whoever looks at it.
    let _ = socket.shutdown(Shutdown::Both);
    let mut story = flow.story.lock().expect("no thread panics while it holds a story");
    if let (Some(sent), Some(received)) = (story.sent_sum, story.received_sum)
        && sent != received
    {
        story.error.get_or_insert_with(|| "the receiver read other bytes than the sender wrote".into());
    }
}

/// Writes the flow's bytes, ends, and waits for the other end's end: a clean one means that all was delivered.
fn send(stage: &Stage, flow: &Flow, mut socket: &Socket) -> io::Result<()> {
    let (mut sum, mut sent) = (Xxh3::new(), 0);
    let most = flow.spec.bytes.map_or(u64::MAX, |bytes| bytes.0);
    let mut offered = flow.spec.offers.map(|offer| Offered { writes: offer.writes(stage.seed, flow.spec.id, flow.spec.start), until: 0 });
    while sent < most && !stage.stopped() {
        let at = ((sent + u64::from(flow.spec.id) * 4099) % stage.payload.len() as u64) as usize;
        let end = stage.payload.len().min(at + CHUNK).min(at.saturating_add(usize::try_from(most - sent).unwrap_or(usize::MAX)));
        let end = match &mut offered {
            Some(offered) => end.min(at.saturating_add(offered.beyond(stage, sent))),
            None => end,
        };
        let count = socket.write(&stage.payload[at..end])?;
        sum.update(&stage.payload[at..at + count]);
        sent += count as u64;
    }
    if flow.spec.bytes.is_some() {
        flow.story.lock().expect("no thread panics while it holds a story").sent_sum = Some(sum.digest());
    }
    socket.shutdown(Shutdown::Write)?;
    let ended = socket.read(&mut [0; 1]);
    flow.story.lock().expect("no thread panics while it holds a story").last = intercept::tcp_info(socket).ok();
    ended.map(|_| ())
}

/// What an application has offered so far.
struct Offered {
    writes: Writes,
    /// Up to which byte.
    until: u64,
}

impl Offered {
    /// How much of it has not been sent; waits until there is some, or the run ends.
    fn beyond(&mut self, stage: &Stage, sent: u64) -> usize {
        while self.until <= sent {
            let Some((at, Bytes(bytes))) = self.writes.next() else { break };
            // Each write comes at its time.
            stage.sleep_until(at);
            self.until = self.until.saturating_add(bytes);
        }
        usize::try_from(self.until.saturating_sub(sent)).unwrap_or(usize::MAX)
    }
}

/// Reads until the end.
fn receive(stage: &Stage, flow: &Flow, mut socket: &Socket) -> io::Result<()> {
    let (mut sum, mut bytes, mut last) = (Xxh3::new(), vec![0; CHUNK], stage.now());
    loop {
        if let Some(window) = flow.spec.window {
            // The kernel forgets the clamp whenever a segment larger than any before comes.
            intercept::clamp_window(socket, window.0 as usize)?;
        }
        let count = socket.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        last = stage.now();
        sum.update(&bytes[..count]);
        flow.read.fetch_add(count as u64, Relaxed);
    }
    let read = flow.read.load(Relaxed);
    let mut story = flow.story.lock().expect("no thread panics while it holds a story");
    match flow.spec.bytes {
        _ if stage.stopped() => {}
        Some(bytes) if read != bytes.0 => {
            story.error.get_or_insert_with(|| format!("the receiver read {read} of {} bytes", bytes.0));
        }
        _ => {
            story.ended = Some(last);
            story.received_sum = Some(sum.digest());
        }
    }
    Ok(())
}

/// Sends UDP packets at their times across one link. The sink is only kept open, so that no ICMP comes back.
fn cross_traffic(stage: &Stage, times: Times, sink: &UdpSocket) {
    const HEADERS: u64 = 28;
    let packet = vec![0; (units::PKT.0 - HEADERS) as usize];
    let Ok(to) = sink.local_addr() else { return };
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return };
    for at in times {
        if !stage.sleep_until(at) {
            return;
        }
        // What the host can't send now is dropped, as UDP is.
        let _ = socket.send_to(&packet, to);
    }
}
