//! The PROXY protocol header that far legs begin with names the client, and the address that the
//! client connected to.

use crate::common::{PATIENCE, free_port, listener};
use proxy::{ListenerConfig, Proxy, ProxyConfig};
use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn start(listener: &str) -> Proxy {
    let listen = vec![listener.parse::<ListenerConfig>().unwrap()];
    Proxy::start(ProxyConfig { listen, ..ProxyConfig::default() }, |_| {}).unwrap()
}

/// A header of this version, as the specification of the PROXY protocol writes it.
fn header(version: &str, client: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (family, octets): (&str, fn(IpAddr) -> Vec<u8>) = match client {
        SocketAddr::V4(_) => ("TCP4", |ip| if let IpAddr::V4(ip) = ip { ip.octets().to_vec() } else { panic!("{ip}") }),
        SocketAddr::V6(_) => ("TCP6", |ip| if let IpAddr::V6(ip) = ip { ip.octets().to_vec() } else { panic!("{ip}") }),
    };
    if version == "v1" {
        let line = format!("PROXY {family} {} {} {} {}\r\n", client.ip(), destination.ip(), client.port(), destination.port());
        return line.into_bytes();
    }
    let ports = [client.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    let addresses = [octets(client.ip()), octets(destination.ip()), ports].concat();
    let kind = if client.is_ipv4() { 0x11 } else { 0x21 };
    [SIGNATURE, &[0x21, kind, 0, addresses.len() as u8], &addresses].concat()
}

/// Sends `bytes` to the proxy at `at`, and compares what the server gets with what `expected` makes
/// of the client's address.
fn check(at: SocketAddr, server: &TcpListener, bytes: &[u8], expected: impl Fn(SocketAddr) -> Vec<u8>) {
    let mut client = TcpStream::connect(at).unwrap();
    client.write_all(bytes).unwrap();
    let mut far = server.accept().unwrap().0;
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let expected = expected(client.local_addr().unwrap());
    let mut got = vec![0; expected.len()];
    far.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&expected));
}

#[test]
fn it_names_the_listener_that_the_client_connected_to() {
    for version in ["v1", "v2"] {
        let (server, at) = (listener(), free_port());
        let to = server.local_addr().unwrap();
        let _proxy = start(&format!("forward={at}={to},send-proxy={version}"));
        check(at, &server, b"data", |client| [header(version, client, at), b"data".to_vec()].concat());
        // A listener on all addresses: the one that the client has chosen.
        let port = free_port().port();
        let _proxy = start(&format!("forward=[::]:{port}={to},send-proxy={version}"));
        let at = SocketAddr::from(([127, 0, 0, 9], port));
        check(at, &server, b"data", |client| [header(version, client, at), b"data".to_vec()].concat());
        if let Ok(own) = TcpListener::bind("[::1]:0") {
            let at = SocketAddr::new(own.local_addr().unwrap().ip(), port);
            check(at, &server, b"data", |client| [header(version, client, at), b"data".to_vec()].concat());
        }
        let at = free_port();
        let _proxy = start(&format!("socks5={at},allow=127.0.0.0/8,send-proxy={version}"));
        let request = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &to.port().to_be_bytes(), b"data"].concat();
        check(at, &server, &request, |client| [header(version, client, at), b"data".to_vec()].concat());
    }
}

#[test]
fn it_passes_on_what_an_accepted_header_says() {
    let (client, destination): (SocketAddr, SocketAddr) = ("192.0.2.7:51234".parse().unwrap(), "198.51.100.9:25".parse().unwrap());
    let (client6, destination6): (SocketAddr, SocketAddr) = ("[2001:db8::7]:51234".parse().unwrap(), "[2001:db8::9]:25".parse().unwrap());
    for version in ["v1", "v2"] {
        let (server, at) = (listener(), free_port());
        let _proxy = start(&format!("forward={at}={},accept-proxy,send-proxy={version}", server.local_addr().unwrap()));
        for accepted in ["v1", "v2"] {
            for (client, destination) in [(client, destination), (client6, destination6)] {
                let bytes = [header(accepted, client, destination), b"data".to_vec()].concat();
                check(at, &server, &bytes, |_| [header(version, client, destination), b"data".to_vec()].concat());
            }
        }
        // Headers without addresses: those of the connection itself.
        let local = [SIGNATURE, &[0x20, 0, 0, 0], b"data"].concat();
        for bytes in [&b"PROXY UNKNOWN\r\ndata"[..], &local] {
            check(at, &server, bytes, |client| [header(version, client, at), b"data".to_vec()].concat());
        }
    }
}

#[test]
fn a_header_may_have_long_extensions() {
    let (server, at) = (listener(), free_port());
    let (client, destination) = ("192.0.2.7:51234".parse().unwrap(), "198.51.100.9:25".parse().unwrap());
    let _proxy = start(&format!("forward={at}={},accept-proxy,send-proxy=v1", server.local_addr().unwrap()));
    for length in [100u16, 4096, 10_000, 65_520] {
        let mut bytes = header("v2", client, destination);
        bytes[14..16].copy_from_slice(&(12 + 3 + length).to_be_bytes());
        // A client's certificate, for example.
        bytes.extend([&[0x20][..], &length.to_be_bytes(), &vec![b'c'; length.into()], b"data"].concat());
        check(at, &server, &bytes, |_| [header("v1", client, destination), b"data".to_vec()].concat());
    }
}
