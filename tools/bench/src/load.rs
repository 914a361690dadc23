//! The traffic of measurements: clients, and the servers that answer them.

use crate::{
    measurement::{BenchMetric, Measurement},
    rival::RunningRival,
};
use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with},
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{CpuClocks, CpuUsage, ECHO_PORT_COUNT, FIRST_ECHO_PORT, SINK_PORT, ThreeHosts, memory_held};

/// Size of a message in each direction, bytes.
const MESSAGE: usize = 100;

/// The servers, which serve all rivals in turn.
#[derive(Clone, Default)]
pub(crate) struct LoadServers {
    received: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy)]
enum LoadService {
    Sink,
    Echo,
}

impl LoadServers {
    pub(crate) fn start(network: &ThreeHosts) -> Result<Self> {
        let servers = LoadServers::default();
        for (name, ports, service) in [
            ("sink", SINK_PORT..SINK_PORT + 1, LoadService::Sink),
            ("echo", FIRST_ECHO_PORT..FIRST_ECHO_PORT + ECHO_PORT_COUNT, LoadService::Echo),
        ] {
            let servers = servers.clone();
            network.server.spawn(name, move || {
                if let Err(error) = servers.serve(ports, service) {
                    eprintln!("a server ended: {error:#}");
                    std::process::exit(1);
                }
            })?;
        }
        Ok(servers)
    }

    /// Serves connections to these ports until an error.
    fn serve(&self, ports: std::ops::Range<u16>, service: LoadService) -> Result<()> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut listeners = HashMap::new();
        for port in ports {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)?;
            socket.set_reuse_address(true)?;
            socket.set_tcp_nodelay(true)?;
            socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?;
            socket.listen(16384)?;
            watch(&epoll, &socket, EventFlags::IN)?;
            listeners.insert(socket.as_raw_fd(), socket);
        }
        let mut connections: Vec<Option<Socket>> = Vec::new();
        let mut buffer = vec![0; 256 * 1024];
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in &events {
                let descriptor = event.data.u64() as i32;
                if let Some(listener) = listeners.get(&descriptor) {
                    while let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                        let socket = Socket::from(socket);
                        watch(&epoll, &socket, EventFlags::IN)?;
                        place(&mut connections, socket);
                        self.open.fetch_add(1, Relaxed);
                    }
                    continue;
                }
                let Some(mut socket) = connections.get(descriptor as usize).and_then(Option::as_ref) else { continue };
                let over = match (socket.read(&mut buffer), service) {
                    (Ok(0), _) => true,
                    (Ok(count), LoadService::Sink) => {
                        self.received.fetch_add(count as u64, Relaxed);
                        false
                    }
                    (Ok(count), LoadService::Echo) => socket.write_all(&buffer[..count]).is_err(),
                    (Err(why), _) => why.kind() != io::ErrorKind::WouldBlock,
                };
                if over {
                    connections[descriptor as usize] = None;
                    self.open.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Waits until every connection has ended, so that the next measurement starts without any.
    fn await_quiet(&self) -> Result<()> {
        let begun = Instant::now();
        while self.open.load(Relaxed) > 0 {
            ensure!(begun.elapsed() < Duration::from_secs(30), "{} connections never ended", self.open.load(Relaxed));
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Stores a socket at the index of its descriptor.
fn place(sockets: &mut Vec<Option<Socket>>, socket: Socket) {
    let descriptor = socket.as_raw_fd() as usize;
    if sockets.len() <= descriptor {
        sockets.resize_with(descriptor + 1, || None);
    }
    sockets[descriptor] = Some(socket);
}

fn watch(epoll: &OwnedFd, socket: &Socket, flags: EventFlags) -> io::Result<()> {
    epoll::add(epoll, socket, EventData::new_u64(socket.as_raw_fd() as u64), flags)?;
    Ok(())
}

/// Starts a non-blocking connect, with this congestion controller or the host's default.
fn begin(to: SocketAddr, control: Option<&str>) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(name) = control {
        socket.set_tcp_congestion(name.as_bytes()).with_context(|| format!("cannot set the congestion control {name}"))?;
    }
    match socket.connect(&SockAddr::from(to)) {
        Err(why) if why.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
            Err(why).with_context(|| format!("cannot connect to {to}"))
        }
        _ => Ok(socket),
    }
}

/// How long flows run before they are measured.
const WARM_UP: Duration = Duration::from_millis(500);

/// Flows from client to server at full speed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BulkFlows<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) count: usize,
    /// Their congestion controller; `None` for the host's default.
    pub(crate) control: Option<&'a str>,
}

/// Sends while `watch` runs, which starts after the flows have warmed up. Returns the bytes that
/// arrived meanwhile, and the result of `watch`.
pub(crate) fn send<T>(
    network: &ThreeHosts,
    servers: &LoadServers,
    flows: BulkFlows<'_>,
    watch: impl FnOnce() -> Result<T>,
) -> Result<(u64, T)> {
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| -> Result<(u64, T)> {
        let sender = scope.spawn(|| network.client.enter(|| send_bulk(flows, &stop)));
        thread::sleep(WARM_UP);
        let before = servers.received.load(Relaxed);
        let seen = watch();
        let bytes = servers.received.load(Relaxed) - before;
        stop.store(true, Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))???;
        Ok((bytes, seen?))
    })?;
    servers.await_quiet()?;
    ensure!(sent.0 > 0, "nothing arrived");
    Ok(sent)
}

/// Measures `count` flows from client to server at full speed: processor time per gigabyte.
pub(crate) fn bulk(
    network: &ThreeHosts,
    running: &RunningRival,
    servers: &LoadServers,
    count: usize,
    length: Duration,
) -> Result<Measurement> {
    let flows = BulkFlows { to: running.address(SINK_PORT), count, control: None };
    let (bytes, spent) = send(network, servers, flows, || {
        let clocks = CpuClocks::read()?;
        thread::sleep(length);
        clocks.since(&running.processes())
    })?;
    let gigabytes = bytes as f64 / 1e9;
    Ok(Measurement::new(spent)
        .with(BenchMetric::CpuPerGigabyte, spent.machine.as_secs_f64() / gigabytes)
        .with(BenchMetric::ProxyCpuPerGigabyte, spent.proxy.as_secs_f64() / gigabytes)
        .with(BenchMetric::Throughput, bytes as f64 * 8e-9 / spent.wall.as_secs_f64()))
}

fn send_bulk(flows: BulkFlows<'_>, stop: &AtomicBool) -> Result<()> {
    let BulkFlows { to, count, control } = flows;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let sockets = (0..count).map(|_| begin(to, control)).collect::<Result<Vec<_>>>()?;
    for socket in &sockets {
        watch(&epoll, socket, EventFlags::OUT)?;
    }
    let payload = vec![7; 256 * 1024];
    let mut events = Vec::with_capacity(64);
    while !stop.load(Relaxed) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let Some(mut socket) = sockets.iter().find(|socket| socket.as_raw_fd() as u64 == event.data.u64()) else { continue };
            match socket.write(&payload) {
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) => return Err(why).with_context(|| format!("cannot send to {to}")),
            }
        }
    }
    for socket in &sockets {
        // Do not wait for data in flight.
        socket.set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

/// Measures short connections, with one message in each direction, `at_a_time` in parallel.
pub(crate) fn short(
    network: &ThreeHosts,
    running: &RunningRival,
    servers: &LoadServers,
    at_a_time: usize,
    length: Duration,
) -> Result<Measurement> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let (connections, spent) = thread::scope(|scope| -> Result<(u64, CpuUsage)> {
        let client = scope.spawn(|| network.client.enter(|| connect_often(running, at_a_time, &stop, &done)));
        thread::sleep(WARM_UP);
        let (before, clocks) = (done.load(Relaxed), CpuClocks::read()?);
        thread::sleep(length);
        let spent = clocks.since(&running.processes());
        let connections = done.load(Relaxed) - before;
        stop.store(true, Relaxed);
        client.join().map_err(|_| anyhow::anyhow!("the client panicked"))???;
        Ok((connections, spent?))
    })?;
    servers.await_quiet()?;
    ensure!(connections > 0, "no connection was made");
    let each = |time: Duration| time.as_secs_f64() * 1e6 / connections as f64;
    Ok(Measurement::new(spent)
        .with(BenchMetric::Connections, connections as f64 / spent.wall.as_secs_f64())
        .with(BenchMetric::CpuPerConnection, each(spent.machine))
        .with(BenchMetric::ProxyCpuPerConnection, each(spent.proxy)))
}

fn connect_often(running: &RunningRival, at_a_time: usize, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut sockets: Vec<Option<Socket>> = Vec::new();
    let mut ports = (FIRST_ECHO_PORT..FIRST_ECHO_PORT + ECHO_PORT_COUNT).cycle();
    let message = [7; MESSAGE];
    let mut buffer = [0; 2 * MESSAGE];
    let mut events = Vec::with_capacity(64);
    let mut next = |sockets: &mut Vec<Option<Socket>>| -> Result<()> {
        let socket = begin(running.address(ports.next().unwrap_or(FIRST_ECHO_PORT)), None)?;
        watch(&epoll, &socket, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
        place(sockets, socket);
        Ok(())
    };
    for _ in 0..at_a_time {
        next(&mut sockets)?;
    }
    let mut open = at_a_time;
    while open > 0 {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let (descriptor, flags) = (event.data.u64() as usize, event.flags);
            let Some(mut socket) = sockets.get(descriptor).and_then(Option::as_ref) else { continue };
            if !flags.contains(EventFlags::IN) {
                ensure!(socket.write(&message).context("a connection failed")? == MESSAGE, "a message was not taken whole");
                continue;
            }
            let count = socket.read(&mut buffer).context("an answer did not come")?;
            ensure!(count == MESSAGE, "an answer of {count} bytes");
            sockets[descriptor] = None;
            done.fetch_add(1, Relaxed);
            if stop.load(Relaxed) {
                open -= 1;
            } else {
                next(&mut sockets)?;
            }
        }
    }
    Ok(())
}

/// Measures the round-trip time of messages on one connection.
pub(crate) fn exchange(network: &ThreeHosts, running: &RunningRival, servers: &LoadServers, count: usize) -> Result<Measurement> {
    let clocks = CpuClocks::read()?;
    let times = network.client.enter(|| -> Result<Histogram<u64>> {
        let mut stream = TcpStream::connect(running.address(FIRST_ECHO_PORT))?;
        stream.set_nodelay(true)?;
        let mut times = Histogram::new(3)?;
        let mut message = [7; MESSAGE];
        for number in 0..count {
            let begun = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            // The first messages find cold caches.
            if number > count / 10 {
                times.record(begun.elapsed().as_nanos() as u64)?;
            }
        }
        Ok(times)
    })??;
    servers.await_quiet()?;
    Ok(Measurement::new(clocks.since(&running.processes())?)
        .with(BenchMetric::ExchangeP50, times.value_at_quantile(0.5) as f64 / 1e3)
        .with(BenchMetric::ExchangeP99, times.value_at_quantile(0.99) as f64 / 1e3))
}

/// Measures the memory of connections that are idle after one exchange: of the processes in the
/// middle, and of the kernel for both ends.
pub(crate) fn idle(network: &ThreeHosts, running: &RunningRival, servers: &LoadServers, count: usize) -> Result<Measurement> {
    let clocks = CpuClocks::read()?;
    thread::sleep(WARM_UP);
    let before = memory_held(&running.processes())?;
    let connections = network.client.enter(|| -> Result<Vec<TcpStream>> {
        let mut ports = (FIRST_ECHO_PORT..FIRST_ECHO_PORT + ECHO_PORT_COUNT).cycle();
        let mut connections = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(running.address(ports.next().unwrap_or(FIRST_ECHO_PORT)))?;
            let mut message = [7; MESSAGE];
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            connections.push(stream);
        }
        Ok(connections)
    })??;
    thread::sleep(WARM_UP);
    let after = memory_held(&running.processes())?;
    ensure!(servers.open.load(Relaxed) >= count as u64, "connections were lost");
    drop(connections);
    servers.await_quiet()?;
    Ok(Measurement::new(clocks.since(&running.processes())?).with(BenchMetric::MemoryPerIdle, (after - before) / 1e3 / count as f64))
}
