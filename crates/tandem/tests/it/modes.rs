//! Explicit destinations: SOCKS5 with curl, and the PROXY protocol between two proxies.

use crate::common::{
    Daemon, TANDEM,
    routed::{CLIENT, Counter, ROUTER, Routed, SERVER, dial, echoes, end_of, seconds},
    skip, wait_until,
};
use proxy::{FlowView, control::Remote};
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    process::Output,
    thread,
};

/// Starts a web server on this port of every address; its pages contain the client's address.
fn pages(routed: &Routed, port: u16) {
    let listener = routed.listen(port);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let (mut heard, mut byte) = (Vec::new(), [0]);
                while !heard.ends_with(b"\r\n\r\n") && (&stream).read_exact(&mut byte).is_ok() {
                    heard.push(byte[0]);
                }
                let page = format!("hello, {}\n", stream.peer_addr().unwrap().ip().to_canonical());
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
                (&stream).write_all((head + &page).as_bytes())
            });
        }
    });
}

fn curl(routed: &Routed, arguments: &[&str]) -> Output {
    routed.client.command("curl").args(["-sS", "--max-time", "30", "--noproxy", ""]).args(arguments).output().unwrap()
}

fn in_url(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.into() }
}

/// Starts a SOCKS proxy on the router, with `names` as its /etc/hosts.
fn socks(routed: &Routed, names: &str, arguments: &str) -> Daemon {
    let hosts = routed.path("hosts");
    fs::write(&hosts, names).unwrap();
    let script = format!("mount --bind {} /etc/hosts && exec {TANDEM} proxy --listen socks5=[::]:1080 {arguments}", hosts.display());
    let daemon = Daemon::logging(routed.router.command("unshare").args(["-m", "sh", "-c", &script]), &routed.path("log"));
    wait_until("the proxy is up", || routed.try_status().is_some());
    daemon
}

#[test]
fn curl_connects_through_socks_by_address_and_name() {
    if skip("curl_connects_through_socks_by_address_and_name", &["curl", "ip", "unshare"]) {
        return;
    }
    let routed = Routed::new();
    pages(&routed, 80);
    let names = "10.99.2.2 four.example both.example\nfd99:2::2 six.example\nfd99:2::99 both.example\n192.0.2.1 nowhere.example\n";
    let _proxy = socks(&routed, names, "--connect-timeout 2s");
    for proxy in ROUTER {
        let proxy = format!("{}:1080", in_url(proxy));
        for server in SERVER {
            let output = curl(&routed, &["--socks5", &proxy, &format!("http://{}/", in_url(server))]);
            // From the proxy's own address.
            let from = if server.contains(':') { "fd99:2::1" } else { "10.99.2.1" };
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("hello, {from}\n"), "{output:?}");
        }
        // The proxy resolves names; the first address of one of them does not answer.
        for name in ["four.example", "six.example", "both.example"] {
            let output = curl(&routed, &["--socks5-hostname", &proxy, &format!("http://{name}/")]);
            assert!(output.stdout.starts_with(b"hello, "), "{name}: {output:?}\n{}", routed.log());
        }
    }
    let proxy = format!("{}:1080", ROUTER[0]);
    for (url, code) in [
        // Refused (IPv4, IPv6); a name without an address.
        ("http://10.99.2.2:81/", "(5)"),
        ("http://[fd99:2::2]:81/", "(5)"),
        ("http://unheard-of.invalid/", "(4)"),
    ] {
        let output = curl(&routed, &["--socks5-hostname", &proxy, url]);
        assert_eq!(output.status.code(), Some(97), "{url}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(code), "{url}: {output:?}");
    }
    assert!(routed.log().contains("cannot look up \"unheard-of.invalid\", which it requested: "), "{}", routed.log());
    let _hole = Counter::dropping(&routed.server, "input", "tcp dport 82");
    let (output, took) = seconds(|| curl(&routed, &["--socks5", &proxy, "http://10.99.2.2:82/"]));
    assert_eq!(output.status.code(), Some(97), "{output:?}");
    assert!(took < 15.0 && String::from_utf8_lossy(&output.stderr).contains("(6)"), "{took:.1} s: {output:?}");
    wait_until("nothing is left", || routed.status().totals.flows == 0);
}

/// Returns a SOCKS greeting and a request for the server.
fn to_server(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![5, 1, 0, 5, 1, 0, 1, 10, 99, 2, 2, high, low]
}

#[test]
fn a_socks_client_can_send_request_and_payload_at_once() {
    if skip("a_socks_client_can_send_request_and_payload_at_once", &["ip", "unshare"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(7);
    let _proxy = socks(&routed, "", "--far fast_open=true");
    let payload: Vec<u8> = (0..300_000u32).map(|number| (number % 253) as u8).collect();
    for length in [5, 1500, payload.len()] {
        let before = routed.status().totals;
        let mut client = dial(&routed.client, ROUTER[0], 1080, |_| Ok(())).unwrap();
        let said = [to_server(7), payload[..length].to_vec()].concat();
        let mut writer = client.try_clone().unwrap();
        let writing = thread::spawn(move || {
            writer.write_all(&said).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        writing.join().unwrap();
        assert_eq!(back[..4], [5, 0, 5, 0]);
        assert!(back[12..] == payload[..length], "{} bytes came back of {length}", back.len() - 12);
        wait_until("it is over", || routed.status().totals.flows == 0);
        let after = routed.status().totals;
        assert_eq!(
            (after.up - before.up, after.down - before.down),
            (length as u64, length as u64),
            "payload is counted, greetings are not"
        );
    }
    // If the server refuses, the payload is lost, but the SOCKS reply arrives.
    let mut client = dial(&routed.client, ROUTER[0], 1080, |_| Ok(())).unwrap();
    // The refusal may arrive before the write is complete.
    let _ = client.write_all(&[to_server(8), payload[..100_000].to_vec()].concat());
    let mut back = [0; 12];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back[..4], [5, 0, 5, 5]);
}

/// Returns the flows of a proxy by its name.
fn flows(routed: &Routed, name: &str) -> Vec<FlowView> {
    routed.router.enter(|| Remote::named(name).flows().unwrap()).unwrap()
}

/// Starts a proxy with this name on the router.
fn named(routed: &Routed, name: &str, arguments: &[&str]) -> Daemon {
    let daemon = Daemon::logging(routed.router.command(TANDEM).args(["proxy", "--name", name]).args(arguments), &routed.path("log"));
    wait_until("the proxy is up", || routed.router.enter(|| Remote::named(name).status().is_ok()).unwrap());
    daemon
}

#[test]
fn the_proxy_protocol_passes_the_client_address() {
    if skip("the_proxy_protocol_passes_the_client_address", &["ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    for version in ["v1", "v2"] {
        for (own, server) in ROUTER.into_iter().zip(SERVER) {
            let second = in_url(own);
            let _first = named(&routed, "first", &["--listen", &format!("forward=[::]:7000={second}:7001,send-proxy={version}")]);
            let _second = named(&routed, "second", &["--listen", &format!("forward={second}:7001={}:80,accept-proxy", in_url(server))]);
            for (at, client) in ROUTER.into_iter().zip(CLIENT) {
                let mut stream = dial(&routed.client, at, 7000, |_| Ok(())).unwrap();
                assert!(echoes(&mut stream), "{version} {second}");
                let told = flows(&routed, "second")[0].client;
                assert_eq!(told.ip().to_canonical().to_string(), client, "{version} by way of {second}");
                assert_eq!(told.port(), stream.local_addr().unwrap().port());
                let first = &flows(&routed, "first")[0];
                assert_eq!((first.up.bytes, first.down.bytes), (5, 5), "the header is not the client's payload");
                drop(stream);
                wait_until("both are rid of it", || ["first", "second"].iter().all(|name| flows(&routed, name).is_empty()));
            }
        }
    }
}

#[test]
fn a_connection_without_a_proxy_header_is_dropped() {
    if skip("a_connection_without_a_proxy_header_is_dropped", &["curl", "ip"]) {
        return;
    }
    let routed = Routed::new();
    pages(&routed, 80);
    let _proxy =
        named(&routed, "default", &["--listen", &format!("forward=[::]:7000={}:80,accept-proxy", SERVER[0]), "--connect-timeout", "2s"]);
    let url = format!("http://{}:7000/", ROUTER[0]);
    let output = curl(&routed, &["--haproxy-protocol", &url]);
    assert!(output.stdout.starts_with(b"hello, "), "{output:?}");
    let connect = || dial(&routed.client, ROUTER[0], 7000, |_| Ok(())).unwrap();
    let dropped = |mut stream: TcpStream| end_of(&mut stream).is_ok_and(|read| read > 0);
    for rubbish in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"PROXY TCP4 1.2.3.4\r\n", b"\r\n\r\n\0\r\nQUIT\nrubbish rubbish rubbish"] {
        let mut stream = connect();
        stream.write_all(rubbish).unwrap();
        let (heard, took) = seconds(|| dropped(stream));
        assert!(!heard && took < 1.5, "{rubbish:?}: {took:.1} s");
    }
    for little in [&b""[..], b"PROXY TCP4"] {
        let mut stream = connect();
        stream.write_all(little).unwrap();
        let (heard, took) = seconds(|| dropped(stream));
        assert!(!heard && (1.5..15.0).contains(&took), "{little:?}: {took:.1} s");
    }
    let output = curl(&routed, &[&url]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    // None reached the server, and all are counted.
    assert_eq!(routed.status().totals.ended_as("no_greeting"), 6);
    wait_until("nothing is left", || routed.status().totals.flows == 0);
}
