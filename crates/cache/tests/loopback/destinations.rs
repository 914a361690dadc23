//! Where clients of an HTTP proxy may go: not to the proxy's own host, unless its listener allows that.

use crate::common::{Client, Origin, Steps, answer};
use cache::{Cache, Config};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

/// A cache that is an HTTP proxy; `options` follow its address in the listener's text.
fn proxy(options: &str) -> Cache {
    let listen = vec![format!("http=127.0.0.1:0{options}").parse().unwrap()];
    Cache::start(Config { listen, ..Config::default() }).unwrap()
}

/// The status of the answer to a CONNECT.
fn connect(at: SocketAddr, to: &str) -> u16 {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

#[test]
fn the_caches_own_host_is_refused_by_default() {
    let origin = Origin::start(|_| answer(200, &[], Steps::all("inside")));
    let (cache, client) = (proxy(""), Client::new());
    let (at, port) = (cache.addresses()[0], origin.address.port());
    // Other spellings of 127.0.0.1 are the resolver's to understand.
    let spellings = ["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "localhost", "2130706433", "0x7f.1", "169.254.169.254", "[fe80::1]"];
    for host in spellings {
        let reply = client.get(at, &format!("http://{host}:{port}/"), &[]);
        assert_eq!(reply.status, 403, "{host}: {reply:?}");
        assert_eq!(connect(at, &format!("{host}:{port}")), 403, "CONNECT {host}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_listener_permits_what_its_lists_name() {
    let origin = Origin::start(|_| answer(200, &[], Steps::all("inside")));
    let (cache, client) = (proxy(",allow=127.0.0.0/8,deny=127.0.0.2"), Client::new());
    let (at, port) = (cache.addresses()[0], origin.address.port());
    for (host, status) in [("127.0.0.1", 200), ("localhost", 200), ("127.0.0.2", 403), ("0.0.0.0", 403), ("192.0.2.1", 403)] {
        assert_eq!(client.get(at, &format!("http://{host}:{port}/"), &[]).status, status, "{host}");
        assert_eq!(connect(at, &format!("{host}:{port}")), status, "CONNECT {host}");
    }
}
