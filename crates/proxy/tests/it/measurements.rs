//! Measurements and records of flows.

use crate::common::{ForwardBench, fill, forward, free_port, listener, payload, read_out, wait_until};
use proxy::{Ending, FlowRecordsConfig, Histogram, LegMeasurements, Proxy, ProxyConfig};
use std::{
    fs,
    io::{self, Write as _},
    net::{Shutdown, TcpStream},
    path::Path,
    time::Duration,
};

/// The measurements of the near and the far legs.
fn legs(proxy: &Proxy) -> [LegMeasurements; 2] {
    let legs = proxy.totals().measured.legs;
    ["near", "far"].map(|name| legs.iter().find(|leg| leg.leg == name).cloned().unwrap_or_default())
}

fn to_file(path: &Path) -> FlowRecordsConfig {
    toml::from_str(&format!("file = {:?}", path.display().to_string())).unwrap()
}

fn records(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Sends 50 kB through a proxy to the server, and nothing back.
fn upload(at: std::net::SocketAddr, server: &std::net::TcpListener) {
    let mut client = TcpStream::connect(at).unwrap();
    let end = server.accept().unwrap().0;
    client.write_all(&payload(50_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_out(&end).unwrap().len(), 50_000);
    drop(end);
    assert_eq!(read_out(&client), Ok(Vec::new()));
}

#[test]
fn a_flow_is_measured_when_it_ends() {
    let server = listener();
    let (proxy, at, ended) = forward(server.local_addr().unwrap(), ProxyConfig::default());
    upload(at, &server);
    assert_eq!(ended.recv().unwrap().ending, Ending::Finished);
    let [near, far] = legs(&proxy);
    assert_eq!((near.profile.as_str(), far.profile.as_str()), ("near", "far"));
    for leg in [&near, &far] {
        assert_eq!((leg.handshake.count(), leg.rtt.count()), (1, 1), "{leg:?}");
        assert!(leg.handshake.sum > 0.0 && leg.rtt.sum > 0.0, "{leg:?}");
        // 50 kB
        assert_eq!((leg.duration[1].count(), leg.throughput[1].count()), (1, 1), "{leg:?}");
    }
    assert!((50_000..60_000).contains(&far.sent_bytes), "{far:?}");
    assert_eq!((near.retransmitted.count(), far.retransmitted.count()), (0, 1), "the near leg sent nothing");
    assert_eq!(far.failures.iter().sum::<u64>(), 0);
}

#[test]
fn a_refusal_is_a_failure_and_no_flow() {
    let (proxy, at, ended) = forward(free_port(), ProxyConfig::default());
    let client = TcpStream::connect(at).unwrap();
    assert_eq!(ended.recv().unwrap().ending, Ending::FarNotReached(io::ErrorKind::ConnectionRefused));
    let _ = read_out(&client);
    let [near, far] = legs(&proxy);
    // The first kind is `refused`.
    assert_eq!((far.failures[0], far.failures.iter().sum::<u64>()), (1, 1));
    assert!(far.handshake.is_empty() && far.rtt.is_empty() && far.duration.iter().all(Histogram::is_empty), "{far:?}");
    assert_eq!((near.handshake.count(), near.duration.iter().map(Histogram::count).sum::<u64>()), (1, 0));
}

#[test]
fn open_flows_are_sampled() {
    let bench = ForwardBench::new(Some(units::Bytes(1 << 20)));
    let (client, server) = bench.connect();
    // The server does not read: the proxy's buffer fills up.
    assert!(fill(&client, 64 << 20) > 1 << 20);
    wait_until(|| {
        let [_, far] = legs(&bench.proxy);
        far.phase_s[2] > 1.0 && far.held.sum > 500_000.0
    });
    let [near, far] = legs(&bench.proxy);
    assert!(near.phase_s[1] > 0.0 && near.phase_s[2] == 0.0, "nothing goes down: {near:?}");
    assert!(far.sent_bytes > 0 && far.duration.iter().all(Histogram::is_empty), "it has not ended: {far:?}");
    assert!(far.sending_s[2] > 0.5, "the receiver's window is the limit: {far:?}");
    drop((client, server));
}

#[test]
fn a_reload_opens_the_file_of_records_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved, other) = (directory.path().join("flows"), directory.path().join("moved"), directory.path().join("other"));
    let server = listener();
    let config = ProxyConfig { flow_records: Some(to_file(&path)), ..ProxyConfig::default() };
    let (proxy, at, ended) = forward(server.local_addr().unwrap(), config.clone());
    let reload = |proxy: &Proxy, config: &ProxyConfig| {
        let listen = vec![proxy::ListenerConfig::forward(at, server.local_addr().unwrap())];
        proxy.reload(ProxyConfig { listen, ..config.clone() }).unwrap();
    };
    let flow = || {
        upload(at, &server);
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    };
    flow();
    wait_until(|| records(&path).len() == 1);
    fs::rename(&path, &moved).unwrap();
    reload(&proxy, &config);
    flow();
    wait_until(|| records(&path).len() == 1);
    assert_eq!(records(&moved).len(), 1);
    assert_ne!(records(&moved)[0]["flow"], records(&path)[0]["flow"]);
    reload(&proxy, &ProxyConfig { flow_records: Some(to_file(&other)), ..config.clone() });
    flow();
    // The rest is written before the proxy is gone.
    drop(proxy);
    assert_eq!((records(&path).len(), records(&other).len()), (1, 1));
    assert_eq!(records(&other)[0]["up"]["bytes"], 50_000);
}
