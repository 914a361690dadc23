//! A forwarding proxy on loopback, which needs no privileges: bytes, half-closes, delivery before a
//! clean end, draining.

use crate::common::{CLOSE_WAIT, ForwardBench, PATIENCE, kind, payload, wait_until};
use proxy::{BondConfig, Ending, ListenerConfig, Proxy, ProxyConfig};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    thread,
    time::{Duration, Instant},
};
use units::Bytes;

#[test]
fn bytes_arrive_unchanged_in_both_directions_at_once() {
    // Segments of loopback are 64 KiB: with a buffer of fewer than three the test would be slow.
    for buffer in [Some(Bytes(200_000)), Some(Bytes(256 * 1024)), Some(Bytes(1 << 20)), None] {
        let bench = ForwardBench::new(buffer);
        for length in [0, 1, 65_535, 65_536, 65_537, 3_000_001] {
            let (client, server) = bench.connect();
            let sent = payload(length);
            let exchange = |end: TcpStream| {
                let sent = sent.clone();
                thread::spawn(move || {
                    let (mut out, mut received) = (end.try_clone().unwrap(), Vec::new());
                    let writer = thread::spawn(move || {
                        out.write_all(&sent).unwrap();
                        out.shutdown(Shutdown::Write).unwrap();
                    });
                    (&end).read_to_end(&mut received).unwrap();
                    writer.join().unwrap();
                    received
                })
            };
            let (at_client, at_server) = (exchange(client), exchange(server));
            assert!(at_client.join().unwrap() == sent && at_server.join().unwrap() == sent, "{buffer:?}, {length} bytes");
            assert_eq!(bench.ending(), Ending::Finished);
        }
    }
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    let bench = ForwardBench::new(Some(Bytes(1 << 20)));
    let (mut client, mut server) = bench.connect();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    drop(client);
    assert_eq!(bench.ending(), Ending::Finished);
}

#[test]
fn a_single_byte_is_not_delayed() {
    for buffer in [6000, 1 << 20] {
        let bench = ForwardBench::new(Some(Bytes(buffer)));
        let (mut client, mut server) = bench.connect();
        for _ in 0..100 {
            client.write_all(b"?").unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(b"!").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
    }
}

/// The end of a bond that only accepts streams splits other listeners' connections as ever.
#[test]
fn a_bond_without_networks_carries_no_connection_of_a_client() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("key");
    fs::write(&key_file, "a key for this test alone").unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bond = BondConfig { key_file, ..BondConfig::default() };
    bond.read_key().unwrap();
    let bench = ForwardBench::before(crate::common::listener(), ProxyConfig { bond: Some(bond), ..ProxyConfig::default() });
    let (mut client, mut server) = bench.connect();
    client.write_all(b"?").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

#[test]
fn urgent_data_is_relayed_as_ordinary_data() {
    for buffer in [30_000, 1 << 20] {
        let bench = ForwardBench::new(Some(Bytes(buffer)));
        let (mut client, mut server) = bench.connect();
        let (before, after) = (payload(100_000), payload(300_001));
        let sending = thread::spawn({
            let (before, after) = (before.clone(), after.clone());
            move || {
                client.write_all(&before).unwrap();
                socket2::SockRef::from(&client).send_out_of_band(b"!").unwrap();
                client.write_all(&after).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                client
            }
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert!(received == [before, b"!".to_vec(), after].concat(), "{} bytes", received.len());
        drop((sending.join().unwrap(), server));
        assert_eq!(bench.ending(), Ending::Finished);
    }
}

/// An end that has finished sending and then reads end of file knows that all its bytes were
/// delivered.
#[test]
fn there_is_no_clean_end_before_delivery() {
    let bench = ForwardBench::new(Some(Bytes(256 * 1024)));
    let (mut client, server) = bench.connect();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "a half-close passes at once to an end that has not finished");

    // The client finishes; its bytes are in the proxy and, unread, in the server's socket. The
    // server half-closes: the client must not read end of file before the server's TCP has
    // everything.
    let (mut client, server) = bench.connect();
    socket2::SockRef::from(&server).set_recv_buffer_size(4096).unwrap();
    client.write_all(&payload(180_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_until(|| bench.proxy.flows().iter().any(|flow| flow.near.state == CLOSE_WAIT && flow.up.held().0 > 0));
    server.shutdown(Shutdown::Write).unwrap();
    wait_until(|| bench.proxy.flows().iter().any(|flow| flow.far.state == CLOSE_WAIT && flow.up.held().0 > 0));
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::WouldBlock), "the server's FIN is not passed on");
    // Closing with unread data sends a reset, which is passed on.
    drop(server);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(kind(client.read(&mut [0])), Err(io::ErrorKind::ConnectionReset));
}

#[test]
fn a_drained_proxy_ends_with_its_last_flow() {
    let mut bench = ForwardBench::new(Some(Bytes(1 << 20)));
    let (mut client, mut server) = bench.connect();
    bench.proxy.begin_drain();
    let begun = Instant::now();
    while TcpStream::connect(bench.at).is_ok() && begun.elapsed() < PATIENCE {}
    assert!(!bench.proxy.is_idle());
    client.write_all(b"still here").unwrap();
    server.read_exact(&mut [0; 10]).unwrap();
    // Connections that the proxy opened before its listener closed were never accepted here: they
    // end with the server.
    drop((client, server, bench.server));
    bench.proxy.drain();
    assert!(bench.proxy.is_idle());
}

#[test]
fn an_address_in_use_is_reported_with_its_cure() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    let config = ProxyConfig { listen: vec![ListenerConfig::forward(at, (Ipv4Addr::LOCALHOST, 9).into())], ..ProxyConfig::default() };
    let error = Proxy::start(config, |_| {}).unwrap_err().to_string();
    assert!(error.contains(&at.to_string()) && error.contains("another program listens there"), "{error}");
}
