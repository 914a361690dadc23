//! Restarts of the proxy under a load of new connections: none fails, is reset or passes unsplit,
//! and every byte arrives. A program of its own, since it loads the machine.
//!
//! `scripts/restart-load` runs it for a minute at 5000 connections a second, with ten restarts.

mod common;

use common::{
    routed::{Routed, SERVER, echoes},
    skip, wait_until,
};
use proxy::takeover::RestartReport;
use std::{
    env,
    fmt::Display,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Ports of the server. A client has 64,000 ports for each, which are not free again within a
/// minute.
const PORTS: std::ops::Range<u16> = 8000..8016;
/// Clients, each with one connection at a time.
const CLIENTS: usize = 32;

/// A setting of the run, from the environment.
fn setting<T: FromStr<Err: Display>>(name: &str, default: T) -> T {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|why| panic!("{name}: {why}")))
}

/// What has become of the connections.
#[derive(Debug, Default)]
struct Outcome {
    connections: AtomicU64,
    failed: AtomicU64,
    resets: AtomicU64,
    /// Payload that came back, and that was wrong or missing.
    bytes: AtomicU64,
    missing: AtomicU64,
}

impl Outcome {
    /// Makes a connection, and counts it. Every 64th carries more.
    fn exchange(&self, to: SocketAddr, number: u64) {
        let length = if number.is_multiple_of(64) { 100_000 } else { 100 };
        match exchange(to, length, number as u8) {
            Ok(right) => {
                self.bytes.fetch_add(right as u64, Relaxed);
                self.missing.fetch_add((length - right) as u64, Relaxed);
            }
            Err(why) => {
                eprintln!("a connection to {to} failed: {why}");
                let counter = if why.kind() == ErrorKind::ConnectionReset { &self.resets } else { &self.failed };
                counter.fetch_add(1, Relaxed);
            }
        }
        self.connections.fetch_add(1, Relaxed);
    }
}

/// Sends bytes to an echo server; returns how many came back right.
fn exchange(to: SocketAddr, length: usize, byte: u8) -> io::Result<usize> {
    let mut stream = TcpStream::connect_timeout(&to, common::PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(common::PATIENCE))?;
    let (mut right, mut sent, mut back) = (0, 0, vec![0; 4096]);
    let block = vec![byte; length.min(4096)];
    while sent < length {
        let part = block.len().min(length - sent);
        stream.write_all(&block[..part])?;
        sent += part;
        stream.read_exact(&mut back[..part])?;
        right += back[..part].iter().filter(|found| **found == byte).count();
    }
    stream.shutdown(Shutdown::Write)?;
    // A reset instead of the end is an error.
    right -= stream.read(&mut back)?;
    Ok(right)
}

/// Echoes the connections to a port, one after the other.
fn serve(listener: &TcpListener) {
    let mut buffer = vec![0; 16 << 10];
    for mut stream in listener.incoming().flatten() {
        let _ = stream.set_nodelay(true);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    }
}

#[test]
fn restarts_under_load_lose_nothing() {
    if skip("restarts_under_load_lose_nothing", &["nft", "ip"]) {
        return;
    }
    let rate: f64 = setting("TANDEM_RESTART_RATE", 500.0);
    let seconds: f64 = setting("TANDEM_RESTART_SECONDS", 6.0);
    let restarts: u32 = setting("TANDEM_RESTARTS", 3);
    let threads: String = setting("TANDEM_RESTART_THREADS", "2".into());

    let routed = Routed::new();
    routed.client.sysctl(&[("ipv4/ip_local_port_range", "1024 65535".into())]).unwrap();
    for port in PORTS {
        let listener = routed.listen(port);
        thread::spawn(move || serve(&listener));
    }
    routed.echo(80);
    let _first = routed.proxy(&["--threads", &threads]);
    let mut held: Vec<TcpStream> = SERVER.iter().map(|server| routed.connect(server, 80).unwrap()).collect();

    let (outcome, ended, begun) = (Outcome::default(), AtomicBool::new(false), Instant::now());
    let (mut last, mut echoed) = (None, 0u64);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (routed, outcome, ended) = (&routed, &outcome, &ended);
            scope.spawn(move || {
                routed
                    .client
                    .enter(|| {
                        let interval = CLIENTS as f64 / rate;
                        for number in 0u64.. {
                            let at = begun + Duration::from_secs_f64((number as f64 + client as f64 / CLIENTS as f64) * interval);
                            thread::sleep(at.saturating_duration_since(Instant::now()));
                            if ended.load(Relaxed) {
                                return;
                            }
                            let port = PORTS.start + ((number as usize + client) % PORTS.len()) as u16;
                            let to = SocketAddr::new(SERVER[client % 2].parse().unwrap(), port);
                            outcome.exchange(to, number);
                        }
                    })
                    .unwrap();
            });
        }
        for restart in 1..=restarts {
            let at = begun + Duration::from_secs_f64(seconds * f64::from(restart) / f64::from(restarts + 1));
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let asked = Instant::now();
            let output = routed.tandem(&["restart", "--json"]);
            if !output.status.success() {
                ended.store(true, Relaxed);
                panic!("{output:?}\n{}", routed.log());
            }
            let report: RestartReport = serde_json::from_slice(&output.stdout).unwrap();
            println!("restart {restart} after {:.1} s took {} ms", begun.elapsed().as_secs_f64(), asked.elapsed().as_millis());
            last = Some(report.pid);
            if held.iter_mut().all(echoes) {
                echoed += 1;
            }
        }
        thread::sleep((begun + Duration::from_secs_f64(seconds)).saturating_duration_since(Instant::now()));
        ended.store(true, Relaxed);
    });
    let took = begun.elapsed().as_secs_f64();
    let made = outcome.connections.load(Relaxed);
    drop(held);
    let all = made + SERVER.len() as u64;
    wait_until("all connections are counted", || routed.status().totals.ended.iter().sum::<u64>() >= all);
    let status = routed.status();
    let counted = status.counted.unwrap();
    println!(
        "{made} connections in {took:.1} s ({:.0} a second), {restarts} restarts: failed {}, resets {}, unsplit {}, split {}; bytes {} of {}; \
         totals of all processes: {} finished, others {}",
        made as f64 / took,
        outcome.failed.load(Relaxed),
        outcome.resets.load(Relaxed),
        counted.unsplit,
        counted.split,
        outcome.bytes.load(Relaxed),
        outcome.bytes.load(Relaxed) + outcome.missing.load(Relaxed),
        status.totals.ended_as("finished"),
        status.totals.ended.iter().sum::<u64>() - status.totals.ended_as("finished"),
    );
    if let Some(pid) = last {
        Command::new("kill").arg(pid.to_string()).status().unwrap();
        wait_until("the last process ends", || routed.try_status().is_none());
    }
    assert_eq!(echoed, u64::from(restarts), "connections that last over all restarts");
    assert_eq!((outcome.failed.into_inner(), outcome.resets.into_inner(), outcome.missing.into_inner()), (0, 0, 0));
    assert_eq!((counted.split, counted.unsplit), (all, 0));
    assert_eq!(status.totals.ended_as("finished"), all);
}
