//! A proxy and the programs that query it in different PID namespaces, as in containers: neither
//! sees the process ID of the other.

use crate::common::{Daemon, TANDEM, skip, wait_for_port, wait_until};
use lab::Host;
use proxy::control::Remote;
use std::{fs, process::Output};

const LISTEN: [&str; 3] = ["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9"];

/// Runs `tandem` on the host, in a PID namespace of its own, and returns what it has printed.
fn tandem_in_another_namespace(host: &Host, arguments: &[&str]) -> Output {
    host.command("unshare").args(["--pid", "--fork", "--kill-child", TANDEM]).args(arguments).output().unwrap()
}

#[test]
fn a_proxy_answers_requests_from_another_pid_namespace() {
    if skip("a_proxy_answers_requests_from_another_pid_namespace", &["unshare"]) {
        return;
    }
    let (host, directory) = (Host::new("inside").unwrap(), tempfile::tempdir().unwrap());
    let (log, configuration) = (directory.path().join("log"), directory.path().join("proxy.toml"));
    fs::write(&configuration, "[[listen]]\nforward = \"127.0.0.1:7000\"\nto = \"127.0.0.1:9\"\n").unwrap();
    let mut inside = host.command("unshare");
    inside.args(["--pid", "--fork", "--kill-child", TANDEM, "proxy", "-c"]).arg(&configuration);
    let _proxy = Daemon::logging(&mut inside, &log);
    wait_for_port(&host, [127, 0, 0, 1].into(), 7000);
    wait_until("the control socket is there", || host.enter(|| Remote::named("default").status().is_ok()).unwrap());
    let remote = Remote::named("default");
    assert_eq!(host.enter(|| remote.flows().unwrap().len()).unwrap(), 0);
    assert_eq!(host.enter(|| remote.reload().unwrap().changes.len()).unwrap(), 0);

    // It cannot see the process that is to take over, and says so on both sides. It goes on.
    let refused = host.command(TANDEM).args(["proxy", "--take-over", "-c"]).arg(&configuration).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    let why = "the new process is outside of this proxy's PID namespace: run `tandem restart`";
    assert!(!refused.status.success() && said.contains(why), "{said}");
    assert!(fs::read_to_string(&log).unwrap().contains(why), "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(host.enter(|| remote.flows().unwrap().len()).unwrap(), 0);
}

#[test]
fn a_program_in_another_pid_namespace_finds_the_proxy() {
    if skip("a_program_in_another_pid_namespace_finds_the_proxy", &["unshare"]) {
        return;
    }
    let host = Host::new("outside").unwrap();
    let _proxy = Daemon::start(host.command(TANDEM).args(LISTEN));
    wait_for_port(&host, [127, 0, 0, 1].into(), 7000);
    wait_until("the control socket is there", || host.enter(|| Remote::named("default").status().is_ok()).unwrap());
    let flows = tandem_in_another_namespace(&host, &["flows"]);
    let text = String::from_utf8(flows.stdout).unwrap();
    assert!(flows.status.success(), "{text}{}", String::from_utf8_lossy(&flows.stderr));
    assert!(text.starts_with("0 flows now, 0bit/s up, 0bit/s down"), "{text}");

    // The proxy sees a process below its own namespace, which may take over: by the ID that it has
    // here, not by that which the process itself says, 1.
    let mut inside = host.command("unshare");
    inside.args(["--pid", "--fork", "--kill-child", TANDEM]).args(LISTEN).arg("--take-over");
    let log = tempfile::NamedTempFile::new().unwrap();
    let _next = Daemon::logging(&mut inside, log.path());
    wait_until("the process has taken over", || fs::read_to_string(log.path()).unwrap().contains("splitting connections"));
    assert!(host.enter(|| Remote::named("default").status().is_ok()).unwrap());
}
