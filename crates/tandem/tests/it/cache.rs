//! `tandem cache` on a router, which intercepts routed connections by firewall rules.

use crate::common::{
    Daemon, TANDEM,
    routed::{CLIENT, Routed, SERVER, echoes},
    skip, wait_until,
};
use std::{
    io::{Read, Write},
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// Starts a web server of cacheable pages, which contain the client's address; returns its request
/// count.
fn pages(routed: &Routed, port: u16) -> Arc<AtomicUsize> {
    let (listener, asked) = (routed.listen(port), Arc::new(AtomicUsize::new(0)));
    let counter = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counter = counter.clone();
            thread::spawn(move || {
                let (mut heard, mut byte) = (Vec::new(), [0]);
                while !heard.ends_with(b"\r\n\r\n") && (&stream).read_exact(&mut byte).is_ok() {
                    heard.push(byte[0]);
                }
                counter.fetch_add(1, SeqCst);
                let page = format!("hello, {}\n", stream.peer_addr().unwrap().ip().to_canonical());
                let head =
                    format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
                (&stream).write_all((head + &page).as_bytes())
            });
        }
    });
    asked
}

fn start(routed: &Routed, arguments: &[&str]) -> Daemon {
    let mut command = routed.router.command(TANDEM);
    command.args(["cache", "--listen", "transparent=[::]:5000"]).args(arguments);
    let daemon = Daemon::logging(&mut command, &routed.path("log"));
    wait_until("the cache is up", || routed.log().contains("storing and forwarding"));
    daemon
}

fn curl(routed: &Routed, address: &str, port: u16) -> Output {
    let host = if address.contains(':') { format!("[{address}]") } else { address.into() };
    let url = format!("http://{host}:{port}/");
    routed.client.command("curl").args(["-sS", "-i", "--max-time", "30", "--noproxy", "", &url]).output().unwrap()
}

#[test]
fn a_router_answers_from_the_cache() {
    if skip("a_router_answers_from_the_cache", &["curl", "ip", "nft"]) {
        return;
    }
    let routed = Routed::new();
    let (kept, other) = (pages(&routed, 80), pages(&routed, 8080));
    routed.echo(81);
    let cache = start(&routed, &["--ports", "80-81", "--lull", "20ms"]);
    for (client, server) in CLIENT.iter().zip(SERVER) {
        for word in ["fwd=uri-miss", "hit; ttl="] {
            let said = curl(&routed, server, 80);
            let text = String::from_utf8_lossy(&said.stdout);
            // The server sees the client itself.
            assert!(text.ends_with(&format!("hello, {client}\n")) && text.contains(word), "{said:?}\n{}", routed.log());
        }
        // Other ports are not intercepted.
        let said = curl(&routed, server, 8080);
        assert!(!String::from_utf8_lossy(&said.stdout).to_lowercase().contains("\nvia:"), "{said:?}");
        // A connection that is not HTTP is stored and forwarded at each pause.
        assert!(echoes(&mut routed.connect(server, 81).unwrap()), "{}", routed.log());
    }
    assert_eq!((kept.load(SeqCst), other.load(SeqCst)), (2, 2));
    // After a kill, connections pass.
    drop(cache);
    wait_until("connections pass without it", || {
        let said = curl(&routed, SERVER[0], 80);
        said.status.success() && !String::from_utf8_lossy(&said.stdout).to_lowercase().contains("\nvia:")
    });
}

#[test]
fn statistics_are_printed_at_exit() {
    if skip("statistics_are_printed_at_exit", &["curl", "ip", "nft"]) {
        return;
    }
    let routed = Routed::new();
    pages(&routed, 80);
    let mut command = routed.router.command(TANDEM);
    command
        .args(["cache", "--listen", "transparent=[::]:5000", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_until("it answers from what it keeps", || String::from_utf8_lossy(&curl(&routed, SERVER[0], 80).stdout).contains("hit; ttl="));
    assert!(std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    let stats: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(stats["hits"].as_u64() >= Some(1) && stats["misses"].as_u64() == Some(1), "{stats}");
    // Now connections pass without the cache, and its rules are gone.
    assert!(curl(&routed, SERVER[0], 80).status.success());
    let tables = routed.router.command("nft").args(["list", "tables"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&tables.stdout).contains("tandem"), "{tables:?}");
}
