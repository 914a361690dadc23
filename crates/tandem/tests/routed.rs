//! The proxy as a program on a router, between hosts joined by veth pairs: what it splits, what it lets pass, how its legs are
//! tuned.

mod common;

use common::{
    routed::{Routed, SERVER, echoes},
    skip, wait_until,
};
use std::net::TcpStream;

#[test]
fn prefixes_bypass_by_rule_and_by_word() {
    if skip("prefixes_bypass_by_rule_and_by_word", &["nft", "ip"]) {
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
fn over_the_limit_connections_pass_unsplit_and_none_is_refused() {
    if skip("over_the_limit_connections_pass_unsplit_and_none_is_refused", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--max-flows", "4"]);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| routed.connect(SERVER[0], 80).unwrap()).collect();
    // The gate takes a moment to shut; whoever comes meanwhile is split.
    wait_until("the proxy is full", || {
        streams.push(routed.connect(SERVER[0], 80).unwrap());
        routed.verdicts().2 > 0
    });
    streams.push(routed.connect(SERVER[1], 80).unwrap());
    let (split, _, unsplit) = routed.verdicts();
    assert_eq!((split + unsplit) as usize, streams.len(), "each came once");
    assert!(unsplit >= 2 && streams.iter_mut().all(echoes));
    assert_eq!(routed.status().totals.flows, split);
    streams.clear();
    wait_until("there is room again", || {
        let before = routed.verdicts().0;
        assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()));
        routed.verdicts().0 > before
    });
}
