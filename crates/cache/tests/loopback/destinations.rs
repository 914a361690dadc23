//! The destinations that clients of an HTTP proxy may name: not the proxy's own host, unless its
//! listener allows that.

use crate::common::{ScriptedBody, TestClient, TestOrigin, answer};
use cache::{Cache, Config};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

/// An explicit proxy; `options` follow its address in the listener's text.
fn proxy(options: &str) -> Cache {
    let listen = vec![format!("http=127.0.0.1:0{options}").parse().unwrap()];
    Cache::start(Config { listen, ..Config::default() }).unwrap()
}

/// The status of the response to a CONNECT.
fn connect(at: SocketAddr, to: &str) -> u16 {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

#[test]
fn the_hosts_own_addresses_are_refused_by_default() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("inside")));
    let (cache, client) = (proxy(""), TestClient::new());
    let (at, port) = (cache.addresses()[0], origin.address.port());
    // Some spellings of 127.0.0.1 are parsed only by the resolver.
    let spellings = ["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "localhost", "2130706433", "0x7f.1", "169.254.169.254", "[fe80::1]"];
    for host in spellings {
        let reply = client.get(at, &format!("http://{host}:{port}/"), &[]);
        assert_eq!(reply.status, 403, "{host}: {reply:?}");
        assert_eq!(connect(at, &format!("{host}:{port}")), 403, "CONNECT {host}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_listener_allows_what_its_lists_name() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("inside")));
    let (cache, client) = (proxy(",allow=127.0.0.0/8,deny=127.0.0.2"), TestClient::new());
    let (at, port) = (cache.addresses()[0], origin.address.port());
    for (host, status) in [("127.0.0.1", 200), ("localhost", 200), ("127.0.0.2", 403), ("0.0.0.0", 403), ("192.0.2.1", 403)] {
        assert_eq!(client.get(at, &format!("http://{host}:{port}/"), &[]).status, status, "{host}");
        assert_eq!(connect(at, &format!("{host}:{port}")), status, "CONNECT {host}");
    }
}
