//! Users of SOCKS5: a client with a wrong password or none is refused. The client is curl.

use crate::common::{self, PATIENCE, free_port};
use proxy::{ListenerConfig, Proxy, ProxyConfig};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    thread,
};

/// A web server with one page, on loopback.
fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    at
}

/// Fetches the page with curl through a SOCKS5 proxy; returns its output and exit status.
fn curl(socks: &str, user: &[&str], page: SocketAddr) -> (String, i32) {
    let output = Command::new("curl")
        .args(["-s", "--max-time", "60", "--noproxy", "", "--socks5", socks])
        .args(user)
        .arg(format!("http://{page}/"))
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap_or(-1))
}

/// A SOCKS5 proxy; `options` are appended to its listener's address.
fn socks(options: &str) -> (Proxy, ProxyConfig) {
    let listen: ListenerConfig = format!("socks5={}{options}", free_port()).parse().unwrap();
    let mut config = ProxyConfig { listen: vec![listen], ..ProxyConfig::default() };
    config.read_users().unwrap();
    (Proxy::start(config.clone(), |_| {}).unwrap(), config)
}

#[test]
fn only_the_right_password_is_accepted() {
    if let Some(program) = testing::missing(&["curl"]) {
        return testing::skipped("only_the_right_password_is_accepted", &format!("{program} is not installed"));
    }
    let (page, file) = (page(), tempfile::NamedTempFile::new().unwrap());
    fs::write(file.path(), "alice:secret\nbob:a:b c\n").unwrap();
    let (proxy, config) = socks(&format!(",allow=127.0.0.0/8,users={}", file.path().display()));
    let at = config.listen[0].at.to_string();
    let got = ("hello".to_string(), 0);
    for right in ["alice:secret", "bob:a:b c"] {
        assert_eq!(curl(&at, &["-U", right], page), got, "{right}");
    }
    // CURLE_PROXY: the handshake with the proxy failed.
    for wrong in [&["-U", "alice:wrong"][..], &["-U", "alice:"], &["-U", "eve:secret"], &[]] {
        assert_eq!(curl(&at, wrong, page), (String::new(), 97), "{wrong:?}");
    }

    // A reload applies the changed file to new clients.
    fs::write(file.path(), "alice:changed\n").unwrap();
    let mut changed = config;
    changed.read_users().unwrap();
    proxy.reload(changed.clone()).unwrap();
    // Workers apply it in their next turn.
    common::wait_until(|| curl(&at, &["-U", "alice:changed"], page) == got);
    assert_eq!(curl(&at, &["-U", "alice:secret"], page).1, 97);

    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let error = changed.read_users().unwrap_err().to_string();
    assert!(error.contains("world-readable") && error.contains("chmod o= it"), "{error}");
}

#[test]
fn a_wrong_password_gets_a_reply_and_a_close() {
    let (_proxy, config) = socks(",user=alice:secret");
    let mut client = TcpStream::connect(config.listen[0].at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[5, 2, 0, 2, 1, 5, b'a', b'l', b'i', b'c', b'e', 1, b'x']).unwrap();
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert_eq!(said, [5, 2, 1, 1], "the reply, then end of file");
}

#[test]
fn open_listeners_are_reported() {
    let open = |text: &str| ProxyConfig { listen: vec![text.parse().unwrap()], ..ProxyConfig::default() }.open_listeners();
    for text in ["socks5=0.0.0.0:1080", "socks5=[::]:1080", "socks5=192.0.2.1:1080,deny=10.0.0.0/8", "bond=[::]:7000"] {
        let said = open(text);
        assert!(said.len() == 1 && said[0].1.contains("every "), "{text}: {said:?}");
    }
    for text in [
        "socks5=127.0.0.1:1080",
        "socks5=[::1]:1080",
        "socks5=[::]:1080,allow=10.0.0.0/8",
        "socks5=[::]:1080,user=alice:secret",
        "forward=[::]:80=192.0.2.1:80",
        "transparent=[::]:5000",
    ] {
        assert!(open(text).is_empty(), "{text}");
    }
}
