//! The proxy on a home router with NAT, a stateful firewall and forwarded ports.

use crate::common::{
    self,
    routed::{CLIENT, Counter, Routed, SERVER, dial, echo, echoes, nft},
    skip,
};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr},
};

/// `near` is the home, `far` the Internet. `router.rs` has the rules of distributions.
pub(super) const HOME_ROUTER: &str = "
table inet home {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname { lo, near } accept
        meta l4proto { icmp, ipv6-icmp } accept
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname near accept
        ct status dnat accept
        meta l4proto { icmp, ipv6-icmp } accept
    }
    chain output {
        type filter hook output priority filter; policy accept;
        ct state invalid drop
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        meta nfproto ipv4 oifname far masquerade
        meta nfproto ipv4 iifname near oifname near ct status dnat masquerade
    }
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 10.99.2.1 tcp dport 8080 dnat ip to 10.99.1.1:80
    }
}
";

/// Checks that more data than all buffers hold arrive unchanged in both directions.
fn carries(mut stream: std::net::TcpStream) -> bool {
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let mut reader = stream.try_clone().unwrap();
    let back = std::thread::spawn(move || {
        let mut back = Vec::new();
        reader.read_to_end(&mut back).map(|_| back)
    });
    let written = stream.write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write));
    written.is_ok() && back.join().unwrap().is_ok_and(|back| back == sent)
}

#[test]
fn connections_are_split_with_nat_and_a_stateful_firewall() {
    if skip("connections_are_split_with_nat_and_a_stateful_firewall", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    nft(&routed.router, HOME_ROUTER);
    // For IPv4 the Internet has a route to the router only.
    common::routed::ip(&routed.server, &["route del default via 10.99.2.1"]);
    let peers = common::routed::peers(&routed.server, 80);
    for with_proxy in [false, true] {
        let _proxy = with_proxy.then(|| routed.configured("[[rule]]\nin = \"near\"\n"));
        for (address, seen_as) in SERVER.into_iter().zip(["10.99.2.1", CLIENT[1]]) {
            let stream = routed.connect(address, 80).unwrap_or_else(|why| panic!("{address}, proxy: {with_proxy}: {why}"));
            assert!(carries(stream), "{address}, proxy: {with_proxy}");
            assert_eq!(peers.recv().unwrap().ip().to_canonical().to_string(), seen_as, "proxy: {with_proxy}");
        }
        if with_proxy {
            assert_eq!(routed.verdicts().0, 2);
        }
    }
}

#[test]
fn forwarded_ports_work_from_both_sides() {
    if skip("forwarded_ports_work_from_both_sides", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    nft(&routed.router, HOME_ROUTER);
    echo(&routed.client, 80);
    for with_proxy in [false, true] {
        let _proxy = with_proxy.then(|| routed.proxy(&[]));
        for (from, host) in [("the Internet", &routed.server), ("home", &routed.client)] {
            let mut stream =
                dial(host, "10.99.2.1", 8080, |_| Ok(())).unwrap_or_else(|why| panic!("from {from}, proxy: {with_proxy}: {why}"));
            assert!(echoes(&mut stream), "from {from}, proxy: {with_proxy}");
            assert!(carries(stream), "from {from}, proxy: {with_proxy}");
        }
    }
}

/// The proxy picks a far leg's port that this client has not used, as far as the proxy knows.
/// Behind a carrier-grade NAT clients use any port, including those of far legs.
#[test]
fn a_client_can_use_the_source_port_of_a_far_leg() {
    if skip("a_client_can_use_the_source_port_of_a_far_leg", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    nft(&routed.router, HOME_ROUTER);
    let peers = common::routed::peers(&routed.server, 80);
    let _proxy = routed.configured("[[rule]]\nin = \"near\"\n");
    // IPv6 has no NAT: the server would see the same ports twice.
    let server = SERVER[0];
    let from = |port: u16| {
        let address = SocketAddr::new(CLIENT[0].parse().unwrap(), port);
        let mut stream =
            dial(&routed.client, server, 80, |socket| socket.bind(&address.into())).unwrap_or_else(|why| panic!("from port {port}: {why}"));
        assert!(echoes(&mut stream), "from port {port}");
        // The port that the server sees.
        (stream, peers.recv().unwrap().port())
    };
    let (first, far) = from(40_000);
    let (second, _) = from(far);
    // The client uses the port before a far leg does.
    let (third, of_third) = from(far + 1);
    let (fourth, of_fourth) = from(40_001);
    assert!([far, far + 1, of_third, of_fourth].iter().all(|port| (10_240..32_768).contains(port)), "far legs have other ports now");
    assert_eq!(routed.verdicts(), (4, 0, 0));
    assert!(routed.tandem(&["bypass", "add", server]).status.success());
    let (unsplit, _) = from(of_third);
    assert_eq!(routed.verdicts(), (4, 1, 0));
    for (number, stream) in [first, second, third, fourth, unsplit].into_iter().enumerate() {
        assert!(carries(stream), "connection {number}");
    }
}

/// As after a client lost its network or restarted: conntrack keeps the old connection for days.
#[test]
fn a_split_connection_can_reuse_the_addresses_of_an_unfinished_unsplit_one() {
    if skip("a_split_connection_can_reuse_the_addresses_of_an_unfinished_unsplit_one", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    nft(&routed.router, HOME_ROUTER);
    routed.echo(80);
    let _proxy = routed.configured("[[rule]]\nin = \"near\"\n");
    let from = || dial(&routed.client, SERVER[0], 80, |socket| socket.bind(&SocketAddr::new(CLIENT[0].parse().unwrap(), 40_000).into()));
    assert!(routed.tandem(&["bypass", "add", SERVER[0]]).status.success());
    let mut unsplit = from().unwrap();
    assert!(echoes(&mut unsplit));
    let silence = Counter::dropping(&routed.client, "output", "tcp sport 40000");
    socket2::SockRef::from(&unsplit).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(unsplit);
    drop(silence);
    assert!(routed.tandem(&["bypass", "remove", SERVER[0]]).status.success());
    // The server resets its old connection, and accepts the retransmitted SYN.
    assert!(echoes(&mut from().unwrap()));
}

/// Strict reverse-path filters that consider marks, as wg-quick and firewalld configure them.
#[test]
fn reverse_path_filters_with_marks_accept_split_connections() {
    if skip("reverse_path_filters_with_marks_accept_split_connections", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.router.sysctl(&[("ipv4/conf/all/src_valid_mark", "1".into()), ("ipv4/conf/all/rp_filter", "1".into())]).unwrap();
    nft(
        &routed.router,
        "table inet filter {
            chain prerouting {
                type filter hook prerouting priority filter + 10; policy accept;
                icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
                meta nfproto ipv6 fib saddr . mark . iif oif missing drop
            }
        }
",
    );
    routed.echo(80);
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        let mut stream = routed.connect(address, 80).unwrap_or_else(|why| panic!("{address}: {why}"));
        assert!(echoes(&mut stream), "{address}");
    }
    assert_eq!(routed.verdicts(), (2, 0, 0));
}
