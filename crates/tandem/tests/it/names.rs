//! Names one of whose addresses is silent, through SOCKS, the cache and a bond: it delays the first
//! connection a little, and later ones not at all (RFC 8305).

use crate::common::{
    Daemon, TANDEM,
    routed::{CLIENT, Counter, ROUTER, Routed, seconds},
    skip, wait_for_listener, wait_until,
};
use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    thread,
};

/// Well below the connect timeout of 30 s, which it took before.
const SOON: f64 = 15.0;

/// A server on port 80 of every address, whose name `both.example` has a silent address first.
struct Bench {
    routed: Routed,
}

impl Bench {
    fn new() -> Self {
        let routed = Routed::new();
        let listener = routed.listen(80);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let (mut heard, mut byte) = (Vec::new(), [0]);
                    while !heard.ends_with(b"\r\n\r\n") && (&stream).read_exact(&mut byte).is_ok() {
                        heard.push(byte[0]);
                    }
                    (&stream)
                        .write_all(b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
                });
            }
        });
        fs::write(routed.path("hosts"), "fd99:2::2 both.example\n10.99.2.2 both.example\n").unwrap();
        fs::write(routed.path("key"), "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(routed.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
        Bench { routed }
    }

    /// Starts the binary on the router, where the name is known, and waits until it listens.
    fn start(&self, arguments: &str, port: u16) -> Daemon {
        let script = format!("mount --bind {} /etc/hosts && exec {TANDEM} {arguments}", self.routed.path("hosts").display());
        let daemon = Daemon::logging(self.routed.router.command("unshare").args(["-m", "sh", "-c", &script]), &self.routed.path("log"));
        wait_for_listener(&self.routed.router, port);
        daemon
    }

    /// Fetches a page by these options of curl, twice: the silent address may delay the first time,
    /// and is not dialled the second time.
    fn fetch_twice(&self, options: &[&str]) {
        let silent = Counter::dropping(&self.routed.server, "input", "ip6 daddr fd99:2::2 tcp dport 80");
        for is_first in [true, false] {
            let before = silent.packets();
            let mut command = self.routed.client.command("curl");
            command.args(["-sS", "--max-time", "60", "--noproxy", ""]).args(options).arg("http://both.example/");
            let (output, took) = seconds(|| command.output().unwrap());
            assert!(output.stdout == b"hello" && took < SOON, "{options:?}: {took:.1} s: {output:?}\n{}", self.routed.log());
            assert_eq!(silent.packets() > before, is_first, "{options:?}: the silent address is dialled the first time alone");
        }
    }
}

#[test]
fn a_silent_address_of_a_name_delays_socks_clients_once() {
    if skip("a_silent_address_of_a_name_delays_socks_clients_once", &["curl", "ip", "nft", "ss", "unshare"]) {
        return;
    }
    let bench = Bench::new();
    let _proxy = bench.start("proxy --listen socks5=[::]:1080 --threads 2", 1080);
    bench.fetch_twice(&["--socks5-hostname", &format!("{}:1080", ROUTER[0])]);
}

#[test]
fn a_silent_address_of_a_name_delays_clients_of_the_cache_once() {
    if skip("a_silent_address_of_a_name_delays_clients_of_the_cache_once", &["curl", "ip", "nft", "ss", "unshare"]) {
        return;
    }
    for tunnel in [&[][..], &["-p"]] {
        let bench = Bench::new();
        let _cache = bench.start("cache --listen http=[::]:3128", 3128);
        bench.fetch_twice(&[tunnel, &["-x", &format!("http://{}:3128", ROUTER[0])]].concat());
    }
}

#[test]
fn a_silent_address_of_a_name_delays_streams_of_a_bond_once() {
    if skip("a_silent_address_of_a_name_delays_streams_of_a_bond_once", &["curl", "ip", "nft", "ss", "unshare"]) {
        return;
    }
    let bench = Bench::new();
    let key = bench.routed.path("key").display().to_string();
    let _serve = bench.start(&format!("bond serve --listen [::]:7000 --key {key}"), 7000);
    let network = format!("{},to={}:7000", CLIENT[0], ROUTER[0]);
    let mut command = bench.routed.client.command(TANDEM);
    command.args(["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--key", &key, "--network", &network]);
    let _connect = Daemon::logging(&mut command, &bench.routed.path("connect.log"));
    wait_until("the bond is up", || fs::read_to_string(bench.routed.path("connect.log")).is_ok_and(|log| log.contains("is up")));
    bench.fetch_twice(&["--socks5-hostname", "127.0.0.1:1080"]);
}
