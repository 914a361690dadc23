//! The other end of a bond is not reached: routed connections pass unsplit, clients of the other
//! listeners are refused at once, until it is reached again.

use crate::{
    bond::bench::{Bench, PATIENCE, SERVER, nft, read_all, socks},
    common::{Daemon, TANDEM, skip, wait_for_listener, wait_until},
};
use lab::Host;
use std::{
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    thread,
};

/// The servers' addresses on the far host; the one of IPv6 is of the Internet.
const V4: &str = "10.0.1.2";
const V6: &str = "2001:db8:1::2";
/// The client's addresses.
const CLIENT: [&str; 2] = ["10.9.0.2", "2001:db8:9::2"];
/// The route of the far host to the IPv6 Internet: to the client.
const ROUTE_BACK: &str = "route add 2001:db8:9::/64 via fd00:1::1";
const ALLOWED: [&str; 4] = ["--allow", V4, "--allow", V6];

/// A bench with a client behind the near host, whose routes to the servers lead over the first
/// network.
struct Home {
    bench: Bench,
    client: Host,
}

impl Home {
    fn new() -> Self {
        let (bench, client) = (Bench::hosts(), Host::new("client").unwrap());
        // Without duplicate address detection, which would delay addresses.
        for host in [&client, &bench.near, &bench.far] {
            host.sysctl(&[("ipv6/conf/default/accept_dad", "0".into()), ("ipv6/conf/all/accept_dad", "0".into())]).unwrap();
        }
        client.join(&["10.9.0.2/24", "2001:db8:9::2/64"], &bench.near, &["10.9.0.1/24", "2001:db8:9::1/64"], "lan").unwrap();
        client.ip(&["route add default via 10.9.0.1".into(), "route add ::/0 via 2001:db8:9::1".into()]).unwrap();
        bench.near.sysctl(&[("ipv4/ip_forward", "1".into()), ("ipv6/conf/all/forwarding", "1".into())]).unwrap();
        bench.near.ip(&[format!("route add {V6} via fd00:1::2")]).unwrap();
        bench.far.ip(&[format!("addr add {V6}/128 dev lo nodad"), "route add 10.9.0.0/24 via 10.0.1.1".into(), ROUTE_BACK.into()]).unwrap();
        for address in [V4, V6] {
            // The server tells its client whose connection it has got.
            let work = |mut stream: TcpStream| {
                let peer = stream.peer_addr().unwrap().ip().to_canonical().to_string();
                let _ = stream.write_all(peer.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
                let _ = read_all(&mut stream);
            };
            bench.server_at(address.parse().unwrap(), work);
        }
        Home { bench, client }
    }

    /// With both ends of the bond, over which connections go.
    fn bonded() -> Self {
        let mut home = Home::new();
        home.bench.serve(&ALLOWED);
        home.connect(&[]);
        home.wait_until_up(1);
        home.assert_bonded();
        home
    }

    /// Starts the dialling end, with all kinds of listeners.
    fn connect(&mut self, more: &[&str]) {
        let forward = format!("forward=127.0.0.1:4000={V4}:{SERVER}");
        let listen = ["--listen", &forward, "--listen", "socks5=127.0.0.1:1080", "--listen", "transparent=[::]:5000"];
        self.bench.connect(&listen, more);
        wait_until("the firewall's rules are installed", || {
            let listed = self.bench.near.command("nft").args(["list", "table", "inet", "tandem"]).output().unwrap();
            listed.status.success()
        });
    }

    /// Waits until both networks have come up so many times.
    fn wait_until_up(&self, times: usize) {
        wait_until("both networks are up", || self.bench.log("connect.log").matches("of the bond is up").count() == 2 * times);
    }

    /// Waits until the near end's log has a text so many times.
    fn wait_for_line(&self, text: &str, times: usize) {
        wait_until(text, || self.bench.log("connect.log").matches(text).count() >= times);
    }

    /// Connects from the client to a server, sends these bytes, and returns the answer: the address
    /// of the server's peer.
    fn ask(&self, server: &str, bytes: &[u8]) -> io::Result<String> {
        answer(self.call(server)?, bytes)
    }

    fn call(&self, server: &str) -> io::Result<TcpStream> {
        let server = SocketAddr::new(server.parse::<IpAddr>().unwrap(), SERVER);
        self.client.enter(|| TcpStream::connect_timeout(&server, PATIENCE)).unwrap()
    }

    /// The number of established connections of the bond.
    fn connections(&self) -> usize {
        let listed = self.bench.near.command("ss").args(["-Htn", "state", "established", "dport = :7000"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).lines().count()
    }

    /// Connects by way of the forwarding listener.
    fn ask_forward(&self) -> io::Result<String> {
        answer(self.bench.near.enter(|| TcpStream::connect(("127.0.0.1", 4000))).unwrap()?, b"")
    }

    /// Connects by way of the SOCKS listener; an error is its reply code.
    fn ask_socks(&self) -> Result<String, u8> {
        socks(&self.bench, &[1, 10, 0, 1, 2]).map(|stream| answer(stream, b"").unwrap())
    }

    /// Every connection goes over the bond: the server's peer is the far host itself.
    fn assert_bonded(&self) {
        // The firewall's rules follow a moment after the log.
        wait_until("routed connections go over the bond", || self.ask(V4, b"").unwrap() == V4);
        // A busy machine may be silent for so long that a connection of the bond is lost.
        wait_until("forwarded connections go over the bond", || self.ask_forward().is_ok_and(|peer| peer == V4));
        assert_eq!(self.ask_socks(), Ok(V4.into()));
    }

    /// No connection goes over the bond.
    fn assert_without_bond(&self) {
        assert_eq!(self.ask(V4, b"").unwrap(), CLIENT[0], "routed connections pass unsplit");
        assert_eq!(self.ask(V6, b"").unwrap(), CLIENT[1], "routed connections pass unsplit");
        let refused = self.ask_forward().map_err(|why| why.kind());
        assert_eq!(refused, Err(ErrorKind::ConnectionReset), "forwarded ones are refused");
        assert_eq!(self.ask_socks(), Err(3), "network unreachable (RFC 1928 §6)");
    }
}

fn answer(mut stream: TcpStream, bytes: &[u8]) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard).map(|_| heard)
}

const NOT_REACHED: &str = "the other end of the bond is not reached over any network";
const REACHED: &str = "the other end of the bond is reached again";

/// Drops the packets of the bond that arrive at the far host.
fn black_hole(bench: &Bench) {
    nft(&bench.far, "table inet hole { chain in { type filter hook input priority 0; tcp dport 7000 drop; }; }");
}

#[test]
fn a_stopped_far_end_lets_routed_connections_pass_and_refuses_others() {
    if skip("a_stopped_far_end_lets_routed_connections_pass_and_refuses_others", &["ss", "nft"]) {
        return;
    }
    let mut home = Home::bonded();
    for round in 1..=2 {
        home.wait_until_up(round);
        home.bench.daemons.remove(if round == 1 { 0 } else { 1 });
        home.wait_for_line(NOT_REACHED, round);
        home.assert_without_bond();
        home.bench.serve(&ALLOWED);
        home.wait_for_line(REACHED, round);
        home.assert_bonded();
    }
    let log = home.bench.log("connect.log");
    assert_eq!(log.matches("of the bond is down").count(), 4, "each network says that it is down, and why, once: {log}");
}

#[test]
fn a_black_hole_lets_routed_connections_pass_and_refuses_others() {
    if skip("a_black_hole_lets_routed_connections_pass_and_refuses_others", &["ss", "nft"]) {
        return;
    }
    let home = Home::bonded();
    for round in 1..=2 {
        // With connections kept ready, over which a stream begins at once.
        home.wait_until_up(round);
        wait_until("connections are ready", || home.connections() >= 4);
        black_hole(&home.bench);
        // These are accepted before anything is noticed. The server has got nothing of them, but
        // that is not known: only what may be repeated is sent to it without the bond.
        let hello = [&[22, 3, 1, 0, 100][..], &[7; 100]].concat();
        let mut request = home.call(V4).unwrap();
        request.write_all(b"POST /pay HTTP/1.1\r\n\r\n").unwrap();
        thread::scope(|scope| {
            let asked = [&b""[..], &hello].map(|bytes| scope.spawn(|| home.ask(V4, bytes).map_err(|why| why.kind())));
            asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), Ok(CLIENT[0].into())));
        });
        assert_eq!(answer(request, b"").map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
        home.wait_for_line(NOT_REACHED, round);
        home.assert_without_bond();
        nft(&home.bench.far, "delete table inet hole");
        home.wait_for_line(REACHED, round);
        home.assert_bonded();
    }
    // Each outage is logged when it begins, and when it ends.
    wait_until("both networks are up again", || home.bench.log("connect.log").matches("of the bond is up again").count() == 4);
    let log = home.bench.log("connect.log");
    assert_eq!(log.matches("of the bond is down").count(), 4, "{log}");
    assert_eq!(log.matches("no answer").count(), 4, "{log}");
}

#[test]
fn a_far_end_with_another_key_is_not_reached() {
    if skip("a_far_end_with_another_key_is_not_reached", &["ss", "nft"]) {
        return;
    }
    let mut home = Home::new();
    home.bench.serve(&[&ALLOWED[..], &["--key", "other.key"]].concat());
    home.connect(&[]);
    home.wait_for_line(NOT_REACHED, 1);
    home.assert_without_bond();
    let log = home.bench.log("connect.log");
    assert_eq!(log.matches("it is no bond, has another key, or is full").count(), 2, "each network says it once: {log}");
    home.bench.daemons.remove(0);
    home.bench.serve(&ALLOWED);
    home.wait_for_line(REACHED, 1);
    home.assert_bonded();
}

#[test]
fn a_name_of_the_far_end_that_does_not_resolve_is_looked_up_again() {
    if skip("a_name_of_the_far_end_that_does_not_resolve_is_looked_up_again", &["ss", "nft", "unshare"]) {
        return;
    }
    let mut home = Home::new();
    home.bench.serve(&ALLOWED);
    let hosts = home.bench.dir.path().join("hosts");
    fs::write(&hosts, "").unwrap();
    // Without a name server a name that is not in the file does not resolve.
    let mut command = home.bench.near.command("unshare");
    let script = "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", script, TANDEM, "bond", "connect", "--key", "bond.key", "--to", "vps.test:7000"]);
    command.args(["--network", "n1", "--listen", &format!("forward=127.0.0.1:4000={V4}:{SERVER}")]);
    command.args(["--listen", "socks5=127.0.0.1:1080", "--listen", "transparent=[::]:5000"]);
    home.bench.daemons.push(Daemon::logging(command.current_dir(home.bench.dir.path()), &home.bench.dir.path().join("connect.log")));
    wait_for_listener(&home.bench.near, 4000);
    home.wait_for_line(NOT_REACHED, 1);
    home.assert_without_bond();
    let log = home.bench.log("connect.log");
    assert!(log.contains("network n1 of the bond is down, to vps.test:7000: "), "{log}");
    // The first address refuses connections, the second one is the far end.
    fs::write(&hosts, "10.0.1.1 vps.test\n10.0.1.2 vps.test\n").unwrap();
    home.wait_for_line(REACHED, 1);
    home.assert_bonded();
}

#[test]
fn connections_to_the_ipv6_internet_pass_unsplit_if_the_far_end_has_no_route_there() {
    if skip("connections_to_the_ipv6_internet_pass_unsplit_if_the_far_end_has_no_route_there", &["ss", "nft"]) {
        return;
    }
    let mut home = Home::new();
    // Unsplit connections have an address of the near host at the far host, which has no other
    // route.
    home.bench.far.ip(&[ROUTE_BACK.replace("add", "del")]).unwrap();
    nft(&home.bench.near, "table ip6 masks { chain out { type nat hook postrouting priority 100; ip6 saddr 2001:db8:9::2 masquerade; }; }");
    home.bench.serve(&ALLOWED);
    home.connect(&[]);
    home.wait_for_line("the other end of the bond has no route to the IPv6 Internet", 1);
    // The firewall's rules follow a moment after the log.
    wait_until("connections to the IPv6 Internet pass unsplit", || home.ask(V6, b"").unwrap() == "fd00:1::1");
    // Now it has one, and says so in a later handshake.
    home.bench.far.ip(&[ROUTE_BACK.into()]).unwrap();
    wait_until("the near end knows that there is a route", || {
        home.assert_bonded();
        home.bench.log("connect.log").contains("has a route to the IPv6 Internet")
    });
    wait_until("connections to the IPv6 Internet go over the bond", || home.ask(V6, b"").unwrap() == V6);
}
