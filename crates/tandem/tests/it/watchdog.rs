//! Keepalives of the proxy to the service manager's watchdog.

use crate::common::{Daemon, PATIENCE, TANDEM};
use std::{os::unix::net::UnixDatagram, process::Command};

/// Returns the next message to the service manager; panics if none arrives in time.
fn told(manager: &UnixDatagram) -> String {
    let mut message = [0; 512];
    let count = manager.recv(&mut message).expect("the proxy tells the service manager something");
    String::from_utf8_lossy(&message[..count]).into_owned()
}

#[test]
fn an_idle_proxy_sends_watchdog_keepalives() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(TANDEM);
    command.args(["proxy", "--listen", "forward=127.2.0.5:0=127.0.0.1:9", "--threads", "2", "--name", "watchdog"]);
    command.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "300000");
    let mut proxy = Daemon::start(&mut command);
    let mut ready = false;
    for _ in 0..5 {
        loop {
            match told(&manager).as_str().trim() {
                "WATCHDOG=1" => break,
                "READY=1" => ready = true,
                other => panic!("{other}"),
            }
        }
    }
    assert!(ready);
    // A stopped process sends no keepalives: then the service manager would kill it.
    proxy.signal("STOP");
    manager.set_read_timeout(Some(std::time::Duration::from_millis(600))).unwrap();
    while manager.recv(&mut [0; 512]).is_ok() {}
    proxy.signal("CONT");
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(told(&manager).trim(), "WATCHDOG=1");
    proxy.signal("TERM");
    while !told(&manager).contains("STOPPING=1") {}
    assert!(proxy.0.wait().unwrap().success());
}

#[test]
fn without_a_watchdog_no_keepalives_are_sent() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(TANDEM);
    command.args(["proxy", "--listen", "forward=127.2.0.6:0=127.0.0.1:9", "--name", "no-watchdog"]).env("NOTIFY_SOCKET", &at);
    let mut proxy = Daemon::start(command.env_remove("WATCHDOG_USEC"));
    assert_eq!(told(&manager).trim(), "READY=1");
    proxy.signal("TERM");
    assert!(told(&manager).contains("STOPPING=1"));
    assert!(proxy.0.wait().unwrap().success());
}
