//! Middleboxes between a prober and a host: a lab network with a router in the middle that only
//! forwards, runs the proxy, or redirects connections to a program that relays, stores or changes
//! them.

use super::{Daemon, TANDEM, routed::nft, wait_for_listener};
use lab::{Host, NetworkOptions, SeriesNetwork};
use scenario::ScenarioFile;
use socket2::SockRef;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
};

const LINKS: &str = r#"
name = "middle"
[[link]]
rate  = "100Mbit"
delay = "4ms"
[[link]]
rate  = "50Mbit"
delay = "16ms"
[[flow]]
bytes = "1B"
"#;
/// A client behind a satellite.
const SATELLITE: &str = r#"
name = "satellite"
[[link]]
rate  = "20Mbit"
delay = "150ms"
loss  = { per_packet = "1%" }
[[link]]
rate  = "100Mbit"
delay = "5ms"
[[flow]]
bytes = "1B"
"#;
/// Two routers between the client and the server.
const TWO_ROUTERS: &str = r#"
name = "two-routers"
[[link]]
rate  = "100Mbit"
delay = "4ms"
[[link]]
rate  = "100Mbit"
delay = "6ms"
[[link]]
rate  = "50Mbit"
delay = "10ms"
[[flow]]
bytes = "1B"
"#;
const SPLIT: &str = "[[split]]\nafter = 1\nbuffer = \"256KiB\"\n";

/// A client, a router, and a server; the client is the prober.
pub(crate) struct Middle {
    network: SeriesNetwork,
}

/// A router that only forwards.
pub(crate) fn plain() -> Middle {
    Middle::new(LINKS)
}

/// A router that only forwards, with a lossy satellite before the client.
pub(crate) fn satellite() -> Middle {
    Middle::new(SATELLITE)
}

/// Two routers that only forward, while the client receives neither ICMP nor UDP, except for errors
/// from the first router if `first_answers`.
pub(crate) fn filtered(first_answers: bool) -> Middle {
    let middle = Middle::new(TWO_ROUTERS);
    // What the first router sends arrives with the TTL that it had.
    let exception = if first_answers { "ip ttl 64 icmp type time-exceeded accept" } else { "" };
    nft(
        middle.client(),
        &format!(
            "table ip filtered {{\n chain in {{\n type filter hook input priority 0\n {exception}\n ip protocol {{ icmp, udp }} drop\n }}\n}}\n"
        ),
    );
    middle
}

/// A router with the proxy.
pub(crate) fn proxied() -> Middle {
    Middle::new(&(LINKS.to_string() + SPLIT))
}

impl Middle {
    fn new(links: &str) -> Self {
        let scenario = ScenarioFile::parse(links, "middle").unwrap().variants(&[]).unwrap().remove(0).scenario;
        Middle { network: SeriesNetwork::build(&scenario, 1, &NetworkOptions::default(), |_, _| {}).unwrap() }
    }

    pub(crate) fn client(&self) -> &Host {
        self.network.sender()
    }

    pub(crate) fn router(&self) -> &Host {
        &self.network.hosts()[1]
    }

    /// The router before the server.
    pub(crate) fn last_router(&self) -> &Host {
        let hosts = self.network.hosts();
        &hosts[hosts.len() - 2]
    }

    /// Starts HAProxy on the last router. It splits the connections to port 80 of the server, until
    /// the guard is dropped. Its configuration is in `directory`.
    pub(crate) fn haproxy(&self, directory: &Path) -> Daemon {
        let (file, server) = (directory.join("haproxy.cfg"), self.addresses()[0]);
        let settings = format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
             listen split\n bind 0.0.0.0:8480\n server server {server}:80\n"
        );
        std::fs::write(&file, settings).unwrap();
        let daemon = Daemon::start(self.last_router().command("haproxy").arg("-db").arg("-f").arg(&file));
        wait_for_listener(self.last_router(), 8480);
        nft(
            self.last_router(),
            "table ip haproxy {\n chain pre {\n type nat hook prerouting priority dstnat\n tcp dport 80 redirect to :8480\n }\n}\n",
        );
        daemon
    }

    pub(crate) fn server(&self) -> &Host {
        self.network.receiver()
    }

    /// The server's addresses: IPv4, IPv6.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        self.network.receiver_addresses()
    }

    /// The client's addresses: IPv4, IPv6.
    pub(crate) fn client_addresses(&self) -> [IpAddr; 2] {
        self.network.sender_addresses()
    }

    /// Redirects IPv4 connections to these ports of the server to a program on the router.
    pub(crate) fn with(self, interceptor: Interceptor, ports: &str) -> Self {
        static NEXT: Mutex<u16> = Mutex::new(8100);
        let port = {
            let mut next = NEXT.lock().unwrap();
            *next += 1;
            *next
        };
        let listener = self.router().enter(|| TcpListener::bind(("0.0.0.0", port)).unwrap()).unwrap();
        nft(
            self.router(),
            &format!(
                "table ip interceptor{port} {{\n chain pre {{\n type nat hook prerouting priority dstnat\n tcp dport {{ {ports} }} redirect to :{port}\n }}\n}}\n"
            ),
        );
        let known = Arc::new(Mutex::new(BTreeMap::new()));
        self.router()
            .spawn("interceptor", move || {
                for client in listener.incoming().flatten() {
                    let known = known.clone();
                    thread::spawn(move || intercept(interceptor, &client, &known));
                }
            })
            .unwrap();
        self
    }

    /// Starts a web server on port 80 of every address of the server.
    pub(crate) fn pages(&self) {
        let listener = self.server().enter(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || {
                    head(&client)?;
                    (&client).write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n").ok()
                });
            }
        });
    }

    /// Starts the responder on the server.
    pub(crate) fn responder(&self, prefix: &[&str], arguments: &[&str]) -> Daemon {
        let line = [prefix, &[TANDEM, "detect", "respond"], arguments].concat();
        let daemon = Daemon::start(self.server().command(line[0]).args(&line[1..]));
        wait_for_listener(self.server(), 7707);
        daemon
    }

    /// Runs the prober on the client, over IPv4.
    pub(crate) fn probe(&self, prefix: &[&str], arguments: &[&str]) -> Output {
        let host = self.addresses()[0].to_string();
        let line = [prefix, &[TANDEM, "detect", "probe", &host], arguments].concat();
        let mut command: Command = self.client().command(line[0]);
        command.args(&line[1..]).output().unwrap()
    }
}

/// What a program on the router does with redirected connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interceptor {
    /// Relays bytes as they arrive.
    Relays,
    /// Relays the first line, and stores the rest of each direction until it is complete.
    Stores,
    /// An HTTP proxy: adds a header to requests, and caches the responses.
    Caches,
}

/// Reads an HTTP head.
fn head(from: &TcpStream) -> Option<Vec<u8>> {
    up_to(from, b"\r\n\r\n")
}

fn up_to(mut from: &TcpStream, end: &[u8]) -> Option<Vec<u8>> {
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(end) {
        if from.read(&mut byte).ok()? == 0 {
            return None;
        }
        heard.push(byte[0]);
    }
    Some(heard)
}

type Known = Mutex<BTreeMap<Vec<u8>, Vec<u8>>>;

fn intercept(interceptor: Interceptor, client: &TcpStream, known: &Known) -> Option<()> {
    let to: SocketAddr = SockRef::from(client).original_dst_v4().ok()?.as_socket()?;
    if interceptor == Interceptor::Caches {
        return cache(client, to, known);
    }
    let server = &TcpStream::connect(to).ok()?;
    let pass = |from: &TcpStream, to: &TcpStream| {
        if interceptor == Interceptor::Relays {
            let _ = std::io::copy(&mut &*from, &mut &*to);
        } else {
            let mut all = Vec::new();
            let _ = (&mut &*from).read_to_end(&mut all);
            let _ = (&*to).write_all(&all);
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    thread::scope(|scope| {
        scope.spawn(|| pass(server, client));
        if interceptor == Interceptor::Stores {
            let _ = up_to(client, b"\n").map(|line| (&mut &*server).write_all(&line));
        }
        pass(client, server);
    });
    Some(())
}

fn cache(client: &TcpStream, to: SocketAddr, known: &Known) -> Option<()> {
    let asked = head(client)?;
    let kept = known.lock().unwrap().get(&asked).cloned();
    if let Some(answer) = kept {
        return (&*client).write_all(&answer).ok();
    }
    let server = TcpStream::connect(to).ok()?;
    let more = [&asked[..asked.len() - 2], b"Via: 1.1 middle\r\n\r\n"].concat();
    (&server).write_all(&more).ok()?;
    if asked.starts_with(b"GET") {
        let mut answer = Vec::new();
        (&server).read_to_end(&mut answer).ok()?;
        (&*client).write_all(&answer).ok()?;
        known.lock().unwrap().insert(asked, answer);
        return Some(());
    }
    thread::scope(|scope| {
        scope.spawn(|| std::io::copy(&mut &server, &mut &*client).map(|_| client.shutdown(Shutdown::Write)));
        std::io::copy(&mut &*client, &mut &server).map(|_| server.shutdown(Shutdown::Write))
    })
    .ok()?
    .ok()
}
