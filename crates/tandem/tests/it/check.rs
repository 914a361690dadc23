//! `--check` and `tandem doctor -c` on a router: they find what would make a start fail, and change
//! nothing.

use crate::common::{
    Daemon, TANDEM,
    routed::{Routed, SERVER, ip, nft},
    skip, wait_for_listener,
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output};

/// Returns the exit status and the output of a program.
fn said(output: &Output) -> (i32, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
}

/// Returns the lines that begin with this mark.
fn marked<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(mark)).collect()
}

const FOUND_FAILURE: &str = "\u{2717} ";
const WARNING: &str = "~ ";

impl Checks {
    /// Creates a router that meets all requirements of a proxy; `None` if hosts cannot be created.
    fn new(test: &str) -> Option<Self> {
        if skip(test, &["nft", "ip"]) {
            return None;
        }
        let routed = Routed::new();
        Some(Checks { routed })
    }

    fn check(&self, arguments: &[&str]) -> (i32, String) {
        said(&self.routed.tandem(&[&["proxy"], arguments, &["--check"]].concat()))
    }

    /// Checks a configuration file of a transparent listener and this text.
    fn check_file(&self, text: &str) -> (i32, String) {
        let path = self.routed.write(&format!("{text}\n[[listen]]\ntransparent = \"[::]:5000\"\n"));
        self.check(&["-c", path.to_str().unwrap()])
    }

    /// Asserts that exactly one check failed, and that its line contains these parts.
    fn must_find(&self, (status, text): (i32, String), parts: &[&str]) {
        let failures = marked(&text, FOUND_FAILURE);
        assert_eq!((status, failures.len()), (1, 1), "{text}");
        assert!(parts.iter().all(|part| failures[0].contains(part)), "{parts:?}: {text}");
        assert!(text.contains("the configuration cannot be used on this host: 1 of "), "{text}");
    }
}

/// A router, and its checks.
struct Checks {
    routed: Routed,
}

#[test]
fn a_valid_configuration_passes_and_nothing_is_changed() {
    let Some(checks) = Checks::new("a_valid_configuration_passes_and_nothing_is_changed") else { return };
    let before = checks.routed.traces();
    let (status, text) = checks.check_file(
        "metrics = \"127.0.0.1:9155\"\n[[leg]]\ninterface = \"far\"\n[[leg]]\ninterface = \"ppp*\"\n[[rule]]\nin = \"near\"\n\
         to = \"10.99.2.0/24\"\n",
    );
    assert_eq!((status, marked(&text, FOUND_FAILURE).len(), marked(&text, WARNING).len()), (0, 0, 0), "{text}");
    assert!(text.ends_with("the configuration can be used\n"), "{text}");
    for tried in [
        "interface far (leg[1]): far",
        "ppp* (leg[2]): none now",
        "firewall's rules: nft accepts them",
        "10.99.2.0/24 (to of rule[1]): through far",
    ] {
        assert!(text.contains(tried), "{tried}: {text}");
    }
    assert_eq!(checks.routed.traces(), before);
}

#[test]
fn missing_interfaces_are_reported() {
    let Some(checks) = Checks::new("missing_interfaces_are_reported") else { return };
    for (text, by) in [
        ("[[leg]]\ninterface = \"sat9\"\n", "(leg[1])"),
        ("[[rule]]\nin = \"sat9\"\n", "(in of rule[1])"),
        ("[[rule]]\nout = [\"far\", \"sat9\"]\n", "(out of rule[1])"),
        ("[far]\nlink = \"sat9\"\n", "(link of far leg)"),
        ("[far]\nlink = \"sat9\"\ncapacity = \"10Mbit\"\n", "(link of far leg)"),
        ("[[leg]]\ninterface = \"sat9\"\n[[rule]]\nout = \"sat9\"\n", "(leg[1], out of rule[1])"),
    ] {
        checks.must_find(checks.check_file(text), &["sat9", by, "there is no such interface", "correct the name"]);
        // --check=config ignores the state of the host.
        let path = checks.routed.path("proxy.toml");
        let output = checks.routed.tandem(&["proxy", "-c", path.to_str().unwrap(), "--check=config"]);
        assert_eq!(said(&output), (0, "the configuration can be used\n".into()));
    }
}

#[test]
fn missing_host_settings_and_routes_are_reported() {
    let Some(checks) = Checks::new("missing_host_settings_and_routes_are_reported") else { return };
    let (router, listen) = (&checks.routed.router, &["--listen", "transparent=[::]:5000"][..]);
    for (file, setting) in [("ipv4/ip_forward", "net.ipv4.ip_forward"), ("ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding")] {
        router.sysctl(&[(file, "0".into())]).unwrap();
        checks.must_find(checks.check(listen), &[&format!("{setting} is 0"), &format!("sysctl -w {setting}=1")]);
        let (_, doctor) = said(&checks.routed.tandem(&["doctor"]));
        assert!(doctor.lines().any(|line| line.contains('~') && line.contains("forward packets of")), "{doctor}");
        router.sysctl(&[(file, "1".into())]).unwrap();
    }
    assert_eq!(checks.check(listen).0, 0);

    // A route to clients or servers is missing.
    let rule = "[[rule]]\nfrom = \"10.99.1.0/24\"\nto = \"198.51.100.0/24\"\n";
    checks.must_find(checks.check_file(rule), &["198.51.100.0/24 (to of rule[1])", "no route"]);
    checks.must_find(checks.check(&["--listen", "forward=127.0.0.1:80=198.51.100.1:80"]), &["198.51.100.1:80", "no route"]);

    // A single network is probably unintended.
    ip(router, &["link set far down"]);
    let (status, text) = checks.check(listen);
    assert!(status == 0 && marked(&text, WARNING).iter().any(|line| line.contains("routes both ways")), "{text}");
    ip(router, &["link set near down"]);
    let (status, text) = checks.check(listen);
    assert!(status == 1 && text.contains("no route except to this host itself"), "{text}");
}

#[test]
fn ports_in_use_are_reported() {
    let Some(checks) = Checks::new("ports_in_use_are_reported") else { return };
    let (transparent, metrics) = (["--listen", "transparent=[::]:5000"], ["--metrics", "127.0.0.1:9155"]);
    let other = checks.routed.router.enter(|| std::net::TcpListener::bind("0.0.0.0:5000").unwrap()).unwrap();
    checks.must_find(checks.check(&transparent), &["listen at", ":5000", "Address already in use", "another program listens there"]);
    drop(other);
    let other = checks.routed.router.enter(|| std::net::TcpListener::bind("127.0.0.1:9155").unwrap()).unwrap();
    checks.must_find(checks.check(&[&transparent[..], &metrics].concat()), &["serve metrics at 127.0.0.1:9155"]);
    drop(other);
    checks.must_find(checks.check(&["--listen", "socks5=198.51.100.1:1080"]), &["198.51.100.1:1080", "no such address"]);

    // Ports of a running proxy with the same name are no conflict, since it would reload its file.
    // Those of a proxy with another name are.
    let arguments = [&transparent[..], &metrics, &["--threads", "2"]].concat();
    let _proxy = checks.routed.start(&arguments);
    let (status, text) = checks.check(&arguments);
    assert!(status == 0 && text.contains("in use while the proxy default runs"), "{text}");
    let (status, text) = checks.check(&[&arguments[..], &["--name", "other"]].concat());
    assert!(status == 1 && text.contains("Address already in use"), "{text}");
}

#[test]
fn listeners_that_forward_to_themselves_are_rejected() {
    let Some(checks) = Checks::new("listeners_that_forward_to_themselves_are_rejected") else { return };
    // 10.99.1.2 and fd99:1::2 are the router's.
    for listen in [
        "forward=127.0.0.1:80=127.0.0.1:80",
        "forward=[::]:80=10.99.1.2:80",
        "forward=0.0.0.0:80=10.99.2.1:80",
        "forward=[::]:80=[fd99:1::2]:80",
        "forward=10.99.1.2:80=10.99.1.2:80",
    ] {
        for more in [&["--check"][..], &[]] {
            let (status, text) = said(&checks.routed.tandem(&[&["proxy", "--listen", listen][..], more].concat()));
            assert!(status == 2 && text.contains("forwards to") && text.contains("would loop forever"), "{listen}: {text}");
        }
    }
    assert_eq!(checks.check(&["--listen", "forward=[::]:80=10.99.2.2:80"]).0, 0, "the server's address");
    assert_eq!(checks.check(&["--listen", "forward=10.99.1.2:80=10.99.2.1:80"]).0, 0, "another address of the router");
}

#[test]
fn warnings_do_not_fail_the_check() {
    let Some(checks) = Checks::new("warnings_do_not_fail_the_check") else { return };
    let (status, text) = checks.check(&["--listen", "socks5=0.0.0.0:1080"]);
    let warnings = marked(&text, WARNING);
    assert_eq!((status, warnings.len()), (0, 1), "{text}");
    assert!(warnings[0].contains("0.0.0.0:1080: every client that reaches this address") && warnings[0].contains(",users=FILE"), "{text}");
    // A rule behind one that matches everything.
    let (status, text) = checks.check_file("[[rule]]\naction = \"bypass\"\n[[rule]]\nports = 443\n");
    let warnings = marked(&text, WARNING);
    assert_eq!((status, warnings.len()), (0, 2), "{text}");
    assert!(warnings[0].contains("rule[2]: rule[1] before it matches every connection that it matches"), "{text}");
    assert!(warnings[1].contains("make a test connection from 10.99.1.1 (near) to 10.99.2.2:443 (far): it passes unsplit"), "{text}");
    let cache = |listen: &str| said(&checks.routed.tandem(&["cache", "--listen", listen, "--check"]));
    assert_eq!(marked(&cache("http=0.0.0.0:3128").1, WARNING).len(), 1);
    assert_eq!(marked(&cache("http=0.0.0.0:3128,user=alice:secret").1, WARNING).len(), 0);
    checks.must_find(cache("http=198.51.100.1:3128"), &["198.51.100.1:3128", "no such address"]);
}

#[test]
fn test_connections_cross_the_firewall_of_this_host() {
    let Some(checks) = Checks::new("test_connections_cross_the_firewall_of_this_host") else { return };
    nft(
        &checks.routed.router,
        "table inet filter {\nchain pass {\ntype filter hook forward priority 0\npolicy drop\nct state established,related accept\n\
         iifname \"near\" tcp dport 8080 accept\n}\n}\n",
    );
    let before = checks.routed.traces();
    let made = |rule: &str| {
        let (status, text) = checks.check_file(&format!("[near]\ncontrol = \"reno\"\n[far]\ncontrol = \"cubic\"\n{rule}"));
        assert_eq!(status, 0, "{text}");
        text.lines().find(|line| line.contains(" make a test connection from ")).unwrap_or_default().to_owned()
    };
    let way = "from 10.99.1.1 (near) to 10.99.2.2:8080 (far): ";
    let line = made("[[rule]]\nout = \"far\"\nports = 8080\n");
    assert!(line.ends_with(&format!("{way}split: sent to the client by reno over near, to the server by cubic over far")), "{line}");
    let line = made("[[rule]]\nout = \"far\"\n");
    assert!(line.contains("from 10.99.1.0/24: the connection to 10.99.2.2:443 through far failed: "), "{line}");
    let line = made("[[rule]]\nfrom = \"10.99.1.0/24\"\nin = \"far\"\nports = 8080\n[[rule]]\naction = \"bypass\"\n");
    assert!(line.contains(&format!("{way}it passes unsplit; compare the conditions")), "{line}");
    assert_eq!(checks.routed.traces(), before);
}

#[test]
fn doctor_checks_the_requirements_of_a_configuration() {
    let Some(checks) = Checks::new("doctor_checks_the_requirements_of_a_configuration") else { return };
    let doctor = |text: &str| {
        let path = checks.routed.write(text);
        let output = checks.routed.tandem(&["doctor", "--json", "-c", path.to_str().unwrap()]);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        found["needs"].as_array().unwrap().clone()
    };
    let lacks = |needs: &[serde_json::Value]| {
        let failed = |need: &&serde_json::Value| need["ok"] == false && need["optional"] == false && need["command"] == "proxy";
        needs.iter().filter(failed).map(|need| need["need"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let listen = "[[listen]]\ntransparent = \"[::]:5000\"\n";
    assert_eq!(lacks(&doctor(listen)), [""; 0]);
    assert_eq!(lacks(&doctor(&format!("{listen}[[leg]]\ninterface = \"sat9\"\n"))), ["find the interface sat9 (leg[1])"]);
}

/// Writes a key file.
fn key(checks: &Checks, name: &str) -> String {
    let path = checks.routed.path(name);
    fs::write(&path, format!("{name}, of more than sixteen bytes")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn check_dials_each_network_of_a_bond() {
    let Some(checks) = Checks::new("check_dials_each_network_of_a_bond") else { return };
    let (right, wrong) = (key(&checks, "right"), key(&checks, "wrong"));
    let serve = |port: u16, more: &[&str]| {
        let listen = format!("{}:{port}", SERVER[0]);
        let mut command = checks.routed.server.command(TANDEM);
        command.args(["bond", "serve", "--listen", &listen, "--key", &right, "--name", &port.to_string()]).args(more);
        let daemon = Daemon::logging(&mut command, Path::new(&checks.routed.path("serve.log")));
        wait_for_listener(&checks.routed.server, port);
        daemon
    };
    let _servers = [serve(7000, &[]), serve(7001, &["--tls"])];
    let connect = |networks: &[&str], port: u16, more: &[&str]| {
        let to = format!("{}:{port}", SERVER[0]);
        let networks = networks.iter().flat_map(|network| ["--network", network]);
        let arguments = ["bond", "connect", "--listen", "socks5=127.0.0.1:1080", "--to", &to, "--check"].into_iter();
        said(&checks.routed.tandem(&arguments.chain(networks).chain(more.iter().copied()).collect::<Vec<_>>()))
    };
    let (status, text) = connect(&["far", "10.99.2.1,name=by-source"], 7000, &["--key", &right]);
    assert_eq!((status, marked(&text, FOUND_FAILURE).len()), (0, 0), "{text}");
    assert!(text.matches("key verified").count() == 2 && text.ends_with("the configuration can be used\n"), "{text}");
    let (status, text) = connect(&["far"], 7001, &["--key", &right, "--tls"]);
    assert!(status == 0 && text.contains("key and TLS verified"), "{text}");

    // Networks are checked independently: the first is missing, the second works.
    let (status, text) = connect(&["sat9", "far"], 7000, &["--key", &right]);
    let failures = marked(&text, FOUND_FAILURE);
    assert!(status == 1 && failures.len() == 2 && text.contains("key verified"), "{text}");
    assert!(failures.iter().all(|line| line.contains("sat9")) && text.contains("No such device"), "{text}");

    let dial = "connect to the other end of the bond";
    checks.must_find(connect(&["far"], 7000, &["--key", &wrong]), &[dial, "another key"]);
    checks.must_find(connect(&["far"], 7000, &["--key", &right, "--tls"]), &[dial, "--tls"]);
    checks.must_find(connect(&["far"], 7001, &["--key", &right]), &[dial, "--tls"]);
    checks.must_find(connect(&["far"], 7002, &["--key", &right]), &[dial, "refused", "nothing listens at"]);
    checks.must_find(connect(&["near"], 7000, &["--key", &right]), &[dial, "near at"]);
    checks.must_find(connect(&["192.0.2.9"], 7000, &["--key", &right]), &[dial, "address of this host"]);

    // An end that never answers, and an end that accepts and stays silent: both checks time out.
    nft(&checks.routed.server, "table inet silent { chain in { type filter hook input priority 0; tcp dport 7003 drop; }\n}\n");
    checks.must_find(connect(&["far"], 7003, &["--key", &right]), &[dial, "no answer after 10 s"]);
    let _deaf = checks.routed.listen(7004);
    checks.must_find(connect(&["far"], 7004, &["--key", &right]), &[dial, "the handshake was not complete after 10 s"]);
}
