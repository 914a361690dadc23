//! Three hosts joined by veth pairs, and the proxy as a program on the one in the middle.

use super::{Daemon, PATIENCE, TANDEM, wait_until};
use lab::Host;
use proxy::{
    FlowView,
    control::{ProxyStatus, Remote},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs, io,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Output, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Instant,
};

/// The server's addresses, the client's, and the router's on the client's side.
pub(crate) const SERVER: [&str; 2] = ["10.99.2.2", "fd99:2::2"];
pub(crate) const CLIENT: [&str; 2] = ["10.99.1.1", "fd99:1::1"];
pub(crate) const ROUTER: [&str; 2] = ["10.99.1.2", "fd99:1::2"];

/// Client, router, server. The router's device towards the client is called `near`, the one towards
/// the server `far`.
pub(crate) struct Routed {
    pub(crate) client: Host,
    pub(crate) router: Host,
    pub(crate) server: Host,
    /// For configuration files and logs.
    directory: tempfile::TempDir,
}

/// Creates a host without duplicate address detection, which would delay its IPv6 addresses.
fn host(name: &str) -> Host {
    let host = Host::new(name).unwrap();
    host.sysctl(&[("ipv6/conf/default/accept_dad", "0".into()), ("ipv6/conf/all/accept_dad", "0".into())]).unwrap();
    host
}

fn forward_packets(router: &Host) {
    router.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())]).unwrap();
}

/// Runs `ip` commands in a host.
pub(crate) fn ip(host: &Host, lines: &[&str]) {
    host.ip(&lines.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
}

impl Routed {
    pub(crate) fn new() -> Self {
        let [client, router, server] = ["client", "router", "server"].map(host);
        client.join(&["10.99.1.1/24", "fd99:1::1/64"], &router, &["10.99.1.2/24", "fd99:1::2/64"], "near").unwrap();
        router.join(&["10.99.2.1/24", "fd99:2::1/64"], &server, &["10.99.2.2/24", "fd99:2::2/64"], "far").unwrap();
        forward_packets(&router);
        ip(&client, &["route add default via 10.99.1.2", "route add ::/0 via fd99:1::2"]);
        ip(&server, &["route add default via 10.99.2.1", "route add ::/0 via fd99:2::1"]);
        Routed { client, router, server, directory: tempfile::tempdir().unwrap() }
    }

    /// Starts the proxy on the router, with additional arguments.
    pub(crate) fn proxy(&self, arguments: &[&str]) -> Daemon {
        self.start(&[&["--listen", "transparent=[::]:5000"], arguments].concat())
    }

    /// Starts the proxy on the router with a configuration file, to which a listener is added.
    pub(crate) fn configured(&self, text: &str) -> Daemon {
        let path = self.write(&format!("{text}\n[[listen]]\ntransparent = \"[::]:5000\"\n"));
        self.start(&["-c", path.to_str().unwrap()])
    }

    /// Starts the proxy on the router with exactly these arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Daemon {
        let mut daemon = Daemon::logging(self.router.command(TANDEM).arg("proxy").args(arguments), &self.log_file());
        wait_until("the proxy is up", || {
            assert!(matches!(daemon.0.try_wait(), Ok(None)), "the proxy ended:\n{}", self.log());
            self.try_status().is_some()
        });
        daemon
    }

    /// Writes the configuration file.
    pub(crate) fn write(&self, text: &str) -> PathBuf {
        let path = self.path("proxy.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// A file of the test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log_file(&self) -> PathBuf {
        self.path("log")
    }

    /// Returns the log of the proxies.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Runs the binary on the router to its end.
    pub(crate) fn tandem(&self, arguments: &[&str]) -> Output {
        self.router.command(TANDEM).args(arguments).output().unwrap()
    }

    pub(crate) fn try_status(&self) -> Option<ProxyStatus> {
        self.router.enter(|| Remote::named("default").status().ok()).unwrap()
    }

    pub(crate) fn status(&self) -> ProxyStatus {
        self.try_status().expect("the proxy answers")
    }

    /// Returns everything that a proxy could leave behind on the router, except elements of sets
    /// with a timeout. Link-local routes are left out: the kernel adds them at any time.
    pub(crate) fn traces(&self) -> [String; 5] {
        let output = |program: &str, arguments: &[&str]| {
            let output = self.router.command(program).args(arguments).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let own = |line: &&str| !["anycast", "multicast", "fe80:", "expires"].iter().any(|word| line.contains(word));
            text.lines().filter(own).collect::<Vec<_>>().join("\n")
        };
        [
            output("nft", &["-s", "-t", "list", "ruleset"]),
            output("ip", &["rule"]),
            output("ip", &["-6", "rule"]),
            // Of both families.
            output("ip", &["route", "show", "table", "all"]),
            output("tc", &["qdisc"]),
        ]
    }

    /// Returns the output of `tandem flows`.
    pub(crate) fn flows(&self) -> Vec<FlowView> {
        let output = self.tandem(&["flows", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the counts of new connections: split, bypassed, unsplit.
    pub(crate) fn verdicts(&self) -> (u64, u64, u64) {
        let counted = self.status().counted.unwrap();
        (counted.split, counted.bypassed, counted.unsplit)
    }

    /// Starts an echo server on this port of every address of the server.
    pub(crate) fn echo(&self, port: u16) {
        echo(&self.server, port);
    }

    /// Returns a listener on this port of every address of the server.
    pub(crate) fn listen(&self, port: u16) -> TcpListener {
        listen(&self.server, port)
    }

    /// Connects the client to the server.
    pub(crate) fn connect(&self, server: &str, port: u16) -> io::Result<TcpStream> {
        dial(&self.client, server, port, |_| Ok(()))
    }
}

/// Another router and a server behind it, beyond the router.
pub(crate) struct Beyond {
    pub(crate) gate: Host,
    pub(crate) server: Host,
}

/// The addresses of the server beyond.
pub(crate) const DISTANT: [&str; 2] = ["10.99.4.2", "fd99:4::2"];

impl Beyond {
    /// Behind the router, over a device called `wide`; the last link, called `last`, has this MTU.
    pub(crate) fn new(routed: &Routed, mtu: u16) -> Self {
        let [gate, server] = ["gate", "distant"].map(host);
        routed.router.join(&["10.99.3.1/24", "fd99:3::1/64"], &gate, &["10.99.3.2/24", "fd99:3::2/64"], "wide").unwrap();
        gate.join(&["10.99.4.1/24", "fd99:4::1/64"], &server, &["10.99.4.2/24", "fd99:4::2/64"], "last").unwrap();
        forward_packets(&gate);
        ip(&routed.router, &["route add 10.99.4.0/24 via 10.99.3.2", "route add fd99:4::/64 via fd99:3::2"]);
        ip(&gate, &["route add default via 10.99.3.1", "route add ::/0 via fd99:3::1", &format!("link set last mtu {mtu}")]);
        // The server's MSS does not reflect the narrow link, so that clients must discover the path
        // MTU.
        let announced = format!("mtu {mtu} advmss 1440");
        ip(&server, &[&format!("route add default via 10.99.4.1 {announced}"), &format!("route add ::/0 via fd99:4::1 {announced}")]);
        Beyond { gate, server }
    }
}

/// A connection from a host, of a socket made ready by `prepare`.
pub(crate) fn dial(host: &Host, to: &str, port: u16, prepare: impl FnOnce(&Socket) -> io::Result<()> + Send) -> io::Result<TcpStream> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
    host.enter(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        prepare(&socket)?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket.into())
    })
    .unwrap()
}

/// A listener on a host, at this port of every address.
pub(crate) fn listen(host: &Host, port: u16) -> TcpListener {
    host.enter(|| TcpListener::bind(("::", port)).unwrap()).unwrap()
}

/// Starts an echo server on this port of every address of a host.
pub(crate) fn echo(host: &Host, port: u16) {
    let listener = listen(host, port);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
}

/// Starts an echo server on a host; returns the addresses of its peers.
pub(crate) fn peers(host: &Host, port: u16) -> mpsc::Receiver<SocketAddr> {
    let (listener, (tell, peers)) = (listen(host, port), mpsc::channel());
    thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            let _ = tell.send(peer);
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    peers
}

/// Returns whether a message comes back.
pub(crate) fn echoes(stream: &mut TcpStream) -> bool {
    let mut back = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut back).is_ok() && &back == b"hello"
}

/// Reads one byte: `Ok(0)` at the end of the stream, or the error.
pub(crate) fn end_of(stream: &mut TcpStream) -> Result<usize, ErrorKind> {
    stream.read(&mut [0]).map_err(|why| why.kind())
}

/// Runs `what`; returns its result and duration in seconds.
pub(crate) fn seconds<T>(what: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let done = what();
    (done, begun.elapsed().as_secs_f64())
}

/// Counts packets in a separate nftables table.
pub(crate) struct Counter<'a> {
    host: &'a Host,
    table: String,
}

impl<'a> Counter<'a> {
    /// Counts packets that match `condition` at a hook of a host.
    pub(crate) fn new(host: &'a Host, hook: &str, condition: &str) -> Self {
        Self::with_rule(host, hook, &format!("{condition} counter name it"))
    }

    /// Drops and counts packets that match `condition`.
    pub(crate) fn dropping(host: &'a Host, hook: &str, condition: &str) -> Self {
        Self::with_rule(host, hook, &format!("{condition} counter name it drop"))
    }

    fn with_rule(host: &'a Host, hook: &str, rule: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let table = format!("count{}", NUMBER.fetch_add(1, Relaxed));
        nft(
            host,
            &format!(
                "table inet {table} {{ counter it {{ }}\n chain it {{ type filter hook {hook} priority 0; policy accept; }}\n}}\n\
                 add rule inet {table} it {rule}"
            ),
        );
        Counter { host, table }
    }

    pub(crate) fn packets(&self) -> u64 {
        let output = self.host.command("nft").args(["-j", "list", "counter", "inet", &self.table, "it"]).output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let counters = found["nftables"].as_array().unwrap().iter().filter_map(|one| one["counter"]["packets"].as_u64());
        counters.sum()
    }
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        nft(self.host, &format!("delete table inet {}", self.table));
    }
}

/// Runs nft commands on a host.
pub(crate) fn nft(host: &Host, text: &str) {
    let mut child = host.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Returns a counter of /proc/net/netstat on a host.
pub(crate) fn netstat(host: &Host, name: &str) -> u64 {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let of = |pair: &[&str]| {
        let at = pair[0].split_whitespace().position(|word| word == name)?;
        pair[1].split_whitespace().nth(at)?.parse().ok()
    };
    lines.chunks_exact(2).find_map(of).unwrap_or_else(|| panic!("no {name} in netstat"))
}

/// Returns the rules of the proxy on a router, without counters. The chain `ours` is left out,
/// because it has more rules for a while after other programs' rules have changed, and so are
/// elements of sets, because traffic adds them.
pub(crate) fn rules(routed: &Routed) -> String {
    let listed = routed.router.command("nft").args(["-s", "-t", "list", "table", "inet", "tandem"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let (mut lines, mut ours) = (Vec::new(), false);
    for line in text.lines() {
        ours = if ours { line.trim() != "}" } else { line.trim() == "chain ours {" };
        if !ours && !line.contains("elements") && !line.contains("expires") {
            lines.push(line);
        }
    }
    lines.join("\n")
}
