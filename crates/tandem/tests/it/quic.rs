//! What rules do to QUIC: packets that look like the first ones of a connection, in namespaces.

use crate::common::{
    routed::{CLIENT, Routed, SERVER},
    skip, wait_until,
};
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// A datagram with a client's Initial: a long header, and padding.
fn initial() -> Vec<u8> {
    let mut datagram = vec![0; 1200];
    datagram[0] = 0xc0;
    datagram
}

/// A datagram of a connection that is open: a short header.
fn of_open_connection() -> Vec<u8> {
    let mut datagram = vec![0; 1200];
    datagram[0] = 0x40;
    datagram
}

/// A server that returns every datagram to this port, of either family.
fn echo(routed: &Routed, port: u16) {
    for address in SERVER {
        let at = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
        let socket = routed.server.enter(move || UdpSocket::bind(at).unwrap()).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
    }
}

fn connect(routed: &Routed, to: usize, port: u16) -> UdpSocket {
    let (own, server) = (CLIENT[to].parse::<IpAddr>().unwrap(), SERVER[to].parse::<IpAddr>().unwrap());
    let socket = routed.client.enter(move || UdpSocket::bind(SocketAddr::new(own, 0)).unwrap()).unwrap();
    socket.connect(SocketAddr::new(server, port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Sends a datagram; the answer, or the error.
fn ask(socket: &UdpSocket, datagram: &[u8]) -> Result<usize, ErrorKind> {
    socket.send(datagram).map_err(|why| why.kind())?;
    socket.recv(&mut [0; 2000]).map_err(|why| why.kind())
}

#[test]
fn rejected_clients_are_refused_at_once_and_all_else_passes() {
    if skip("rejected_clients_are_refused_at_once_and_all_else_passes", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    [443, 444].into_iter().for_each(|port| echo(&routed, port));
    let rules = "[[rule]]\nin = \"near\"\nquic = \"reject\"\n";
    let _proxy = routed.configured(rules);
    for to in [0, 1] {
        let socket = connect(&routed, to, 443);
        assert_eq!(ask(&socket, &initial()), Err(ErrorKind::ConnectionRefused), "{}", routed.log());
        // A connection that was open before goes on, and so do other protocols and ports.
        let open = connect(&routed, to, 443);
        assert_eq!(ask(&open, &of_open_connection()), Ok(1200));
        assert_eq!(ask(&open, &initial()[..1000]), Ok(1000), "too short for an Initial");
        assert_eq!(ask(&open, b"\x16\xfe\xfd DTLS"), Ok(8));
        assert_eq!(ask(&connect(&routed, to, 444), &initial()), Ok(1200));
    }
    let counted = routed.status().counted.unwrap();
    assert_eq!((counted.quic_connections, counted.quic_rejected, counted.quic_dropped), (2, 2, 0));
    let flows = String::from_utf8(routed.tandem(&["flows"]).stdout).unwrap();
    assert!(flows.contains("(2 connections counted; packets: 2 rejected, 0 dropped)"), "{flows}");

    // Clients that bypass keep QUIC.
    assert!(routed.tandem(&["bypass", "add", CLIENT[0]]).status.success());
    assert_eq!(ask(&connect(&routed, 0, 443), &initial()), Ok(1200));
    // A reload applies other rules; the first that matches decides.
    routed.write(&format!("[[rule]]\nto = \"{}\"\n{rules}[[listen]]\ntransparent = \"[::]:5000\"\n", SERVER[1]));
    assert!(routed.tandem(&["reload"]).status.success(), "{}", routed.log());
    assert_eq!(ask(&connect(&routed, 1, 443), &initial()), Ok(1200));
}

#[test]
fn counted_connections_pass_and_are_counted_once() {
    if skip("counted_connections_pass_and_are_counted_once", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    echo(&routed, 443);
    let _proxy = routed.configured("[[rule]]\nto = [\"10.99.2.0/24\", \"fd99:2::/64\"]\nquic = \"count\"\n");
    let sockets: Vec<UdpSocket> = [0, 1, 0].into_iter().map(|to| connect(&routed, to, 443)).collect();
    for socket in sockets.iter().chain(&sockets) {
        assert_eq!(ask(socket, &initial()), Ok(1200));
    }
    let counted = routed.status().counted.unwrap();
    assert_eq!((counted.quic_connections, counted.quic_rejected, counted.quic_packets), (3, 0, 12));
}

#[test]
fn a_flood_is_dropped_beyond_the_rate_of_errors() {
    if skip("a_flood_is_dropped_beyond_the_rate_of_errors", &["nft", "ip"]) {
        return;
    }
    const SENT: u64 = 5000;
    let routed = Routed::new();
    let _proxy = routed.configured("[[rule]]\nquic = \"reject\"\n");
    let (own, server) = (CLIENT[0].parse::<IpAddr>().unwrap(), SERVER[0].parse::<IpAddr>().unwrap());
    // Not connected, so that no error ends it.
    let socket = routed.client.enter(move || UdpSocket::bind(SocketAddr::new(own, 0)).unwrap()).unwrap();
    let begun = Instant::now();
    for _ in 0..SENT {
        let _ = socket.send_to(&initial(), SocketAddr::new(server, 443));
    }
    let counted = || routed.status().counted.unwrap();
    wait_until("all packets are counted", || counted().quic_rejected + counted().quic_dropped >= SENT);
    let (found, most) = (counted(), 401.0 + 200.0 * begun.elapsed().as_secs_f64());
    assert!(found.quic_rejected >= 400 && found.quic_rejected as f64 <= most, "{found:?}, at most {most}");
    assert_eq!((found.quic_dropped, found.quic_connections), (SENT - found.quic_rejected, 1));
}
