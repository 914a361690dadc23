//! Forward and input chains of other programs on the proxy's host: split connections obey the
//! forward chains, and connections that an input chain drops pass unsplit.

use crate::common::{
    self, Daemon, TANDEM,
    routed::{CLIENT, Counter, Routed, SERVER, echo, echoes, nft},
    skip, wait_until,
};
use lab::Host;
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

/// A home router: the home (`near`) may connect anywhere; incoming connections are refused at port
/// 81 and dropped at others.
const HOME: &str = "
table inet home {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname near accept
        tcp dport 81 reject with tcp reset
    }
}
";

/// Connects with a time limit of two SYNs.
fn dial(host: &Host, to: &str, port: u16) -> io::Result<TcpStream> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
    let stream = host.enter(|| TcpStream::connect_timeout(&to, Duration::from_millis(1500))).unwrap()?;
    stream.set_read_timeout(Some(common::PATIENCE))?;
    Ok(stream)
}

fn fails(host: &Host, to: &str, port: u16) -> Option<ErrorKind> {
    dial(host, to, port).err().map(|why| why.kind())
}

/// Checks that a connection of the client works; returns the counts of new connections: split, not
/// yet allowed, stopped.
fn talk(routed: &Routed, address: &str) -> (u64, u64, u64) {
    let of = |routed: &Routed| routed.status().counted.unwrap();
    let before = of(routed);
    assert!(echoes(&mut routed.connect(address, 80).unwrap()), "{address}: {}", routed.log());
    let after = of(routed);
    (after.split - before.split, after.not_yet_allowed - before.not_yet_allowed, after.stopped - before.stopped)
}

const SPLIT: (u64, u64, u64) = (1, 0, 0);
const FIRST: (u64, u64, u64) = (0, 1, 0);

/// Creates a router, with echo servers on ports 80 to 82 of the client and of the server.
fn routed() -> Routed {
    let routed = Routed::new();
    for port in 80..83 {
        routed.echo(port);
        echo(&routed.client, port);
    }
    routed
}

/// Asserts that incoming connections are refused or dropped, as without the proxy.
fn assert_closed_from_outside(routed: &Routed) {
    for address in CLIENT {
        for _ in 0..2 {
            assert_eq!(fails(&routed.server, address, 81), Some(ErrorKind::ConnectionRefused), "{address}");
        }
        assert_eq!(fails(&routed.server, address, 82), Some(ErrorKind::TimedOut), "{address}");
    }
}

#[test]
fn the_forward_chain_applies_to_split_connections() {
    if skip("the_forward_chain_applies_to_split_connections", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, HOME);
    assert_closed_from_outside(&routed);
    let _proxy = routed.proxy(&[]);
    assert_closed_from_outside(&routed);
    for address in SERVER {
        assert_eq!(talk(&routed, address), FIRST, "the forward chain decides, {address}");
        assert_eq!(talk(&routed, address), SPLIT, "it has accepted one, {address}");
        assert_eq!(talk(&routed, address), SPLIT);
    }
    assert!(routed.log().contains("the chain forward of the table inet home may stop forwarded connections"), "{}", routed.log());
    assert_closed_from_outside(&routed);
}

#[test]
fn the_forward_chain_applies_to_the_cache() {
    if skip("the_forward_chain_applies_to_the_cache", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, HOME);
    let mut command = routed.router.command(TANDEM);
    command.args(["cache", "--listen", "transparent=[::]:5000", "--ports", "80-82"]);
    let _cache = Daemon::logging(&mut command, &routed.path("log"));
    wait_until("the cache is up", || routed.log().contains("storing and forwarding"));
    assert_closed_from_outside(&routed);
}

#[test]
fn a_lost_syn_disables_splitting_only_briefly() {
    if skip("a_lost_syn_disables_splitting_only_briefly", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    // Drops the first SYN of each family, of 60 or 80 bytes.
    nft(
        &routed.router,
        "table inet host { chain input {
            type filter hook input priority filter; policy accept;
            meta nfproto ipv4 tcp dport 80 tcp flags syn quota until 100 bytes drop
            meta nfproto ipv6 tcp dport 80 tcp flags syn quota until 100 bytes drop
        }
        }\n",
    );
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        assert_eq!(talk(&routed, address), (1, 0, 1), "{address}: the retransmitted SYN passes unsplit");
    }
    for address in SERVER {
        wait_until("connections are split again", || talk(&routed, address) == SPLIT);
        assert_eq!(talk(&routed, address), SPLIT, "{address}");
    }
}

/// The kernel refuses to add a key to a set after the key was deleted many times in a second.
#[test]
fn all_connections_of_a_frequent_client_are_split() {
    if skip("all_connections_of_a_frequent_client_are_split", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, "table inet host { chain input { type filter hook input priority filter; tcp dport 9 drop; }; }\n");
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        let before = routed.status().counted.unwrap();
        let all: Vec<TcpStream> = (0..200).map(|_| routed.connect(address, 80).unwrap()).collect();
        let after = routed.status().counted.unwrap();
        assert_eq!((after.split - before.split, after.unsplit - before.unsplit), (200, 0), "{address}");
        assert!(all.into_iter().all(|mut stream| echoes(&mut stream)), "{address}");
    }
}

/// The source of a SYN may be forged: a flood of SYNs must not fill the set of connections that the
/// forward chain has accepted.
#[test]
fn a_syn_without_a_handshake_does_not_count_as_accepted() {
    if skip("a_syn_without_a_handshake_does_not_count_as_accepted", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, HOME);
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        let dropped = Counter::dropping(&routed.server, "input", "tcp dport 80 tcp flags syn");
        assert_eq!(fails(&routed.client, address, 80), Some(ErrorKind::TimedOut), "{address}");
        assert!(dropped.packets() > 0, "{address}");
        drop(dropped);
        assert_eq!([talk(&routed, address), talk(&routed, address)], [FIRST, SPLIT], "{address}");
    }
}

#[test]
fn clients_named_in_rules_are_split_at_once() {
    if skip("clients_named_in_rules_are_split_at_once", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, HOME);
    for named in ["in = \"near\"", "from = [\"10.99.1.0/24\", \"fd99:1::/64\"]"] {
        let _proxy = routed.configured(&format!("[[rule]]\n{named}\n"));
        assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT; 2], "{named}");
        assert_closed_from_outside(&routed);
    }
    let _proxy = routed.proxy(&["--forward-policy", "ignore"]);
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT; 2]);
    assert!(echoes(&mut dial(&routed.server, CLIENT[0], 81).unwrap()), "the operator's setting is ignore");
}

#[test]
fn changes_of_the_forward_chain_take_effect() {
    if skip("changes_of_the_forward_chain_take_effect", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    let _proxy = routed.proxy(&[]);
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT; 2], "without a forward chain all connections are split");
    let heard = |what: &str| {
        let heard = || routed.log().contains(what);
        wait_until(what, heard);
    };
    nft(&routed.router, HOME);
    heard("may stop forwarded connections");
    assert_closed_from_outside(&routed);
    for address in SERVER {
        assert_eq!([talk(&routed, address), talk(&routed, address)], [FIRST, SPLIT], "{address}");
    }
    // Changes by the proxy itself do not count.
    for prefix in ["192.0.2.0/24", "2001:db8::/32"] {
        assert!(routed.tandem(&["bypass", "add", prefix]).status.success());
        thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT; 2]);
    // The chain now rejects connections that it accepted before.
    nft(&routed.router, "insert rule inet home forward tcp dport 80 reject with tcp reset");
    for address in SERVER {
        wait_until("it is refused", || fails(&routed.client, address, 80) == Some(ErrorKind::ConnectionRefused));
        assert_eq!(fails(&routed.client, address, 80), Some(ErrorKind::ConnectionRefused), "{address}");
    }
    nft(&routed.router, "delete table inet home");
    for address in SERVER {
        wait_until("all is split again", || talk(&routed, address) == SPLIT);
    }
}

/// A connection accepted through a forwarded port does not allow connections to the address behind
/// it.
#[test]
fn a_forwarded_port_does_not_expose_the_address_behind_it() {
    if skip("a_forwarded_port_does_not_expose_the_address_behind_it", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(&routed.router, HOME);
    nft(
        &routed.router,
        "insert rule inet home forward ct status dnat accept\n\
         table inet forwarded {\n chain prerouting {\n type nat hook prerouting priority dstnat\n\
         ip daddr 10.99.2.1 tcp dport 8080 dnat ip to 10.99.1.1:81\n\
         ip6 daddr fd99:2::1 tcp dport 8080 dnat ip6 to [fd99:1::1]:81\n }\n}\n",
    );
    let _proxy = routed.proxy(&[]);
    for (outside, inside) in ["10.99.2.1", "fd99:2::1"].into_iter().zip(CLIENT) {
        for _ in 0..3 {
            assert!(echoes(&mut dial(&routed.server, outside, 8080).unwrap()), "{outside}");
            assert_eq!(fails(&routed.server, inside, 81), Some(ErrorKind::ConnectionRefused), "{inside}");
        }
    }
}

#[test]
fn chains_that_accept_everything_are_ignored() {
    if skip("chains_that_accept_everything_are_ignored", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    nft(
        &routed.router,
        "table inet mangle {\n set seen { type ipv4_addr; flags dynamic; }\n chain forward {\n type filter hook forward priority mangle; policy accept;\n\
         tcp flags syn tcp option maxseg size set rt mtu\n tcp flags syn tcp option maxseg size set 1400\n\
         oifname far meta mark set 7 counter\n ct state established accept\n add @seen { ip saddr }\n }\n\
         chain input {\n type filter hook input priority filter; policy accept;\n counter\n }\n}\n\
         table bridge other {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}\n",
    );
    let _proxy = routed.proxy(&[]);
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT; 2]);
    assert!(!routed.log().contains("may stop"), "{}", routed.log());
}

/// Connections of a family without filtering chains are split at once.
#[test]
fn forward_chains_apply_per_address_family() {
    if skip("forward_chains_apply_per_address_family", &["nft", "ip", "iptables-nft"]) {
        return;
    }
    let routed = routed();
    let iptables = |line: &str| assert!(routed.router.command("iptables-nft").args(line.split(' ')).status().unwrap().success(), "{line}");
    iptables("-A FORWARD -i near -j ACCEPT");
    iptables("-A FORWARD -m state --state ESTABLISHED -j ACCEPT");
    iptables("-A FORWARD -j REJECT --reject-with tcp-reset -p tcp");
    let _proxy = routed.proxy(&[]);
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [FIRST, SPLIT]);
    assert_eq!(SERVER.map(|address| talk(&routed, address)), [SPLIT, SPLIT]);
    assert_eq!(fails(&routed.server, CLIENT[0], 81), Some(ErrorKind::ConnectionRefused));
    assert!(routed.log().contains("the chain FORWARD of the table ip filter"), "{}", routed.log());
}

#[test]
fn connections_that_an_input_chain_drops_pass_unsplit() {
    if skip("connections_that_an_input_chain_drops_pass_unsplit", &["nft", "ip"]) {
        return;
    }
    let routed = routed();
    let chain = |verdict: &str| {
        format!(
            "table inet host {{\n chain input {{\n type filter hook input priority filter; policy accept;\n\
             ct state established,related accept\n meta l4proto tcp {verdict}\n }}\n}}\n"
        )
    };
    nft(&routed.router, &chain("drop"));
    let _proxy = routed.proxy(&[]);
    for address in SERVER {
        // The first SYN is dropped, the second passes; of later connections the first passes.
        assert_eq!(talk(&routed, address), (1, 0, 1), "{address}");
        assert_eq!(talk(&routed, address), (0, 0, 1), "{address}");
    }
    let told = || routed.log().matches("an input chain of this host stops connections").count();
    wait_until("the operator is told", || {
        talk(&routed, SERVER[0]);
        told() == 1
    });
    let split_again = || {
        nft(&routed.router, "insert rule inet host input meta mark 0x5444 accept");
        for address in SERVER {
            wait_until("connections are split", || talk(&routed, address) == SPLIT);
        }
    };
    split_again();
    nft(&routed.router, &format!("delete table inet host\n{}", chain("reject with tcp reset")));
    for address in SERVER {
        wait_until("the chain applies", || {
            let is_refused = fails(&routed.client, address, 80) == Some(ErrorKind::ConnectionRefused);
            // Longer than a SYN may take between the hooks.
            thread::sleep(Duration::from_millis(600));
            is_refused && dial(&routed.client, address, 80).is_ok_and(|mut stream| echoes(&mut stream))
        });
        assert_eq!(talk(&routed, address), (0, 0, 1), "{address}: after a refused connection");
    }
    split_again();
    nft(&routed.router, "delete table inet host");
    for address in SERVER {
        assert_eq!(talk(&routed, address), SPLIT, "{address}");
    }
}

#[test]
fn check_and_doctor_report_other_firewall_rules() {
    if skip("check_and_doctor_report_other_firewall_rules", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let said =
        |arguments: &[&str]| String::from_utf8(routed.tandem(arguments).stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let check = ["proxy", "--listen", "transparent=[::]:5000", "--check"];
    assert!(!said(&check).contains('~'), "nothing is doubtful");
    nft(&routed.router, HOME);
    nft(&routed.router, "table inet host {\n chain input {\n type filter hook input priority 0; policy drop;\n iifname lo accept\n }\n}\n");
    for arguments in [&check[..], &["doctor"]] {
        let said = said(arguments);
        assert!(said.contains("the chain forward of the table inet home may stop forwarded connections"), "{said}");
        assert!(said.contains("the chain input of the table inet host may stop connections that are to be split"), "{said}");
    }
    nft(&routed.router, "add rule inet host input meta mark 0x5444 accept");
    let now = said(&[&check[..], &["--forward-policy", "ignore"]].concat());
    assert!(!now.contains('~') && now.contains("is not heeded"), "{now}");
}
