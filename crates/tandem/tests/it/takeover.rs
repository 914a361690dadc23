//! Hot restarts: a new process takes over from a proxy that runs, and no connection notices.

mod failures;
mod many;

use crate::common::{
    Daemon, PATIENCE, TANDEM,
    routed::{Routed, SERVER, echoes, end_of, rules},
    skip, wait_until,
};
use proxy::takeover::RestartReport;
use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::Command,
};

/// A process that has taken over, which is killed on drop.
pub(super) struct Successor(pub(super) u32);

impl Successor {
    pub(super) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.0.to_string()]).status().unwrap().success(), "{name}");
    }

    /// Whether it runs. A zombie does not.
    pub(super) fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    }

    /// Stops it, and waits for its end.
    pub(super) fn stop(&self) {
        self.signal("TERM");
        wait_until("the process ends", || !self.runs());
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.runs() {
            let _ = Command::new("kill").args(["-9", &self.0.to_string()]).status();
        }
    }
}

/// Runs `tandem restart`, which must succeed.
pub(super) fn restart(routed: &Routed) -> (Successor, RestartReport) {
    let output = routed.tandem(&["restart", "--json"]);
    assert!(output.status.success(), "{output:?}\n{}", routed.log());
    let report: RestartReport = serde_json::from_slice(&output.stdout).unwrap();
    (Successor(report.pid), report)
}

/// Runs `tandem restart`, which must fail; returns its message.
pub(super) fn refused(routed: &Routed) -> String {
    let output = routed.tandem(&["restart"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the proxy that runs is still in charge: "), "{said}");
    said
}

pub(super) fn connect(routed: &Routed, server: &str) -> TcpStream {
    let mut stream = routed.connect(server, 80).unwrap();
    assert!(echoes(&mut stream));
    stream
}

/// Waits until the process of a daemon has ended well.
pub(super) fn ends(daemon: &mut Daemon) {
    let mut ended = None;
    wait_until("the earlier process ends", || {
        ended = daemon.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
}

/// The kernel settings that a proxy changes.
fn settings(routed: &Routed) -> Vec<String> {
    let value = |name: &str| {
        let output = routed.router.command("cat").arg(format!("/proc/sys/net/ipv4/{name}")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    ["tcp_mtu_probing", "tcp_early_demux"].map(value).to_vec()
}

#[test]
fn flows_end_at_the_process_that_began_them() {
    if skip("flows_end_at_the_process_that_began_them", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let (before, settings_before) = (routed.traces(), settings(&routed));
    let mut first = routed.proxy(&["--threads", "2", "--metrics", "127.0.0.1:9155"]);
    assert_ne!(settings(&routed), settings_before);
    let installed = rules(&routed);
    assert!(routed.tandem(&["bypass", "add", "192.0.2.0/24"]).status.success());
    let mut of_first = connect(&routed, SERVER[0]);

    let (second, report) = restart(&routed);
    assert_eq!((report.earlier_pid, report.flows), (first.0.id(), 1));
    let mut of_second = connect(&routed, SERVER[1]);
    let (third, _) = restart(&routed);
    let mut of_third = connect(&routed, SERVER[0]);
    assert!([&mut of_first, &mut of_second, &mut of_third].into_iter().all(echoes));
    assert!(matches!(first.0.try_wait(), Ok(None)) && second.runs(), "both have a flow");

    // The present process speaks for all of them.
    let status = routed.status();
    assert_eq!((status.draining_processes, status.totals.flows), (2, 3));
    let clients: Vec<_> = routed.flows().iter().map(|flow| flow.client).collect();
    assert!([&of_first, &of_second, &of_third].iter().all(|stream| clients.contains(&stream.local_addr().unwrap())), "{clients:?}");
    assert_eq!(routed.verdicts(), (3, 0, 0), "the counters go on");
    let page = routed.router.enter(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9155").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    });
    let page = page.unwrap();
    assert!(page.contains("\ntandem_flows 3\n") && page.contains("\ntandem_process_flows 1\n"), "{page}");
    let bypass = routed.tandem(&["bypass"]);
    assert_eq!(String::from_utf8_lossy(&bypass.stdout), "192.0.2.0/24\n", "the list is handed over");
    assert_eq!(rules(&routed), installed);

    // Each process ends with its last flow, and what it has counted stays.
    drop(of_second);
    wait_until("the second process ends", || !second.runs());
    wait_until("its totals are taken", || routed.status().draining_processes == 1);
    drop(of_first);
    ends(&mut first);
    wait_until("both are counted", || routed.status().totals.ended_as("finished") == 2);
    let totals = routed.status().totals;
    assert_eq!((totals.flows, totals.up, totals.down), (1, 30, 30));
    drop(of_third);
    third.stop();
    assert_eq!(routed.traces(), before, "the last process removes the rules");
    assert_eq!(settings(&routed), settings_before, "and restores the settings");
    assert!(!routed.log().contains("ERROR"), "{}", routed.log());
}

#[test]
fn a_stop_waits_for_earlier_processes_too() {
    if skip("a_stop_waits_for_earlier_processes_too", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let before = routed.traces();
    let mut first = routed.proxy(&[]);
    let mut of_first = connect(&routed, SERVER[0]);
    let (second, _) = restart(&routed);
    second.signal("TERM");
    wait_until("it drains", || routed.log().contains("a second signal resets them"));
    // The flow of the first process needs the rules of the second one.
    for _ in 0..20 {
        assert!(echoes(&mut of_first) && second.runs());
    }
    second.signal("TERM");
    wait_until("the second process ends", || !second.runs());
    ends(&mut first);
    assert_eq!(end_of(&mut of_first), Err(ErrorKind::ConnectionReset));
    assert_eq!(routed.traces(), before);
}

#[test]
fn a_takeover_changes_what_a_reload_cannot() {
    if skip("a_takeover_changes_what_a_reload_cannot", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    routed.echo(81);
    let before = routed.traces();
    let listener = "[[listen]]\ntransparent = \"[::]:5000\"\n";
    let path = routed.write(listener);
    let mut first = routed.start(&["-c", path.to_str().unwrap()]);
    let mut kept = connect(&routed, SERVER[0]);
    // More threads and listeners, metrics elsewhere, and a rule.
    let forward = format!("[[listen]]\nforward = \"0.0.0.0:7000\"\nto = \"{}:80\"\n", SERVER[0]);
    let rule = "[[rule]]\nports = 81\naction = \"bypass\"\n";
    routed.write(&format!("threads = 3\nmetrics = \"127.0.0.1:9156\"\n{listener}{forward}{rule}"));
    let (second, _) = restart(&routed);
    for _ in 0..12 {
        connect(&routed, SERVER[1]);
    }
    assert_eq!(routed.verdicts(), (13, 0, 0));
    assert!(echoes(&mut routed.connect(SERVER[0], 81).unwrap()));
    assert_eq!(routed.verdicts(), (13, 1, 0), "the rule applies");
    let mut forwarded = routed.connect("10.99.1.2", 7000).unwrap();
    assert!(echoes(&mut forwarded));
    // Fewer threads, and no other listener; the sockets of the three workers are shared out.
    routed.write(&format!("{listener}{rule}"));
    let (third, _) = restart(&routed);
    for _ in 0..12 {
        connect(&routed, SERVER[0]);
    }
    assert_eq!(routed.verdicts(), (25, 1, 0));
    let closed = routed.connect("10.99.1.2", 7000).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
    assert!(echoes(&mut kept) && echoes(&mut forwarded));
    // What a socket that listens cannot change is refused.
    routed.write(&format!("buffer = \"16kB\"\n{listener}{rule}"));
    let said = refused(&routed);
    assert!(said.contains("buffer cannot be changed by a takeover"), "{said}");
    connect(&routed, SERVER[0]);
    assert_eq!(routed.verdicts(), (26, 1, 0));
    drop((kept, forwarded));
    ends(&mut first);
    wait_until("the second process ends", || !second.runs());
    third.stop();
    assert_eq!(routed.traces(), before);
}

#[test]
fn the_program_that_was_installed_last_is_started() {
    if skip("the_program_that_was_installed_last_is_started", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let program = routed.path("tandem");
    testing::copy_program(TANDEM, &program);
    let mut command = routed.router.command(program.to_str().unwrap());
    command.args(["proxy", "--listen", "transparent=[::]:5000"]);
    let mut first = Daemon::logging(&mut command, &routed.path("log"));
    wait_until("the proxy is up", || routed.try_status().is_some());
    // An upgrade: the file of the program that runs is replaced.
    let next = routed.path("next");
    testing::copy_program(TANDEM, &next);
    fs::rename(&next, &program).unwrap();
    let (second, _) = restart(&routed);
    ends(&mut first);
    assert_eq!(fs::read_link(format!("/proc/{}/exe", second.0)).unwrap(), PathBuf::from(&program));
    connect(&routed, SERVER[0]);
    // An upgrade to a program that does not start.
    fs::remove_file(&program).unwrap();
    testing::write_script(&program, "echo 'tandem: a broken program' >&2\nexit 1");
    let said = refused(&routed);
    assert!(said.contains("a broken program"), "{said}");
    fs::remove_file(&program).unwrap();
    let said = refused(&routed);
    assert!(said.contains("cannot run ") && said.contains("No such file"), "{said}");
    connect(&routed, SERVER[1]);
    assert_eq!(routed.verdicts(), (2, 0, 0));
    second.stop();
}

#[test]
fn the_service_manager_learns_the_new_main_process() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut message = [0; 512];
        let count = manager.recv(&mut message).expect("a message");
        String::from_utf8_lossy(&message[..count]).trim().to_owned()
    };
    let mut command = Command::new(TANDEM);
    command.args(["proxy", "--listen", "forward=127.2.0.7:0=127.0.0.1:9", "--name", "main-pid"]);
    command.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "300000");
    let mut first = Daemon::start(&mut command);
    while next() != "READY=1" {}
    let output = Command::new(TANDEM).args(["restart", "--json", "--name", "main-pid"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: RestartReport = serde_json::from_slice(&output.stdout).unwrap();
    let second = Successor(report.pid);
    // The two processes send independently.
    let (mut ready, mut told) = (false, false);
    while !(ready && told) {
        match next().as_str() {
            "READY=1" => ready = true,
            "WATCHDOG=1" => {}
            other => {
                assert_eq!(other, format!("MAINPID={}", second.0));
                told = true;
            }
        }
    }
    ends(&mut first);
    // The new process keeps the watchdog quiet; the old one says nothing of its end.
    for _ in 0..3 {
        while next() != "WATCHDOG=1" {}
    }
    second.stop();
    while next() != "STOPPING=1" {}
}
