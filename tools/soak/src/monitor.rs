//! Observes the proxy from outside: its memory, descriptors, metrics and log.

use crate::{
    addresses::METRICS,
    ledger::{FlowLogLine, Ledger},
    shared::SoakState,
};
use anyhow::{Context as _, Result};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{ThreeHosts, process_cpu_time};

/// The state of the proxy at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxySample {
    pub(crate) flows: u64,
    /// Flows that have ended, by ending; endings that occurred.
    pub(crate) ended: Vec<(String, u64)>,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) split: u64,
    pub(crate) bypassed: u64,
    pub(crate) unsplit: u64,
    pub(crate) not_yet_allowed: u64,
    pub(crate) stopped: u64,
    pub(crate) tcp_memory: u64,
    pub(crate) rss: u64,
    pub(crate) descriptors: u64,
    /// Processor time since the start.
    pub(crate) cpu: Duration,
}

impl ProxySample {
    pub(crate) fn take(network: &ThreeHosts, process: u32) -> Result<ProxySample> {
        let metrics = metrics(network)?;
        let get = |name: &str| metrics.get(name).copied().unwrap_or(0.0) as u64;
        let ended = metrics.iter().filter_map(|(name, value)| {
            let kind = name.strip_prefix("tandem_flows_ended_total{ending=\"")?.strip_suffix("\"}")?;
            // Clients without a greeting never became flows, and are not logged as such.
            (*value > 0.0 && kind != "no_greeting").then(|| (kind.to_string(), *value as u64))
        });
        let mut ended: Vec<_> = ended.collect();
        ended.sort();
        Ok(ProxySample {
            flows: get("tandem_flows"),
            ended,
            up: get("tandem_carried_bytes_total{direction=\"up\"}"),
            down: get("tandem_carried_bytes_total{direction=\"down\"}"),
            split: get("tandem_connections_total{verdict=\"split\"}"),
            bypassed: get("tandem_connections_total{verdict=\"bypassed\"}"),
            unsplit: get("tandem_connections_total{verdict=\"unsplit\"}"),
            not_yet_allowed: get("tandem_connections_total{verdict=\"not_yet_allowed\"}"),
            stopped: get("tandem_connections_total{verdict=\"stopped\"}"),
            tcp_memory: get("tandem_tcp_memory_bytes"),
            rss: memory(process)?,
            descriptors: descriptors(process)?,
            cpu: process_cpu_time(process as i32).map_or(Duration::ZERO, |(_, time)| time),
        })
    }
}

/// The proxy's metrics, by name and labels.
fn metrics(network: &ThreeHosts) -> Result<HashMap<String, f64>> {
    let text = network.middle.enter(|| -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&METRICS.parse::<SocketAddr>()?, Duration::from_secs(10))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })?;
    let text = text.context("the proxy's metrics don't answer")?;
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    Ok(text.lines().filter(|line| line.starts_with("tandem")).filter_map(pair).collect())
}

/// Resident memory of a process (VmRSS), bytes.
fn memory(process: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).context("the proxy is gone")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no VmRSS")?.parse::<u64>()? * 1024)
}

/// Open descriptors of the process and of its workers, each of which has its own table.
fn descriptors(process: u32) -> Result<u64> {
    let mut count = 0;
    for task in fs::read_dir(format!("/proc/{process}/task")).context("the proxy is gone")?.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let worker = name.trim().strip_prefix("tandem-").is_some_and(|number| number.parse::<usize>().is_ok());
        if worker || task.file_name().to_string_lossy() == process.to_string() {
            count += fs::read_dir(task.path().join("fd")).map_or(0, Iterator::count) as u64;
        }
    }
    Ok(count)
}

/// Log lines about reloads.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogEvents {
    pub(crate) reloaded: Arc<AtomicU64>,
    pub(crate) refused: Arc<AtomicU64>,
}

/// Reads the proxy's log until it ends. Flows go to the ledger; unexpected lines are violations.
pub(crate) fn read_log(log: impl std::io::Read + Send + 'static, ledger: Arc<Ledger>) -> (LogEvents, thread::JoinHandle<()>) {
    let log_events = LogEvents::default();
    let events = log_events.clone();
    let thread = thread::spawn(move || {
        for text in BufReader::new(log).lines().map_while(Result::ok) {
            if let Some(line) = FlowLogLine::parse(&text) {
                ledger.line(line);
            } else if text.contains("has been read again") {
                events.reloaded.fetch_add(1, Relaxed);
            } else if text.contains("the configuration stays as it was") {
                events.refused.fetch_add(1, Relaxed);
            } else if ["ERROR", "panicked", "dropped lines", "rules are lost"].iter().any(|word| text.contains(word)) {
                ledger.violation(format!("the proxy's log: {text}"));
            }
        }
    });
    (log_events, thread)
}

/// Keeps the soak and the proxy together at about half of the machine's capacity: clients pause
/// longer when both use more. Unrelated programs do not count.
pub(crate) fn keep_half_load(state: &SoakState, proxy: u32) {
    let both = || [proxy, std::process::id()].iter().filter_map(|id| process_cpu_time(*id as i32)).map(|(_, time)| time).sum::<Duration>();
    let half = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64) / 2.0;
    let (mut before, mut at) = (both(), Instant::now());
    while !state.is_over() {
        state.rest(Duration::from_secs(1));
        let now = both();
        let used = now.saturating_sub(before).as_secs_f64() / at.elapsed().as_secs_f64();
        (before, at) = (now, Instant::now());
        let pause = state.pause_us.load(Relaxed);
        let next = if used > half { pause + pause / 4 } else { pause - pause / 5 };
        state.pause_us.store(next.clamp(200, 1_000_000), Relaxed);
    }
}

/// Busy time and total time of all processors, in clock ticks.
pub(crate) fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> = text.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    let all: u64 = fields.iter().sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (all - idle, all)
}
