//! Changes of the host while the proxy runs: interfaces are renamed, readdressed, removed and
//! recreated; the firewall is reloaded; a disk is full.

use crate::common::{
    Daemon, TANDEM,
    routed::{ROUTER, Routed, SERVER, echoes, ip, nft},
    skip, wait_until,
};
use std::path::Path;

/// Waits until a new connection is split, and carries bytes.
fn await_split(routed: &Routed, server: &str) {
    wait_until("a new connection is split", || {
        let before = routed.verdicts().0;
        routed.connect(server, 80).is_ok_and(|mut stream| echoes(&mut stream)) && routed.verdicts().0 > before
    });
}

#[test]
fn interfaces_can_be_renamed_and_readdressed() {
    if skip("interfaces_can_be_renamed_and_readdressed", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&[]);
    let mut flow = routed.connect(SERVER[0], 80).unwrap();
    assert!(echoes(&mut flow));
    ip(&routed.router, &["link set near down", "link set near name inward", "link set inward up"]);
    ip(&routed.router, &[&format!("addr replace {}/64 dev inward nodad", ROUTER[1])]);
    assert!(echoes(&mut flow), "a flow goes on after its interface was renamed");
    SERVER.iter().for_each(|server| await_split(&routed, server));
    // A transparent flow does not use the router's own address.
    ip(&routed.router, &["addr add 10.99.1.7/24 dev inward", "addr del 10.99.1.2/24 dev inward"]);
    ip(&routed.router, &["addr replace 10.99.1.7/24 dev inward"]);
    ip(&routed.client, &["route replace default via 10.99.1.7"]);
    assert!(echoes(&mut flow), "a flow goes on after its interface got another address");
    await_split(&routed, SERVER[0]);
}

#[test]
fn an_interface_can_be_removed_and_recreated() {
    if skip("an_interface_can_be_removed_and_recreated", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--near", "keepalive=1s", "--far", "user-timeout=3s"]);
    let mut flow = routed.connect(SERVER[0], 80).unwrap();
    assert!(echoes(&mut flow));
    ip(&routed.router, &["link del far"]);
    // Data sent now cannot be delivered: the flow ends with a reset, never with an end of file.
    assert!(!echoes(&mut flow), "the server is unreachable");
    wait_until("the flow is over", || routed.status().totals.flows == 0);
    routed.router.join(&["10.99.2.1/24", "fd99:2::1/64"], &routed.server, &["10.99.2.2/24", "fd99:2::2/64"], "far").unwrap();
    ip(&routed.server, &["route add default via 10.99.2.1", "route add ::/0 via fd99:2::1"]);
    SERVER.iter().for_each(|server| await_split(&routed, server));
}

/// As `systemctl restart nftables` does.
#[test]
fn another_program_can_reload_the_whole_rule_set() {
    if skip("another_program_can_reload_the_whole_rule_set", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&[]);
    let mut flow = routed.connect(SERVER[0], 80).unwrap();
    for policy in ["accept", "drop"] {
        let chain = format!(
            "chain forward {{ type filter hook forward priority filter; policy {policy}; iifname near accept; oifname near accept; }}"
        );
        nft(&routed.router, &format!("flush ruleset\ntable inet filter {{ {chain}\n}}\n"));
        assert!(echoes(&mut flow), "a flow goes on");
        SERVER.iter().for_each(|server| await_split(&routed, server));
    }
}

#[test]
fn a_log_on_a_full_disk_affects_no_flow() {
    if skip("a_log_on_a_full_disk_affects_no_flow", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    // Every write to it fails with ENOSPC.
    let mut proxy =
        Daemon::logging(routed.router.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000"]), Path::new("/dev/full"));
    wait_until("the proxy is up", || routed.try_status().is_some());
    for server in SERVER {
        await_split(&routed, server);
    }
    wait_until("the flows are over", || routed.status().totals.flows == 0);
    await_split(&routed, SERVER[0]);
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success(), "the proxy exits with 0");
}
