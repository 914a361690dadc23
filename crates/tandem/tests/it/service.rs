//! The proxy as a service: its configuration file, reloads, metrics, flows and messages.

use crate::common::{
    PATIENCE, TANDEM, as_nobody, control_socket,
    routed::{Routed, SERVER, echoes, end_of, seconds},
    skip, wait_until,
};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

/// Returns the exit status, stdout and stderr of a program.
fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Runs `tandem proxy --check` with a low soft limit of open files, as a shell sets it.
fn check(file: &Path, flags: &[&str]) -> (i32, String, String) {
    let script = format!("ulimit -Sn 1024 && exec {TANDEM} \"$@\"");
    let file = file.to_str().unwrap();
    said(&Command::new("sh").args(["-c", &script, "sh", "proxy", "-c", file, "--check=config"]).args(flags).output().unwrap())
}

/// Writes a configuration file to a temporary directory.
fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

const EVERY_KEY: &str = include_str!("../../../proxy/tests/proxy.toml");

#[test]
fn check_reports_errors_of_a_configuration_file() {
    let available = intercept::available_controllers();
    let text = if available.iter().any(|name| name == "bbr") { EVERY_KEY.into() } else { EVERY_KEY.replace("\"bbr\"", "\"reno\"") };
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("bond.key");
    fs::write(&key, "a key of more than sixteen bytes").unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let users = keys.path().join("users");
    fs::write(&users, "alice:secret\n").unwrap();
    fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let token = keys.path().join("page.token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = text.replace("/etc/tandem/", &format!("{}/", keys.path().display()));
    let (_directory, path) = file(&text);
    assert_eq!(check(&path, &[]), (0, "the configuration can be used\n".into(), String::new()));

    let wrong = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let (_directory, path) = file(&text.replacen(from, to, 1));
        let (status, out, error) = check(&path, &[]);
        assert_eq!((status, out.as_str()), (2, ""), "{to}: {error}");
        assert_eq!(error.lines().filter(|line| line.starts_with("tandem: ")).count(), 1, "{error}");
        error
    };
    for (from, to, expected) in [
        (users.to_str().unwrap(), "/nowhere/users", "cannot take users from /nowhere/users: No such file or directory"),
        (
            &format!("\"{}\"", users.display()),
            "[\"alice:secret\"]",
            "proxy.toml: it has passwords, and every user of this machine has access to it (it is world-readable): chmod o= it",
        ),
        (&format!("\"{}\"", users.display()), "[\"alice\"]", "cannot parse a user: the colon is missing; write NAME:PASSWORD"),
        (key.to_str().unwrap(), "/nowhere/bond.key", "cannot read the bond's key from /nowhere/bond.key: No such file or directory"),
        ("threads         = 2", "treads          = 2", "proxy.toml:4: treads: is not a key here"),
        ("\"10.0.0.0/8\"", "\"10.0.0.0/99\"", "cannot parse address prefix \"10.0.0.0/99\""),
        ("control    = \"reno\"", "control    = \"cubik\"", "gentle: there is no congestion controller \"cubik\": the kernel has "),
        (
            "send_buffer    = \"16MiB\"",
            "send_buffer    = \"99GiB\"",
            "leg[1]: send_buffer = \"99GiB\" is more than a socket of the kernel can have",
        ),
        ("mark       = 7", "mark       = 21572", "gentle: the mark 0x5444 is reserved for this proxy's own firewall rules"),
        ("max_flows       = 9000", "max_flows       = 90000000", "max_flows is 90000000, but the limit of "),
        ("max_flows       = 9000", "max_flows       = 0", "max_flows is 0, which would let nothing through"),
        ("idle_timeout    = \"12h\"", "idle_timeout    = \"0s\"", "idle_timeout is 0, which would let nothing through"),
        ("socks5 = \"127", "transparent = \"[::]:5001\"\n[[listen]]\nsocks5 = \"127", "there are 2 transparent listeners"),
        ("install_rules   = true ", "install_rules   = false", "rule 1 lets connections bypass, but this proxy installs no firewall rules"),
        ("buffer_max      = \"16MiB\"", "buffer_max      = \"1kB\"", "buffer is 1kB, which is less than the proxy can enforce"),
    ] {
        let error = wrong(from, to);
        assert!(error.contains(expected), "{to}: {error}");
    }

    // Options override the file, and are checked as well.
    let (_directory, path) = file(&text.replace("[far] ", "[far]\ncontrol = \"cubik\"\n"));
    assert_eq!(check(&path, &[]).0, 2);
    assert_eq!(check(&path, &["--far", "control=reno"]).0, 0);
    for (flags, expected) in [
        (["--far", "control=cubik"], "far leg: there is no congestion controller"),
        (["--max-flows", "90000000"], "max_flows is 90000000, but the limit of "),
        (["--max-flows", "0"], "max_flows is 0"),
        (["--idle-timeout", "0s"], "idle_timeout is 0"),
    ] {
        let (status, _, error) = check(&path, &flags);
        assert!(status == 2 && error.contains(expected), "{flags:?}: {status}, {error}");
    }
    let (status, _, error) = check(Path::new("/nonexistent.toml"), &[]);
    assert!(status == 2 && error.contains("cannot read the configuration /nonexistent.toml: No such file"), "{error}");
}

/// Returns the controller of the far leg of this client's flow.
fn far_control(routed: &Routed, client: &TcpStream) -> String {
    let own = client.local_addr().unwrap();
    let flow = routed.flows().into_iter().find(|flow| flow.client == own);
    flow.expect("it is split").far.control
}

#[test]
fn sighup_reloads_the_file_for_new_flows() {
    if skip("sighup_reloads_the_file_for_new_flows", &["nft", "ip"]) {
        return;
    }
    let Some(other) = intercept::available_controllers().into_iter().find(|name| name != "reno") else { return };
    let routed = Routed::new();
    routed.echo(80);
    let text = |control: &str, listener: &str, more: &str| {
        format!("{more}\n[[listen]]\ntransparent = \"{listener}\"\n[far]\ncontrol = \"{control}\"\n")
    };
    let path = routed.write(&text("reno", "[::]:5000", ""));
    let proxy = routed.start(&["-c", path.to_str().unwrap()]);
    let connect = || {
        let mut stream = routed.connect(SERVER[0], 80).unwrap();
        assert!(echoes(&mut stream));
        stream
    };
    // Changes the file, and waits for the proxy's log message.
    let reload = |text: &str, expected: &str| {
        let before = routed.log().len();
        routed.write(text);
        proxy.signal("HUP");
        wait_until(expected, || routed.log()[before..].contains(expected));
    };
    let mut old = connect();
    assert_eq!(far_control(&routed, &old), "reno");
    reload(&text(&other, "[::]:5000", ""), "the configuration has been read again");
    let mut new = connect();
    assert_eq!(far_control(&routed, &new), other);
    assert_eq!(far_control(&routed, &old), "reno", "existing flows keep their controller");

    reload("[far]\ncontrl = \"reno\"\n", "the configuration stays as it was");
    assert!(routed.log().contains("proxy.toml:2: far.contrl: "), "{}", routed.log());
    reload(&text("cubik", "[::]:5000", ""), "there is no congestion controller \"cubik\"");
    for (text, key) in [
        (text("reno", "[::]:5001", ""), "listen"),
        (text("reno", "[::]:5000", "threads = 2"), "threads"),
        (text("reno", "[::]:5000", "name = \"other\""), "name"),
        (text("reno", "[::]:5000", "metrics = \"127.0.0.1:9155\""), "metrics"),
    ] {
        reload(&text, &format!("the configuration stays as it was: a reload cannot change {key}"));
    }
    let mut last = connect();
    assert_eq!(far_control(&routed, &last), other, "rejected files have no effect");

    // Rules are reloaded too: new connections are not split, and existing flows continue.
    let bypass = "[[rule]]\naction = \"bypass\"\n";
    reload(&(text("reno", "[::]:5000", "") + bypass), "the configuration has been read again");
    let before = routed.verdicts();
    connect();
    assert_eq!(routed.verdicts(), (before.0, before.1 + 1, before.2));
    assert!([&mut old, &mut new, &mut last].into_iter().all(echoes));
    // So is the memory limit: with a limit below the current use, connections pass unsplit.
    let _deaf = routed.listen(81);
    // The kernel counts the memory of each processor only from 1 MiB on (SK_MEMORY_PCPU_RESERVE).
    let _talkers: Vec<_> = (0..40)
        .map(|_| {
            let mut talker = routed.connect(SERVER[0], 81).unwrap();
            talker.set_nonblocking(true).unwrap();
            while talker.write(&[0; 100_000]).is_ok() {}
            talker
        })
        .collect();
    reload(&text("reno", "[::]:5000", "memory = \"1B\""), "memory is short: connections take");
    reload(&text("reno", "[::]:5000", ""), "memory is free again");
}

#[test]
fn metrics_count_every_byte() {
    if skip("metrics_count_every_byte", &["nft", "ip", "curl"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _proxy = routed.proxy(&["--metrics", "127.0.0.1:9155", "--bypass", "fd99:2::/64", "--threads", "2"]);
    let scrape =
        |path: &str| said(&routed.router.command("curl").args(["-sSi", &format!("http://127.0.0.1:9155{path}")]).output().unwrap()).1;
    let number = |name: &str| {
        let text = scrape("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.trim().parse::<u64>().unwrap()
    };
    let mut sent = 0;
    for length in [1usize, 1000, 70_000, 3_000_000] {
        for address in SERVER {
            let mut client = routed.connect(address, 80).unwrap();
            let mut writer = client.try_clone().unwrap();
            let writing = thread::spawn(move || {
                writer.write_all(&vec![7; length]).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            writing.join().unwrap();
            assert_eq!(back.len(), length);
        }
        sent += length as u64;
    }
    let _idle = routed.connect(SERVER[0], 80).unwrap();
    wait_until("the others are over", || number("tandem_flows_ended_total{ending=\"finished\"}") == 4 && number("tandem_flows ") == 1);
    for (name, wanted) in [
        ("tandem_carried_bytes_total{direction=\"up\"}", sent),
        ("tandem_carried_bytes_total{direction=\"down\"}", sent),
        ("tandem_connections_total{verdict=\"split\"}", 5),
        ("tandem_connections_total{verdict=\"bypassed\"}", 4),
        ("tandem_connections_total{verdict=\"unsplit\"}", 0),
        ("tandem_flows_ended_total{ending=\"near_failed\"}", 0),
    ] {
        assert_eq!(number(name), wanted, "{name}");
    }
    let page = scrape("/metrics");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("application/openmetrics-text") && page.ends_with("# EOF\n"), "{page}");
    let elsewhere = scrape("/elsewhere");
    assert!(elsewhere.starts_with("HTTP/1.1 404 ") && elsewhere.contains("metrics are at /metrics"), "{elsewhere}");
    // `tandem flows` shows the same numbers.
    let (status, table, _) = said(&routed.tandem(&["flows"]));
    assert_eq!(status, 0);
    assert!(
        table.contains("1 flows now, ") && table.contains("; 4 ended; ") && table.contains("5 split, 4 bypassed, 0 unsplit"),
        "{table}"
    );
}

#[test]
fn flows_are_listed_once_and_repeatedly() {
    if skip("flows_are_listed_once_and_repeatedly", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let mut proxy = routed.proxy(&[]);
    let mut streams = SERVER.map(|address| routed.connect(address, 80).unwrap());
    assert!(streams.iter_mut().all(echoes));
    let mut table = String::new();
    wait_until("the clients have been quiet for a while", || {
        table = said(&routed.tandem(&["flows"])).1;
        table.contains(" sender ")
    });
    for part in ["client ", "limited by", "10.99.2.2:80", "[fd99:2::2]:80", "2 flows now, 0bit/s up, 0bit/s down; 0 ended"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let flows = routed.flows();
    assert_eq!(flows.len(), 2);
    assert!(
        flows.iter().all(|flow| (flow.up.bytes, flow.down.bytes) == (5, 5) && flow.near.rtt_s > 0.0 && flow.far.rtt_s > 0.0),
        "{flows:?}"
    );
    // One line per interval.
    let mut watch = routed.router.command(TANDEM).args(["flows", "--json", "--watch", "100ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut looks = BufReader::new(watch.stdout.take().unwrap()).lines();
    let look = looks.next().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&look).unwrap().as_array().map(Vec::len), Some(2));
    drop(streams);
    wait_until("the list is empty", || looks.next().unwrap().unwrap() == "[]");
    // --watch goes on when the proxy has started again.
    proxy.signal("TERM");
    proxy.0.wait().unwrap();
    let restarted = routed.proxy(&[]);
    let mut stream = routed.connect(SERVER[0], 80).unwrap();
    assert!(echoes(&mut stream));
    wait_until("the list has the new flow", || looks.next().unwrap().unwrap().contains("10.99.2.2:80"));
    watch.kill().unwrap();
    watch.wait().unwrap();
    drop(restarted);
    let (status, out, error) = said(&routed.tandem(&["flows"]));
    assert!(status == 1 && out.is_empty() && error.contains("no proxy named \"default\" runs in this network namespace"), "{error}");
    assert!(error.contains("start it (tandem proxy)"), "{error}");
}

#[test]
fn only_root_and_the_own_user_can_query_a_proxy() {
    if skip("only_root_and_the_own_user_can_query_a_proxy", &["nft", "ip", "setpriv"]) {
        return;
    }
    let routed = Routed::new();
    let _proxy = routed.proxy(&[]);
    // The binary in a world-readable directory.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("tandem");
    testing::copy_program(TANDEM, &program);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    for question in [&["flows"][..], &["bypass", "add", "10.0.0.0/8"]] {
        let output = routed.router.command("setpriv").args(nobody).arg(&program).args(question).output().unwrap();
        let (status, out, error) = said(&output);
        assert!(status == 1 && out.is_empty() && error.contains("only root and the proxy's own user may;"), "{error}");
    }
    assert_eq!(said(&routed.tandem(&["bypass"])).1, "no bypass prefixes besides those of the configuration\n");
    // Other users cannot block the socket either: their connections are refused.
    let socket = control_socket(&routed.router, "default");
    let refused = as_nobody(&routed.router, || UnixStream::connect(&socket).unwrap_err().kind());
    assert_eq!(refused, ErrorKind::PermissionDenied);
    // An invalid request gets an answer.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"how are you?\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("cannot understand the request"), "{answer}");
}

#[test]
fn conflicts_of_a_second_proxy_are_reported() {
    if skip("conflicts_of_a_second_proxy_are_reported", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let _first = routed.proxy(&["--metrics", "127.0.0.1:9155"]);
    let refused = |arguments: &[&str]| {
        let (status, _, error) = said(&routed.tandem(&[&["proxy"], arguments].concat()));
        assert_eq!(status, 1, "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let forward = ["--listen", "forward=127.0.0.1:7000=127.0.0.1:9"];
    let error = refused(&forward);
    assert!(
        error.contains("cannot listen on the control socket \"default\"") && error.contains("give this one another (--name)"),
        "{error}"
    );
    let error = refused(&[&forward[..], &["--name", "other", "--metrics", "127.0.0.1:9155"]].concat());
    assert!(error.contains("cannot listen on 127.0.0.1:9155 for metrics") && error.contains("choose another port (--metrics)"), "{error}");
    let error = refused(&["--listen", "forward=[::]:5000=127.0.0.1:9", "--name", "other"]);
    assert!(error.contains("cannot listen on [::]:5000") && error.contains("choose another port"), "{error}");
    let error = refused(&["--listen", "transparent=[::]:5001", "--name", "other"]);
    assert!(error.contains("another process owns the nftables table") && error.contains("stop that proxy first"), "{error}");
    // The first proxy still works.
    routed.echo(80);
    assert!(echoes(&mut routed.connect(SERVER[0], 80).unwrap()));
    assert_eq!(routed.verdicts(), (1, 0, 0));
}

#[test]
fn a_start_without_nft_leaves_nothing() {
    if skip("a_start_without_nft_leaves_nothing", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let bin = tempfile::tempdir().unwrap();
    let attempt = routed.router.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000"]).env("PATH", bin.path()).output();
    let (status, _, error) = said(&attempt.unwrap());
    assert_eq!(status, 1, "{error}");
    assert!(error.contains("cannot run nft: ") && error.contains("(Debian package nftables)"), "{error}");
    let left = |program: &str, arguments: &[&str]| said(&routed.router.command(program).args(arguments).output().unwrap()).1;
    assert_eq!(left("nft", &["list", "ruleset"]), "");
    assert!(!left("ip", &["rule"]).contains("5444"));
}

#[test]
fn idle_timeout_resets_connections_without_progress() {
    if skip("idle_timeout_resets_connections_without_progress", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let server = routed.listen(80);
    let _proxy = routed.proxy(&["--idle-timeout", "2s"]);
    for address in SERVER {
        let mut client = routed.connect(address, 80).unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        accepted.set_read_timeout(Some(PATIENCE)).unwrap();
        // Progress in either direction keeps the connection.
        for _ in 0..8 {
            thread::sleep(std::time::Duration::from_millis(400));
            accepted.write_all(b".").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        let (end, took) = seconds(|| end_of(&mut client));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{address}");
        assert_eq!(end_of(&mut accepted), Err(ErrorKind::ConnectionReset), "{address}");
        assert!((1.5..10.0).contains(&took), "{address}: {took:.1} s");
    }
    wait_until("both are counted", || routed.status().totals.ended_as("idle") == 2);
}

#[test]
fn missing_forwarding_is_reported_at_start() {
    if skip("missing_forwarding_is_reported_at_start", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.router.sysctl(&[("ipv4/ip_forward", "0".into())]).unwrap();
    let early_demux = || {
        let output = routed.router.command("cat").arg("/proc/sys/net/ipv4/tcp_early_demux").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(early_demux(), "1\n");
    let mut proxy = routed.proxy(&[]);
    assert_eq!(early_demux(), "1\n");
    assert!(routed.tandem(&["bypass", "add", "192.0.2.1"]).status.success());
    assert_eq!(early_demux(), "0\n", "needed since split connections may now pass unsplit");
    let missing =
        "net.ipv4.ip_forward is 0: this host drops the packets of connections that it does not split; sysctl -w net.ipv4.ip_forward=1";
    assert!(routed.log().contains(missing), "{}", routed.log());
    assert!(!routed.log().contains("net.ipv6.conf.all.forwarding"), "{}", routed.log());
    assert!(Command::new("kill").args(["-TERM", &proxy.0.id().to_string()]).status().unwrap().success());
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(early_demux(), "1\n", "the proxy restores the setting");
}
