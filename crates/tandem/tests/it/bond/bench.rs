//! The test bench of a bond: two hosts with two networks between them.

use crate::common::{Daemon, TANDEM, wait_for_listener, wait_until};
use lab::Host;
use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Listener of the bond, and address of the servers.
pub(crate) const IN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 4000);
pub(crate) const SERVER: u16 = 8000;

/// Two hosts, two networks, and a bond over them.
pub(crate) struct Bench {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) dir: TempDir,
    pub(crate) daemons: Vec<Daemon>,
}

impl Bench {
    /// Creates the hosts and networks only: in network k the near host is 10.0.k.1 (fd00:k::1), the
    /// far host 10.0.k.2.
    pub(crate) fn hosts() -> Self {
        let (near, far) = (Host::new("near").unwrap(), Host::new("far").unwrap());
        for k in 1..=2 {
            let of = |end: u8| [format!("10.0.{k}.{end}/24"), format!("fd00:{k}::{end}/64")];
            let (ours, theirs) = (of(1), of(2));
            near.join(&ours.each_ref().map(String::as_str), &far, &theirs.each_ref().map(String::as_str), &format!("n{k}")).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench { near, far, dir, daemons: Vec::new() };
        bench.key("bond.key", "0123456789abcdef0123456789abcdef");
        bench.key("other.key", "0123456789abcdef0123456789abcdeX");
        bench
    }

    pub(crate) fn key(&self, name: &str, secret: &str) {
        let path = self.dir.path().join(name);
        fs::write(&path, secret).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Creates a bench with a bond, with additional arguments for each end.
    pub(crate) fn new(connect: &[&str], serve: &[&str]) -> Self {
        let mut bench = Bench::hosts();
        bench.serve(serve);
        bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000", "--listen", "socks5=127.0.0.1:1080"], connect);
        bench
    }

    pub(crate) fn serve(&mut self, more: &[&str]) {
        let mut command = self.far.command(TANDEM);
        command.args(["bond", "serve", "--listen", "[::]:7000"]).args(more).current_dir(self.dir.path());
        if !more.contains(&"--key") {
            command.args(["--key", "bond.key"]);
        }
        if !more.contains(&"--allow") {
            // The address of the servers.
            command.args(["--allow", "127.0.0.0/8"]);
        }
        self.daemons.push(Daemon::logging(&mut command, &self.dir.path().join("serve.log")));
        wait_for_listener(&self.far, 7000);
    }

    pub(crate) fn connect(&mut self, listen: &[&str], more: &[&str]) {
        let mut command = self.near.command(TANDEM);
        command.args(["bond", "connect"]).args(listen).args(["--key", "bond.key"]).args(more).current_dir(self.dir.path());
        if !more.contains(&"--network") {
            command.args(["--network", "n1,to=10.0.1.2:7000", "--network", "n2,to=10.0.2.2:7000"]);
        }
        self.daemons.push(Daemon::logging(&mut command, &self.dir.path().join("connect.log")));
        wait_for_listener(&self.near, 4000);
    }

    /// Waits until the bond has connections over both networks.
    pub(crate) fn whole(self) -> Self {
        wait_until("the bond has both networks", || self.log("connect.log").matches("of the bond is up").count() >= 2);
        self
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Starts a server on the far host that runs `work` on each connection.
    pub(crate) fn server(&self, work: impl Fn(TcpStream) + Send + Clone + 'static) {
        self.server_at(Ipv4Addr::LOCALHOST.into(), work);
    }

    pub(crate) fn server_at(&self, at: IpAddr, work: impl Fn(TcpStream) + Send + Clone + 'static) {
        let listener = self.far.enter(|| TcpListener::bind((at, SERVER)).unwrap()).unwrap();
        self.far
            .spawn("server", move || {
                for stream in listener.incoming().flatten() {
                    let work = work.clone();
                    thread::spawn(move || {
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        stream.set_write_timeout(Some(PATIENCE)).unwrap();
                        work(stream);
                    });
                }
            })
            .unwrap();
    }

    /// Connects to the server through the bond.
    pub(crate) fn call(&self) -> TcpStream {
        let stream = self.near.enter(|| TcpStream::connect(IN).unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn flows(&self) -> serde_json::Value {
        let output = self.near.command(TANDEM).args(["flows", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Shapes both ends of a network.
    pub(crate) fn shape(&self, network: u32, rate: &str) {
        for host in [&self.near, &self.far] {
            let done = host
                .command("tc")
                .args(["qdisc", "replace", "dev", &format!("n{network}"), "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms"])
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    }

    /// Silently drops packets that arrive over a network at both ends: all, or those that match
    /// `which`.
    pub(crate) fn lose(&self, network: u32, which: &str) {
        for host in [&self.near, &self.far] {
            let rule =
                format!("table inet hole {{ chain in {{ type filter hook input priority 0; iifname \"n{network}\" {which} drop; }}; }}");
            nft(host, &rule);
        }
    }

    pub(crate) fn heal(&self) {
        for host in [&self.near, &self.far] {
            nft(host, "delete table inet hole");
        }
    }
}

pub(crate) fn nft(host: &Host, text: &str) {
    let mut child = host.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Returns bytes without a period, so that shifted data are noticed.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

pub(crate) fn read_all(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

/// Reads to the end, then sends everything back.
pub(crate) fn echo(mut stream: TcpStream) {
    if let Ok(all) = read_all(&mut stream) {
        let _ = stream.write_all(&all);
    }
}

/// Returns the two ends of a connection through the bond.
pub(crate) fn pair(bench: &Bench) -> (TcpStream, TcpStream) {
    let (tell, told) = mpsc::channel();
    bench.server(move |stream| tell.send(stream).unwrap());
    let client = bench.call();
    (client, told.recv_timeout(PATIENCE).unwrap())
}

/// Connects by SOCKS to an address (RFC 1928 §5) and the servers' port; returns the reply code on
/// failure.
pub(crate) fn socks(bench: &Bench, address: &[u8]) -> Result<TcpStream, u8> {
    let mut stream = bench.near.enter(|| TcpStream::connect((Ipv4Addr::LOCALHOST, 1080)).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&[&[5, 1, 0], address, &SERVER.to_be_bytes()].concat()).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    if answer[1] == 0 { Ok(stream) } else { Err(answer[1]) }
}

/// Returns the number of pipes that the worker of a daemon has open.
pub(crate) fn pipes(daemon: u32) -> usize {
    let links = |task: &fs::DirEntry| {
        let open = fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten();
        let is_pipe = |link: &fs::DirEntry| fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
        open.filter(is_pipe).count() / 2
    };
    fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten().flatten().map(|task| links(&task)).max().unwrap_or(0)
}
