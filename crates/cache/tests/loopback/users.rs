//! Users of an HTTP proxy: each request needs a name and a password.

use crate::common::{ScriptedBody, TestClient, TestOrigin, answer};
use cache::{Cache, Config};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

/// alice:secret and alice:wrong, in Base64.
const RIGHT: &str = "Basic YWxpY2U6c2VjcmV0";
const WRONG: &str = "Basic YWxpY2U6d3Jvbmc=";

/// The header section of the response to a CONNECT.
fn connect(at: SocketAddr, to: SocketAddr, more: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{more}\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn only_users_are_served() {
    let origin = TestOrigin::start(|_| answer(200, &[], ScriptedBody::all("inside")));
    let listen = vec!["http=127.0.0.1:0,allow=127.0.0.0/8,user=alice:secret".parse().unwrap()];
    let cache = Cache::start(Config { listen, ..Config::default() }).unwrap();
    let (at, client, url) = (cache.addresses()[0], TestClient::new(), format!("http://{}/", origin.address));
    for fields in [&[][..], &[("Proxy-Authorization", WRONG)], &[("Authorization", RIGHT)]] {
        let reply = client.get(at, &url, fields);
        assert_eq!(reply.status, 407, "{fields:?}: {reply:?}");
    }
    for more in ["", &format!("Proxy-Authorization: {WRONG}\r\n")] {
        let head = connect(at, origin.address, more);
        assert!(head.starts_with("HTTP/1.1 407 ") && head.contains("Proxy-Authenticate: Basic realm="), "{head}");
    }
    assert_eq!(origin.count(), 0);
    assert_eq!(client.get(at, &url, &[("Proxy-Authorization", RIGHT)]).status, 200);
    assert!(connect(at, origin.address, &format!("Proxy-Authorization: {RIGHT}\r\n")).starts_with("HTTP/1.1 200 "));
    // Stored responses need credentials as well.
    assert_eq!(client.get(at, &url, &[]).status, 407);
}
