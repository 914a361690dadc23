//! The effects of leg profiles, observed by the hosts at both ends, in packets, and in time.

use crate::common::{
    self,
    routed::{CLIENT, Counter, ROUTER, Routed, SERVER, dial, echo, echoes, end_of, ip, netstat, seconds},
    skip, wait_until,
};
use intercept::tcp_info;
use proxy::FlowView;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

/// Returns two controllers of this kernel, if it has two.
fn controllers() -> Option<[String; 2]> {
    let other = intercept::available_controllers().into_iter().find(|name| name != "reno")?;
    Some(["reno".into(), other])
}

/// Returns the controllers of the only flow, near and far.
fn controls(routed: &Routed) -> [String; 2] {
    let flows: Vec<FlowView> = routed.flows();
    assert_eq!(flows.len(), 1, "{flows:?}");
    [flows[0].near.control.clone(), flows[0].far.control.clone()]
}

fn wait_for_no_flow(routed: &Routed) {
    wait_until("the flow is over", || routed.status().totals.flows == 0);
}

#[test]
fn a_profile_applies_by_interface_and_prefix_not_by_opener() {
    if skip("a_profile_applies_by_interface_and_prefix_not_by_opener", &["nft", "ip"]) {
        return;
    }
    let Some([gentle, other]) = controllers() else { return };
    let routed = Routed::new();
    routed.echo(80);
    echo(&routed.client, 80);
    for which in ["interface = \"far\"", "to = [\"10.99.2.0/24\", \"fd99:2::/64\"]", "interface = [\"eth*\", \"fa*\"]"] {
        let others = format!("[near]\ncontrol = \"{other}\"\n[far]\ncontrol = \"{other}\"\n");
        let _proxy = routed.configured(&format!("{others}[[leg]]\n{which}\ncontrol = \"{gentle}\"\n"));
        for (from, to, wanted) in [
            (&routed.client, SERVER, [&other, &gentle]),
            // Opened by the server: the same leg is now the near leg.
            (&routed.server, CLIENT, [&gentle, &other]),
        ] {
            for address in to {
                let mut stream = dial(from, address, 80, |_| Ok(())).unwrap();
                assert!(echoes(&mut stream));
                assert_eq!(controls(&routed).each_ref(), wanted, "{which}, to {address}");
                drop(stream);
                wait_for_no_flow(&routed);
            }
        }
    }
}

#[test]
fn a_rule_selects_the_profiles_of_its_legs() {
    if skip("a_rule_selects_the_profiles_of_its_legs", &["nft", "ip"]) {
        return;
    }
    let Some([gentle, other]) = controllers() else { return };
    let routed = Routed::new();
    (80..83).for_each(|port| routed.echo(port));
    let _proxy = routed.configured(&format!(
        "[near]\ncontrol = \"{other}\"\n[far]\ncontrol = \"{other}\"\n[[leg]]\nname = \"gentle\"\ncontrol = \"{gentle}\"\n\
         [[rule]]\nports = 81\nfar = \"gentle\"\n[[rule]]\nin = \"near\"\nout = \"far\"\nports = \"82-90\"\nnear = \"gentle\"\n"
    ));
    for (port, wanted) in [(80, [&other, &other]), (81, [&other, &gentle]), (82, [&gentle, &other])] {
        for address in SERVER {
            let mut stream = routed.connect(address, port).unwrap();
            assert!(echoes(&mut stream));
            assert_eq!(controls(&routed).each_ref(), wanted, "to {address}, port {port}");
            drop(stream);
            wait_for_no_flow(&routed);
        }
    }
}

/// Returns the nftables condition for a family's DSCP.
fn dscp(family: usize, value: &str) -> String {
    format!("{} dscp {value}", ["ip", "ip6"][family])
}

#[test]
fn packets_carry_the_dscp_of_their_leg() {
    if skip("packets_carry_the_dscp_of_their_leg", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--near", "dscp=ef", "--far", "dscp=af21"]);
    for (family, address) in SERVER.into_iter().enumerate() {
        let right = Counter::new(&routed.server, "input", &format!("tcp dport 80 {}", dscp(family, "af21")));
        let wrong = Counter::new(&routed.server, "input", &format!("tcp dport 80 {}", dscp(family, "!= af21")));
        let near = Counter::new(&routed.client, "input", &format!("tcp sport 80 {}", dscp(family, "ef")));
        assert!(echoes(&mut routed.connect(address, 80).unwrap()));
        wait_for_no_flow(&routed);
        assert!(right.packets() >= 3 && near.packets() >= 1, "{address}: {} {}", right.packets(), near.packets());
        assert_eq!(wrong.packets(), 0, "{address}: the SYN has it too");
    }
}

#[test]
fn dscp_keep_preserves_the_dscp_of_the_client() {
    if skip("dscp_keep_preserves_the_dscp_of_the_client", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let forward = format!("forward=[::]:7000={}:80", SERVER[0]);
    let _proxy = routed.proxy(&["--listen", &forward, "--near", "dscp=keep", "--far", "dscp=keep"]);
    // Forwarded connections have an IPv4 far leg, also for IPv6 clients.
    let cases = [(SERVER[0], 80, 0), (SERVER[1], 80, 1), (ROUTER[0], 7000, 0), (ROUTER[1], 7000, 0)];
    for (address, port, family) in cases {
        for (tos, name) in [(46 << 2, "ef"), (0, "cs0"), (10 << 2, "af11")] {
            let from = usize::from(address.contains(':'));
            let right = Counter::new(&routed.server, "input", &format!("tcp dport 80 {}", dscp(family, name)));
            let wrong = Counter::new(&routed.server, "input", &format!("tcp dport 80 {}", dscp(family, &format!("!= {name}"))));
            let back = Counter::new(&routed.client, "input", &format!("tcp sport {port} {}", dscp(from, name)));
            let stream =
                dial(&routed.client, address, port, |socket| if from == 1 { socket.set_tclass_v6(tos) } else { socket.set_tos_v4(tos) });
            assert!(echoes(&mut stream.unwrap()));
            wait_for_no_flow(&routed);
            assert!(right.packets() >= 3, "{address} {name}: {}", right.packets());
            assert_eq!(wrong.packets(), 0, "{address} {name}");
            assert!(back.packets() >= 1, "{address} {name}: no packets came back");
        }
    }
}

#[test]
fn every_packet_of_the_far_leg_has_the_mark_and_is_routed_by_it() {
    if skip("every_packet_of_the_far_leg_has_the_mark_and_is_routed_by_it", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    // Another route to the server, for marked packets only.
    routed.router.join(&["10.99.5.1/24", "fd99:5::1/64"], &routed.server, &["10.99.5.2/24", "fd99:5::2/64"], "side").unwrap();
    for (flag, by) in [("-4", "10.99.5.2"), ("-6", "fd99:5::2")] {
        let to = if flag == "-4" { "10.99.2.2" } else { "fd99:2::2" };
        let run = |line: String| assert!(routed.router.command("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        run(format!("{flag} rule add fwmark 7 lookup 77"));
        run(format!("{flag} route add {to} via {by} table 77"));
    }
    let _proxy = routed.proxy(&["--far", "mark=7"]);
    for address in SERVER {
        let marked = Counter::new(&routed.router, "output", "tcp dport 80 meta mark 7");
        let unmarked = Counter::new(&routed.router, "output", "tcp dport 80 meta mark != 7");
        let aside = Counter::new(&routed.server, "input", "tcp dport 80 iifname \"side\"");
        assert!(echoes(&mut routed.connect(address, 80).unwrap()));
        wait_for_no_flow(&routed);
        assert!(marked.packets() >= 3 && aside.packets() >= 3, "{address}: {} {}", marked.packets(), aside.packets());
        assert_eq!(unmarked.packets(), 0, "{address}");
    }
}

#[test]
fn segments_have_the_mss_of_the_profile() {
    if skip("segments_have_the_mss_of_the_profile", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let server = routed.listen(80);
    let _proxy = routed.proxy(&["--near", "mss=1000", "--far", "mss=800"]);
    for address in SERVER {
        let mut client = routed.connect(address, 80).unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        client.write_all(&[1; 4000]).unwrap();
        accepted.read_exact(&mut [0; 4000]).unwrap();
        // The MSS that the peer announced, less 12 bytes of timestamps.
        assert_eq!(tcp_info(&accepted).unwrap().snd_mss, 788, "{address}: the server, as the far leg says");
        assert_eq!(tcp_info(&client).unwrap().snd_mss, 988, "{address}: the client, as the near leg says");
        let flow = &routed.flows()[0];
        assert!(flow.near.mss_bytes <= 988 && flow.far.mss_bytes <= 788, "{address}: {flow:?}");
        drop((client, accepted));
        wait_for_no_flow(&routed);
    }
}

#[test]
fn user_timeout_resets_a_leg_without_acks() {
    if skip("user_timeout_resets_a_leg_without_acks", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let _proxy = routed.proxy(&["--far", "user_timeout=2s"]);
    routed.echo(80);
    let mut streams = SERVER.map(|address| routed.connect(address, 80).unwrap());
    assert!(streams.iter_mut().all(echoes));
    ip(&routed.server, &["link set far down"]);
    for (stream, address) in streams.iter_mut().zip(SERVER) {
        let (end, took) = seconds(|| {
            stream.write_all(b"still there?").unwrap();
            end_of(stream)
        });
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{address}");
        assert!(took < 20.0, "{address}: given up after {took:.1} s");
    }
    wait_for_no_flow(&routed);
}

#[test]
fn user_timeout_spares_a_peer_with_a_closed_window() {
    if skip("user_timeout_spares_a_peer_with_a_closed_window", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let server = routed.listen(80);
    let _proxy = routed.proxy(&["--far", "user_timeout=1s"]);
    let mut client = routed.connect(SERVER[0], 80).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    let sent: Vec<u8> = (0..20_000_000u32).map(|number| (number % 251) as u8).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.write_all(&sent));
        // The window stays closed for several times the limit.
        std::thread::sleep(std::time::Duration::from_secs(4));
        let mut received = vec![0; sent.len()];
        accepted.read_exact(&mut received).unwrap();
        assert!(received == sent);
        writer.join().unwrap().unwrap();
    });
}

#[test]
fn keepalive_probes_detect_a_dead_peer() {
    if skip("keepalive_probes_detect_a_dead_peer", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let _proxy = routed.proxy(&["--near", "keepalive=1s", "--far", "keepalive=1s"]);
    routed.echo(80);
    let mut streams = SERVER.map(|address| routed.connect(address, 80).unwrap());
    assert!(streams.iter_mut().all(echoes));
    // The server's link fails; then, for another connection, the client's.
    ip(&routed.server, &["link set far down"]);
    for (stream, address) in streams.iter_mut().zip(SERVER) {
        let (end, took) = seconds(|| end_of(stream));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{address}");
        assert!(took < 30.0, "{address}: found out after {took:.1} s");
    }
    wait_for_no_flow(&routed);
    ip(&routed.server, &["link set far up", "addr replace fd99:2::2/64 dev far nodad", "route replace default via 10.99.2.1"]);
    ip(&routed.server, &["route replace ::/0 via fd99:2::1"]);
    let server = routed.listen(81);
    let _client = routed.connect(SERVER[0], 81).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    ip(&routed.client, &["link set near down"]);
    accepted.set_read_timeout(Some(common::PATIENCE)).unwrap();
    assert_eq!(end_of(&mut accepted), Err(ErrorKind::ConnectionReset), "the server's connection is reset after the client is lost");
}

#[test]
fn connect_timeout_ends_a_connect_without_answer() {
    if skip("connect_timeout_ends_a_connect_without_answer", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let hole = Counter::dropping(&routed.server, "input", "tcp dport 82");
    let _proxy = routed.configured("connect_timeout = \"1s\"\n[[leg]]\nto = \"fd99:2::/64\"\nconnect_timeout = \"2s\"\n");
    for (address, limit) in SERVER.into_iter().zip([1.0, 2.0]) {
        // The proxy accepts before it dials.
        let mut client = routed.connect(address, 82).unwrap();
        let (end, took) = seconds(|| end_of(&mut client));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{address}");
        assert!((limit * 0.9..limit + 10.0).contains(&took), "{address}: {took:.1} s");
    }
    assert!(hole.packets() >= 2);
    wait_until("both are counted", || routed.status().totals.ended_as("far_timed_out") == 2);
}

/// Enables Fast Open on the server, and makes a connection that gives the proxy its cookie.
fn fast_open(routed: &Routed, server: &str, port: u16) {
    // Client, server, every listener.
    routed.server.sysctl(&[("ipv4/tcp_fastopen", "1027".into())]).unwrap();
    let mut first = routed.connect(server, port).unwrap();
    assert!(echoes(&mut first));
}

#[test]
fn a_fast_open_leg_sends_data_with_its_syn() {
    if skip("a_fast_open_leg_sends_data_with_its_syn", &["nft", "ip"]) {
        return;
    }
    for address in SERVER {
        let routed = Routed::new();
        routed.server.sysctl(&[("ipv4/tcp_fastopen", "1027".into())]).unwrap();
        routed.echo(80);
        let _proxy = routed.proxy(&["--far", "fast_open=true"]);
        fast_open(&routed, address, 80);
        let opened = || netstat(&routed.server, "TCPFastOpenPassive");
        assert_eq!(opened(), 0, "{address}: without a cookie it is a connection like others");
        assert!(echoes(&mut routed.connect(address, 80).unwrap()));
        assert_eq!(opened(), 1, "{address}");
        // Data and FIN at once: the data come back.
        let mut client = routed.connect(address, 80).unwrap();
        client.write_all(b"good bye").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut back = String::new();
        let read = client.read_to_string(&mut back);
        assert!(read.is_ok() && back == "good bye", "{address}: {read:?}, {back:?}\n{}", routed.log());
        // A FIN without data.
        let mut client = routed.connect(address, 80).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(end_of(&mut client), Ok(0), "{address}");
        wait_for_no_flow(&routed);
        let ended = routed.status().totals.ended;
        assert_eq!(ended[0], 4, "{address}: all finished: {ended:?}");
    }
}

#[test]
fn a_fast_open_leg_works_with_a_server_that_sends_first() {
    if skip("a_fast_open_leg_works_with_a_server_that_sends_first", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.server.sysctl(&[("ipv4/tcp_fastopen", "1027".into())]).unwrap();
    let listener = routed.listen(25);
    thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"220 at your service\r\n"))));
    let _proxy = routed.proxy(&["--far", "fast_open=true"]);
    for _ in 0..3 {
        for address in SERVER {
            let mut said = String::new();
            routed.connect(address, 25).unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, "220 at your service\r\n");
        }
    }
}

#[test]
fn a_fast_open_connect_can_be_refused_or_time_out() {
    if skip("a_fast_open_connect_can_be_refused_or_time_out", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--far", "fast_open=true", "--connect-timeout", "1s"]);
    for address in SERVER {
        fast_open(&routed, address, 80);
        // The cookie is valid for every port.
        let end = |port: u16, words: &[u8]| {
            // The reset may arrive before the connect or the write returns.
            let talk = |mut client: TcpStream| client.write_all(words).map_err(|why| why.kind()).and_then(|()| end_of(&mut client));
            seconds(|| routed.connect(address, port).map_err(|why| why.kind()).and_then(talk))
        };
        for words in [&b"hello"[..], b""] {
            let (refused, took) = end(81, words);
            assert_eq!(refused, Err(ErrorKind::ConnectionReset), "{address}, {words:?}: {}", routed.log());
            assert!(took < 5.0, "{address}: refused after {took:.1} s");
            let _hole = Counter::dropping(&routed.server, "input", "tcp dport 82");
            let (lost, took) = end(82, words);
            assert_eq!(lost, Err(ErrorKind::ConnectionReset), "{address}");
            assert!(took < 15.0, "{address}: given up after {took:.1} s");
        }
    }
    wait_for_no_flow(&routed);
    let totals = routed.status().totals;
    let (refused, silent) = (totals.ended_as("far_not_reached"), totals.ended_as("far_timed_out"));
    assert_eq!((refused, silent), (4, 4), "no far leg was established");
}

#[test]
fn a_profile_that_the_kernel_rejects_is_an_error() {
    if skip("a_profile_that_the_kernel_rejects_is_an_error", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let refused = |far: &str| {
        let output = routed.tandem(&["proxy", "--listen", "transparent=[::]:5000", "--far", far]);
        assert_eq!(output.status.code(), Some(2), "{far}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("mark=21572").contains("far leg: the mark 0x5444 is reserved for this proxy's own firewall rules"));
    assert!(refused("mss=20").contains("far leg: the kernel refuses this profile") && refused("mss=20").contains("mss is 88 to 32767"));
    routed.router.sysctl(&[("ipv4/tcp_ecn", "2".into())]).unwrap();
    let said = refused("ecn=true");
    assert!(said.contains("far leg: asks for ECN") && said.contains("sysctl -w net.ipv4.tcp_ecn=1 (it is 2)"), "{said}");
    routed.router.sysctl(&[("ipv4/tcp_ecn", "1".into())]).unwrap();
    // With tcp_ecn=1 the SYN of the far leg requests ECN.
    let _proxy = routed.proxy(&["--far", "ecn=true"]);
    let asked = Counter::new(&routed.server, "input", "tcp dport 80 tcp flags & (syn | ecn | cwr) == syn | ecn | cwr");
    routed.echo(80);
    let mut stream = routed.connect(SERVER[0], 80).unwrap();
    assert!(echoes(&mut stream) && asked.packets() == 1);
}
