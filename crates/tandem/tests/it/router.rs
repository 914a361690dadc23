//! The proxy on a home router: NAT, a stateful firewall and forwarded ports as distributions have
//! them. Real programs do the same with the proxy as without it, and what was closed stays closed.

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
/// The router's address on the Internet, IPv4, and the ports that it forwards to the home.
const OUTSIDE: &str = "10.99.2.1";
const WEB: u16 = 8080;
const SSH: u16 = 2222;
/// What is carried: more than fits a socket's first buffers.
const BYTES: usize = 300_000;

/// The client is the home, the server the Internet; both have web pages and sshd.
struct Home {
    routed: Routed,
    _sshd: [Daemon; 2],
}

/// Something that programs do, between two hosts.
struct Deed<'a> {
    what: String,
    does: Box<dyn Fn() -> bool + 'a>,
    /// Whether it is to succeed.
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

/// A web server, as far as curl needs one.
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
        // sshd wants its directory for unprivileged children, which a package's service file would make.
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
        // A server for one test each: between two tests it closes its socket, and resets who is just calling.
        let _server = Daemon::start(self.routed.server.command("iperf3").args(["-s", "-1"]));
        wait_for_listener(&self.routed.server, 5201);
        ran(self.routed.client.command("iperf3").args(["-n", "2M", "-J", "-c", address]).args(direction))
    }

    fn deeds<'a>(&'a self) -> Vec<Deed<'a>> {
        let (home, internet) = (&self.routed.client, &self.routed.server);
        let mut deeds = Vec::new();
        let mut add = |what: String, succeeds, split, does: Box<dyn Fn() -> bool + 'a>| deeds.push(Deed { what, does, succeeds, split });
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
        deeds
    }

    /// Does everything without the proxy, and twice with it: the first of a kind passes unsplit.
    fn check(&self, firewall: &str) {
        for deed in self.deeds() {
            assert_eq!((deed.does)(), deed.succeeds, "{firewall}, without the proxy: {}", deed.what);
        }
        let _proxy = self.routed.proxy(&[]);
        for deed in self.deeds() {
            let counted = || self.routed.status().counted.unwrap();
            let verdicts = [0, 1].map(|_| {
                let before = counted();
                assert_eq!((deed.does)(), deed.succeeds, "{firewall}, with the proxy: {}\n{}", deed.what, self.routed.log());
                let after = counted();
                assert_eq!(after.stopped, before.stopped, "{firewall}: the input chain stops {}", deed.what);
                after.split - before.split
            });
            // iperf3 opens more than one connection, of one kind.
            assert!(verdicts[1] > 0 || !deed.split, "{firewall}: {} is split, {verdicts:?}", deed.what);
            assert!(verdicts == [0, 0] || deed.split, "{firewall}: {} is not split, {verdicts:?}", deed.what);
            let said = |split| if split > 0 { "split" } else { "unsplit" };
            let result = if deed.succeeds { "works" } else { "refused or dropped" };
            println!("{firewall} | {} | {result} without and with | {}, then {}", deed.what, said(verdicts[0]), said(verdicts[1]));
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
fn with_a_firewall_by_hand() {
    if skip("with_a_firewall_by_hand", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/plain.nft"));
    home.check("plain nftables");
}

#[test]
fn with_openwrts_fw4() {
    if skip("with_openwrts_fw4", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/fw4.nft"));
    home.check("fw4");
}

#[test]
fn with_firewalld() {
    if skip("with_firewalld", &PROGRAMS) {
        return;
    }
    let home = Home::new();
    nft(&home.routed.router, include_str!("firewalls/firewalld.nft"));
    home.check("firewalld");
}

#[test]
fn with_ufw_on_iptables_nft() {
    if skip("with_ufw_on_iptables_nft", &PROGRAMS) || skip("with_ufw_on_iptables_nft", &["iptables-nft-restore"]) {
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
