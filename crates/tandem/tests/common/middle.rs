//! What may stand between a prober and a host: a network of the lab with a router in the middle, and on the router nothing, our proxy, or a program that
//! takes connections by a rule of the firewall and passes them on, holds them, or changes them.

use super::{Daemon, TANDEM, routed::nft, wait_for_listener};
use lab::{Host, NetworkOptions, SeriesNetwork};
use scenario::ScenarioFile;
use socket2::SockRef;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
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
const SPLIT: &str = "[[split]]\nafter = 1\nbuffer = \"256KiB\"\n";

/// A client, a router, and a server; the client is the prober.
pub(crate) struct Middle {
    network: SeriesNetwork,
}

/// A router that does nothing but forward.
pub(crate) fn plain() -> Middle {
    Middle::new(LINKS)
}

/// A router with our proxy on it.
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

    pub(crate) fn server(&self) -> &Host {
        self.network.receiver()
    }

    /// The server's addresses: IPv4, IPv6.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        self.network.receiver_addresses()
    }

    /// Lets a program on the router have connections to these ports of the server, over IPv4.
    pub(crate) fn with(self, taker: Taker, ports: &str) -> Self {
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
                "table ip taker{port} {{\n chain pre {{\n type nat hook prerouting priority dstnat\n tcp dport {{ {ports} }} redirect to :{port}\n }}\n}}\n"
            ),
        );
        let known = Arc::new(Mutex::new(BTreeMap::new()));
        self.router()
            .spawn("taker", move || {
                for client in listener.incoming().flatten() {
                    let known = known.clone();
                    thread::spawn(move || take(taker, &client, &known));
                }
            })
            .unwrap();
        self
    }

    /// A server of pages at port 80 of every address.
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

    /// The responder on the server.
    pub(crate) fn responder(&self, prefix: &[&str], arguments: &[&str]) -> Daemon {
        let line = [prefix, &[TANDEM, "detect", "respond"], arguments].concat();
        let daemon = Daemon::start(self.server().command(line[0]).args(&line[1..]));
        wait_for_listener(self.server(), 7707);
        daemon
    }

    /// The prober on the client, over IPv4.
    pub(crate) fn probe(&self, prefix: &[&str], arguments: &[&str]) -> Output {
        let host = self.addresses()[0].to_string();
        let line = [prefix, &[TANDEM, "detect", "probe", &host], arguments].concat();
        let mut command: Command = self.client().command(line[0]);
        command.args(&line[1..]).output().unwrap()
    }
}

/// What a program does with connections that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Passes bytes on as they come.
    PassesOn,
    /// Passes the first line on, and the rest when all of it has come, either way.
    Stores,
    /// Speaks HTTP: adds a line to requests, and knows the answers that it has passed on.
    Caches,
}

/// Reads up to the end of a head of HTTP.
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

fn take(taker: Taker, client: &TcpStream, known: &Known) -> Option<()> {
    let to: SocketAddr = SockRef::from(client).original_dst_v4().ok()?.as_socket()?;
    if taker == Taker::Caches {
        return cache(client, to, known);
    }
    let server = &TcpStream::connect(to).ok()?;
    let pass = |from: &TcpStream, to: &TcpStream| {
        if taker == Taker::PassesOn {
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
        if taker == Taker::Stores {
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
