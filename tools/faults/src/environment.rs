//! The environment of a campaign: the program under test (a proxy on a router, or one end of a
//! bond), with clients and servers around it.

use crate::{
    endpoints::{self, RoundSummary, STUCK, TRANSFER_KINDS, TransferKind, TransferServers, TransferTarget},
    interposer::{Interposer, SyscallFault},
};
use anyhow::{Context as _, Result, ensure};
use lab::Host;
use std::{
    fmt, fs,
    io::{self, Read as _, Seek as _, Write as _},
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProgramKind {
    /// `tandem proxy`: transparent, and by SOCKS5
    Proxy,
    /// `tandem bond connect`
    Connect,
    /// `tandem bond serve`
    Serve,
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramKind::Proxy => "proxy",
            ProgramKind::Connect => "bond connect",
            ProgramKind::Serve => "bond serve",
        })
    }
}

/// Ends of idle pipes that the proxy's workers keep for reuse: two workers with eight pipes.
const KEPT_PIPE_ENDS: usize = 2 * 8;
/// Connections that a bond may keep ready in addition to its pool. One program serves many cases,
/// so a leak of one descriptor for each case would exceed it.
const MOST_READY: usize = 8;
/// How long the program may take to start, to end, or to release descriptors.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is killed when dropped.
#[derive(Debug)]
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program whose system calls are intercepted.
#[derive(Debug)]
pub(crate) struct InterposedProgram {
    daemon: KilledOnDrop,
    pub(crate) interposer: Interposer,
    log: PathBuf,
    /// Offset in the log at which this program begins.
    log_start: u64,
    /// The other end of a bond.
    _other: Option<KilledOnDrop>,
}

/// Open descriptors of the process and of its workers, which have their own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DescriptorCounts {
    sockets: usize,
    pipe_ends: usize,
    others: usize,
}

impl DescriptorCounts {
    /// Whether there are no more than `before`, except for pipes kept for reuse.
    fn is_back_at(self, before: DescriptorCounts, setup: ProgramKind) -> bool {
        // A bond may have more connections ready than its pool holds if streams that waited for
        // them have ended. New streams take them, so there are never many.
        let ready = if setup == ProgramKind::Proxy { 0 } else { MOST_READY };
        self.sockets <= before.sockets + ready && self.others <= before.others && self.pipe_ends <= before.pipe_ends.max(KEPT_PIPE_ENDS + 8)
    }
}

/// Hosts, servers and the destinations of clients.
pub(crate) struct TestEnvironment {
    setup: ProgramKind,
    tandem: PathBuf,
    client: Host,
    /// Host of the program under test, if it is neither the client's nor the server's.
    router: Option<Host>,
    server: Host,
    servers: TransferServers,
    targets: Vec<TransferTarget>,
    directory: TempDir,
}

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 2, 2);
/// Address at which the bond takes connections, with a port for each port of the servers.
const LISTEN: Ipv4Addr = Ipv4Addr::LOCALHOST;

impl TestEnvironment {
    pub(crate) fn new(setup: ProgramKind, tandem: &Path) -> Result<Self> {
        let (client, server) = (Host::new("client")?, Host::new("server")?);
        let directory = tempfile::tempdir()?;
        let router = if setup == ProgramKind::Proxy {
            let router = Host::new("router")?;
            client.join(&["10.78.1.1/24"], &router, &["10.78.1.2/24"], "near")?;
            router.join(&["10.78.2.1/24"], &server, &["10.78.2.2/24"], "far")?;
            client.ip(&["route add default via 10.78.1.2".into()])?;
            server.ip(&["route add default via 10.78.2.1".into()])?;
            router.sysctl(&[("ipv4/ip_forward", "1".into())])?;
            Some(router)
        } else {
            for network in 1..=2 {
                let of = |end: u8| format!("10.78.{network}.{end}/24");
                client.join(&[&of(1)], &server, &[&of(2)], &format!("n{network}"))?;
            }
            let key = directory.path().join("bond.key");
            fs::write(&key, "0123456789abcdef0123456789abcdef")?;
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
            None
        };
        let servers = TransferServers::start(&server)?;
        let mut targets: Vec<TransferTarget> = TRANSFER_KINDS
            .iter()
            .map(|kind| match setup {
                ProgramKind::Proxy => TransferTarget { kind: *kind, at: (SERVER, kind.port()).into(), socks: None },
                _ => TransferTarget { kind: *kind, at: (LISTEN, kind.port()).into(), socks: None },
            })
            .collect();
        if setup == ProgramKind::Proxy {
            targets.push(TransferTarget { kind: TransferKind::Up, at: (ROUTER, 1080).into(), socks: Some("10.78.2.2") });
            targets.push(TransferTarget { kind: TransferKind::Messages, at: (ROUTER, 1080).into(), socks: Some("10.78.2.2") });
        } else {
            targets.push(TransferTarget { kind: TransferKind::Messages, at: (LISTEN, 1080).into(), socks: Some("localhost") });
        }
        Ok(TestEnvironment { setup, tandem: tandem.to_owned(), client, router, server, servers, targets, directory })
    }

    fn host(&self) -> &Host {
        match self.setup {
            ProgramKind::Proxy => self.router.as_ref().unwrap_or(&self.client),
            ProgramKind::Connect => &self.client,
            ProgramKind::Serve => &self.server,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn proxy(&self) -> Command {
        let mut command = self.host().command(&self.tandem.to_string_lossy());
        command.args(["proxy", "--listen", "transparent=[::]:5000", "--listen", "socks5=10.78.1.2:1080", "--buffer", "1MiB"]);
        command
    }

    fn connect(&self) -> Command {
        let mut command = self.client.command(&self.tandem.to_string_lossy());
        command.args(["bond", "connect", "--key", "bond.key", "--outage", "3s", "--listen", "socks5=127.0.0.1:1080"]);
        command.args(["--network", "n1,to=10.78.1.2:7000", "--network", "n2,to=10.78.2.2:7000"]);
        for port in TRANSFER_KINDS.map(TransferKind::port) {
            command.args(["--listen", &format!("forward={LISTEN}:{port}={LISTEN}:{port}")]);
        }
        command.current_dir(self.directory.path());
        command
    }

    fn serve(&self) -> Command {
        let mut command = self.server.command(&self.tandem.to_string_lossy());
        command.args(["bond", "serve", "--key", "bond.key", "--outage", "3s", "--listen", "[::]:7000", "--allow", "127.0.0.0/8"]);
        command.current_dir(self.directory.path());
        command
    }

    /// Appends a command's standard error to a log. Returns the offset at which it begins.
    fn log(&self, command: &mut Command, name: &str) -> io::Result<u64> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path(name))?;
        let log_start = log.metadata()?.len();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(log_start)
    }

    /// Starts the program, with a fault from its first call on, and the other end of its bond.
    pub(crate) fn start(&self, fault: Option<SyscallFault>) -> Result<InterposedProgram> {
        let (mut command, other) = match self.setup {
            ProgramKind::Proxy => (self.proxy(), None),
            ProgramKind::Connect => (self.connect(), Some(self.serve())),
            ProgramKind::Serve => (self.serve(), Some(self.connect())),
        };
        let other = match other {
            Some(mut other) => {
                self.log(&mut other, "other.log")?;
                Some(KilledOnDrop(other.spawn().context("cannot start the other end of the bond")?))
            }
            None => None,
        };
        let log_start = self.log(&mut command, "log")?;
        let (child, interposer) = Interposer::start(&mut command, fault).context("cannot start the program under interception")?;
        Ok(InterposedProgram { daemon: KilledOnDrop(child), interposer, log: self.path("log"), log_start, _other: other })
    }

    /// Waits until the program splits connections. An error says why it does not.
    pub(crate) fn await_start(&self, program: &mut InterposedProgram) -> Result<()> {
        let begun = Instant::now();
        loop {
            let why = match self.splits() {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            if let Some(status) = program.status()? {
                anyhow::bail!("the program ended: {status}: {}", program.log_text());
            }
            ensure!(begun.elapsed() < PATIENCE, "the program does not split connections: {why:#}; {}", program.log_text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Plays transfers of all kinds at once.
    pub(crate) fn round(&self) -> RoundSummary {
        endpoints::round(&self.client, &self.servers, &self.targets)
    }

    /// Fails unless a new connection goes through the program and is complete.
    fn splits(&self) -> Result<()> {
        let messages: Vec<TransferTarget> =
            self.targets.iter().filter(|target| target.kind == TransferKind::Messages).copied().take(1).collect();
        if self.setup == ProgramKind::Proxy {
            let before = self.split_so_far()?;
            self.try_one(&messages)?;
            ensure!(self.split_so_far()? > before, "a new connection passed unsplit");
            return Ok(());
        }
        // Only the bond listens at these addresses.
        self.try_one(&messages)
    }

    fn try_one(&self, target: &[TransferTarget]) -> Result<()> {
        let sum = endpoints::round(&self.client, &self.servers, target);
        ensure!(sum.bad.is_empty(), "{:?}", sum.bad);
        ensure!(sum.complete == target.len(), "a new connection was reset");
        Ok(())
    }

    /// Number of transparent connections that the firewall has redirected to the proxy.
    fn split_so_far(&self) -> Result<u64> {
        let output = self.host().command("nft").args(["-j", "list", "counter", "inet", "tandem", "split"]).output()?;
        ensure!(output.status.success(), "the proxy's rules are not there: {}", String::from_utf8_lossy(&output.stderr).trim());
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let packets = listed["nftables"].as_array().into_iter().flatten().find_map(|one| one["counter"]["packets"].as_u64());
        packets.context("nft lists no counter of split connections")
    }

    /// Waits until the program splits new connections again and has no more descriptors than
    /// before.
    pub(crate) fn await_recovery(&self, program: &mut InterposedProgram, before: DescriptorCounts) -> Result<()> {
        let begun = Instant::now();
        loop {
            ensure!(program.status()?.is_none(), "the program ended");
            match self.splits() {
                Ok(()) => break,
                Err(why) if begun.elapsed() > STUCK => return Err(why.context("new connections are not split")),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
        let begun = Instant::now();
        loop {
            let now = program.descriptors();
            if now.is_back_at(before, self.setup) {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "descriptors: {now:?}, before {before:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether a program that has ended left rules behind.
    pub(crate) fn leaves_rules(&self) -> Result<bool> {
        if self.setup != ProgramKind::Proxy {
            return Ok(false);
        }
        let is_there =
            || -> Result<bool> { Ok(self.host().command("nft").args(["list", "table", "inet", "tandem"]).output()?.status.success()) };
        let begun = Instant::now();
        // The kernel removes the table with its owner, which ends a moment after a killed program.
        while is_there()? {
            if begun.elapsed() > Duration::from_secs(5) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl InterposedProgram {
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.daemon.0.try_wait()
    }

    /// Waits for the program's end; `None` if it does not end.
    pub(crate) fn await_end(&mut self) -> io::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            if status.is_some() || begun.elapsed() > PATIENCE {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn terminate(&self) -> Result<()> {
        let process = rustix::process::Pid::from_child(&self.daemon.0);
        Ok(rustix::process::kill_process(process, rustix::process::Signal::TERM)?)
    }

    /// What the program has logged.
    pub(crate) fn log_text(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = fs::File::open(&self.log)?;
            file.seek(io::SeekFrom::Start(self.log_start))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        read().unwrap_or_else(|why| format!("cannot read its log: {why}"))
    }

    pub(crate) fn descriptors(&self) -> DescriptorCounts {
        let process = self.daemon.0.id();
        let mut sum = DescriptorCounts::default();
        for task in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // Worker threads are named by number; other threads share the table of the main thread.
            let is_worker = name.trim().strip_prefix("tandem-").is_some_and(|rest| rest.parse::<u32>().is_ok());
            if !is_worker && task.file_name().to_str() != Some(&process.to_string()) {
                continue;
            }
            for link in fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten() {
                let Ok(to) = fs::read_link(link.path()) else { continue };
                match to.to_string_lossy().split(':').next() {
                    Some("socket") => sum.sockets += 1,
                    Some("pipe") => sum.pipe_ends += 1,
                    _ => sum.others += 1,
                }
            }
        }
        sum
    }
}

/// Appends a line to a file of results.
pub(crate) fn append(path: &Path, line: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{line}")?)
}
