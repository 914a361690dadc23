//! `kill -9` at any time, then another run: it works, and afterwards namespaces, routing rules and
//! nftables rules are as before.

mod common;

use common::{Daemon, TANDEM, skip, wait_until};
use lab::Host;
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const SCENARIO: &str = "name = \"killed\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n\
                        [[split]]\nafter = 1\n[[flow]]\ncount = 3\nbytes = \"2MB\"\n";

#[test]
fn the_first_signal_drains_and_the_second_resets() {
    let (server, port) = (TcpListener::bind("127.2.0.1:0").unwrap(), TcpListener::bind("127.2.0.2:0").unwrap());
    let (to, at) = (server.local_addr().unwrap(), port.local_addr().unwrap());
    drop(port);
    let mut proxy = Daemon::start(Command::new(TANDEM).args(["proxy", "--name", "drained", "--listen", &format!("forward={at}={to}")]));
    let signal = |pid: u32| assert!(Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap().success());
    let mut client = None;
    wait_until("the proxy listens", || {
        client = TcpStream::connect(at).ok();
        client.is_some()
    });
    let (mut client, (mut accepted, _)) = (client.unwrap(), server.accept().unwrap());
    signal(proxy.0.id());
    wait_until("it takes no new connections", || TcpStream::connect(at).is_err());
    client.write_all(b"still here").unwrap();
    accepted.read_exact(&mut [0; 10]).unwrap();
    signal(proxy.0.id());
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(client.read(&mut [0]).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
    assert_eq!(accepted.read(&mut [0]).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_killed_proxy_causes_resets_and_no_clean_close() {
    let (server, port) = (TcpListener::bind("127.2.0.3:0").unwrap(), TcpListener::bind("127.2.0.4:0").unwrap());
    let (to, at) = (server.local_addr().unwrap(), port.local_addr().unwrap());
    drop(port);
    let mut proxy = Daemon::start(Command::new(TANDEM).args(["proxy", "--name", "killed", "--listen", &format!("forward={at}={to}")]));
    let mut client = None;
    wait_until("the proxy listens", || {
        client = TcpStream::connect(at).ok();
        client.is_some()
    });
    let (mut client, (mut accepted, _)) = (client.unwrap(), server.accept().unwrap());
    // The proxy has read everything: unread data would cause a reset by themselves.
    client.write_all(b"all of it").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    accepted.read_to_end(&mut Vec::new()).unwrap();
    proxy.0.kill().unwrap();
    proxy.0.wait().unwrap();
    assert_eq!(client.read(&mut [0]).map_err(|why| why.kind()), Err(ErrorKind::ConnectionReset));
    assert!(accepted.write(b"?").is_err(), "a reset after the FIN");
}

/// Returns the output of a program on a host, or without a host in the machine's own namespace.
fn output(host: Option<&Host>, program: &str, arguments: &[&str]) -> String {
    let mut command = host.map_or_else(|| Command::new(program), |host| host.command(program));
    let output = command.args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns everything that could be left behind. Names of namespaces belong to the machine, not to
/// a host.
fn traces(host: Option<&Host>) -> [String; 5] {
    [
        if host.is_none() { output(host, "ip", &["netns"]) } else { String::new() },
        output(host, "ip", &["rule"]),
        output(host, "ip", &["-6", "rule"]),
        output(host, "nft", &["list", "ruleset"]),
        // Without link statistics, which change all the time.
        output(host, "ip", &["-brief", "link"]),
    ]
}

#[test]
fn the_next_run_cleans_up_after_a_killed_lab() {
    if skip("the_next_run_cleans_up_after_a_killed_lab", &["nft", "ip"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scenario.toml");
    fs::write(&path, SCENARIO).unwrap();
    let before = traces(None);
    // During setup, during the run, and during its end.
    for after in [5, 20, 60, 120, 250, 500, 1000, 1800] {
        let mut run = Command::new(TANDEM).arg("run").arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(after));
        run.kill().unwrap();
        run.wait().unwrap();
    }
    // A killed lab leaves the names of its namespaces …
    let mut named = Daemon::start(Command::new(TANDEM).arg("lab").arg(&path));
    let prefix = format!("tandem-{}-", named.0.id());
    wait_until("the lab is up", || output(None, "ip", &["netns"]).contains(&format!("{prefix}receiver")));
    named.0.kill().unwrap();
    named.0.wait().unwrap();
    assert!(output(None, "ip", &["netns"]).contains(&prefix));
    // … and the next run removes them.
    let run = Command::new(TANDEM).arg("run").arg(&path).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    wait_until("everything is as before", || traces(None) == before);
}

#[test]
fn traffic_passes_after_a_kill_and_the_next_proxy_takes_over() {
    if skip("traffic_passes_after_a_kill_and_the_next_proxy_takes_over", &["nft", "ip"]) {
        return;
    }
    let host = Host::new("router").unwrap();
    let before = traces(Some(&host));
    let table = || output(Some(&host), "nft", &["list", "ruleset"]);
    let start = || {
        let proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000"]));
        wait_until("the proxy intercepts", || table().matches("tproxy").count() == 4);
        proxy
    };
    for _ in 0..3 {
        let mut proxy = start();
        proxy.0.kill().unwrap();
        proxy.0.wait().unwrap();
        wait_until("its table is gone with it", || table().is_empty());
    }
    // Proxies that are killed during their start, one after the other.
    for after in [1, 5, 10, 20, 40, 80, 160] {
        let proxy = Daemon::start(host.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5000"]));
        thread::sleep(Duration::from_millis(after));
        drop(proxy);
    }
    // Several proxies that start at once: exactly one succeeds.
    let mut several: Vec<Daemon> = (5001..5005)
        .map(|port| Daemon::start(host.command(TANDEM).args(["proxy", "--listen", &format!("transparent=[::]:{port}")])))
        .collect();
    wait_until("all but one have failed", || {
        several.iter_mut().filter_map(|proxy| proxy.0.try_wait().unwrap()).filter(|status| status.code() == Some(1)).count() == 3
    });
    wait_until("the remaining proxy intercepts", || table().matches("tproxy").count() == 4);
    for family in ["-4", "-6"] {
        assert_eq!(output(Some(&host), "ip", &[family, "rule"]).matches("0x5444").count(), 2, "each rule is installed once");
        assert!(output(Some(&host), "ip", &[family, "route", "show", "table", "21572"]).contains("local"));
    }
    drop(several);
    wait_until("its table is gone with it", || table().is_empty());
    let mut proxy = start();
    assert_eq!(output(Some(&host), "ip", &["rule"]).matches("0x5444").count(), 2, "each rule is installed once");
    // A second proxy fails, and does not affect the first.
    for (name, why) in
        [("default", "another proxy in this network namespace has that name"), ("second", "another process owns the nftables table")]
    {
        let second = host.command(TANDEM).args(["proxy", "--listen", "transparent=[::]:5001", "--name", name]).output().unwrap();
        assert_eq!(second.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&second.stderr).contains(why), "{second:?}");
    }
    assert_eq!(table().matches("tproxy").count(), 4);
    // A clean stop.
    let pid = proxy.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(proxy.0.wait().unwrap().success());
    wait_until("everything is as before", || traces(Some(&host)) == before);
}
