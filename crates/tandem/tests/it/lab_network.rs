//! `tandem lab`: other programs use its network, and `tandem flows` on its hosts shows what passes
//! its proxies and bonds.

use crate::common::{Daemon, TANDEM, skip, wait_until};
use proxy::control::Remote;
use rustix::{
    fd::AsFd as _,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A network that `tandem lab` keeps up.
struct KeptNetwork {
    lab: Daemon,
    _directory: tempfile::TempDir,
}

impl KeptNetwork {
    fn start(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scenario.toml");
        std::fs::write(&file, scenario).unwrap();
        let lab = Daemon::start(Command::new(TANDEM).arg("lab").arg(&file));
        KeptNetwork { lab, _directory: directory }
    }

    /// Does this on a host.
    fn on<T: Send + 'static>(&self, host: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/tandem-{}-{host}", self.lab.0.id());
        let inside = move || {
            move_into_link_name_space(File::open(path).unwrap().as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::spawn(inside).join().unwrap()
    }

    fn has_host(&self, host: &str) -> bool {
        File::open(format!("/run/netns/tandem-{}-{host}", self.lab.0.id())).is_ok()
    }

    fn has_proxy(&self, host: &str, name: &'static str) -> bool {
        let path = format!("/run/netns/tandem-{}-{host}", self.lab.0.id());
        File::open(path).is_ok() && self.on(host, move || Remote::named(name).status().is_ok())
    }

    /// Payload towards the client of each flow that `tandem flows` shows on a host.
    fn flows(&self, host: &str) -> Vec<u64> {
        let namespace = format!("tandem-{}-{host}", self.lab.0.id());
        let output = Command::new("ip").args(["netns", "exec", &namespace, TANDEM, "flows", "--json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let flows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        flows.as_array().unwrap().iter().map(|flow| flow["down"]["bytes"].as_u64().unwrap()).collect()
    }
}

#[test]
fn flows_of_a_lab_are_shown_on_its_hosts() {
    if skip("flows_of_a_lab_are_shown_on_its_hosts", &["nft", "ip"]) {
        return;
    }
    const LINKS: &str = "name = \"kept\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"10ms\"\n\
                         [[split]]\nafter = 1\n[[flow]]\nbytes = \"1B\"\n";
    const NETWORKS: &str = "name = \"kept\"\n[[network]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n[[network]]\nrate = \"10Mbit\"\n\
                            delay = \"5ms\"\n[[flow]]\nbytes = \"1B\"\n[bond]\nscheduler = \"score\"\n";
    // The host with the proxy; where the server listens and what the client connects to.
    for (scenario, host, listen, to) in
        [(LINKS, "proxy", "0.0.0.0:80", "10.77.2.2:80"), (NETWORKS, "sender", "127.0.0.1:4100", "127.0.0.1:4000")]
    {
        let network = KeptNetwork::start(scenario);
        wait_until("the network is up", || network.has_proxy(host, "default"));
        let listener = network.on("receiver", move || TcpListener::bind(listen).unwrap());
        thread::spawn(move || listener.accept().map(|(mut client, _)| client.write_all(&[7; 5000]).map(|()| client)));
        let to: SocketAddr = to.parse().unwrap();
        let mut client = network.on("sender", move || TcpStream::connect(to).unwrap());
        client.read_exact(&mut [0; 5000]).unwrap();
        wait_until("the flow is shown with its payload", || network.flows(host) == [5000]);
        let refused = network.on(host, || Remote::named("default").reload().map(|report| report.refused));
        assert!(matches!(&refused, Err(error) if error.to_string().contains("belongs to a lab")), "{refused:?}");
    }
}

/// Time from which on a connection crosses the changed link: far more than a machine under load
/// adds.
const SLOW: Duration = Duration::from_millis(1900);

#[test]
fn links_of_a_lab_change_as_the_scenario_says() {
    if skip("links_of_a_lab_change_as_the_scenario_says", &["ip"]) {
        return;
    }
    const LINKS: &str = "name = \"kept\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n\
                         changes = [{ at = \"500ms\", delay = \"1s\" }]\n[[flow]]\nbytes = \"1B\"\n";
    const NETWORKS: &str = "name = \"kept\"\n[[network]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n\
                            changes = [{ at = \"500ms\", delay = \"1s\" }]\n[[network]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\n\
                            [[flow]]\nbytes = \"1B\"\n[bond]\nscheduler = \"single\"\n";
    for (scenario, to) in [(LINKS, "10.77.1.2:80"), (NETWORKS, "10.77.1.2:80")] {
        let network = KeptNetwork::start(scenario);
        wait_until("the network is up", || network.has_host("receiver") && network.has_host("sender"));
        let mut listener = None;
        wait_until("the host has its address", || {
            listener = network.on("receiver", move || TcpListener::bind(to).ok());
            listener.is_some()
        });
        let to: SocketAddr = to.parse().unwrap();
        wait_until("a handshake takes as long as the changed delay", || {
            let begun = Instant::now();
            let opened = network.on("sender", move || TcpStream::connect_timeout(&to, Duration::from_secs(30)).is_ok());
            opened && begun.elapsed() >= SLOW
        });
        if scenario == LINKS {
            let control = network.on("sender", || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap());
            assert_eq!(control.trim(), "reno", "programs that choose no controller get the sender's");
        }
    }
}

#[test]
fn a_lab_has_one_network() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "name = \"x\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[[flow]]\nbytes = \"1B\"\n").unwrap();
    let output = Command::new(TANDEM).arg("lab").arg(file.path()).args(["--set", "link.1.rate=1Mbit,2Mbit"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--set gives link.1.rate 2 values, but tandem lab builds one network: give it one"), "{said}");
}
