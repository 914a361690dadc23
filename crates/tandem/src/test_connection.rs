//! Test connections through a configuration before it is deployed: whether connections of the
//! clients would be split, and which controllers would send them over which interfaces.
//!
//! They run in a copy of this host: a network namespace with the two interfaces that such a
//! connection crosses, as this host's routes say, and with the firewall tables of other programs.
//! The proxy runs there with the configuration, a client and a server in namespaces beside it.
//! Nothing is changed on this host.

use crate::host_interfaces::{self, HostInterface};
use intercept::{
    Action, Prefix, Routes, Rule,
    check::{Trial, TrialResult},
};
use lab::{Host, LabError};
use proxy::{FlowView, Proxy, ProxyConfig};
use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

/// The most networks of clients that are tried.
const MOST_NETWORKS: usize = 4;
/// Connections that are tried for each: where the forward chains of other programs are heeded, the
/// first passes unsplit.
const ATTEMPTS: usize = 3;
/// Time limit for each step of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Servers of the internet, in prefixes for documentation (RFC 5737, RFC 3849).
const SERVERS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// The server's port, unless the rules have others.
const PORT: u16 = 443;

/// Makes a test connection from each of the first client networks: those that the rules name, or,
/// if they name none, those of this host except that of the default route. Does nothing if the
/// proxy installs no firewall rules, if it has a bond (`try_service` dials its networks), or if
/// this process does not run as root.
pub(crate) fn try_connections(config: &ProxyConfig) -> Vec<Trial> {
    if config.rules().is_none() || config.bond.is_some() || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let (Ok(routes), Ok(interfaces)) = (Routes::open(), host_interfaces::of_host()) else { return Vec::new() };
    let named = client_networks(config);
    let are_named = !named.is_empty();
    let networks = if are_named { named } else { host_interfaces::networks(interfaces.iter().filter(|it| it.is_up && !it.is_default)) };
    let mut tried: Vec<(Prefix, Tried)> = networks
        .into_iter()
        .take(MOST_NETWORKS)
        .map(|network| (network, Crossing::find(config, network, &routes, &interfaces).and_then(|way| way.try_out(config))))
        .collect();
    let is_split = |tried: &Tried| matches!(tried, Ok((_, Verdict::Split(_))));
    let any_split = tried.iter().any(|(_, tried)| is_split(tried));
    if !any_split {
        // They have one cause, as a rule.
        tried.truncate(1);
    } else if !are_named {
        // Not every network of this host has clients.
        tried.retain(|(_, tried)| is_split(tried));
    }
    tried.into_iter().map(|(network, tried)| trial(network, tried, any_split)).collect()
}

/// The prefixes of clients (`from`) in the rules that split. Empty: no such rule has one.
fn client_networks(config: &ProxyConfig) -> Vec<Prefix> {
    let mut named: Vec<Prefix> = Vec::new();
    for prefix in splitting(config).flat_map(|rule| &rule.from) {
        if !named.contains(prefix) {
            named.push(*prefix);
        }
    }
    named
}

/// The rules that split connections.
fn splitting(config: &ProxyConfig) -> impl Iterator<Item = &Rule> {
    config.policy.rules.iter().filter(|rule| matches!(rule.action, Action::Split | Action::Carry))
}

fn trial(network: Prefix, tried: Tried, any_split: bool) -> Trial {
    const CURE: &str =
        "compare the conditions of the rules (from, in, out) with the routes (ip route get) and the firewall (nft list ruleset)";
    let (subject, result) = match tried {
        Ok((way, Verdict::Split(text))) => (way.to_string(), TrialResult::works(format!("split: {text}"))),
        Ok((way, Verdict::Unsplit)) if any_split => (way.to_string(), TrialResult::works("passes unsplit")),
        Ok((way, Verdict::Unsplit)) => (way.to_string(), TrialResult::doubtful("it passes unsplit", CURE)),
        Ok((way, Verdict::NotTried(why))) => {
            (way.to_string(), TrialResult::doubtful(format!("not tried: {why}"), "run this as root, where network namespaces can be made"))
        }
        Err(why) => (format!("from {network}"), TrialResult::doubtful(why, CURE)),
    };
    Trial::new("make a test connection", subject, result)
}

/// A connection and what became of it, or why it could not be made.
type Tried = Result<(Crossing, Verdict), String>;

/// What became of a connection.
enum Verdict {
    /// It was split; which controllers sent it where.
    Split(String),
    Unsplit,
    /// This host could not be copied, and why.
    NotTried(String),
}

/// A client's connection through this host: its ends, and the interfaces that it crosses.
struct Crossing {
    client: IpAddr,
    server: SocketAddr,
    /// The interfaces through which it comes in and leaves.
    inward: String,
    outward: String,
}

impl std::fmt::Display for Crossing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Crossing { client, server, inward, outward } = self;
        write!(f, "from {client} ({inward}) to {server} ({outward})")
    }
}

impl Crossing {
    /// Asks the routes of this host which way a connection of this network would take.
    ///
    /// # Errors
    /// There is no such way; the text is the reason.
    fn find(config: &ProxyConfig, network: Prefix, routes: &Routes, interfaces: &[HostInterface]) -> Result<Self, String> {
        let is_here = |address: IpAddr| routes.is_local(address, 0).unwrap_or(false);
        let host_of = |prefix: &Prefix| prefix.0.hosts().take(8).find(|host| !is_here(*host));
        let client = host_of(&network).ok_or("it has no address but this host's own")?;
        let inward = routes.try_interface_to(client).ok().flatten().ok_or_else(|| format!("there is no route to {client}"))?;
        let rules = || splitting(config).filter(|rule| rule.from.is_empty() || rule.from.contains(&network));
        let port = rules().flat_map(|rule| &rule.ports).map(|ports| ports.first).next().unwrap_or(PORT);
        let is_elsewhere = |address: &IpAddr| address.is_ipv4() == client.is_ipv4() && !network.contains(*address);
        let named = rules().flat_map(|rule| &rule.to).filter_map(host_of);
        // Without a default route: a host of another network.
        let others = interfaces.iter().filter(|it| it.name != inward);
        let others = host_interfaces::networks(others);
        let servers: Vec<IpAddr> = named.chain(SERVERS).chain(others.iter().filter_map(host_of)).filter(is_elsewhere).collect();
        let leaves = |server: &IpAddr| routes.forwarded_through(client, &inward, *server).ok().flatten().map(|outward| (*server, outward));
        let (server, outward) =
            servers.iter().find_map(leaves).ok_or_else(|| format!("no route leads from {client} ({inward}) to a server"))?;
        if outward == inward {
            return Err(format!("{client} and {server} are both reached through {inward}"));
        }
        Ok(Crossing { client, server: SocketAddr::new(server, port), inward, outward })
    }

    /// Makes the connection in a copy of this host.
    ///
    /// # Errors
    /// The proxy does not start in the copy, or the connection fails.
    fn try_out(self, config: &ProxyConfig) -> Tried {
        let text = |why: LabError| why.to_string();
        let copy = match HostCopy::of(&self) {
            Ok(copy) => copy,
            Err(why) => return Ok((self, Verdict::NotTried(why.to_string()))),
        };
        let config = self.config(config);
        let started = copy.gateway.enter(|| Proxy::start(config, |_| {})).map_err(text)?;
        let proxy = started.map_err(|why| format!("the proxy does not start in a copy of this host: {why}"))?;
        let verdict = self.connect(&copy, &proxy);
        // It removes its rules in the namespace of the thread.
        copy.gateway.enter(|| drop(proxy)).map_err(text)?;
        verdict.map(|verdict| (self, verdict))
    }

    /// The configuration without what the copy lacks, and without what would leave traces.
    fn config(&self, config: &ProxyConfig) -> ProxyConfig {
        let mut config = config.clone();
        config.listen.retain(|listen| listen.at().is_transparent());
        (config.experiment, config.flow_records, config.log_flows, config.threads) = (None, None, false, 1);
        for leg in &mut config.policy.legs {
            let is_there = |name: &str| leg.interface.iter().any(|interface| interface.matches(name));
            if !leg.interface.is_empty() && !is_there(&self.inward) && !is_there(&self.outward) {
                (leg.profile.capacity, leg.profile.shape) = (None, None);
            }
        }
        config
    }

    fn connect(&self, copy: &HostCopy, proxy: &Proxy) -> Result<Verdict, String> {
        let Crossing { server, inward, outward, .. } = self;
        for _ in 0..ATTEMPTS {
            let flow = copy.exchange(self, || proxy.flow_views());
            if let Some(flow) = flow.map_err(|why| format!("the connection to {server} through {outward} failed: {why}"))? {
                let [near, far] = [&flow.near, &flow.far].map(|leg| control::short_name(&leg.control));
                return Ok(Verdict::Split(format!("sent to the client by {near} over {inward}, to the server by {far} over {outward}")));
            }
        }
        Ok(Verdict::Unsplit)
    }
}

/// A copy of this host, and a client and a server beside it.
struct HostCopy {
    gateway: Host,
    client: Host,
    server: Host,
}

impl HostCopy {
    fn of(way: &Crossing) -> Result<Self, LabError> {
        let copy = HostCopy { gateway: Host::new("gateway")?, client: Host::new("client")?, server: Host::new("server")? };
        let (all, length) = if way.client.is_ipv4() { ("0.0.0.0/0", 32) } else { ("::/0", 128) };
        copy.gateway.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())])?;
        let peers = [(&copy.client, way.client, &way.inward), (&copy.server, way.server.ip(), &way.outward)];
        for (number, (peer, address, interface)) in peers.into_iter().enumerate() {
            let [own, other, prefix] = link_addresses(way.client.is_ipv4(), number);
            copy.gateway.join(&[&format!("{own}/{prefix}")], peer, &[&format!("{other}/{prefix}")], interface)?;
            peer.ip(&[
                format!("addr add {address}/{length} dev {interface} nodad"),
                format!("route add {all} via {own} dev {interface} src {address}"),
            ])?;
            copy.gateway.ip(&[format!("route add {address}/{length} via {other} dev {interface}")])?;
        }
        copy.take_firewall();
        Ok(copy)
    }

    /// Gives the copy the firewall tables of other programs on this host, as far as they can be
    /// loaded there: they may name devices and sets that it lacks.
    fn take_firewall(&self) {
        let Ok(listed) = std::process::Command::new("nft").args(["list", "tables"]).output() else { return };
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for table in listed.lines().filter_map(|line| line.strip_prefix("table ")) {
            let Some((family, name)) = table.split_once(' ') else { continue };
            if !matches!(family, "ip" | "ip6" | "inet") || name.starts_with("tandem") {
                continue;
            }
            let Ok(rules) = std::process::Command::new("nft").args(["list", "table", family, name]).output() else { continue };
            let mut load = self.gateway.command("nft");
            let load = load.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            if let Ok(mut load) = load {
                if let Some(mut input) = load.stdin.take() {
                    let _ = input.write_all(&rules.stdout);
                }
                let _ = load.wait();
            }
        }
    }

    /// Opens a connection, carries a byte each way, and finds it among `flows`.
    fn exchange(&self, way: &Crossing, flows: impl Fn() -> Vec<FlowView>) -> io::Result<Option<FlowView>> {
        let listener = self.server.enter(|| TcpListener::bind(way.server)).map_err(io::Error::other)??;
        let mut client = self.client.enter(|| TcpStream::connect_timeout(&way.server, PATIENCE)).map_err(io::Error::other)??;
        let mut server = accept(&listener)?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        let mut byte = [0];
        client.write_all(b"?")?;
        server.read_exact(&mut byte)?;
        server.write_all(b"!")?;
        client.read_exact(&mut byte)?;
        let own = client.local_addr()?;
        Ok(flows().into_iter().find(|flow| flow.client == own))
    }
}

/// Accepts a connection within [`PATIENCE`].
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let begun = Instant::now();
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Err(io::Error::other("it does not reach the server")),
            Err(why) => return Err(why),
        }
    }
}

/// Addresses of the links beside the copy: its own, the other host's, and the length of the prefix.
fn link_addresses(is_ipv4: bool, number: usize) -> [String; 3] {
    let [own, other] = if is_ipv4 {
        [1, 2].map(|host| format!("169.254.{}.{host}", 201 + number))
    } else {
        [1, 2].map(|host| format!("fdff:7464:{}::{host}", 1 + number))
    };
    [own, other, (if is_ipv4 { "30" } else { "64" }).into()]
}
