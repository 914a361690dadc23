//! Paths with a smaller MTU than the proxy's interfaces, with and without ICMP errors.

use crate::common::{
    Daemon, TANDEM,
    routed::{Beyond, Counter, DISTANT, Routed, SERVER, dial, ip, listen, netstat},
    skip, wait_until,
};
use lab::Host;
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

/// nftables condition for the ICMP error on a packet that is too big.
const TOO_BIG: &str = "icmp type destination-unreachable icmp code frag-needed";
const TOO_BIG_V6: &str = "icmpv6 type packet-too-big";

/// More than all buffers of the path hold while the other end does not read.
const LENGTH: usize = 16_000_000;

fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|number| (number % 251) as u8).collect()
}

/// Sends [`bytes`] from one end and back from the other, and compares them. `halfway` is called
/// when a part has arrived and the rest is in flight or queued.
fn there_and_back(mut client: TcpStream, server: &TcpListener, halfway: impl FnOnce()) {
    let (mut accepted, _) = server.accept().unwrap();
    let ((tell, told), (go_on, waiting)) = (mpsc::channel(), mpsc::channel::<()>());
    let echo = thread::spawn(move || {
        let mut all = vec![0; LENGTH];
        accepted.read_exact(&mut all[..LENGTH / 4])?;
        let _ = (tell.send(()), waiting.recv());
        accepted.read_exact(&mut all[LENGTH / 4..])?;
        accepted.write_all(&all)
    });
    let mut sender = client.try_clone().unwrap();
    let send = thread::spawn(move || sender.write_all(&bytes()).and_then(|()| sender.shutdown(Shutdown::Write)));
    told.recv().unwrap();
    halfway();
    drop(go_on);
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    send.join().unwrap().unwrap();
    echo.join().unwrap().unwrap();
    assert!(back == bytes(), "data came back changed");
}

fn set_mtu(host: &Host, device: &str, mtu: u16) {
    ip(host, &[&format!("link set {device} mtu {mtu}")]);
}

/// Creates the router and the hosts beyond it; the last link has this MTU.
fn beyond(mtu: u16) -> (Routed, Beyond) {
    let routed = Routed::new();
    let beyond = Beyond::new(&routed, mtu);
    (routed, beyond)
}

#[test]
fn the_far_leg_discovers_a_smaller_path_mtu() {
    if skip("the_far_leg_discovers_a_smaller_path_mtu", &["nft", "ip"]) {
        return;
    }
    let (routed, beyond) = beyond(1300);
    let server = listen(&beyond.server, 80);
    let _proxy = routed.proxy(&[]);
    for address in DISTANT {
        there_and_back(routed.connect(address, 80).unwrap(), &server, || {});
    }
    let totals = routed.status().totals;
    assert_eq!((totals.up, totals.down), (2 * LENGTH as u64, 2 * LENGTH as u64), "through the proxy");
    assert_eq!(netstat(&routed.router, "TCPMTUPSuccess"), 0, "the far leg learned the MTU from ICMP");
}

#[test]
fn both_legs_work_across_a_path_mtu_black_hole() {
    if skip("both_legs_work_across_a_path_mtu_black_hole", &["nft", "ip"]) {
        return;
    }
    let (routed, beyond) = beyond(1300);
    let silent = [TOO_BIG, TOO_BIG_V6].map(|condition| Counter::dropping(&beyond.gate, "output", condition));
    let servers = (listen(&beyond.server, 80), listen(&routed.server, 80));
    let _proxy = routed.proxy(&[]);
    for (far, near) in DISTANT.into_iter().zip(SERVER) {
        // The far leg sends into the narrow path …
        there_and_back(routed.connect(far, 80).unwrap(), &servers.0, || {});
        // … and the near leg, with the client behind it.
        there_and_back(dial(&beyond.server, near, 80, |_| Ok(())).unwrap(), &servers.1, || {});
    }
    assert_eq!(routed.verdicts().0, 4, "all were split");
    silent.iter().for_each(|dropped| assert_ne!(dropped.packets(), 0, "the gate dropped no ICMP error"));
}

#[test]
fn the_path_mtu_can_shrink_during_a_connection() {
    if skip("the_path_mtu_can_shrink_during_a_connection", &["nft", "ip"]) {
        return;
    }
    let (routed, beyond) = beyond(1500);
    let server = listen(&beyond.server, 80);
    let _proxy = routed.proxy(&[]);
    for (silent, mtu) in [(false, 1400), (true, 1300)] {
        let _silence = silent.then(|| [TOO_BIG, TOO_BIG_V6].map(|condition| Counter::dropping(&beyond.gate, "output", condition)));
        for address in DISTANT {
            set_mtu(&beyond.gate, "last", 1500);
            let client = routed.connect(address, 80).unwrap();
            there_and_back(client, &server, || set_mtu(&beyond.gate, "last", mtu));
        }
    }
    assert_eq!(routed.verdicts().0, 4, "all were split");
}

#[test]
fn each_leg_uses_the_mss_of_its_interface() {
    if skip("each_leg_uses_the_mss_of_its_interface", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    // A GRE tunnel between the router and the server if the kernel has GRE, else a link with its
    // MTU, which is all that TCP sees of a tunnel.
    let tunnel = |host: &Host, own: &str, other: &str| {
        let add = format!("link add tunnel type gre local {own} remote {other}");
        host.command("ip").args(add.split(' ')).status().unwrap().success()
    };
    let server = "10.99.5.2";
    if tunnel(&routed.router, "10.99.2.1", SERVER[0]) {
        assert!(tunnel(&routed.server, SERVER[0], "10.99.2.1"));
        ip(&routed.router, &["address add 10.99.5.1/24 dev tunnel", "link set tunnel up"]);
        ip(&routed.server, &["address add 10.99.5.2/24 dev tunnel", "link set tunnel up", "route replace default via 10.99.5.1"]);
    } else {
        set_mtu(&routed.router, "far", 1420);
        ip(&routed.router, &["route add 10.99.5.2 via 10.99.2.2"]);
        ip(&routed.server, &["address add 10.99.5.2/32 dev lo", "link set lo up"]);
        ip(&routed.server, &["route replace default via 10.99.2.1 mtu 1420"]);
    }
    let listener = listen(&routed.server, 80);
    let _proxy = routed.proxy(&[]);
    let _silence = Counter::dropping(&routed.router, "output", TOO_BIG);
    there_and_back(routed.connect(server, 80).unwrap(), &listener, || {});
    assert_eq!(routed.verdicts().0, 1);
    assert_eq!(netstat(&routed.router, "TCPTimeouts"), 0, "no segment was too big");
}

fn setting(routed: &Routed, name: &str) -> String {
    let output = routed.router.command("cat").arg(format!("/proc/sys/net/ipv4/{name}")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

fn end(mut proxy: Daemon) {
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
}

#[test]
fn kernel_settings_are_restored_by_the_last_proxy_and_after_a_kill() {
    if skip("kernel_settings_are_restored_by_the_last_proxy_and_after_a_kill", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let probing = || setting(&routed, "tcp_mtu_probing");
    assert_eq!(probing(), "0");
    let first = routed.proxy(&[]);
    let second = Daemon::logging(
        routed.router.command(TANDEM).args(["proxy", "--name", "second", "--listen", "forward=127.0.0.1:5001=10.99.2.2:80"]),
        &routed.path("second"),
    );
    wait_until("the second is up", || routed.tandem(&["flows", "--name", "second"]).status.success());
    assert_eq!(probing(), "1");
    end(first);
    assert_eq!(probing(), "1", "the second needs it");
    end(second);
    assert_eq!(probing(), "0");

    let mut killed = routed.proxy(&[]);
    assert!(routed.tandem(&["bypass", "add", "192.0.2.0/24"]).status.success());
    assert_eq!((probing().as_str(), setting(&routed, "tcp_early_demux").as_str()), ("1", "0"));
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert_eq!((probing().as_str(), setting(&routed, "tcp_early_demux").as_str()), ("1", "0"), "after a kill the settings remain");
    let next = routed.proxy(&[]);
    assert_eq!((probing().as_str(), setting(&routed, "tcp_early_demux").as_str()), ("1", "1"));
    end(next);
    assert_eq!(probing(), "0");

    assert!(routed.router.command("sysctl").args(["-qw", "net.ipv4.tcp_mtu_probing=2"]).status().unwrap().success());
    let _other = routed.proxy(&[]);
    assert_eq!(probing(), "2", "the operator's own choice");
}
