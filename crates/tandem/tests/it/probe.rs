//! `tandem detect probe` against hosts behind several middleboxes, from one end, and from both ends
//! with `tandem detect respond`. It finds and locates splitting, and reports no false positives.

use crate::common::{
    Daemon, TANDEM,
    middle::{Interceptor, filtered, plain, proxied},
    routed::nft,
    skip, wait_until,
};
use lab::Host;
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Returns the JSON of a probe that ran to its end.
fn probed(output: &Output) -> Value {
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"))
}

/// Returns its rows as text: port, application, direction, verdict.
fn rows(probed: &Value) -> Vec<String> {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("").to_string();
    let all = probed["rows"].as_array().unwrap().iter();
    all.map(|row| format!("{} {} {}: {}", row["port"], word(row, "application"), word(row, "direction"), word(row, "verdict"))).collect()
}

/// Asserts that `probed` has these rows.
fn assert_rows(probed: &Value, expected: &[&str]) {
    let evidence = |row: &Value| format!("{:#}", row["evidence"]);
    let all: Vec<String> = probed["rows"].as_array().unwrap().iter().map(evidence).collect();
    assert_eq!(rows(probed), expected, "{}", all.join("\n"));
}

fn hop(probed: &Value, row: usize) -> Option<u64> {
    probed["rows"][row]["place"]["hop"].as_u64()
}

#[test]
fn a_one_ended_probe_of_a_plain_server_and_of_a_proxy() {
    if skip("a_one_ended_probe_of_a_plain_server_and_of_a_proxy", &["nft", "ip", "setpriv"]) {
        return;
    }
    // No server listens on port 443.
    let middles = [
        (plain(), ["80 any : end-to-end", "443 any : cannot tell"], None),
        (proxied(), ["80 any : split-tcp", "443 any : split-tcp"], Some(1)),
        (plain().with(Interceptor::Relays, "80"), ["80 any : split-tcp", "443 any : cannot tell"], Some(1)),
    ];
    for (middle, expected, place) in &middles {
        middle.pages();
        for prefix in [&[][..], &NOBODY] {
            let output = middle.probe(prefix, &["--ports", "80,443", "--json"]);
            let probed = probed(&output);
            assert_rows(&probed, expected);
            assert_eq!(hop(&probed, 0), *place, "{:#}", probed["rows"][0]);
            let missing = probed["rows"][0]["missing"].to_string();
            assert_eq!(missing.contains("could not open a packet socket"), !prefix.is_empty(), "{missing}");
        }
    }
    // Over IPv6.
    for (middle, expected, status) in [(&middles[0].0, "cannot tell", 3), (&middles[1].0, "split-tcp", 0)] {
        let address = middle.addresses()[1].to_string();
        let output = middle.client().command(TANDEM).args(["detect", "probe", &address, "--ports", "443"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn with_filtered_icmp_a_splitter_shows_by_its_port() {
    const TEST: &str = "with_filtered_icmp_a_splitter_shows_by_its_port";
    if skip(TEST, &["nft", "ip", "haproxy"]) {
        return;
    }
    for first_answers in [true, false] {
        let middle = filtered(first_answers);
        middle.pages();
        let probe = || probed(&middle.probe(&[], &["--ports", "80", "--json"]));
        // A plain path, of which only the distance at which ports answer is known.
        let begun = Instant::now();
        assert_rows(&probe(), &["80 any : cannot tell"]);
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        let directory = tempfile::tempdir().unwrap();
        let _haproxy = middle.haproxy(directory.path());
        let split = probe();
        assert_rows(&split, &["80 any : split-tcp"]);
        assert_eq!(hop(&split, 0), Some(2), "{:#}", split["rows"][0]);
        let reason = split["rows"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("answers from 2 hops away and") && reason.contains("sooner, port"), "{reason}");
    }
}

#[test]
fn with_filtered_icmp_neither_nat_nor_a_syn_proxy_is_reported_as_split() {
    const TEST: &str = "with_filtered_icmp_neither_nat_nor_a_syn_proxy_is_reported_as_split";
    if skip(TEST, &["nft", "ip"]) {
        return;
    }
    let middle = filtered(false);
    middle.pages();
    let [server, client] = [middle.addresses()[0], middle.client_addresses()[0]];
    let is_no_split = |what: &str| {
        let probed = probed(&middle.probe(&[], &["--ports", "80", "--json"]));
        let row = &probed["rows"][0];
        assert_eq!(row["verdict"], "cannot tell", "{what}: {row:#}");
        row["evidence"].to_string()
    };
    let nat = format!(
        "table ip nat {{\n chain post {{\n type nat hook postrouting priority srcnat\n ip saddr {client} ip daddr {server} masquerade\n }}\n}}\n"
    );
    nft(middle.router(), &nat);
    is_no_split("address translation");
    nft(middle.router(), "delete table ip nat\n");
    // The first router answers SYNs to port 80 on behalf of the server.
    nft(
        middle.router(),
        "table ip guard {\n chain pre {\n type filter hook prerouting priority raw\n tcp dport 80 tcp flags syn notrack\n }\n \
         chain pass {\n type filter hook forward priority 0\n \
         tcp dport 80 ct state { invalid, untracked } synproxy mss 1460 wscale 7 timestamp sack-perm\n ct state invalid drop\n }\n}\n",
    );
    middle.router().sysctl(&[("netfilter/nf_conntrack_tcp_loose", "0".into())]).unwrap();
    let evidence = is_no_split("a SYN proxy");
    assert!(evidence.contains("answers from 2 hops away") && evidence.contains("refuses from 3"), "{evidence}");
}

#[test]
fn a_forwarding_router_is_not_reported_as_split() {
    if skip("a_forwarding_router_is_not_reported_as_split", &["nft", "ip"]) {
        return;
    }
    let middle = plain();
    let _responder = middle.responder(&[], &["--ports", "80,21,5001"]);
    let probed = probed(&middle.probe(&[], &["--responder", "--ports", "80,21,5001", "--json"]));
    let expected = [
        "80 HTTP data down: end-to-end",
        "80 HTTP data up: end-to-end",
        "80 HTTP image down: end-to-end",
        "80 HTTP image up: end-to-end",
        "21 FTP down: end-to-end",
        "21 FTP up: end-to-end",
        "5001 TCP down: end-to-end",
        "5001 TCP up: end-to-end",
    ];
    assert_rows(&probed, &expected);
    // The control connection measures the RTT, 40 ms.
    let round_trip = probed["clocks"]["round_trip_s"].as_f64().unwrap();
    assert!((0.040..0.080).contains(&round_trip), "{round_trip}");
    // Method 3 ran: no ACK arrived before the receiver read data.
    let rows = probed["rows"].as_array().unwrap();
    let held = |row: &Value| {
        row["evidence"].as_array().unwrap().iter().any(|piece| piece["method"] == "method-3" && piece["says"] == "end-to-end")
    };
    assert!(rows.iter().all(held), "{probed:#}");
    assert!(rows.iter().all(|row| row["missing"] == Value::Array(Vec::new())), "{probed:#}");
}

#[test]
fn the_proxy_is_detected_for_each_application_and_evidence_is_saved() {
    if skip("the_proxy_is_detected_for_each_application_and_evidence_is_saved", &["nft", "ip"]) {
        return;
    }
    let middle = proxied();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("evidence.json");
    let _responder = middle.responder(&[], &["--ports", "80,21,5001", "--token", "open sesame"]);
    let arguments = ["--responder", "--ports", "80,21,5001", "--json", "--token", "open sesame", "--evidence", file.to_str().unwrap()];
    let probed = probed(&middle.probe(&[], &arguments));
    let expected = [
        "80 HTTP data down: split-tcp",
        "80 HTTP data up: split-tcp",
        "80 HTTP image down: split-tcp",
        "80 HTTP image up: split-tcp",
        "21 FTP down: split-tcp",
        "21 FTP up: split-tcp",
        "5001 TCP down: split-tcp",
        "5001 TCP up: split-tcp",
    ];
    assert_rows(&probed, &expected);
    assert!((0..8).all(|row| hop(&probed, row) == Some(1)), "{probed:#}");
    // The evidence file has the report, and traces from which `detect trace` gives the same
    // verdict.
    let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!((&kept["format"], &kept["probed"]["rows"]), (&Value::from("tandem-probe-1"), &probed["rows"]));
    let trace = |end: &str| {
        let text = kept["traces"][end].as_str().unwrap();
        let bytes: Vec<u8> = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
        let path = directory.path().join(format!("{end}.pcap"));
        fs::write(&path, bytes).unwrap();
        path
    };
    let traced = Command::new(TANDEM)
        .args(["detect", "trace", "--json", "--sender"])
        .arg(trace("prober"))
        .arg("--receiver")
        .arg(trace("responder"))
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&traced.stdout).unwrap();
    let both: Vec<&Value> = found.as_array().unwrap().iter().filter(|one| !one["matched_by"].is_null()).collect();
    assert!(both.len() >= 16 && both.iter().all(|one| one["verdict"] != "end-to-end"), "{found:#}");
    assert_eq!(both[0]["verdict"], "split-tcp", "{:#}", both[0]);
    // A wrong token is rejected with an error.
    let refused = middle.probe(&[], &["--responder", "--token", "open barley"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("will not help: the token is wrong"), "{refused:?}");
}

#[test]
fn middleboxes_can_differ_by_port() {
    if skip("middleboxes_can_differ_by_port", &["nft", "ip"]) {
        return;
    }
    // A setup like that of Table I of Wei et al.
    let middle = plain().with(Interceptor::Stores, "5001").with(Interceptor::Caches, "80").with(Interceptor::Relays, "5002");
    let _responder = middle.responder(&[], &["--ports", "80,21,5001,5002"]);
    let probed = probed(&middle.probe(&[], &["--responder", "--ports", "80,21,5001,5002", "--json"]));
    let expected = [
        "80 HTTP data down: tcp-proxy",
        "80 HTTP data up: split-tcp",
        "80 HTTP image down: tcp-proxy",
        "80 HTTP image up: split-tcp",
        "21 FTP down: end-to-end",
        "21 FTP up: end-to-end",
        "5001 TCP down: tcp-proxy",
        "5001 TCP up: tcp-proxy",
        "5002 TCP down: split-tcp",
        "5002 TCP up: split-tcp",
    ];
    assert_rows(&probed, &expected);
    let said = |row: usize, method: &str| {
        let pieces = probed["rows"][row]["evidence"].as_array().unwrap().iter();
        pieces
            .filter(|piece| piece["method"] == method && piece["says"] != "nothing")
            .map(|piece| piece["text"].to_string())
            .collect::<String>()
    };
    assert!(said(0, "cache").contains("the responder was not asked"), "{:#}", probed["rows"][0]);
    assert!(said(1, "payload").contains("Via: 1.1 middle"), "{:#}", probed["rows"][1]);
}

#[test]
fn without_root_the_remaining_methods_give_a_verdict() {
    if skip("without_root_the_remaining_methods_give_a_verdict", &["nft", "ip", "setpriv"]) {
        return;
    }
    for (middle, verdict) in [(plain(), "end-to-end"), (plain().with(Interceptor::Relays, "5001"), "split-tcp")] {
        let _responder = middle.responder(&NOBODY, &["--ports", "5001"]);
        let probed = probed(&middle.probe(&NOBODY, &["--responder", "--ports", "5001", "--json"]));
        assert_rows(&probed, &[&format!("5001 TCP down: {verdict}"), &format!("5001 TCP up: {verdict}")]);
        let missing = probed["rows"][0]["missing"].to_string();
        assert!(missing.contains("a trace at the responder") && missing.contains("a trace at the prober"), "{missing}");
    }
}

/// Returns everything that a probe could leave behind on a host.
fn left(host: &Host) -> Vec<String> {
    let output = |program: &str, arguments: &[&str]| {
        let output = host.command(program).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    vec![
        output("nft", &["-s", "list", "ruleset"]),
        output("ip", &["rule"]),
        output("ip", &["-6", "rule"]),
        output("ip", &["route", "show", "table", "all"]),
        output("ip", &["-brief", "link"]),
        output("ip", &["-brief", "address"]),
        // Packet sockets, raw sockets, listeners.
        output("ss", &["-Hlnat0uw", "state", "all", "exclude", "time-wait"]),
    ]
}

#[test]
fn a_killed_prober_or_responder_leaves_nothing() {
    if skip("a_killed_prober_or_responder_leaves_nothing", &["nft", "ip", "ss"]) {
        return;
    }
    let middle = plain();
    let hosts = [middle.client(), middle.server()];
    let before = hosts.map(left);
    let temporary = || {
        fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|entry| entry.file_name().to_string_lossy().contains("probe")).count()
    };
    let files = temporary();
    let host = middle.addresses()[0].to_string();
    for after in [50, 400, 1600, 4000, 7000] {
        let responder = middle.responder(&[], &["--ports", "5001"]);
        let arguments = ["detect", "probe", &host, "--responder", "--ports", "5001"];
        let prober = Daemon::start(middle.client().command(TANDEM).args(arguments));
        thread::sleep(Duration::from_millis(after));
        // In either order.
        let both = if after % 400 == 0 { [prober, responder] } else { [responder, prober] };
        both.into_iter().for_each(drop);
        // The kernel closes their connections within moments.
        wait_until("nothing is left", || hosts.map(left) == before);
    }
    assert_eq!(temporary(), files);
    // SIGTERM ends a responder.
    let mut responder = middle.responder(&[], &["--ports", "5001"]);
    responder.signal("TERM");
    assert!(responder.0.wait().unwrap().success());
    assert_eq!(hosts.map(left), before);
}

#[test]
fn impossible_probes_are_reported() {
    let detect = |arguments: &[&str]| {
        let Output { status, stderr, .. } = Command::new(TANDEM).arg("detect").args(arguments).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    for (arguments, status, words) in [
        (&["probe"][..], 2, "<HOST>"),
        (&["probe", "127.0.0.1", "--token", "x"], 2, "--responder"),
        (&["probe", "127.0.0.1", "--evidence", "/nonexistent/file"], 2, "could not write the evidence to /nonexistent/file"),
        (&["probe", "127.0.0.1", "--responder", "--bytes", "1GB"], 2, "--bytes must be at most 4194304"),
        (&["probe", "nobody.invalid"], 1, "could not find an address of nobody.invalid"),
        (&["probe", "127.0.0.1", "--responder=1"], 1, "is `tandem detect respond` running there"),
        (&["respond", "--listen", "192.0.2.1", "--ports", "5001"], 1, "could not listen at 192.0.2.1:7707"),
    ] {
        let (found, said) = detect(arguments);
        assert_eq!(found, Some(status), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.trim().lines().count() <= 6, "{arguments:?}: {said}");
    }
}

#[test]
fn a_host_one_hop_away_gives_no_verdict() {
    // The TTL cannot be smaller than the one hop to the host.
    let output = Command::new(TANDEM).args(["detect", "probe", "127.0.0.1", "--ports", "1", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_rows(&probed(&output), &["1 any : cannot tell"]);
}
