//! Unauthenticated peers of a bond, and wrong options.

use crate::{
    bond::bench::{Bench, bytes, echo, read_all},
    common::{TANDEM, skip, wait_until},
};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::Duration,
};

#[test]
fn a_peer_without_the_key_is_rejected() {
    if skip("a_peer_without_the_key_is_rejected", &["ss"]) {
        return;
    }
    // A different key; TLS at one end only.
    for more in [&["--key", "other.key"][..], &["--tls"]] {
        let bench = Bench::new(&["--connect-timeout", "1s"], more);
        wait_until("it is told why", || bench.log("connect.log").matches("of the bond is down").count() >= 2);
        let mut client = bench.call();
        let ended = client.read(&mut [0]).map_err(|why| why.kind());
        assert_eq!(ended.unwrap_err(), ErrorKind::ConnectionReset, "{more:?}");
        assert!(bench.log("connect.log").contains("has another key"), "{}", bench.log("connect.log"));
    }
}

/// Returns the resident memory of a process, kB.
fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn unauthenticated_peers_read_nothing_and_use_little_memory() {
    if skip("unauthenticated_peers_read_nothing_and_use_little_memory", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    bench.server(echo);
    let serve = bench.daemons[0].0.id();
    let before = memory_of(serve);
    let at = SocketAddr::from((Ipv4Addr::new(10, 0, 1, 2), 7000));
    // TANDEM_STRANGERS=1000000 takes a minute or two.
    let count: u32 = std::env::var("TANDEM_STRANGERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let flood = || {
        let mut held = Vec::new();
        for round in 0..count {
            let mut stream = TcpStream::connect(at).unwrap();
            // Silent; garbage; the beginning of a valid handshake; garbage of a valid length. A
            // peer that was closed already cannot write.
            let _ = match round % 4 {
                0 => Ok(()),
                1 => stream.write_all(&bytes(1000)),
                2 => stream.write_all(&[1; 64]),
                _ => stream.write_all(&[1; 65]),
            };
            if held.len() < 3000 {
                held.push(stream);
            } else {
                // Close with a reset, so that the port is free at once.
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        held
    };
    let mut held = bench.near.enter(flood).unwrap();
    // Closed peers read an end of file or a reset, and no data.
    let mut said = 0;
    for stream in &mut held {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut byte = [0; 1];
        said += usize::from(matches!(stream.read(&mut byte), Ok(1)));
    }
    assert_eq!(said, 0, "a stranger heard something");
    let grown = memory_of(serve).saturating_sub(before);
    assert!(grown < 20_000, "{grown} kB more");
    // A peer with the key is served at the same time.
    let sent = bytes(100_000);
    let mut client = bench.call();
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut client).unwrap() == sent);
}

/// What has been closed meanwhile must not count as a handshake in progress.
#[test]
fn connections_that_are_closed_at_once_displace_no_handshake() {
    if skip("connections_that_are_closed_at_once_displace_no_handshake", &["ss"]) {
        return;
    }
    let bench = Bench::new(&[], &[]).whole();
    let at = SocketAddr::from((Ipv4Addr::new(10, 0, 1, 2), 7000));
    let connect = || {
        let mut handshaking = TcpStream::connect(at).unwrap();
        handshaking.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        // Twice as many as the listener lets begin a handshake at a time, before it looks for those
        // that take too long.
        for _ in 0..2048 {
            socket2::SockRef::from(&TcpStream::connect(at).unwrap()).set_linger(Some(Duration::ZERO)).unwrap();
        }
        handshaking.read(&mut [0]).map_err(|why| why.kind())
    };
    assert_eq!(bench.near.enter(connect).unwrap(), Err(ErrorKind::WouldBlock));
}

#[test]
fn errors_of_wrong_options_name_the_fix() {
    let run = |arguments: &[&str]| {
        let output = Command::new(TANDEM).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, "too short").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let serve = |more: &[&str]| run(&[&["bond", "serve", "--listen", "127.0.0.1:7000"], more].concat());
    let absent = serve(&["--key", "/nowhere"]);
    assert!(absent.contains("cannot read the bond's key from /nowhere: No such file"), "{absent}");
    assert!(absent.contains("make one: openssl rand -hex 32 > /nowhere; chmod 600 /nowhere"), "{absent}");
    assert!(serve(&["--key", key]).contains("openssl rand -hex 32"));
    fs::write(key, "0123456789abcdef").unwrap();
    assert!(serve(&["--key", key, "--scheduler", "best"]).contains("expected one of score, round-robin, single, redundant, tiers"));
    assert!(serve(&["--key", key, "--window", "1kB"]).contains("the window is 1kB: set it to "));
    let connect = |more: &[&str]| run(&[&["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--key", key], more].concat());
    assert!(connect(&["--network", "wlan0"]).contains("wlan0 has no address of the other end"));
    let twice = ["--to", "192.0.2.1:7000", "--network", "wlan0", "--network", "wlan0"];
    assert!(connect(&twice).contains("two networks are named wlan0"));
}
