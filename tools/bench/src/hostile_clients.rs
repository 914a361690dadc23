//! Hostile clients that ask for an endless file and never read, beside honest transfers, through a
//! proxy on a machine with little memory: what TCP takes there, against the proxy's budget.
//!
//! The proxy runs with default settings in a virtual machine (`tools/memory/machine`), which routes
//! between clients and a server in network namespaces of this host. Half of the connections are
//! transparent, half go through SOCKS. All hostile ones come from one address, each honest one from
//! another. An unrelated connection to the machine itself is timed.

use anyhow::{Context as _, Result, ensure};
use lab::Host;
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit},
    time::Timespec,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use testbed::ThreeHosts;
use units::Bytes;

/// Measures the TCP memory of a small machine while thousands of clients of its proxy never read,
/// and the honest transfers beside them
#[derive(Debug, clap::Args)]
pub(crate) struct HostileClients {
    /// Hostile clients
    #[arg(long, default_value_t = 10_000)]
    hostile: u32,
    /// Hostile clients that begin in a second
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// Honest transfers, which begin evenly spread over the same time
    #[arg(long, default_value_t = 100)]
    honest: u32,
    /// Size of an honest transfer
    #[arg(long, default_value = "1MB")]
    size: Bytes,
    /// Kernel of the machine: the beginning of a version of Debian's
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Writes what was sampled over time into this directory
    #[arg(long, value_name = "DIRECTORY")]
    csv: Option<PathBuf>,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
}

/// Name of a machine, its memory, and that of the proxy's control group.
const MACHINES: [[&str; 3]; 2] = [["machine of 1 GB", "1G", "none"], ["container of 256 MiB", "3G", "256M"]];
/// Ports: of the server, of the proxy for SOCKS, of the unrelated service, and of what ends the
/// machine.
const SERVER: SocketAddr = SocketAddr::new(ThreeHosts::SERVER, 80);
const SOCKS: SocketAddr = SocketAddr::new(ThreeHosts::MIDDLE, 1080);
const ECHO: SocketAddr = SocketAddr::new(ThreeHosts::MIDDLE, 7);
const END: SocketAddr = SocketAddr::new(ThreeHosts::MIDDLE, 99);
/// Last bytes of the addresses of honest clients.
const HONEST_ADDRESSES: std::ops::Range<u8> = 10..250;
/// What a client asks the server for.
const ENDLESS: u8 = b'*';
const HONEST: u8 = b'1';
/// Buffers of the other ends, bytes: what they hold is not the machine's, but this host's.
const OTHER_END: usize = 16 * 1024;
/// How long the unrelated service is timed before the others begin.
const QUIET: Duration = Duration::from_secs(10);
/// How long a machine may take to start, and honest transfers after the last hostile client.
const BOOT: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(300);
const ECHO_PAUSE: Duration = Duration::from_millis(200);

impl HostileClients {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = 1;
        let column = |head, unit, digits| SampleColumn::new(head, unit, digits).with(SampleStatistic::Median);
        let columns = vec![
            column("budget", "MiB", 0),
            column("TCP memory at most", "MiB", 0),
            column("hostile clients split at once", "", 0),
            column("stuck flows ended", "", 0),
            column("honest transfers complete", "", 0),
            column("median", "s", 1),
            column("slowest", "s", 1),
            column("unrelated echo before", "ms", 1),
            column("then: median", "ms", 1),
            column("worst", "ms", 0),
        ];
        record.tables = vec![SampleTable::new("memory", "", columns)];
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(65_536), maximum: Some(65_536) });
        for machine in MACHINES {
            let found = self.run(machine).with_context(|| machine[0].to_owned())?;
            if let Some(directory) = &self.csv {
                fs::create_dir_all(directory)?;
                fs::write(directory.join(format!("{}.csv", machine[0].replace(' ', "-"))), found.csv())?;
            }
            let row = record.tables[0].row(machine[0]);
            found.figures().into_iter().for_each(|(head, figure)| row.add(head, 0, figure));
        }
        record.notes.push(format!(
            "{} hostile clients at {} a second, {} honest transfers of {}; the machine is emulated in software.",
            self.hostile, self.rate, self.honest, self.size
        ));
        Ok(())
    }

    fn run(&self, [name, memory, group]: [&str; 3]) -> Result<FloodResult> {
        let network = ThreeHosts::new("reno")?;
        bridge(&network.middle)?;
        network.client.ip(&HONEST_ADDRESSES.map(|last| format!("addr add {}/24 dev near", honest_address(last))).collect::<Vec<_>>())?;
        let machine = Machine::boot(&network.middle, &testbed::resolve_program(&self.tandem), [&self.kernel, memory, group])?;
        let over = Arc::new(AtomicBool::new(false));
        let server = network.server.spawn("server", {
            let (size, over) = (self.size.0, over.clone());
            move || serve(size, &over)
        })?;
        let echo = network.client.spawn("echo", {
            let over = over.clone();
            move || time_echo(&over)
        })?;
        thread::sleep(QUIET);
        let begun = Instant::now();
        eprintln!("{name}: the clients begin");
        let lasts = Duration::from_secs_f64(f64::from(self.hostile) / self.rate);
        let hostile = network.client.spawn("hostile", {
            let (count, over) = (self.hostile, over.clone());
            move || flood(count, lasts, &over)
        })?;
        let honest: Vec<JoinHandle<Option<Duration>>> = (0..self.honest)
            .map(|number| {
                let (at, size) = (begun + lasts * number / self.honest.max(1), self.size.0);
                let from = honest_address(HONEST_ADDRESSES.start + (number % HONEST_ADDRESSES.len() as u32) as u8);
                network.client.spawn("honest", move || {
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    transfer(from, number % 2 == 1, size).inspect_err(|why| eprintln!("an honest transfer failed: {why}")).ok()
                })
            })
            .collect::<Result<_, _>>()?;
        let honest: Vec<Option<Duration>> = honest.into_iter().map(|thread| thread.join().ok().flatten()).collect();
        thread::sleep((begun + lasts).saturating_duration_since(Instant::now()));
        over.store(true, Relaxed);
        let echo = echo.join().map_err(|_| anyhow::anyhow!("the thread that times the echo has panicked"))??;
        hostile.join().map_err(|_| anyhow::anyhow!("the thread of the hostile clients has panicked"))??;
        server.join().map_err(|_| anyhow::anyhow!("the server's thread has panicked"))??;
        let samples = machine.end(&network.client)?;
        eprintln!("{name}: {} of {} honest transfers are complete", honest.iter().flatten().count(), honest.len());
        Ok(FloodResult { begun, samples, honest, echo })
    }
}

/// Has the middle host's interfaces lead to taps instead.
fn bridge(middle: &Host) -> Result<()> {
    let of_side = |side: &str| {
        [
            format!("addr flush dev {side}"),
            format!("link add name br-{side} type bridge"),
            format!("tuntap add dev tap-{side} mode tap"),
            format!("link set dev {side} master br-{side}"),
            format!("link set dev tap-{side} master br-{side}"),
            format!("link set dev tap-{side} up"),
            format!("link set dev br-{side} up"),
        ]
    };
    Ok(middle.ip(&["near", "far"].map(of_side).concat())?)
}

/// What the machine's kernel and proxy said at a time.
#[derive(Debug, Clone, Copy, Default)]
struct MachineSample {
    at: Option<Instant>,
    /// TCP memory of the machine, what the proxy's connections take, and their budget, bytes.
    tcp: f64,
    own: f64,
    budget: f64,
    flows: f64,
    stuck: f64,
    /// 0 to 4: free, tight, full, critical, exhausted.
    level: usize,
}

impl MachineSample {
    /// From a line of `tools/memory/guest`.
    fn parse(line: &str) -> Option<Self> {
        const PAGE: f64 = 4096.0;
        let mut words = line.trim().strip_prefix("sample ")?.split_whitespace();
        let _uptime = words.next()?;
        let tcp = words.next()?.parse::<f64>().ok()? * PAGE;
        let mut sample = MachineSample { at: Some(Instant::now()), tcp, ..MachineSample::default() };
        for (name, value) in words.filter_map(|word| word.rsplit_once('=')) {
            let value: f64 = value.parse().ok()?;
            match name {
                "memory_bytes" => sample.own = value,
                "memory_budget_bytes" => sample.budget = value,
                "flows" => sample.flows = value,
                "flows_ended_total{ending=\"stuck\"}" => sample.stuck = value,
                _ if value > 0.0 => {
                    let levels = ["free", "tight", "full", "critical", "exhausted"];
                    let level = levels.iter().position(|level| name.contains(&format!("\"{level}\"")));
                    sample.level = level.unwrap_or(sample.level);
                }
                _ => {}
            }
        }
        (sample.budget > 0.0).then_some(sample)
    }
}

/// A virtual machine. A thread reads the lines that it prints.
struct Machine {
    child: Child,
    folder: tempfile::TempDir,
    samples: Arc<Mutex<Vec<MachineSample>>>,
    over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Machine {
    fn boot(middle: &Host, tandem: &Path, [kernel, memory, group]: [&str; 3]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let lines = folder.path().join("lines");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memory/machine");
        let mut command = middle.command(script.to_str().context("the sources have a path that is no text")?);
        command.arg(tandem).args([kernel, memory, group]).arg(&lines).stdin(Stdio::null()).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {}", script.display()))?;
        let mut machine = Machine { child, folder, samples: Arc::default(), over: Arc::default(), reader: None };
        let begun = Instant::now();
        while !fs::read_to_string(&lines).unwrap_or_default().contains("ready") {
            ensure!(machine.child.try_wait()?.is_none(), "the machine has ended");
            ensure!(begun.elapsed() < BOOT, "the machine did not start within {} s: {}", BOOT.as_secs(), machine.console());
            thread::sleep(Duration::from_millis(200));
        }
        let (samples, over) = (machine.samples.clone(), machine.over.clone());
        machine.reader = Some(thread::spawn(move || {
            let mut read = 0;
            while !over.load(Relaxed) {
                let text = fs::read_to_string(&lines).unwrap_or_default();
                // The last line may be incomplete.
                let end = text.rfind('\n').map_or(0, |at| at + 1).max(read);
                locked(&samples).extend(text[read..end].lines().filter_map(MachineSample::parse));
                read = end;
                thread::sleep(Duration::from_millis(200));
            }
        }));
        Ok(machine)
    }

    fn console(&self) -> String {
        fs::read_to_string(self.folder.path().join("lines.log")).unwrap_or_default()
    }

    /// Ends it, and returns what it said.
    fn end(mut self, client: &Host) -> Result<Vec<MachineSample>> {
        let ended = client.enter(|| TcpStream::connect_timeout(&END, Duration::from_secs(20)))?;
        let samples = std::mem::take(&mut *locked(&self.samples));
        ensure!(ended.is_ok() && !samples.is_empty(), "the machine does not answer; its console: {}", self.console());
        let _ = self.child.wait();
        Ok(samples)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::TERM);
        }
        let _ = self.child.wait();
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection of the server.
struct Served {
    socket: TcpStream,
    /// Bytes that are still to be sent; none: it has not asked yet.
    left: Option<u64>,
}

/// Sends `size` bytes to honest clients, and bytes without an end to the others.
fn serve(size: u64, over: &AtomicBool) -> Result<()> {
    let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
    listener.set_reuse_address(true)?;
    listener.set_send_buffer_size(OTHER_END)?;
    listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, SERVER.port()))))?;
    listener.listen(16_384)?;
    let listener = TcpListener::from(listener);
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;
    let (mut open, bytes): (Vec<Option<Served>>, Vec<u8>) = (Vec::new(), vec![7; 64 * 1024]);
    let mut events = Vec::with_capacity(256);
    while !over.load(Relaxed) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))?;
        for event in &events {
            if event.data.u64() == u64::MAX {
                while let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(true)?;
                    let at = socket.as_raw_fd() as usize;
                    epoll::add(&epoll, &socket, EventData::new_u64(at as u64), EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
                    open.resize_with(open.len().max(at + 1), || None);
                    open[at] = Some(Served { socket, left: None });
                }
                continue;
            }
            let place = &mut open[event.data.u64() as usize];
            if place.as_mut().is_some_and(|served| !served.proceed(size, &bytes)) {
                *place = None;
            }
        }
    }
    Ok(())
}

impl Served {
    /// Reads what is asked for, and sends; false: it is over.
    fn proceed(&mut self, size: u64, bytes: &[u8]) -> bool {
        let mut asked = [0];
        if self.left.is_none() {
            match self.socket.read(&mut asked) {
                Ok(1) => self.left = Some(if asked[0] == HONEST { size } else { u64::MAX }),
                Ok(_) => return false,
                Err(why) => return why.kind() == ErrorKind::WouldBlock,
            }
        }
        while let Some(left) = self.left.filter(|left| *left > 0) {
            match self.socket.write(&bytes[..left.min(bytes.len() as u64) as usize]) {
                Ok(count) => self.left = Some(left - count as u64),
                Err(why) => return why.kind() == ErrorKind::WouldBlock,
            }
        }
        self.left.is_none()
    }
}

/// Where a client connects to, and what it sends.
fn asks(by_socks: bool, for_what: u8) -> (SocketAddr, Vec<u8>) {
    if !by_socks {
        return (SERVER, vec![for_what]);
    }
    let SocketAddr::V4(server) = SERVER else { unreachable!("it has IPv4") };
    let request = [&[5, 1, 0, 5, 1, 0, 1][..], &server.ip().octets(), &server.port().to_be_bytes(), &[for_what]].concat();
    (SOCKS, request)
}

/// Opens connections, evenly over the time, that ask for bytes and never read.
fn flood(count: u32, lasts: Duration, over: &AtomicBool) -> Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let (mut open, mut events) = (Vec::<Socket>::new(), Vec::with_capacity(256));
    let begun = Instant::now();
    while !over.load(Relaxed) {
        while open.len() < count as usize && begun.elapsed() >= lasts * open.len() as u32 / count {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
            socket.set_recv_buffer_size(OTHER_END)?;
            match socket.connect(&SockAddr::from(asks(open.len() % 2 == 1, ENDLESS).0)) {
                Err(why) if why.raw_os_error() != Some(libc::EINPROGRESS) => return Err(why.into()),
                _ => epoll::add(&epoll, &socket, EventData::new_u64(open.len() as u64), EventFlags::OUT | EventFlags::ET)?,
            }
            open.push(socket);
        }
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }))?;
        for event in &events {
            let number = event.data.u64() as usize;
            let socket = &open[number];
            // It may have been refused.
            let _ = (&*socket).write(&asks(number % 2 == 1, ENDLESS).1);
            let _ = epoll::delete(&epoll, socket);
        }
    }
    Ok(())
}

fn honest_address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, 1, last)
}

/// An honest transfer; returns how long it took.
fn transfer(from: Ipv4Addr, by_socks: bool, size: u64) -> io::Result<Duration> {
    let begun = Instant::now();
    let (to, request) = asks(by_socks, HONEST);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    let mut socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(&request)?;
    if by_socks {
        let mut reply = [0; 12];
        socket.read_exact(&mut reply)?;
        if reply[3] != 0 {
            return Err(io::Error::other(format!("SOCKS reply {}", reply[3])));
        }
    }
    let read = io::copy(&mut socket, &mut io::sink())?;
    if read == size { Ok(begun.elapsed()) } else { Err(io::Error::other(format!("{read} of {size} bytes"))) }
}

/// Times messages over one connection to the machine itself.
fn time_echo(over: &AtomicBool) -> Result<Vec<(Instant, Duration)>> {
    let mut socket = TcpStream::connect_timeout(&ECHO, PATIENCE)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (mut found, mut message) = (Vec::new(), [1; 100]);
    while !over.load(Relaxed) {
        let begun = Instant::now();
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        found.push((begun, begun.elapsed()));
        thread::sleep(ECHO_PAUSE);
    }
    Ok(found)
}

/// What was found with one machine.
struct FloodResult {
    begun: Instant,
    samples: Vec<MachineSample>,
    honest: Vec<Option<Duration>>,
    echo: Vec<(Instant, Duration)>,
}

const MIB: f64 = (1 << 20) as f64;

impl FloodResult {
    fn figures(&self) -> Vec<(&'static str, f64)> {
        let most = |value: fn(&MachineSample) -> f64| self.samples.iter().map(value).fold(0.0, f64::max);
        let mut honest: Vec<f64> = self.honest.iter().flatten().map(Duration::as_secs_f64).collect();
        honest.sort_unstable_by(f64::total_cmp);
        let echo = |is_before: bool| {
            let mut times: Vec<f64> =
                self.echo.iter().filter(|(at, _)| (*at < self.begun) == is_before).map(|(_, time)| time.as_secs_f64() * 1e3).collect();
            times.sort_unstable_by(f64::total_cmp);
            times
        };
        let (before, then) = (echo(true), echo(false));
        let median = |sorted: &[f64]| sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let worst = |sorted: &[f64]| sorted.last().copied().unwrap_or(0.0);
        vec![
            ("budget", self.samples.first().map_or(0.0, |sample| sample.budget) / MIB),
            ("TCP memory at most", most(|sample| sample.tcp) / MIB),
            ("hostile clients split at once", most(|sample| sample.flows)),
            ("stuck flows ended", most(|sample| sample.stuck)),
            ("honest transfers complete", honest.len() as f64),
            ("median", median(&honest)),
            ("slowest", worst(&honest)),
            ("unrelated echo before", median(&before)),
            ("then: median", median(&then)),
            ("worst", worst(&then)),
        ]
    }

    /// The samples over time, with the slowest echo since the last one.
    fn csv(&self) -> String {
        let mut text = "seconds,tcp_mib,own_mib,budget_mib,level,flows,stuck_ended,echo_ms\n".to_owned();
        let mut echo = self.echo.iter().peekable();
        for MachineSample { at, tcp, own, budget, flows, stuck, level } in &self.samples {
            let Some(at) = *at else { continue };
            let mut slowest = Duration::ZERO;
            while let Some((_, time)) = echo.next_if(|(begun, _)| *begun <= at) {
                slowest = slowest.max(*time);
            }
            let seconds = at.saturating_duration_since(self.begun).as_secs_f64() - self.begun.saturating_duration_since(at).as_secs_f64();
            let [tcp, own, budget] = [tcp, own, budget].map(|bytes| bytes / MIB);
            let echo = slowest.as_secs_f64() * 1e3;
            text += &format!("{seconds:.1},{tcp:.2},{own:.2},{budget:.2},{level},{flows},{stuck},{echo:.1}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_machine_is_read() {
        let line = "sample 9.53 256 flows=12 flows_ended_total{ending=\"stuck\"}=3 memory_bytes=5.0 memory_budget_bytes=9.0 \
                    memory_level{level=\"tight\"}=1.0 memory_level{level=\"free\"}=0.0 \r";
        let sample = MachineSample::parse(line).unwrap();
        assert_eq!((sample.tcp / MIB, sample.own, sample.budget, sample.flows, sample.stuck, sample.level), (1.0, 5.0, 9.0, 12.0, 3.0, 1));
        assert!(MachineSample::parse("ready").is_none() && MachineSample::parse("sample 1 2 memory_bytes=").is_none());
    }
}
