//! Consequences of the far leg's foreign source address: ICMP errors for it, and connections with
//! the same addresses and ports.

use crate::common::{
    routed::{Beyond, CLIENT, Routed, SERVER, dial, echoes, end_of, ip, seconds},
    skip, wait_until,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

/// Connects to an address for which a router returns an ICMP error; returns the result and the time
/// in seconds. The proxy may reset the connection before the connect returns.
fn end_of_connect(routed: &Routed, address: &str) -> (Result<usize, ErrorKind>, f64) {
    let connect = || routed.connect(address, 80).map_err(|why| why.kind());
    seconds(|| connect().and_then(|mut stream| end_of(&mut stream)))
}

#[test]
fn an_icmp_error_ends_a_connect_at_once() {
    if skip("an_icmp_error_ends_a_connect_at_once", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let beyond = Beyond::new(&routed, 1500);
    let _proxy = routed.proxy(&[]);
    let mut ended = 0;
    for (kind, last) in [("unreachable", 7), ("prohibit", 8)] {
        let [v4, v6] = [format!("10.99.4.{last}"), format!("fd99:4::{last}")];
        ip(&beyond.gate, &[&format!("route add {kind} {v4}"), &format!("route add {kind} {v6}")]);
        for address in [v4, v6] {
            let (end, took) = end_of_connect(&routed, &address);
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{kind} {address}");
            assert!(took < 5.0, "{kind} {address}: it took {took:.1} s");
            ended += 1;
            wait_until("it is counted", || routed.status().totals.ended_as("far_not_reached") == ended);
        }
    }
}

/// Connects the client from this port.
fn from_port(routed: &Routed, address: &str, own: u16) -> TcpStream {
    let from = SocketAddr::new(if address.contains(':') { CLIENT[1] } else { CLIENT[0] }.parse().unwrap(), own);
    let connect = || {
        dial(&routed.client, address, 80, |socket| {
            socket.set_reuse_address(true)?;
            socket.bind(&from.into())
        })
    };
    connect().unwrap_or_else(|why| panic!("{from} to {address}: {why}"))
}

/// Exchanges a message; the server closes first.
fn served_and_closed(mut client: TcpStream, server: &TcpListener) {
    let (mut accepted, _) = server.accept().unwrap();
    client.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    accepted.read_exact(&mut heard).unwrap();
    accepted.write_all(&heard).unwrap();
    drop(accepted);
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"hello");
}

/// Exchanges a message; the client closes first.
fn served_and_left(mut client: TcpStream, server: &TcpListener) {
    let (accepted, _) = server.accept().unwrap();
    let echo = thread::spawn(move || std::io::copy(&mut &accepted, &mut &accepted));
    assert!(echoes(&mut client));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(end_of(&mut client), Ok(0));
    echo.join().unwrap().unwrap();
}

#[test]
fn a_direct_connection_can_reuse_the_addresses_of_a_split_one_at_once() {
    if skip("a_direct_connection_can_reuse_the_addresses_of_a_split_one_at_once", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let server = routed.listen(80);
    let _proxy = routed.proxy(&[]);
    let bypass = |what: &str, address: &str| assert!(routed.tandem(&["bypass", what, address]).status.success());
    for (port, closes) in [(4000, served_and_closed as fn(TcpStream, &TcpListener)), (4001, served_and_left)] {
        for address in SERVER {
            let before = routed.verdicts();
            // Split and direct connections alternate, all with the same addresses and ports.
            for (round, direct) in [false, true, true, false, true, false].into_iter().enumerate() {
                bypass(if direct { "add" } else { "remove" }, address);
                let (client, took) = seconds(|| from_port(&routed, address, port));
                assert!(took < 5.0, "{address}, round {round}: the connect took {took:.1} s");
                let ((), took) = seconds(|| closes(client, &server));
                assert!(took < 5.0, "{address}, round {round}: the talk took {took:.1} s");
                wait_until("the flow has ended", || routed.status().totals.flows == 0);
            }
            let after = routed.verdicts();
            assert_eq!((after.0 - before.0, after.1 - before.1), (3, 3), "{address}, port {port}");
        }
    }
}

#[test]
fn only_unsplit_connections_with_reused_addresses_are_remembered() {
    if skip("only_unsplit_connections_with_reused_addresses_are_remembered", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let server = routed.listen(80);
    let _proxy = routed.proxy(&[]);
    let remembered = |port: u16| {
        let of = |set: &str| {
            let output = routed.router.command("nft").args(["list", "set", "inet", "tandem", set]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().contains(&format!(". {port} ."))
        };
        of("direct4") || of("direct6")
    };
    for address in SERVER {
        served_and_closed(from_port(&routed, address, 4100), &server);
        wait_until("the flow has ended", || routed.status().totals.flows == 0);
        assert!(routed.tandem(&["bypass", "add", address]).status.success());
        for port in 4100..4110 {
            served_and_closed(from_port(&routed, address, port), &server);
            assert_eq!(remembered(port), port == 4100, "{address}, port {port}");
        }
    }
}
