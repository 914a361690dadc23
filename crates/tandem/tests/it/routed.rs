//! The proxy on a router between hosts joined by veth pairs: what it splits and what passes
//! unsplit, normally, at its limits, while draining, and after a kill.

use crate::common::{
    routed::{Counter, Routed, SERVER, echoes, nft},
    skip, wait_until,
};
use std::{
    io::{ErrorKind, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

#[test]
fn prefixes_bypass_by_rule_and_by_command() {
    if skip("prefixes_bypass_by_rule_and_by_command", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--bypass", "fd99:2::/64"]);
    let talk = |server| assert!(echoes(&mut routed.connect(server, 80).unwrap()));
    SERVER.into_iter().for_each(talk);
    assert_eq!(routed.verdicts(), (1, 1, 0), "IPv4 is split, IPv6 bypasses");
    let bypass = |arguments: &[&str]| {
        let output = routed.tandem(&[&["bypass"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(bypass(&["add", "10.99.2.2", "192.0.2.0/24"]), "10.99.2.2\n192.0.2.0/24\n");
    talk(SERVER[0]);
    assert_eq!(routed.verdicts(), (1, 2, 0));
    assert_eq!(bypass(&["remove", "10.99.2.2"]), "192.0.2.0/24\n");
    talk(SERVER[0]);
    assert_eq!(routed.verdicts(), (2, 2, 0));
    assert_eq!(bypass(&["list", "--json"]), "[\"192.0.2.0/24\"]\n");
}

#[test]
fn unsplit_connections_to_the_listeners_own_port_go_on() {
    if skip("unsplit_connections_to_the_listeners_own_port_go_on", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(5000);
    let mut before = SERVER.map(|address| routed.connect(address, 5000).unwrap());
    assert!(before.iter_mut().all(echoes));
    let _proxy = routed.proxy(&["--bypass", "fd99:2::/64"]);
    assert!(before.iter_mut().all(echoes), "connections from before the proxy go on");
    let mut later = SERVER.map(|address| routed.connect(address, 5000).unwrap());
    assert_eq!(routed.verdicts(), (1, 1, 0), "IPv4 is split, IPv6 bypasses");
    assert!(later.iter_mut().chain(&mut before).all(echoes));
}

#[test]
fn connections_over_the_limit_pass_unsplit() {
    if skip("connections_over_the_limit_pass_unsplit", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--max-flows", "4"]);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| routed.connect(SERVER[0], 80).unwrap()).collect();
    // The gate takes a moment to shut; connections until then are split.
    wait_until("the proxy is full", || {
        streams.push(routed.connect(SERVER[0], 80).unwrap());
        routed.verdicts().2 > 0
    });
    streams.push(routed.connect(SERVER[1], 80).unwrap());
    let (split, _, unsplit) = routed.verdicts();
    assert_eq!((split + unsplit) as usize, streams.len(), "each connection is counted once");
    assert!(unsplit >= 2 && streams.iter_mut().all(echoes));
    assert_eq!(routed.status().totals.flows, split);
    streams.clear();
    wait_until("there is room again", || {
        let before = routed.verdicts().0;
        assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()));
        routed.verdicts().0 > before
    });
}

#[test]
fn a_drain_refuses_no_connection_and_waits_for_existing_flows() {
    if skip("a_drain_refuses_no_connection_and_waits_for_existing_flows", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let before = routed.traces();
    let mut proxy = routed.proxy(&["--threads", "2"]);
    let mut old = SERVER.map(|address| routed.connect(address, 80).unwrap());
    assert!(old.iter_mut().all(echoes));
    let ended = AtomicBool::new(false);
    let (talks, failures) = thread::scope(|scope| {
        // Clients that connect continuously, before, while and after the gate is shut.
        let talk = || {
            let (mut talks, mut failures) = (0, Vec::new());
            while !ended.load(Relaxed) {
                for address in SERVER {
                    match routed.connect(address, 80).map(|mut stream| echoes(&mut stream)) {
                        Ok(true) => talks += 1,
                        Ok(false) => failures.push("it was not answered".to_string()),
                        Err(why) => failures.push(why.to_string()),
                    }
                }
            }
            (talks, failures)
        };
        let talkers: Vec<_> = (0..3).map(|_| scope.spawn(talk)).collect();
        wait_until("the clients are connecting", || routed.verdicts().0 > 100);
        proxy.signal("TERM");
        wait_until("new connections pass unsplit", || routed.verdicts().2 > 100);
        assert!(old.iter_mut().all(echoes), "existing flows continue");
        assert!(matches!(proxy.0.try_wait(), Ok(None)), "the proxy waits for them");
        drop(old);
        let status = proxy.0.wait().unwrap();
        ended.store(true, Relaxed);
        assert!(status.success(), "{status}");
        talkers.into_iter().map(|talker| talker.join().unwrap()).fold((0, Vec::new()), |mut all, (talks, failures)| {
            all.1.extend(failures);
            (all.0 + talks, all.1)
        })
    });
    assert!(failures.is_empty(), "{} of {talks}: {failures:?}", failures.len());
    println!("{talks} connections, and none was refused");
    assert_eq!(routed.traces(), before);
}

#[test]
fn a_drain_accepts_connections_whose_handshake_has_begun() {
    if skip("a_drain_accepts_connections_whose_handshake_has_begun", &["nft", "ip"]) {
        return;
    }
    // A drain waits a second for such handshakes. A machine that took longer to complete them has
    // shown nothing.
    let was_in_time = (0..10).any(|_| drain_during_handshakes());
    assert!(was_in_time, "no attempt completed its handshakes within a second of the signal");
}

/// Drains a proxy while the last packets of two handshakes are held back. False: the machine was too
/// slow to complete them in time.
fn drain_during_handshakes() -> bool {
    let routed = Routed::new();
    routed.echo(80);
    let mut proxy = routed.proxy(&[]);
    let other = routed.connect(SERVER[0], 80).unwrap();
    // The client's packets of the handshake are delayed for longer than the proxy needs to shut the
    // gate.
    let on_its_way = Counter::dropping(&routed.client, "output", "tcp dport 80 tcp flags & (syn | ack) == ack");
    let mut streams = SERVER.map(|address| routed.connect(address, 80).unwrap());
    let begun = Instant::now();
    proxy.signal("TERM");
    wait_until("the gate is shut", || {
        let _probe = routed.connect(SERVER[0], 80);
        routed.verdicts().2 > 0
    });
    drop(on_its_way);
    let all_echo = streams.iter_mut().all(echoes);
    if begun.elapsed() > Duration::from_millis(900) {
        return false;
    }
    assert!(all_echo, "{}", routed.log());
    let clients = streams.each_ref().map(|stream| stream.local_addr().unwrap());
    assert!(clients.iter().all(|client| routed.flows().iter().any(|flow| flow.client == *client)), "they are split");
    drop((other, streams));
    assert!(proxy.0.wait().unwrap().success());
    true
}

#[test]
fn the_rules_of_the_proxy_can_be_installed_by_the_operator() {
    if skip("the_rules_of_the_proxy_can_be_installed_by_the_operator", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    // The rules of the proxy, but without a table owner.
    let printed = routed.tandem(&["proxy", "--listen", "transparent=[::]:5000", "--dry-run"]);
    let script = String::from_utf8(printed.stdout).unwrap().replace("flags owner; ", "");
    assert!(routed.router.command("sh").args(["-ec", &script]).status().unwrap().success(), "{script}");
    let before = routed.traces();
    let mut proxy = routed.proxy(&["--no-rules"]);
    for address in SERVER {
        let mut stream = routed.connect(address, 80).unwrap();
        assert!(echoes(&mut stream));
        let (flow, own) = (&routed.flows()[0], stream.local_addr().unwrap());
        assert_eq!((flow.client, flow.up.bytes), (own, 5), "{address}");
        drop(stream);
        wait_until("it is over", || routed.status().totals.flows == 0);
    }
    assert_eq!(routed.status().counted, None, "the counters are the operator's own");
    let output = routed.tandem(&["bypass", "add", "10.99.2.2"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("has no firewall rules"), "{output:?}");
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(routed.traces(), before, "the proxy does not touch these rules");
    // Without the proxy, connections pass.
    assert!(SERVER.into_iter().all(|address| echoes(&mut routed.connect(address, 80).unwrap())));
}

#[test]
fn a_minimal_rule_set_of_the_operator_suffices() {
    if skip("a_minimal_rule_set_of_the_operator_suffices", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    (80..82).for_each(|port| routed.echo(port));
    nft(
        &routed.router,
        "table inet mine {\n chain prerouting {\n type filter hook prerouting priority mangle;\n\
         meta l4proto { 1, 58 } socket transparent 1 meta mark set 9 accept\n\
         tcp flags & (syn | ack) == syn tcp dport 80 meta nfproto ipv4 tproxy ip to :5000 meta mark set 9 accept\n\
         tcp flags & (syn | ack) == syn tcp dport 80 meta nfproto ipv6 tproxy ip6 to :5000 meta mark set 9 accept\n\
         tcp flags & (syn | ack) != syn socket transparent 1 meta mark set 9 accept\n }\n}\n",
    );
    for flag in ["-4", "-6"] {
        for line in ["rule add fwmark 9 lookup 99", "route add local default dev lo table 99"] {
            assert!(routed.router.command("ip").arg(flag).args(line.split(' ')).status().unwrap().success(), "{flag} {line}");
        }
    }
    let _proxy = routed.proxy(&["--no-rules"]);
    let mut streams: Vec<TcpStream> =
        [80, 81].into_iter().flat_map(|port| SERVER.map(|address| routed.connect(address, port).unwrap())).collect();
    assert!(streams.iter_mut().all(echoes));
    assert_eq!(routed.status().totals.flows, 2, "those to port 80 are split");
}

#[test]
fn connections_pass_unsplit_at_once_after_a_kill() {
    if skip("connections_pass_unsplit_at_once_after_a_kill", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let before = routed.traces();
    for round in 0..3 {
        let mut proxy = routed.proxy(&["--threads", "2"]);
        assert!(routed.log().matches("ERROR").count() == 0, "{}", routed.log());
        // Several clients in the middle of a transfer.
        let senders: Vec<_> = (0..6)
            .map(|number| {
                let mut stream = routed.connect(SERVER[number % 2], 80).unwrap();
                let mut reader = stream.try_clone().unwrap();
                let reading = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).map_err(|why| why.kind()));
                let writing = thread::spawn(move || {
                    loop {
                        if let Err(why) = stream.write_all(&[3; 10_000]) {
                            return why.kind();
                        }
                    }
                });
                (reading, writing)
            })
            .collect();
        wait_until("all clients are transferring", || {
            let flows = routed.flows();
            flows.len() == 6 && flows.iter().all(|flow| flow.down.bytes > 1_000_000)
        });
        proxy.signal("KILL");
        let killed = Instant::now();
        for address in SERVER {
            wait_until("a connection passes", || {
                assert!(killed.elapsed().as_secs() < 10, "{address}: none passes");
                routed.connect(address, 80).is_ok_and(|mut stream| echoes(&mut stream))
            });
            println!("round {round}, {address}: passes {:.3} s after the kill", killed.elapsed().as_secs_f64());
        }
        proxy.0.wait().unwrap();
        for (reading, writing) in senders {
            // The first operation reports the reset.
            let (read, written) = (reading.join().unwrap(), writing.join().unwrap());
            let reset = read == Err(ErrorKind::ConnectionReset) || written == ErrorKind::ConnectionReset;
            assert!(reset, "the end was not a reset: {read:?}, {written:?}");
        }
    }
    // The next proxy takes over, and leaves nothing when it stops.
    let mut proxy = routed.proxy(&[]);
    assert!(SERVER.into_iter().all(|address| echoes(&mut routed.connect(address, 80).unwrap())));
    assert_eq!(routed.verdicts(), (2, 0, 0));
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(routed.traces(), before);
}

/// A client with a second link to the server: its packets bypass the router, the answers come
/// through it.
#[test]
fn doctor_finds_asymmetric_routing() {
    if skip("doctor_finds_asymmetric_routing", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&[]);
    let doctor = |arguments: &[&str]| {
        let output = routed.tandem(&[&["doctor"], arguments].concat());
        String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(!doctor(&[]).contains("asymmetric routing"));
    routed.client.join(&["10.99.3.1/24"], &routed.server, &["10.99.3.2/24"], "past").unwrap();
    routed.client.ip(&["route add 10.99.2.2/32 via 10.99.3.2 src 10.99.1.1".into()]).unwrap();
    for host in [&routed.client, &routed.server] {
        host.sysctl(&[("ipv4/conf/all/rp_filter", "0".into()), ("ipv4/conf/past/rp_filter", "0".into())]).unwrap();
    }
    for _ in 0..12 {
        assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()), "the connection works, unsplit");
    }
    assert_eq!(routed.verdicts(), (0, 0, 0));
    assert_eq!(routed.status().counted.unwrap().oneway, 12);
    let said = doctor(&[]);
    assert!(said.contains("12 connections were answered through this host but not opened through it"), "{said}");
    let said = doctor(&["--link", "1Gbit,600ms"]);
    assert!(said.contains("window for the link, receiving") && said.contains("sysctl -w net.ipv4.tcp_rmem="), "{said}");
}
