//! The proxy as a program on a router, between hosts joined by veth pairs: what it splits, what it lets pass, how its legs are
//! tuned.

mod common;

use common::{Daemon, TANDEM, skip, wait_until};
use lab::Host;
use proxy::control::{Remote, Status};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const SERVER: [&str; 2] = ["10.99.2.2", "fd99:2::2"];

/// Client, router, server.
struct Routed {
    client: Host,
    router: Host,
    server: Host,
}

impl Routed {
    fn new() -> Self {
        let [client, router, server] = ["client", "router", "server"].map(|name| Host::new(name).unwrap());
        for host in [&client, &router, &server] {
            // Nobody else is there who could have an address too: no waiting to find out.
            host.sysctl(&[("ipv6/conf/default/accept_dad", "0".into()), ("ipv6/conf/all/accept_dad", "0".into())]).unwrap();
        }
        client.join(&["10.99.1.1/24", "fd99:1::1/64"], &router, &["10.99.1.2/24", "fd99:1::2/64"], "near").unwrap();
        router.join(&["10.99.2.1/24", "fd99:2::1/64"], &server, &["10.99.2.2/24", "fd99:2::2/64"], "far").unwrap();
        router.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())]).unwrap();
        client.ip(&["route add default via 10.99.1.2".into(), "route add ::/0 via fd99:1::2".into()]).unwrap();
        server.ip(&["route add default via 10.99.2.1".into(), "route add ::/0 via fd99:2::1".into()]).unwrap();
        Routed { client, router, server }
    }

    /// The proxy on the router, with these arguments besides.
    fn proxy(&self, arguments: &[&str]) -> Daemon {
        let daemon = Daemon::start(self.router.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000"]).args(arguments));
        wait_until("the proxy is up", || self.try_status().is_some());
        daemon
    }

    fn try_status(&self) -> Option<Status> {
        self.router.enter(|| Remote::named("default").status().ok()).unwrap()
    }

    fn status(&self) -> Status {
        self.try_status().expect("the proxy answers")
    }

    /// Of new connections: split, bypassed, unsplit.
    fn verdicts(&self) -> (u64, u64, u64) {
        let counted = self.status().counted.unwrap();
        (counted.split, counted.bypassed, counted.unsplit)
    }

    /// A server that says back what it hears, at this port of every address.
    fn echo(&self, port: u16) {
        let listener = self.server.enter(|| TcpListener::bind(("::", port)).unwrap()).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
    }

    /// A connection of the client to the server.
    fn connect(&self, server: &str, port: u16) -> std::io::Result<TcpStream> {
        let to = SocketAddr::new(server.parse::<IpAddr>().unwrap(), port);
        let stream = self.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(30))).unwrap()?;
        stream.set_read_timeout(Some(common::PATIENCE))?;
        Ok(stream)
    }
}

/// Whether what is said comes back.
fn echoes(stream: &mut TcpStream) -> bool {
    let mut back = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut back).is_ok() && &back == b"hello"
}

#[test]
fn prefixes_bypass_by_rule_and_by_word() {
    if skip("prefixes_bypass_by_rule_and_by_word", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--bypass", "fd99:2::/64"]);
    let talk = |server| assert!(echoes(&mut routed.connect(server, 80).unwrap()));
    SERVER.into_iter().for_each(talk);
    assert_eq!(routed.verdicts(), (1, 1, 0), "IPv4 is split, IPv6 bypasses");
    let bypass = |arguments: &[&str]| {
        let output = routed.router.command(TANDEM).arg("bypass").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(bypass(&["add", "10.99.2.2", "192.0.2.0/24"]), "10.99.2.2\n192.0.2.0/24\n");
    talk(SERVER[0]);
    assert_eq!(routed.verdicts(), (1, 2, 0));
    assert_eq!(bypass(&["remove", "10.99.2.2"]), "192.0.2.0/24\n");
    talk(SERVER[0]);
    assert_eq!(routed.verdicts(), (2, 2, 0));
    assert_eq!(bypass(&["list", "--json"]), "[\"192.0.2.0/24\"]\n");
}

#[test]
fn over_the_limit_connections_pass_unsplit_and_none_is_refused() {
    if skip("over_the_limit_connections_pass_unsplit_and_none_is_refused", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--max-flows", "4"]);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| routed.connect(SERVER[0], 80).unwrap()).collect();
    // The gate takes a moment to shut; whoever comes meanwhile is split.
    wait_until("the proxy is full", || {
        streams.push(routed.connect(SERVER[0], 80).unwrap());
        routed.verdicts().2 > 0
    });
    streams.push(routed.connect(SERVER[1], 80).unwrap());
    let (split, _, unsplit) = routed.verdicts();
    assert_eq!((split + unsplit) as usize, streams.len(), "each came once");
    assert!(unsplit >= 2 && streams.iter_mut().all(echoes));
    assert_eq!(routed.status().totals.flows, split);
    streams.clear();
    wait_until("there is room again", || {
        let before = routed.verdicts().0;
        assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()));
        routed.verdicts().0 > before
    });
}

/// Packets of a connection that passes unsplit are not taken for those of one that the proxy's host still remembers, on its near
/// leg when the server closed first, on its far leg when the client did.
#[test]
fn what_is_left_of_a_leg_stalls_no_direct_connection() {
    if skip("what_is_left_of_a_leg_stalls_no_direct_connection", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    for host in [&routed.client, &routed.server] {
        // The ends forget at once, so that only the proxy's memory can be in the way.
        host.sysctl(&[("ipv4/tcp_max_tw_buckets", "0".into())]).unwrap();
    }
    let listener = routed.server.enter(|| TcpListener::bind(("::", 80)).unwrap()).unwrap();
    let _proxy = routed.proxy(&[]);
    let bypass = |verb: &str, server: &str| {
        assert!(routed.router.command(TANDEM).args(["bypass", verb, server]).output().unwrap().status.success());
    };
    for server in SERVER {
        let to = SocketAddr::new(server.parse::<IpAddr>().unwrap(), 80);
        let any = SocketAddr::new(if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }, 4711);
        let talk = |server_first: bool| {
            let socket = routed.client.enter(|| Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap()).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&any.into()).unwrap();
            socket.connect_timeout(&to.into(), common::PATIENCE).unwrap();
            let (mut client, mut accepted) = (TcpStream::from(socket), listener.accept().unwrap().0);
            for end in [&client, &accepted] {
                end.set_read_timeout(Some(common::PATIENCE)).unwrap();
            }
            client.write_all(b"hello").unwrap();
            accepted.read_exact(&mut [0; 5]).unwrap();
            let (mut first, mut last) = if server_first { (accepted, client) } else { (client, accepted) };
            first.shutdown(Shutdown::Write).unwrap();
            assert_eq!(last.read(&mut [0; 5]).unwrap(), 0);
            drop(last);
            assert_eq!(first.read(&mut [0; 5]).unwrap(), 0);
        };
        for server_first in [true, false] {
            let before = routed.verdicts();
            for bypassed in [false, true, false] {
                bypass(if bypassed { "add" } else { "remove" }, server);
                talk(server_first);
                wait_until("its flow has ended", || routed.status().totals.flows == 0);
            }
            let after = routed.verdicts();
            // One that had stalled would have sent its SYN again.
            assert_eq!((after.0 - before.0, after.1 - before.1), (2, 1), "{server}, server first: {server_first}");
        }
    }
}

/// A client with a second way to the server, on which its packets pass the router by while the answers come through it.
#[test]
fn the_doctor_finds_traffic_that_passes_only_one_way() {
    if skip("the_doctor_finds_traffic_that_passes_only_one_way", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&[]);
    let doctor = |arguments: &[&str]| {
        let output = routed.router.command(TANDEM).arg("doctor").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(!doctor(&[]).contains("asymmetric routing"));
    routed.client.join(&["10.99.3.1/24"], &routed.server, &["10.99.3.2/24"], "past").unwrap();
    routed.client.ip(&["route add 10.99.2.2/32 via 10.99.3.2 src 10.99.1.1".into()]).unwrap();
    for host in [&routed.client, &routed.server] {
        host.sysctl(&[("ipv4/conf/all/rp_filter", "0".into()), ("ipv4/conf/past/rp_filter", "0".into())]).unwrap();
    }
    for _ in 0..12 {
        assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()), "it works, unsplit");
    }
    assert_eq!(routed.verdicts(), (0, 0, 0));
    assert_eq!(routed.status().counted.unwrap().oneway, 12);
    let said = doctor(&[]);
    assert!(said.contains("12 connections were answered through this host that were not opened through it"), "{said}");
    let said = doctor(&["--link", "1Gbit,600ms"]);
    assert!(said.contains("window for the link, receiving") && said.contains("sysctl -w net.ipv4.tcp_rmem="), "{said}");
}
