//! Links with a configured capacity: Tandem's own controllers, the shaper and the monitor, and
//! their removal.

use crate::common::{
    routed::{Beyond, DISTANT, Routed, SERVER, echoes},
    skip, wait_until,
};
use lab::Host;
use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
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

/// Starts a server on a host that reads one connection to its end; returns its rate after the first
/// 500 kB, bit/s.
fn gauge(host: &Host, address: &str, port: u16) -> thread::JoinHandle<f64> {
    let listener = host.enter(|| TcpListener::bind((address, port)).unwrap()).unwrap();
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
    rate_to(routed, &routed.server, SERVER[0], port)
}

/// The same to this host.
fn rate_to(routed: &Routed, host: &Host, address: &str, port: u16) -> f64 {
    let rate = gauge(host, address, port);
    let mut stream = routed.connect(address, port).unwrap();
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
fn a_capacity_in_a_file_is_followed_and_the_last_one_stays() {
    let test = "a_capacity_in_a_file_is_followed_and_the_last_one_stays";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let file = routed.path("modem");
    fs::write(&file, "# ACM\n20Mbit\n").unwrap();
    let far = format!("control=share,capacity={{file={:?}}},link=far", file.display().to_string());
    let _proxy = routed.proxy(&["--far", &far]);
    // Where the machine was late, share may have estimated less meanwhile.
    let capacity = || {
        let link = &routed.status().links[0];
        link.configured_bps.unwrap_or(link.capacity_bps)
    };
    assert_eq!(capacity(), 20_000_000);
    fs::write(&file, "3000000").unwrap();
    wait_until("the proxy has read the file", || capacity() == 3_000_000);
    assert!(rate(&routed, 80) < 3e6);
    // What is no rate changes nothing.
    fs::write(&file, "no carrier").unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(capacity(), 3_000_000);
    fs::write(&file, "4Mbit").unwrap();
    wait_until("the proxy has read the file again", || capacity() == 4_000_000);
}

/// What a modem does that connects again.
#[test]
fn an_interface_that_is_created_again_has_its_capacity_again() {
    let test = "an_interface_that_is_created_again_has_its_capacity_again";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let create = |name: &str| {
        let line = format!("link add {name} type veth peer name peer-{name}");
        routed.router.ip(&[line, format!("link set {name} up"), format!("link set peer-{name} up")]).unwrap();
    };
    let shaped = || {
        let links = routed.status().links.into_iter().filter(|link| link.shaped);
        links.map(|link| (link.link, link.capacity_bps)).collect::<Vec<_>>()
    };
    create("ppp0");
    let text = "threads = 1\n[[leg]]\ninterface = \"ppp*\"\ncontrol = \"share\"\ncapacity = \"5Mbit\"\n";
    let mut proxy = routed.configured(text);
    let first = vec![("ppp0".to_owned(), 5_000_000)];
    assert_eq!(shaped(), first);
    for _ in 0..2 {
        routed.router.ip(&["link del ppp0".into()]).unwrap();
        wait_until("the link has gone with its interface", || routed.status().links.is_empty());
        create("ppp0");
        wait_until("the link is back", || shaped() == first);
    }
    create("ppp1");
    wait_until("the second interface of the pattern has its capacity", || shaped().len() == 2);
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    let left = routed.router.command("tc").args(["qdisc", "show"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains("7a6d:"), "{left:?}");
}

#[test]
fn an_unknown_capacity_is_estimated() {
    let test = "an_unknown_capacity_is_estimated";
    if skip(test, &["nft", "ip", "tc"]) || no_controllers(test) {
        return;
    }
    let routed = Routed::new();
    let beyond = Beyond::new(&routed, 1500);
    // The bottleneck is a hop further on, where the proxy sees nothing of it.
    let tc = ["qdisc", "add", "dev", "last", "root", "tbf", "rate", "10mbit", "burst", "5000", "latency", "1s"];
    assert!(beyond.gate.command("tc").args(tc).status().unwrap().success());
    let mut proxy = routed.proxy(&["--far", "control=share,capacity=auto,link=wide"]);
    assert!(!routed.traces()[4].contains("htb 7a6d:"), "nothing is shaped");
    let got = rate_to(&routed, &beyond.server, DISTANT[0], 80);
    assert!((8e6..10e6).contains(&got), "{got}");
    let links = routed.status().links;
    assert!(links[0].estimated && !links[0].shaped, "{links:?}");
    assert!((8_500_000..12_000_000).contains(&links[0].capacity_bps), "{links:?}");
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
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
        ("control=share,capacity=auto", "far leg: cannot tell which link has capacity = \"auto\":"),
        ("control=xcp,capacity=auto,link=far", "far leg: control = \"xcp\" cannot estimate a capacity: write the link's rate"),
        ("control=bbr,capacity=auto,link=far", "far leg: capacity = \"auto\" has no effect without control = \"share\""),
        ("control=share,capacity=auto,link=far,shape=true", "far leg: shape = true does not go with capacity = \"auto\""),
        (
            "control=share,capacity={file=\"/nonexistent/rate\"},link=far",
            "far: cannot take the capacity from /nonexistent/rate: No such file or directory (os error 2); correct the path",
        ),
        ("control=sharp,capacity=10Mbit", "there is no congestion controller \"sharp\": the kernel has "),
    ] {
        let output = routed.tandem(&["proxy", "--listen", "transparent=[::]:5000", "--far", far]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{far}: {error}");
    }
}
