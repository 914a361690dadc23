//! One soak from start to verdict.

use crate::{
    endpoints,
    fault_injection::{self, FaultCounts},
    hostile,
    ledger::Ledger,
    monitor::{self, ProxySample},
    payload::Payload,
    proxy_process::{ProxyProcess, await_start},
    shared::SoakState,
    workload::{await_clients, start_clients},
};
use anyhow::{Context as _, Result, ensure};
use lab::Host;
use measurements::{SampleColumn, SampleTable, measure};
use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{SplitMix64, ThreeHosts};

/// Runs the proxy at about half load for a long time while endpoints die, links fail and
/// configurations change. Exit code 1 if anything does not add up or is left over
#[derive(Debug, clap::Parser)]
pub(crate) struct Soak {
    /// Duration
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Seed of everything random, apart from the order in which threads run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Adds hostile clients, and a firewall with NAT on the proxy's host
    #[arg(long)]
    hostile: bool,
    /// Writes the counts and circumstances into this directory, as soak.json or soak-hostile.json
    #[arg(long, value_name = "DIRECTORY")]
    record: Option<PathBuf>,
}

/// Head of the column of counts.
const COUNT: &str = "count";
/// How long flows that have lost an endpoint may remain after all clients have stopped.
const LAST_FLOWS: Duration = Duration::from_secs(180);
/// Growth of memory that is no leak, in addition to a quarter: what the allocator keeps, bytes.
const SLACK: u64 = 4 << 20;
/// Descriptors that the proxy may keep open without a flow: two for each of eight idle pipes of two
/// workers.
const KEPT_DESCRIPTORS: u64 = 2 * 8 * 2;

impl Soak {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let name = if self.hostile { "soak-hostile" } else { "soak" };
        let mut passes = false;
        measure(name, self.record.as_deref(), |record| {
            record.rounds = 1;
            let mut table = SampleTable::new("counts", "", vec![SampleColumn::text(COUNT)]);
            passes = self.play(&mut table)?;
            record.tables = vec![table];
            Ok(())
        })?;
        Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Whether everything adds up. Fills the table.
    fn play(&self, table: &mut SampleTable) -> Result<bool> {
        ensure!(self.minutes > 0.0, "--minutes must be more than 0");
        let network = ThreeHosts::new("reno")?;
        let tandem = testbed::resolve_program(&self.tandem);
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("proxy.toml");
        let mut random = SplitMix64::new(self.seed);
        fs::write(&path, fault_injection::configuration(&mut random, self.hostile))?;
        let ThreeHosts { client, server, .. } = &network;
        endpoints::prepare(client, server)?;
        if self.hostile {
            hostile::prepare(&network)?;
        }
        let before = leftovers(&network.middle)?;
        let state = SoakState {
            payload: Arc::new(Payload::new()),
            ledger: Arc::new(Ledger::default()),
            stop: Arc::new(AtomicBool::new(false)),
            open: Arc::new(AtomicU64::new(0)),
            pause_us: Arc::new(AtomicU64::new(20_000)),
            client: client.clone(),
            server: server.clone(),
        };
        endpoints::serve(&state)?;
        if self.hostile {
            hostile::serve(&state)?;
        }
        let mut proxy = ProxyProcess::start(&network, &tandem, &path)?;
        let log = proxy.0.stderr.take().context("no log")?;
        let (log_events, log) = monitor::read_log(log, state.ledger.clone());
        let begun = Instant::now();
        let at_start = await_start(&network, proxy.0.id())?;
        let faults = FaultCounts::default();
        let failures = Mutex::new(Vec::<String>::new());
        let fail = |why: String| {
            eprintln!("FAILURE: {why}");
            failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(why);
        };
        let mut clients = start_clients(&state, &mut random, self.hostile)?;
        let harm = Arc::new(hostile::AttackCounts::default());
        if self.hostile {
            clients.extend(hostile::start(&state, &mut random, &harm)?);
        }
        let (mut samples, process) = (Vec::new(), proxy.0.id());
        let tell = |name: &'static str, outcome: Result<()>| {
            if let Err(error) = outcome {
                fail(format!("{name}: {error:#}"));
            }
        };
        let generators: Vec<SplitMix64> = (0..3).map(|_| SplitMix64::new(random.next_u64())).collect();
        thread::scope(|scope| {
            scope.spawn(|| monitor::keep_half_load(&state, process));
            scope.spawn(|| tell("cuts", fault_injection::cut_links(&state, &network, self.hostile, &faults, generators[0].clone())));
            scope.spawn(|| {
                tell(
                    "reloads",
                    fault_injection::reload(&state, (&path, process, self.hostile), &log_events, &faults, generators[1].clone()),
                );
            });
            scope.spawn(|| tell("bypass", fault_injection::bypass(&state, &network, &tandem, &faults, generators[2].clone())));
            let end = begun + Duration::from_secs_f64(self.minutes * 60.0);
            let mut last = (at_start.clone(), Instant::now(), monitor::ticks());
            for minute in 1.. {
                let next = (begun + Duration::from_secs(60 * minute)).min(end);
                thread::sleep(next.saturating_duration_since(Instant::now()));
                state.ledger.close_stale(false);
                match ProxySample::take(&network, process) {
                    Ok(sample) => {
                        report(&state, &faults, begun, &sample, &mut last);
                        if self.hostile {
                            println!("           hostile clients: {harm}");
                        }
                        samples.push(sample);
                    }
                    Err(error) => {
                        fail(format!("cannot read the proxy's state: {error:#}"));
                        break;
                    }
                }
                if next >= end {
                    break;
                }
            }
            state.stop.store(true, Relaxed);
        });
        await_clients(clients, &fail);
        let last = self.finish(&network, &state, &mut proxy, &tandem, (&at_start, &samples), &fail);
        drop(log.join());
        if leftovers(&network.middle)? != before {
            fail(format!("the proxy left something behind on its host:\n{}\ninstead of:\n{before}", leftovers(&network.middle)?));
        }
        let totals = state.ledger.totals();
        let mut failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if totals.violations > 0 {
            failures.push(format!("{} violations, the first: {:#?}", totals.violations, state.ledger.reported()));
        }
        for (what, count) in [("cuts", &faults.cuts), ("reloads", &faults.reloads), ("changes of the bypass list", &faults.bypasses)] {
            if count.load(Relaxed) == 0 {
                failures.push(format!("there were no {what}"));
            }
        }
        let verdict = if failures.is_empty() { "PASS".to_owned() } else { format!("FAIL: {}", failures.join("; ")) };
        let reference = samples.get(1).or(samples.first()).unwrap_or(&at_start);
        let mut count = |name: &str, value: String| table.row(name).set(COUNT, value);
        count("connections begun", totals.begun.to_string());
        count("complete, every byte compared", totals.complete.to_string());
        count(
            "killed on purpose, failed in a cut, never connected because of a cut",
            format!("{}, {}, {}", totals.killed, totals.failed, totals.not_connected),
        );
        count("passed unsplit: bypass rules, a full table, restarts of the rules", totals.unsplit.to_string());
        let exact = format!("{} ({:.1} GB)", totals.exact, totals.exact_bytes as f64 / 1e9);
        count("split flows with equal byte counts at both ends and the proxy", exact);
        if self.hostile {
            count("hostile clients", harm.to_string());
        }
        let [cuts, reloads, refused, bypasses] =
            [&faults.cuts, &faults.reloads, &faults.refused, &faults.bypasses].map(|count| count.load(Relaxed));
        count("cuts, reloads (refused), changes of the bypass list", format!("{cuts}, {reloads} ({refused}), {bypasses}"));
        if let Some(last) = last {
            count("resident memory, minute 2 and end", format!("{:.1} and {:.1} MiB", mebibytes(reference.rss), mebibytes(last.rss)));
            count("descriptors, start and end", format!("{} and {}", at_start.descriptors, last.descriptors));
        }
        count("violations", totals.violations.to_string());
        count("result", format!("{verdict} after {:.0} s", begun.elapsed().as_secs_f64()));
        Ok(failures.is_empty())
    }

    /// After all clients have stopped: waits until the proxy has no flows, compares all counts, and
    /// stops the proxy. Returns its last sample, if it still answered.
    fn finish(
        &self,
        network: &ThreeHosts,
        state: &SoakState,
        proxy: &mut ProxyProcess,
        tandem: &std::path::Path,
        (at_start, samples): (&ProxySample, &[ProxySample]),
        fail: &impl Fn(String),
    ) -> Option<ProxySample> {
        let process = proxy.0.id();
        let begun = Instant::now();
        let last = loop {
            let sample = match ProxySample::take(network, process) {
                Ok(sample) => sample,
                Err(error) => {
                    fail(format!("cannot read the proxy's state: {error:#}"));
                    return None;
                }
            };
            let totals = state.ledger.totals();
            // The proxy writes its log a moment after it updates its metrics.
            let reported: u64 = totals.lines.values().sum();
            let ended: u64 = sample.ended.iter().map(|(_, count)| count).sum();
            if sample.flows == 0 && state.open.load(Relaxed) == 0 && reported == ended {
                break sample;
            }
            if begun.elapsed() > LAST_FLOWS {
                fail(format!(
                    "{} flows and {} connections of servers are left; the log has {reported} of {ended} ended flows",
                    sample.flows,
                    state.open.load(Relaxed)
                ));
                break sample;
            }
            thread::sleep(Duration::from_millis(200));
        };
        state.ledger.close_stale(true);
        self.compare(state, network, at_start, samples, &last, fail);
        match network.middle.command(&tandem.to_string_lossy()).args(["flows", "--json"]).output() {
            Ok(output) if output.stdout == b"[]\n" => {}
            other => fail(format!("tandem flows says {other:?}")),
        }
        if let Err(error) = proxy.stop() {
            fail(format!("{error:#}"));
        }
        Some(last)
    }
}

impl Soak {
    /// Checks that all counts agree and that nothing has leaked.
    fn compare(
        &self,
        state: &SoakState,
        network: &ThreeHosts,
        at_start: &ProxySample,
        samples: &[ProxySample],
        last: &ProxySample,
        fail: &impl Fn(String),
    ) {
        let totals = state.ledger.totals();
        let lines: Vec<(String, u64)> = totals.lines.iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
        if lines != last.ended {
            fail(format!("ended flows by ending: the log has {lines:?}, the metrics {:?}", last.ended));
        }
        if (totals.up, totals.down) != (last.up, last.down) {
            fail(format!("bytes up and down: the log has {} and {}, the metrics {} and {}", totals.up, totals.down, last.up, last.down));
        }
        // The firewall also counts retransmitted SYNs, and forged SYNs, which never become flows.
        let ended: u64 = last.ended.iter().map(|(_, count)| count).sum();
        let again = retransmitted_syns(&network.client).unwrap_or(0);
        if !self.hostile && !(ended + last.flows..=ended + last.flows + again).contains(&last.split) {
            fail(format!(
                "the firewall split {} connections ({again} SYNs were sent again), {ended} have ended, {} are alive",
                last.split, last.flows
            ));
        }
        let passed = last.bypassed + last.unsplit;
        if !self.hostile && !(totals.unsplit..=totals.unsplit + again + totals.not_connected).contains(&passed) {
            fail(format!("the firewall let {passed} pass ({again} SYNs were sent again), {} were not split", totals.unsplit));
        }
        let reference = samples.get(1).or(samples.first()).unwrap_or(at_start);
        println!(
            "split {} bypassed {} unsplit {} (SYNs sent again: {again}), ended {:?}",
            last.split, last.bypassed, last.unsplit, last.ended
        );
        if last.rss > reference.rss + reference.rss / 4 + SLACK {
            fail(format!("memory has grown from {} to {} bytes", reference.rss, last.rss));
        }
        if last.descriptors > at_start.descriptors + KEPT_DESCRIPTORS {
            fail(format!("{} descriptors are open, of which the proxy needs {}", last.descriptors, at_start.descriptors));
        }
    }
}

/// SYNs that a host has retransmitted.
fn retransmitted_syns(host: &Host) -> Option<u64> {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/netstat").ok()).ok()??;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let at = lines.next()?.split_whitespace().position(|name| name == "TCPSynRetrans")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Prints a line a minute.
fn report(state: &SoakState, faults: &FaultCounts, begun: Instant, sample: &ProxySample, last: &mut (ProxySample, Instant, (u64, u64))) {
    let (before, at, ticks) = last;
    let (wall, now) = (at.elapsed().as_secs_f64(), monitor::ticks());
    let totals = state.ledger.totals();
    let ended: Vec<String> = sample.ended.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    println!(
        "{:6.1} min: flows {} ended [{}] up {:.2} GB down {:.2} GB rss {:.1} MiB descriptors {} tcp memory {:.1} MiB cpu {:.0} % machine {:.0} % | \
         SYNs: split {} bypassed {} unsplit {} not yet allowed {} stopped {} | clients: begun {} complete {} killed {} failed {} not connected {} | cuts {} reloads {} refused {} bypass {} | violations {}",
        begun.elapsed().as_secs_f64() / 60.0,
        sample.flows,
        ended.join(" "),
        sample.up as f64 / 1e9,
        sample.down as f64 / 1e9,
        mebibytes(sample.rss),
        sample.descriptors,
        mebibytes(sample.tcp_memory),
        (sample.cpu - before.cpu).as_secs_f64() / wall * 100.0,
        (now.0 - ticks.0) as f64 / (now.1 - ticks.1).max(1) as f64 * 100.0,
        sample.split,
        sample.bypassed,
        sample.unsplit,
        sample.not_yet_allowed,
        sample.stopped,
        totals.begun,
        totals.complete,
        totals.killed,
        totals.failed,
        totals.not_connected,
        faults.cuts.load(Relaxed),
        faults.reloads.load(Relaxed),
        faults.refused.load(Relaxed),
        faults.bypasses.load(Relaxed),
        totals.violations,
    );
    *last = (sample.clone(), Instant::now(), now);
}

/// Rules, routes and settings that the proxy could leave behind on its host.
fn leftovers(host: &Host) -> Result<String> {
    let mut all = String::new();
    for (program, arguments) in [
        ("nft", "list ruleset"),
        ("ip", "rule"),
        ("ip", "-6 rule"),
        ("ip", "-4 route show table all"),
        ("ip", "-6 route show table 21572"),
        ("tc", "qdisc"),
        // The proxy changes this setting while it runs.
        ("cat", "/proc/sys/net/ipv4/tcp_early_demux"),
    ] {
        let output = host.command(program).args(arguments.split(' ')).output().with_context(|| format!("cannot run {program}"))?;
        all += &format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(all)
}
