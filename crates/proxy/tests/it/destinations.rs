//! Permitted destinations of SOCKS5 clients: not the proxy's own host, unless the listener allows
//! it.

use crate::common::{PATIENCE, forward, free_port, on_own_host, run};
use intercept::{Action, Policy, Rule};
use proxy::{Ending, ListenerConfig, Proxy, ProxyConfig};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// Replies of RFC 1928 §6.
const CONNECTED: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const REFUSED: u8 = 5;

/// Requests a connection from the SOCKS5 server at `at`; returns the code of its reply.
fn request(at: SocketAddr, to: &str, port: u16) -> u8 {
    let address = match to.parse::<IpAddr>() {
        Ok(IpAddr::V4(to)) => [&[1][..], &to.octets()].concat(),
        Ok(IpAddr::V6(to)) => [&[4][..], &to.octets()].concat(),
        Err(_) => [&[3, to.len() as u8][..], to.as_bytes()].concat(),
    };
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[&[5, 1, 0, 5, 1, 0], &address[..], &port.to_be_bytes()].concat()).unwrap();
    let mut reply = [0; 12];
    client.read_exact(&mut reply).unwrap_or_else(|why| panic!("{to}: {why}"));
    reply[3]
}

/// A SOCKS5 proxy; `options` are appended to its listener's address.
fn socks(options: &str) -> (Proxy, SocketAddr) {
    let at = free_port();
    let listen = vec![format!("socks5={at}{options}").parse::<ListenerConfig>().unwrap()];
    (Proxy::start(ProxyConfig { listen, ..ProxyConfig::default() }, |_| {}).unwrap(), at)
}

/// A server on all addresses of this host, and its port.
fn server() -> (TcpListener, u16) {
    let server = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    (server, port)
}

/// Waits for an IPv6 address, which the kernel adds in the background.
fn await_address(address: &str) {
    let begun = Instant::now();
    while UdpSocket::bind((address, 0)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{address} is not there");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_proxys_own_host_is_refused_by_default() {
    on_own_host("the_proxys_own_host_is_refused_by_default", || {
        for address in ["192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64"] {
            run("ip", &format!("address add {address} dev lo"));
        }
        await_address("2001:db8::1");
        let (_server, port) = server();
        let (_proxy, at) = socks("");
        let mut reached = Vec::new();
        let mut must_refuse = |to: &str| {
            let code = request(at, to, port);
            if code != NOT_ALLOWED {
                reached.push(format!("{to}: {code}"));
            }
        };
        for to in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:192.0.2.1",
            "::127.0.0.1",
            "fe80::1",
            "ff02::1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::",
            "localhost",
            // Addresses of this host; the second is a secondary one.
            "192.0.2.1",
            "192.0.2.2",
            "192.0.2.255",
            "2001:db8::1",
        ] {
            must_refuse(to);
        }
        // The host's addresses change.
        run("ip", "address add 198.51.100.1/32 dev lo");
        must_refuse("198.51.100.1");
        assert!(reached.is_empty(), "not refused: {reached:?}");
    });
}

#[test]
fn a_listener_permits_what_its_lists_name() {
    on_own_host("a_listener_permits_what_its_lists_name", || {
        run("ip", "address add 192.0.2.1/24 dev lo");
        let (_server, port) = server();
        let (_proxy, at) = socks(",allow=127.0.0.0/8,allow=192.0.2.0/24,allow=::1,deny=127.0.0.2");
        // A prefix that contains an address of this host does not permit it; only the address
        // itself does.
        for (to, code) in [
            ("127.0.0.1", CONNECTED),
            ("::1", CONNECTED),
            ("::ffff:127.0.0.3", CONNECTED),
            ("localhost", CONNECTED),
            ("127.0.0.2", NOT_ALLOWED),
            ("192.0.2.1", NOT_ALLOWED),
            ("0.0.0.0", NOT_ALLOWED),
            ("198.51.100.1", NOT_ALLOWED),
        ] {
            assert_eq!(request(at, to, port), code, "{to}");
        }
        let (_proxy, at) = socks(",allow=192.0.2.1,allow=127.0.0.1,deny=::/0");
        assert_eq!(
            (request(at, "192.0.2.1", port), request(at, "127.0.0.1", 1), request(at, "127.0.0.2", port)),
            (CONNECTED, REFUSED, NOT_ALLOWED)
        );
        // One of the name's addresses is denied, the other is permitted.
        assert_eq!(request(at, "localhost", port), CONNECTED);
    });
}

#[test]
fn a_rule_refuses_connections() {
    on_own_host("a_rule_refuses_connections", || {
        let (_server, port) = server();
        let refuse = |to: &str| Rule { to: vec![to.parse().unwrap()], action: Action::Refuse, ..Rule::default() };
        let policy = Policy { rules: vec![refuse("127.0.0.2"), Rule::default(), refuse("127.0.0.1")], ..Policy::default() };
        let at = free_port();
        let listen = vec![
            format!("socks5={at},allow=127.0.0.0/8").parse().unwrap(),
            // For transparent connections the firewall's rules refuse.
            "transparent=[::]:5000".parse().unwrap(),
        ];
        let _proxy = Proxy::start(ProxyConfig { listen, policy: policy.clone(), ..ProxyConfig::default() }, |_| {}).unwrap();
        // The first rule that matches decides.
        assert_eq!((request(at, "127.0.0.2", port), request(at, "127.0.0.1", port)), (NOT_ALLOWED, CONNECTED));
        for (to, refused) in [("127.0.0.2", true), ("127.0.0.1", false)] {
            let to = SocketAddr::new(to.parse().unwrap(), port);
            let (_proxy, at, ended) = forward(to, ProxyConfig { policy: policy.clone(), ..ProxyConfig::default() });
            let mut client = TcpStream::connect(at).unwrap();
            if refused {
                assert_eq!(ended.recv_timeout(PATIENCE).unwrap().ending, Ending::FarNotReached(ErrorKind::PermissionDenied));
                assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            } else {
                _server.accept().unwrap();
            }
        }
    });
}
