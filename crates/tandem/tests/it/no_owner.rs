//! Kernels and `nft` programs without table owners, simulated by an `nft` that rejects the flag:
//! the table is still removed with its proxy, belongs to one proxy at a time, and is replaced if
//! all processes that would remove it were killed.

use crate::common::{
    Daemon, TANDEM, as_nobody,
    routed::{Routed, SERVER, echoes, rules},
    skip, wait_until,
};
use std::{
    env, fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    process::Command,
    time::Instant,
};

/// Writes this `nft` to the test's directory; returns a `PATH` that finds it first.
fn path_without_owners(routed: &Routed) -> String {
    let directory = routed.path("bin");
    fs::create_dir(&directory).unwrap();
    testing::write_script(
        directory.join("nft"),
        "PATH=$REAL_PATH\ncase $1 in\n-i) sed -u 's/flags owner/flags none/' | nft -i ;;\n*) exec nft \"$@\" ;;\nesac",
    );
    format!("{}:{}", directory.display(), env::var("PATH").unwrap())
}

fn proxy(routed: &Routed, path: &str, port: u16) -> Command {
    let mut command = routed.router.command(TANDEM);
    command.args(["proxy", "--listen", &format!("transparent=[::]:{port}")]).env("PATH", path);
    command.env("REAL_PATH", env::var("PATH").unwrap() + ":/usr/sbin:/sbin");
    command
}

/// Starts a proxy and waits until it answers.
fn started(routed: &Routed, path: &str) -> Daemon {
    let mut daemon = Daemon::logging(&mut proxy(routed, path, 5000), &routed.path("log"));
    wait_until("the proxy is up", || {
        assert!(matches!(daemon.0.try_wait(), Ok(None)), "the proxy ended:\n{}", routed.log());
        routed.try_status().is_some()
    });
    daemon
}

fn talks(routed: &Routed) {
    assert!(SERVER.iter().all(|server| echoes(&mut routed.connect(server, 80).unwrap())));
}

fn has_table(routed: &Routed) -> bool {
    routed.router.command("nft").args(["list", "table", "inet", "tandem"]).output().unwrap().status.success()
}

#[test]
fn a_table_without_an_owner_is_removed_with_its_proxy() {
    if skip("a_table_without_an_owner_is_removed_with_its_proxy", &["nft", "ip", "sed"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let before = routed.traces();
    let path = path_without_owners(&routed);

    let mut first = started(&routed, &path);
    talks(&routed);
    assert_eq!(routed.verdicts(), (2, 0, 0));
    let second = proxy(&routed, &path, 5001).arg("--name").arg("second").output().unwrap();
    assert!(!second.status.success() && String::from_utf8_lossy(&second.stderr).contains("another process owns"), "{second:?}");
    first.signal("TERM");
    assert!(first.0.wait().unwrap().success());
    assert_eq!(routed.traces(), before, "nothing is left after an orderly exit");

    let mut killed = started(&routed, &path);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    wait_until("the table is gone", || !has_table(&routed));
    talks(&routed);
}

#[test]
fn a_left_over_table_passes_connections_unsplit_and_is_replaced() {
    if skip("a_left_over_table_passes_connections_unsplit_and_is_replaced", &["nft", "ip", "sed"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let path = path_without_owners(&routed);
    let mut first = started(&routed, &path);
    // As when a service manager kills the control group: first the shell that would delete the
    // table.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", first.0.id())).unwrap();
    let keepers: Vec<&str> = children.split_whitespace().collect();
    assert!(!keepers.is_empty() && Command::new("kill").arg("-9").args(&keepers).status().unwrap().success());
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    assert!(has_table(&routed));
    talks(&routed);
    let _next = started(&routed, &path);
    talks(&routed);
    assert_eq!(routed.verdicts(), (2, 0, 0));
}

#[test]
fn another_user_cannot_block_the_table_of_a_proxy() {
    if skip("another_user_cannot_block_the_table_of_a_proxy", &["nft", "ip", "sed"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let path = path_without_owners(&routed);
    // The socket name that marked a running proxy until 0.2.0.
    let squat = || UnixListener::bind_addr(&SocketAddr::from_abstract_name("tandem-table").unwrap()).unwrap();
    let _squatter = as_nobody(&routed.router, squat);
    let _proxy = started(&routed, &path);
    talks(&routed);
    assert_eq!(routed.verdicts(), (2, 0, 0));
}

#[test]
fn rules_that_another_program_removes_are_installed_again() {
    if skip("rules_that_another_program_removes_are_installed_again", &["nft", "ip", "sed"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let path = path_without_owners(&routed);
    let mut proxy = started(&routed, &path);
    let before = rules(&routed);
    let times_restored = || routed.log().matches("are installed again, ").count();
    // The first step of `systemctl restart nftables`, and smaller removals.
    let accidents = ["flush ruleset", "delete table inet tandem", "flush table inet tandem", "flush chain inet tandem prerouting"];
    for (times, accident) in accidents.into_iter().enumerate() {
        assert!(routed.router.command("nft").args(accident.split(' ')).status().unwrap().success());
        let begun = Instant::now();
        wait_until("the loss is logged", || times_restored() == times + 1);
        println!("{accident}: installed again after {} ms", begun.elapsed().as_millis());
        assert_eq!(rules(&routed), before, "{accident}");
        talks(&routed);
        assert_eq!(routed.verdicts(), (2, 0, 0), "{accident}");
    }
    // Changes of other tables have no effect.
    assert!(routed.router.command("nft").args(["add", "table", "inet", "other"]).status().unwrap().success());
    assert!(routed.router.command("nft").args(["delete", "table", "inet", "other"]).status().unwrap().success());
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    assert!(!has_table(&routed));
    assert_eq!(times_restored(), accidents.len(), "{}", routed.log());
}
