//! The experiment: a share of the connections passes unsplit, and both groups are measured.

use crate::{
    common::{
        Daemon, TANDEM,
        browser::{Browser, CHROMIUM},
        middle::{self, Middle},
        raw::{ACK, FIN, RST, RawTcp, SYN, Segment},
        routed::{Routed, SERVER, dial, echoes, ip, listen, nft},
        skip, wait_until,
    },
    takeover,
};
use intercept::PacketLog;
use lab::Host;
use proxy::{ExperimentView, GroupCounts, control::Remote};
use socket2::Socket;
use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// What a server sends for each request of one byte.
const ANSWER: usize = 20_000;

fn view(router: &Host) -> ExperimentView {
    router.enter(|| Remote::named("default").experiment().unwrap()).unwrap().expect("an experiment runs")
}

fn counts(router: &Host) -> [GroupCounts; 2] {
    let view = view(router);
    [view.groups[0].counts, view.groups[1].counts]
}

/// Serves answers on this port of every address of a host.
fn serve(host: &Host, port: u16) {
    let listener = listen(host, port);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let asked = stream.read_exact(&mut [0]).is_ok();
                asked && stream.write_all(&[7; ANSWER]).is_ok() && stream.shutdown(Shutdown::Write).is_ok() && stream.read(&mut [0]).is_ok()
            });
        }
    });
}

fn download(mut stream: TcpStream) {
    stream.write_all(b"x").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.len() == ANSWER && answer.iter().all(|byte| *byte == 7), "{} bytes", answer.len());
}

/// Starts the proxy on a router, and waits until it measures.
fn proxy(middle: &Middle, share: &str) -> Daemon {
    let daemon = Daemon::start(middle.router().command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000", "--experiment", share]));
    wait_until("the proxy is up", || middle.router().enter(|| Remote::named("default").status().is_ok()).unwrap());
    daemon
}

#[test]
fn a_share_passes_unsplit_and_both_groups_are_measured_alike() {
    if skip("a_share_passes_unsplit_and_both_groups_are_measured_alike", &["nft", "ip"]) {
        return;
    }
    const CONNECTIONS: u64 = 400;
    let middle = middle::plain();
    serve(middle.server(), 80);
    let _proxy = proxy(&middle, "1 in 4");
    let addresses = middle.addresses();
    thread::scope(|scope| {
        for worker in 0..8 {
            let (client, address) = (middle.client(), addresses[worker % 2]);
            scope.spawn(move || {
                for _ in 0..CONNECTIONS / 8 {
                    download(dial(client, &address.to_string(), 80, |_| Ok(())).unwrap());
                }
            });
        }
    });
    let router = middle.router();
    wait_until("all connections of both groups have ended", || counts(router).iter().all(|counts| counts.begun == counts.complete));
    let view = view(router);
    assert_eq!((view.one_in, view.lost, view.failure.as_deref()), (4, 0, None));
    let [unsplit, split] = &view.groups[..] else { panic!("{view:?}") };
    let counted = router.enter(|| Remote::named("default").status().unwrap()).unwrap().counted.unwrap();
    // A busy machine may retransmit SYNs, which the firewall counts again.
    assert!(counted.experiment >= unsplit.counts.begun && counted.split + counted.experiment >= CONNECTIONS, "{counted:?}");
    for group in [unsplit, split] {
        // A quarter, within five standard deviations.
        assert!((57..=143).contains(&group.counts.begun), "{group:?}");
        // The round trip of the client's link is 8 ms. A machine that is busy adds to it.
        let rtt = group.near_rtt_s.unwrap();
        assert!((0.0079..0.08).contains(&rtt), "{group:?}");
    }
    // The round trip of the server's link is 32 ms, and the proxy answers split connections itself.
    assert!((0.0319..0.32).contains(&unsplit.far_rtt_s.unwrap()) && split.far_rtt_s.is_none(), "{view:?}");
    // All destinations, and one prefix of each family; each of all sizes and of the one there is.
    let names: Vec<_> = view.rows.iter().map(|row| (row.prefix.as_deref(), row.size.as_deref())).collect();
    let [v4, v6] = addresses.map(proxy_prefix);
    let of_prefix = |prefix: &str| names.iter().filter(|(of, _)| *of == Some(prefix)).count();
    assert_eq!(
        (&names[..2], of_prefix(&v4), of_prefix(&v6), names.len()),
        (&[(None, None), (None, Some("<100kB"))][..], 2, 2, 6),
        "{names:?}"
    );
    for row in &view.rows {
        // The handshake and the request take two round trips of 40 ms. Split, the handshake takes
        // 8.
        assert!(row.unsplit_s.unwrap() > 0.0799 && row.split_s.unwrap() > 0.0479, "{row:?}");
        assert!(row.gain.is_some_and(|gain| gain.low <= gain.ratio && gain.ratio <= gain.high), "{row:?}");
    }
    let shown = router.command(TANDEM).arg("experiment").output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("<100kB") && text.contains(" × as fast (") && text.contains("1 in 4 "), "{text}");
}

/// The prefix of a destination as the view names it.
fn proxy_prefix(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{}/24", std::net::Ipv4Addr::from_bits(v4.to_bits() & !0xff)),
        IpAddr::V6(v6) => format!("{}/48", std::net::Ipv6Addr::from_bits(v6.to_bits() >> 80 << 80)),
    }
}

#[test]
fn groups_are_measured_behind_nat_and_a_stateful_firewall() {
    if skip("groups_are_measured_behind_nat_and_a_stateful_firewall", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    nft(&routed.router, super::nat::HOME_ROUTER);
    serve(&routed.server, 80);
    let _proxy = routed.configured("experiment = \"1 in 2\"\n[[rule]]\nin = \"near\"\n");
    for _ in 0..20 {
        SERVER.into_iter().for_each(|address| download(routed.connect(address, 80).unwrap()));
    }
    wait_until("all connections have a time", || counts(&routed.router).iter().map(|counts| counts.complete).sum::<u64>() == 40);
    // One of 40 groups of one kind would be a chance of 2⁻³⁹.
    assert!(counts(&routed.router).iter().all(|counts| counts.complete > 0), "{:?}", view(&routed.router));
    let rows = view(&routed.router).rows;
    assert!(rows.iter().any(|row| row.prefix.as_deref() == Some("10.99.2.0/24") && row.unsplit + row.split == 20), "{rows:?}");
}

#[test]
fn connections_of_reused_client_ports_to_the_listeners_own_port_are_measured() {
    if skip("connections_of_reused_client_ports_to_the_listeners_own_port_are_measured", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    serve(&routed.server, 5000);
    let _proxy = routed.proxy(&["--experiment", "1 in 2"]);
    // The second time, legs of the first time are in TIME_WAIT.
    for port in (20_001..20_021).chain(20_001..20_021) {
        let address = SocketAddr::new("10.99.1.1".parse().unwrap(), port);
        let bind = |socket: &Socket| {
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())
        };
        download(dial(&routed.client, SERVER[0], 5000, bind).unwrap());
    }
    wait_until("all connections have a time", || counts(&routed.router).iter().map(|counts| counts.complete).sum::<u64>() == 40);
    // 20 ports of one group would be a chance of 2⁻¹⁹.
    assert!(counts(&routed.router).iter().all(|counts| counts.complete > 0), "{:?}", view(&routed.router));
}

/// The source ports of which connections pass unsplit, by the firewall's count.
fn unsplit_ports(routed: &Routed) -> Vec<u16> {
    let passed = || routed.status().counted.unwrap().experiment;
    let is_unsplit = |port: &u16| {
        let address = SocketAddr::new("10.99.1.1".parse().unwrap(), *port);
        let prepare = |socket: &Socket| {
            // A reset at the end, so that the port can be used again.
            socket.set_linger(Some(Duration::ZERO))?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())
        };
        let before = passed();
        let mut stream = dial(&routed.client, SERVER[0], 80, prepare).unwrap();
        assert!(echoes(&mut stream));
        passed() > before
    };
    (20_001..20_041).filter(is_unsplit).collect()
}

#[test]
fn a_connection_stays_in_its_group_and_results_are_kept_over_a_hot_restart() {
    if skip("a_connection_stays_in_its_group_and_results_are_kept_over_a_hot_restart", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--experiment", "1 in 3"]);
    let before = unsplit_ports(&routed);
    // Of 40, a third: 13, with a standard deviation of 3.
    assert!((1..=28).contains(&before.len()), "{before:?}");
    let ended = |counts: [GroupCounts; 2]| counts.map(|counts| counts.reset);
    wait_until("the resets are counted", || ended(counts(&routed.router))[0] == before.len() as u64);
    let _successor = takeover::restart(&routed);
    let [kept, _] = ended(counts(&routed.router));
    assert_eq!(kept, before.len() as u64, "{}", routed.log());
    assert_eq!(unsplit_ports(&routed), before);
    // The next process reads the packet log as soon as the earlier one has left it.
    wait_until("the next process measures", || {
        unsplit_ports(&routed);
        ended(counts(&routed.router))[0] >= 2 * before.len() as u64
    });
}

#[test]
fn a_hot_restart_with_other_settings_begins_the_comparison_anew() {
    if skip("a_hot_restart_with_other_settings_begins_the_comparison_anew", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    serve(&routed.server, 80);
    let _proxy = routed.configured("experiment = \"1 in 2\"\nbuffer = \"4MiB\"");
    wait_until("both groups are measured", || {
        download(routed.connect(SERVER[1], 80).unwrap());
        counts(&routed.router).iter().all(|counts| counts.complete > 1)
    });
    routed.write("experiment = \"1 in 2\"\nbuffer = \"1MiB\"\n[[listen]]\ntransparent = \"[::]:5000\"\n");
    let _successor = takeover::restart(&routed);
    assert_eq!(counts(&routed.router).map(|counts| (counts.begun, counts.complete)), [(0, 0); 2], "{}", routed.log());
    assert!(routed.log().contains("the experiment begins anew"), "{}", routed.log());
}

#[test]
fn a_busy_packet_log_is_reported_and_tried_again() {
    if skip("a_busy_packet_log_is_reported_and_tried_again", &["nft", "ip"]) {
        return;
    }
    let middle = middle::plain();
    let router = middle.router();
    let log = router.enter(|| PacketLog::open().unwrap()).unwrap();
    let _proxy = proxy(&middle, "1 in 2");
    wait_until("it is reported", || view(router).failure.is_some_and(|why| why.contains("another process")));
    drop(log);
    wait_until("the proxy reads it", || view(router).failure.is_none());
}

#[test]
fn an_experiment_begins_and_ends_by_a_reload() {
    if skip("an_experiment_begins_and_ends_by_a_reload", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    serve(&routed.server, 80);
    let proxy = routed.configured("");
    let shown = |code: i32| routed.tandem(&["experiment"]).status.code() == Some(code);
    assert!(shown(3), "there is none");
    let configure = |text: &str| {
        routed.write(&format!("{text}\n[[listen]]\ntransparent = \"[::]:5000\"\n"));
        proxy.signal("HUP");
    };
    configure("experiment = \"1 in 2\"");
    wait_until("the experiment has begun", || shown(0));
    wait_until("both groups are measured", || {
        download(routed.connect(SERVER[1], 80).unwrap());
        counts(&routed.router).iter().all(|counts| counts.complete > 1)
    });
    configure("experiment = \"1 in 2\"\n[near]\nnot_sent = \"128KiB\"");
    wait_until("it has begun anew, with other profiles", || counts(&routed.router).iter().all(|counts| counts.begun == 0));
    configure("");
    wait_until("it has ended", || shown(3));
    let before = routed.status().counted.unwrap();
    (0..20).for_each(|_| download(routed.connect(SERVER[0], 80).unwrap()));
    let after = routed.status().counted.unwrap();
    assert_eq!((after.split, after.experiment), (before.split + 20, before.experiment), "all are split");
}

#[test]
fn the_page_shows_the_comparison_in_a_browser() {
    if skip("the_page_shows_the_comparison_in_a_browser", &["nft", "ip", CHROMIUM]) {
        return;
    }
    let routed = Routed::new();
    serve(&routed.server, 80);
    ip(&routed.router, &["link set lo up"]);
    let _proxy = routed.proxy(&["--experiment", "1 in 2", "--page", "127.0.0.1:9155"]);
    wait_until("both groups have a time", || {
        SERVER.into_iter().for_each(|address| download(routed.connect(address, 80).unwrap()));
        counts(&routed.router).iter().all(|counts| counts.complete > 3)
    });
    let browser = Browser::open(&routed.router, "http://127.0.0.1:9155/");
    browser.wait_for("the comparison is shown", "!document.getElementById('experiment-section')?.hidden");
    browser.wait_for("it has all rows", "document.querySelectorAll('#experiment tr').length === 6");
    let cells = browser.eval("[...document.querySelectorAll('#experiment tr')[0].cells].map(cell => cell.textContent)");
    let cells: Vec<&str> = cells.as_array().unwrap().iter().map(|cell| cell.as_str().unwrap()).collect();
    assert!(cells[0] == "all" && cells[1] == "all" && cells[6].contains(" … ") && !cells[7].is_empty(), "{cells:?}");
    let bar = browser.eval("document.querySelector('#experiment .interval b').getBoundingClientRect().width");
    assert!(bar.as_f64().unwrap() > 0.0);
    let state = browser.eval("document.getElementById('experiment-state').textContent");
    assert!(state.as_str().unwrap().starts_with("1 in 2 connections passes unsplit. unsplit: "), "{state}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// Prefixes of honest clients, of which each has two.
const PREFIXES: u8 = 6;

/// Honest downloads of many clients.
fn honest_downloads(routed: &Routed, each: usize) {
    for host in (0..PREFIXES).flat_map(|net| [1, 2].map(|host| Ipv4Addr::new(10, 60 + net, 0, host))) {
        for _ in 0..each {
            download(dial(&routed.client, SERVER[0], 80, |socket| socket.bind(&SocketAddr::new(host.into(), 0).into())).unwrap());
        }
    }
}

/// What raw connections of a client tell to get a short time when they pass unsplit, and a long
/// one when they are split: they see it by the time to live of the answer to their SYN. Each
/// acknowledges five megabytes that were not sent, and closes.
fn forge(raw: &RawTcp, to: SocketAddrV4, ports: std::ops::Range<u16>) {
    const CLAIMED: u32 = 5_000_000;
    let from = |port| SocketAddrV4::new(Ipv4Addr::new(10, 99, 1, 1), port);
    let send = |port: u16, seq, ack, flags, payload: &[u8]| raw.send(&Segment { from: from(port), to, seq, ack, flags, payload });
    let isn = |port: u16| u32::from(port) << 16;
    let mut open: HashMap<u16, (u32, bool)> = HashMap::new();
    for chunk in ports.collect::<Vec<_>>().chunks(50) {
        chunk.iter().for_each(|port| send(*port, isn(*port), 0, SYN, &[]));
        let deadline = Instant::now() + Duration::from_secs(30);
        while chunk.iter().any(|port| !open.contains_key(port)) {
            let got = raw.receive(deadline).expect("all SYNs are answered");
            if got.from == to && got.flags & (SYN | ACK) == SYN | ACK && chunk.contains(&got.to.port()) {
                open.insert(got.to.port(), (got.seq, got.ttl == 64));
            }
        }
    }
    for is_split in [false, true] {
        let ports: Vec<(u16, u32)> = open.iter().filter(|(_, of)| of.1 == is_split).map(|(port, (seq, _))| (*port, *seq)).collect();
        assert!(ports.len() > 50, "{} of one kind", ports.len());
        if is_split {
            thread::sleep(Duration::from_secs(1));
        }
        for (port, server) in &ports {
            send(*port, isn(*port) + 1, server.wrapping_add(1), ACK, &[]);
            send(*port, isn(*port) + 1, server.wrapping_add(1 + CLAIMED), ACK, &[]);
            send(*port, isn(*port) + 1, server.wrapping_add(1), ACK | FIN, &[]);
        }
        // The other end closes too, which completes the connection for an observer.
        thread::sleep(Duration::from_millis(300));
        ports.iter().for_each(|(port, server)| send(*port, isn(*port) + 2, server.wrapping_add(2), ACK, &[]));
    }
}

/// A server that knows what its clients claim, and claims the same, without any data.
fn collude(raw: &RawTcp, port: u16, is_over: &AtomicBool) {
    while !is_over.load(Relaxed) {
        let Some(got) = raw.receive(Instant::now() + Duration::from_millis(200)).filter(|got| got.to.port() == port) else { continue };
        let answer = |seq, ack, flags| raw.send(&Segment { from: got.to, to: got.from, seq, ack, flags, payload: &[] });
        match got.flags & (SYN | FIN | RST) {
            SYN => answer(1000, got.seq.wrapping_add(1), SYN | ACK),
            FIN => answer(got.ack, got.seq.wrapping_add(got.payload + 1), FIN | ACK),
            _ => {}
        }
    }
}

#[test]
fn forged_packets_decide_nothing() {
    if skip("forged_packets_decide_nothing", &["nft", "ip"]) {
        return;
    }
    const FORGED: u64 = 400;
    let routed = Routed::new();
    for net in 0..PREFIXES {
        ip(&routed.client, &[&format!("addr add 10.{}.0.1/24 dev lo", 60 + net), &format!("addr add 10.{}.0.2/24 dev lo", 60 + net)]);
        ip(&routed.router, &[&format!("route add 10.{}.0.0/24 via 10.99.1.1", 60 + net)]);
    }
    // Neither host resets the connections of its raw sockets.
    for host in [&routed.client, &routed.server] {
        let rule = "tcp flags & rst == rst tcp sport { 81, 20000-29999 } drop";
        nft(host, &format!("table inet quiet {{\n chain out {{\n type filter hook output priority 0\n {rule}\n }}\n}}\n"));
    }
    serve(&routed.server, 80);
    let _proxy = routed.proxy(&["--experiment", "1 in 2"]);
    honest_downloads(&routed, 12);
    let honest = u64::from(PREFIXES) * 2 * 12;
    let complete = || counts(&routed.router).iter().map(|counts| counts.complete).sum::<u64>();
    wait_until("all honest connections have a time", || complete() == honest);
    let before = view(&routed.router).rows;
    // Two clients may have one place of the table.
    assert!(before[0].clients >= 8 && before[0].client_prefixes >= 4, "{:?}", before[0]);
    assert!(before[0].gain.is_some_and(|gain| gain.ratio > 0.2 && gain.ratio < 5.0), "{:?}", before[0]);

    let (client, server) = (RawTcp::new(&routed.client), RawTcp::new(&routed.server));
    forge(&client, SocketAddrV4::new(SERVER[0].parse().unwrap(), 80), 20_000..20_200);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| collude(&server, 81, &is_over));
        forge(&client, SocketAddrV4::new(SERVER[0].parse().unwrap(), 81), 20_200..20_400);
        is_over.store(true, Relaxed);
    });
    let suspicious = || counts(&routed.router).iter().map(|counts| counts.suspicious).sum::<u64>();
    wait_until("all forged connections are suspicious", || suspicious() == FORGED);
    let after = view(&routed.router).rows;
    assert_eq!((complete(), &after[0].gain, after.len()), (honest, &before[0].gain, before.len()), "{:?}", after[0]);
    println!("before: {:?}\nafter: {:?}", before[0], after[0]);
    let shown = String::from_utf8(routed.tandem(&["experiment"]).stdout).unwrap();
    assert!(shown.contains(" suspicious"), "{shown}");
}
