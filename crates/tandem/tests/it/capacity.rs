//! Links with a configured capacity: Tandem's own controllers, the shaper and the monitor, and
//! their removal.

use crate::common::{
    routed::{Routed, SERVER, echoes},
    skip, wait_until,
};
use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Instant,
};

/// Returns whether this machine cannot load controllers, and reports the reason.
fn no_controllers(test: &str) -> bool {
    match kernel::load("reno", &[]) {
        Ok(_) => false,
        Err(why) => {
            testing::skipped(test, &why);
            true
        }
    }
}

/// Starts a server that reads one connection to its end; returns its rate after the first 500 kB,
/// bit/s.
fn gauge(routed: &Routed, port: u16) -> thread::JoinHandle<f64> {
    let listener = routed.server.enter(|| TcpListener::bind((SERVER[0], port)).unwrap()).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 16];
        let (mut total, mut since) = (0usize, None);
        loop {
            let n = stream.read(&mut buffer).unwrap_or(0);
            if n == 0 {
                break;
            }
            total += n;
            if total > 500_000 {
                since.get_or_insert((Instant::now(), total));
            }
        }
        let (since, before) = since.expect("half a megabyte came");
        (total - before) as f64 * 8.0 / since.elapsed().as_secs_f64()
    })
}

/// Sends 4 MB through the router; returns the rate of arrival, bit/s.
fn rate(routed: &Routed, port: u16) -> f64 {
    let rate = gauge(routed, port);
    let mut stream = routed.connect(SERVER[0], port).unwrap();
    stream.write_all(&vec![7; 4_000_000]).unwrap();
    drop(stream);
    rate.join().unwrap()
}

#[test]
fn legs_keep_to_their_capacity_and_leave_nothing_behind() {
    let test = "legs_keep_to_their_capacity_and_leave_nothing_behind";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let before = routed.traces();
    for controller in ["share", "xcp", "mpcp"] {
        let weight = if controller == "share" { ",weight=3" } else { "" };
        let far = format!("control={controller},capacity=20Mbit,link=far{weight}");
        let mut proxy = routed.proxy(&["--far", &far]);
        let got = rate(&routed, 80);
        // 96.5 % of 20 Mbit/s of IP is payload. A slow machine lowers the rate only.
        assert!(got < 20e6, "{controller}: {got}");
        let links = routed.status().links;
        assert_eq!((links.len(), links[0].link.as_str(), links[0].capacity_bps), (1, "far", 20_000_000), "{links:?}");
        assert!(routed.traces()[4].contains("htb 7a6d:"), "{}", routed.traces()[4]);
        proxy.signal("TERM");
        assert!(proxy.0.wait().unwrap().success());
        assert_eq!(routed.traces(), before, "after {controller}");
    }
}

#[test]
fn the_shaper_of_a_killed_proxy_has_no_effect_and_is_reused() {
    let test = "the_shaper_of_a_killed_proxy_has_no_effect_and_is_reused";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let before = routed.traces();
    let arguments = ["--far", "control=share,capacity=5Mbit,link=far"];
    let mut proxy = routed.proxy(&arguments);
    assert!(rate(&routed, 80) < 5e6);
    proxy.0.kill().unwrap();
    proxy.0.wait().unwrap();
    // The kernel removes the rules a moment later; then connections pass unsplit, at the speed of
    // the link.
    wait_until("traffic passes unsplit, without the shaper", || rate(&routed, 81) > 20e6);
    let mut proxy = routed.proxy(&arguments);
    assert!(rate(&routed, 82) < 5e6);
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(routed.traces(), before);
}

#[test]
fn a_capacity_can_change_during_flows() {
    let test = "a_capacity_can_change_during_flows";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let text = |rate: &str| {
        format!("[far]\ncontrol = \"share\"\ncapacity = \"{rate}\"\nlink = \"far\"\n[[listen]]\ntransparent = \"[::]:5000\"\n")
    };
    let proxy = routed.configured(text("20Mbit").trim_end_matches("[[listen]]\ntransparent = \"[::]:5000\"\n"));
    routed.echo(90);
    let mut stream = routed.connect(SERVER[0], 90).unwrap();
    assert!(echoes(&mut stream));
    routed.write(&text("3Mbit"));
    proxy.signal("HUP");
    wait_until("the capacity has changed", || routed.status().links.iter().any(|link| link.capacity_bps == 3_000_000));
    assert!(echoes(&mut stream), "an existing flow continues");
    assert!(rate(&routed, 80) < 3e6);
}

#[test]
fn an_invalid_capacity_is_an_error_at_start() {
    let test = "an_invalid_capacity_is_an_error_at_start";
    if skip(test, &["nft", "ip"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    for (far, said) in [
        (
            "control=share",
            "far leg: control = \"share\" divides the capacity of the link, which is not configured: add capacity = \"10Mbit\"",
        ),
        ("control=share,capacity=10Mbit", "far leg: cannot tell which link has capacity = \"10Mbit\":"),
        ("control=share,capacity=10Mbit,link=nosuch", "far leg: there is no interface \"nosuch\""),
        ("control=xcp,capacity=10Mbit,link=far,weight=3", "far leg: weight = 3 has no effect: only control = \"share\""),
        ("control=share,capacity=10Mbit,link=far,weight=0", "weight"),
        ("control=sharp,capacity=10Mbit", "there is no congestion controller \"sharp\": the kernel has "),
    ] {
        let output = routed.tandem(&["proxy", "--listen", "transparent=[::]:5000", "--far", far]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{far}: {error}");
    }
}
