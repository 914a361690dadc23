//! A flood of SYNs from forged addresses: each connection of a legitimate client works, split or
//! not, and none is reset.

mod common;

use common::{
    raw::{RawTcp, SYN, Segment},
    routed::{Routed, SERVER, echoes, ip, netstat, seconds},
    skip,
};
use lab::Host;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Prefix of the forged addresses. Answers are routed to the client's host, which drops them.
const FORGED: &str = "10.66.0.0/16";

/// Sends SYNs from forged addresses at this rate until `stop` is set; returns their number.
fn flood(host: &Host, rate: u32, stop: &AtomicBool) -> u32 {
    let to = SocketAddrV4::new(SERVER[0].parse().unwrap(), 80);
    let raw = RawTcp::new(host);
    let (begun, mut sent) = (Instant::now(), 0u32);
    while !stop.load(Relaxed) {
        while !stop.load(Relaxed) && f64::from(sent) < begun.elapsed().as_secs_f64() * f64::from(rate) {
            let from = SocketAddrV4::new(Ipv4Addr::new(10, 66, (sent >> 8) as u8, sent as u8), 1024 + (sent >> 16) as u16);
            raw.send(&Segment { from, to, seq: sent.wrapping_mul(2_654_435_761), ack: 0, flags: SYN, payload: &[] });
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
