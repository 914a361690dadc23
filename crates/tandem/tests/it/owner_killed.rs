//! The process that owns the nftables table is killed, for example by the OOM killer: the proxy
//! reinstalls its rules with their state, or exits with an error.

use crate::common::{
    Daemon, TANDEM,
    routed::{Routed, SERVER, echoes, rules},
    skip, wait_until,
};
use std::{env, fs, process::Command, time::Instant};

/// Kills the `nft` child of a proxy.
fn kill_owner(proxy: &Daemon) {
    let threads = fs::read_dir(format!("/proc/{}/task", proxy.0.id())).unwrap();
    // A thread may end during the listing.
    let children = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default());
    let children = children.collect::<String>();
    let owners: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(owners.len(), 1, "one child, the owner of the table: {children}");
    assert!(Command::new("kill").arg("-9").args(owners).status().unwrap().success());
}

/// Kills the owner, and waits until the rules are installed again.
fn kill_and_wait(routed: &Routed, proxy: &Daemon, before: &str) {
    // The table may be there again before a look at it.
    let losses = || routed.log().matches("the firewall's rules are lost").count();
    let earlier = losses();
    kill_owner(proxy);
    let begun = Instant::now();
    wait_until("the loss is noticed", || losses() > earlier);
    wait_until("the rules are installed again", || rules(routed) == before);
    println!("installed again {} ms after the kill", begun.elapsed().as_millis());
}

#[test]
fn rules_are_reinstalled_after_their_owner_is_killed() {
    if skip("rules_are_reinstalled_after_their_owner_is_killed", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let before = routed.traces();
    let mut proxy = routed.proxy(&["--max-flows", "1"]);
    let has = |prefix: &str| assert!(routed.tandem(&["bypass", "add", prefix]).status.success());
    has(SERVER[0]);
    let connect = |server: &str| {
        let mut stream = routed.connect(server, 80).unwrap();
        assert!(echoes(&mut stream));
        stream
    };
    let held = {
        let installed = rules(&routed);
        for _ in 0..3 {
            kill_and_wait(&routed, &proxy, &installed);
        }
        drop(connect(SERVER[0]));
        let held = connect(SERVER[1]);
        assert_eq!(routed.verdicts(), (1, 1, 0), "the bypass list is kept");
        held
    };
    // At the flow limit, new connections pass unsplit, before and after the kill.
    wait_until("the proxy is full", || routed.log().contains("new connections pass unsplit"));
    let full = rules(&routed);
    kill_and_wait(&routed, &proxy, &full);
    let unsplit = connect(SERVER[1]);
    assert_eq!(routed.verdicts(), (0, 0, 1));
    drop((held, unsplit));
    wait_until("there is room again", || routed.log().contains("below the limits again"));
    drop(connect(SERVER[1]));
    assert_eq!(routed.verdicts(), (1, 0, 1));
    let told = routed.log();
    assert_eq!(told.matches("the firewall's rules are lost").count(), 4, "{told}");
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    assert_eq!(routed.traces(), before, "nothing is left after an orderly exit");
}

#[test]
fn a_proxy_that_cannot_reinstall_its_rules_exits_with_an_error() {
    if skip("a_proxy_that_cannot_reinstall_its_rules_exits_with_an_error", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let nft = routed.path("nft");
    let broken = routed.path("broken");
    testing::write_script(&nft, &format!("PATH=$REAL_PATH\ntest -e {} && exit 1\nexec nft \"$@\"", broken.display()));
    let path = env::var("PATH").unwrap();
    let mut command = routed.router.command(TANDEM);
    command.args(["proxy", "--listen", "transparent=[::]:5000"]);
    command.env("PATH", format!("{}:{path}", nft.parent().unwrap().display())).env("REAL_PATH", path + ":/usr/sbin:/sbin");
    let mut proxy = Daemon::logging(&mut command, &routed.path("log"));
    wait_until("the proxy is up", || routed.try_status().is_some());
    fs::write(&broken, "").unwrap();
    kill_owner(&proxy);
    let mut ended = None;
    wait_until("the proxy ends", || {
        ended = proxy.0.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(1), "{}", routed.log());
    assert!(routed.log().contains("cannot install the firewall's rules again"), "{}", routed.log());
    assert!(SERVER.iter().all(|server| echoes(&mut routed.connect(server, 80).unwrap())), "connections pass unsplit");
}

#[test]
fn the_cache_reinstalls_its_rules() {
    if skip("the_cache_reinstalls_its_rules", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    let mut command = routed.router.command(TANDEM);
    command.args(["cache", "--listen", "transparent=[::]:5000"]);
    let mut cache = Daemon::logging(&mut command, &routed.path("log"));
    wait_until("the cache is up", || routed.log().contains("storing and forwarding"));
    let installed = rules(&routed);
    assert!(installed.contains("tproxy"), "{installed}");
    kill_and_wait(&routed, &cache, &installed);
    cache.signal("TERM");
    assert!(cache.0.wait().unwrap().success());
    assert_eq!(rules(&routed), "", "nothing is left after an orderly exit");
}
