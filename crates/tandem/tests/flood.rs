//! A flood of SYNs from forged addresses: each connection of a legitimate client works, split or
//! not, and none is reset.

mod common;

use common::{
    routed::{Routed, SERVER, echoes, ip, netstat, seconds},
    skip,
};
use lab::Host;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Prefix of the forged addresses. Answers are routed to the client's host, which drops them.
const FORGED: &str = "10.66.0.0/16";

/// Returns the sum of 16-bit words for an Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum()
}

/// Returns a SYN for a raw socket: the kernel fills in length and checksum of the IP header.
fn syn(from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend(sequence.to_be_bytes());
    // ACK number 0; header of 24 bytes, SYN; window, checksum, urgent pointer 0; MSS 1460.
    tcp.extend([0, 0, 0, 0, 0x60, 0x02, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 180]);
    let pseudo = [&from.ip().octets()[..], &to.ip().octets(), &[0, 6, 0, 24]].concat();
    let mut total = sum(&pseudo) + sum(&tcp);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(total as u16)).to_be_bytes());
    let ip = [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0][..], &from.ip().octets(), &to.ip().octets()].concat();
    [ip, tcp].concat()
}

/// Sends SYNs from forged addresses at this rate until `stop` is set; returns their number.
fn flood(host: &Host, rate: u32, stop: &AtomicBool) -> u32 {
    let to = SocketAddrV4::new(SERVER[0].parse().unwrap(), 80);
    let socket = host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap()).unwrap();
    let (begun, mut sent) = (Instant::now(), 0u32);
    while !stop.load(Relaxed) {
        while !stop.load(Relaxed) && f64::from(sent) < begun.elapsed().as_secs_f64() * f64::from(rate) {
            let from = SocketAddrV4::new(Ipv4Addr::new(10, 66, (sent >> 8) as u8, sent as u8), 1024 + (sent >> 16) as u16);
            socket.send_to(&syn(from, to, sent.wrapping_mul(2_654_435_761)), &SockAddr::from(to)).unwrap();
            sent += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

fn routed() -> Routed {
    let routed = Routed::new();
    routed.echo(80);
    ip(&routed.client, &[&format!("route add blackhole {FORGED}")]);
    ip(&routed.router, &[&format!("route add {FORGED} via 10.99.1.1")]);
    routed
}

/// With a SYN cookie there is no request socket that the last packet of the handshake would match.
#[test]
fn handshakes_with_syn_cookies_complete() {
    if skip("handshakes_with_syn_cookies_complete", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    routed.router.sysctl(&[("ipv4/tcp_syncookies", "2".into())]).unwrap();
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        for attempt in 0..4 {
            let mut stream = routed.connect(address, 80).unwrap();
            assert!(echoes(&mut stream), "{address}, attempt {attempt}");
        }
    }
    assert_eq!(routed.verdicts(), (8, 0, 0));
}

#[test]
fn legitimate_clients_are_not_reset_during_a_syn_flood() {
    if skip("legitimate_clients_are_not_reset_during_a_syn_flood", &["nft", "ip"]) {
        return;
    }
    const CONNECTIONS: usize = 100;
    for rate in [0, 1000, 10_000] {
        let routed = routed();
        let _proxy = routed.proxy(&[]);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&routed.client, rate, &stop));
            // By now the queue of half-open connections is full.
            thread::sleep(Duration::from_secs(2));
            let mut took: Vec<f64> = (0..CONNECTIONS)
                .filter_map(|_| {
                    thread::sleep(Duration::from_millis(10));
                    let (stream, took) = seconds(|| routed.connect(SERVER[0], 80));
                    stream.is_ok_and(|mut stream| echoes(&mut stream)).then_some(took)
                })
                .collect();
            stop.store(true, Relaxed);
            took.sort_by(f64::total_cmp);
            let at = |share: usize| took.get(took.len() * share / 100).copied().unwrap_or(f64::NAN) * 1e3;
            println!(
                "{rate} SYN/s ({} sent, {} cookies): {} of {CONNECTIONS} connected, in {:.2} ms (median), {:.2} ms (95 %)",
                flood.join().unwrap(),
                netstat(&routed.router, "SyncookiesSent"),
                took.len(),
                at(50),
                at(95),
            );
            assert_eq!(took.len(), CONNECTIONS, "{rate} SYN/s");
        });
    }
}
