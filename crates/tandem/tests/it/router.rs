//! The proxy on a home router with the NAT, stateful firewall and forwarded ports of distributions.
//! Real programs behave the same with and without the proxy, and closed ports stay closed.

use crate::common::{
    Daemon,
    routed::{CLIENT, Routed, SERVER, nft},
    skip, wait_for_listener,
};
use lab::Host;
use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const PROGRAMS: [&str; 8] = ["nft", "ip", "curl", "iperf3", "ssh", "scp", "ssh-keygen", "/usr/sbin/sshd"];
/// The router's Internet address (IPv4), and the ports that it forwards to the home.
const OUTSIDE: &str = "10.99.2.1";
const WEB: u16 = 8080;
const SSH: u16 = 2222;
/// The payload: larger than the initial socket buffers.
const BYTES: usize = 300_000;

/// The client is the home, the server the Internet; both have web pages and sshd.
struct Home {
    routed: Routed,
    _sshd: [Daemon; 2],
}

/// An operation of a program between two hosts.
struct Operation<'a> {
    what: String,
    does: Box<dyn Fn() -> bool + 'a>,
    /// Whether it must succeed.
    succeeds: bool,
    /// Whether it may be split.
    split: bool,
}

fn ran(command: &mut Command) -> bool {
    let output = command.stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        println!("{command:?}: {output:?}");
    }
    output.status.success()
}

/// Starts a minimal web server for curl.
fn serve_page(host: &Host, port: u16) {
    let listener = host.enter(|| TcpListener::bind(("::", port)).unwrap()).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).ok()?;
                    head.push(byte[0]);
                }
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\nConnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&[b'x'; BYTES])).ok()
            });
        }
    });
}

impl Home {
    fn new() -> Self {
        let routed = Routed::new();
        for key in ["host", "user"] {
            let path = routed.path(key);
            assert!(ran(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path)));
        }
        fs::copy(routed.path("user.pub"), routed.path("authorized")).unwrap();
        fs::write(routed.path("file"), vec![7; BYTES]).unwrap();
        // sshd requires its privilege separation directory, which the service file would create.
        fs::create_dir_all("/run/sshd").unwrap();
        let here = routed.path("");
        let here = here.to_str().unwrap();
        let text = format!(
            "Port 22\nHostKey {here}host\nAuthorizedKeysFile {here}authorized\nPidFile none\nUsePAM no\nStrictModes no\nUseDNS no\n\
             PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        );
        fs::write(routed.path("sshd_config"), text).unwrap();
        let sshd = [&routed.client, &routed.server].map(|host| {
            serve_page(host, 80);
            serve_page(host, 81);
            let daemon = Daemon::start(host.command("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(routed.path("sshd_config")));
            wait_for_listener(host, 22);
            daemon
        });
        Home { routed, _sshd: sshd }
    }

    fn curl(&self, from: &Host, address: &str, port: u16) -> bool {
        let to = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
        let mut curl = from.command("curl");
        curl.args(["-sS", "-g", "--fail", "--max-time", "60", "-o", "/dev/null", &format!("http://{to}/")]);
        ran(&mut curl)
    }

    fn scp(&self, from: &Host, address: &str, port: u16) -> bool {
        let (file, got) = (self.routed.path("file"), self.routed.path("got"));
        let _ = fs::remove_file(&got);
        let mut scp = from.command("scp");
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes", "ConnectTimeout=60"] {
            scp.args(["-o", option]);
        }
        let port = port.to_string();
        scp.arg("-i").arg(self.routed.path("user")).args(["-P", &port]).arg(&file).arg(format!("root@[{address}]:{}", got.display()));
        let same = |one: &Path, other: &Path| fs::read(one).unwrap() == fs::read(other).unwrap_or_default();
        ran(&mut scp) && same(&file, &got)
    }

    fn iperf3(&self, address: &str, direction: &[&str]) -> bool {
        // A new server per test: between two tests iperf3 closes its socket, and resets new
        // clients.
        let _server = Daemon::start(self.routed.server.command("iperf3").args(["-s", "-1"]));
        wait_for_listener(&self.routed.server, 5201);
        ran(self.routed.client.command("iperf3").args(["-n", "2M", "-J", "-c", address]).args(direction))
    }

    fn operations<'a>(&'a self) -> Vec<Operation<'a>> {
        let (home, internet) = (&self.routed.client, &self.routed.server);
        let mut operations = Vec::new();
        let mut add =
            |what: String, succeeds, split, does: Box<dyn Fn() -> bool + 'a>| operations.push(Operation { what, does, succeeds, split });
        for (address, inside) in SERVER.into_iter().zip(CLIENT) {
            let family = if address.contains(':') { "IPv6" } else { "IPv4" };
            add(format!("curl from home, {family}"), true, true, Box::new(move || self.curl(home, address, 80)));
            add(format!("scp from home, {family}"), true, true, Box::new(move || self.scp(home, address, 22)));
            add(format!("iperf3 up, {family}"), true, true, Box::new(move || self.iperf3(address, &[])));
            add(format!("iperf3 down, {family}"), true, true, Box::new(move || self.iperf3(address, &["-R"])));
            let closed = move || {
                let to = SocketAddr::new(inside.parse().unwrap(), 81);
                internet.enter(|| TcpStream::connect_timeout(&to, Duration::from_millis(1500)).is_ok()).unwrap()
            };
            add(format!("a closed port from the Internet, {family}"), false, false, Box::new(closed));
        }
        add("a forwarded port, IPv4".into(), true, false, Box::new(move || self.curl(internet, OUTSIDE, WEB)));
        add("scp by a forwarded port, IPv4".into(), true, false, Box::new(move || self.scp(internet, OUTSIDE, SSH)));
        add("a forwarded port from home (hairpin), IPv4".into(), true, false, Box::new(move || self.curl(home, OUTSIDE, WEB)));
        add("an opened port from the Internet, IPv6".into(), true, true, Box::new(move || self.curl(internet, CLIENT[1], 80)));
        add("scp by an opened port, IPv6".into(), true, true, Box::new(move || self.scp(internet, CLIENT[1], 22)));
        operations
    }

    /// Runs all operations without the proxy, and twice with it: the first connection of each kind
    /// passes unsplit.
    fn check(&self, firewall: &str) {
        for operation in self.operations() {
            assert_eq!((operation.does)(), operation.succeeds, "{firewall}, without the proxy: {}", operation.what);
        }
        let _proxy = self.routed.proxy(&[]);
        for operation in self.operations() {
            let counted = || self.routed.status().counted.unwrap();
            let verdicts = [0, 1].map(|_| {
                let before = counted();
                assert_eq!((operation.does)(), operation.succeeds, "{firewall}, with the proxy: {}\n{}", operation.what, self.routed.log());
                let after = counted();
                assert_eq!(after.stopped, before.stopped, "{firewall}: the input chain stops {}", operation.what);
                after.split - before.split
            });
            // iperf3 opens several connections of one kind.
            assert!(verdicts[1] > 0 || !operation.split, "{firewall}: {} is split, {verdicts:?}", operation.what);
            assert!(verdicts == [0, 0] || operation.split, "{firewall}: {} is not split, {verdicts:?}", operation.what);
            let said = |split| if split > 0 { "split" } else { "unsplit" };
            let result = if operation.succeeds { "works" } else { "refused or dropped" };
            println!("{firewall} | {} | {result} without and with | {}, then {}", operation.what, said(verdicts[0]), said(verdicts[1]));
        }
    }
}

/// Loads rules of iptables.
fn restore(host: &Host, program: &str, rules: &str) {
    let mut child = host.command(program).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program}: {rules}");
}

#[test]
fn home_router_with_plain_nftables_rules() {
    if skip("home_router_with_plain_nftables_rules", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/plain.nft"));
    home.check("plain nftables");
}

#[test]
fn home_router_with_openwrt_fw4() {
    if skip("home_router_with_openwrt_fw4", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/fw4.nft"));
    home.check("fw4");
}

#[test]
fn home_router_with_firewalld() {
    if skip("home_router_with_firewalld", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/firewalld.nft"));
    home.check("firewalld");
}

#[test]
fn home_router_with_ufw_on_iptables_nft() {
    if skip("home_router_with_ufw_on_iptables_nft", &PROGRAMS) || skip("home_router_with_ufw_on_iptables_nft", &["iptables-nft-restore"]) {
        return;
    }
    let home = Home::new();
    let rules = include_str!("firewalls/ufw.rules");
    for (program, inside, icmp) in [("iptables-nft-restore", CLIENT[0], "icmp"), ("ip6tables-nft-restore", CLIENT[1], "ipv6-icmp")] {
        restore(&home.routed.router, program, &rules.replace("HOME", inside).replace("ICMP", icmp));
    }
    restore(&home.routed.router, "iptables-nft-restore", include_str!("firewalls/ufw-nat.rules"));
    home.check("ufw");
}
