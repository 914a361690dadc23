//! A soak: the proxy at about half of what the machine can do, for a long time, with ends that die, links that fail, configurations
//! that change. At the end everything must add up, and nothing be left over.
//!
//! `soak/plan` is what a connection is to do, `soak/ends` what clients and servers do, `soak/trouble`
//! what goes wrong, `soak/hostile` what attackers do. `soak/ledger` compares what the ends and the
//! proxy say of each connection, `soak/watch` looks at the proxy from outside.

use crate::{
    endpoints::{self as ends, World},
    fault_injection::{self as trouble, Troubles},
    hostile,
    ledger::Ledger,
    monitor::{self as watch, Sample},
    payload::Payload,
    plan::{Kill, Kind, Plan},
};
use anyhow::{Context as _, Result, ensure};
use lab::Host;
use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::{Dice, Network};

/// Runs the proxy at about half load for a long time, with ends that die, links that fail, configurations that change; then tells
/// whether everything adds up and nothing is left over
#[derive(Debug, clap::Parser)]
pub(crate) struct Soak {
    /// How long
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// What chance begins with; the order of threads is the machine's
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Hostile clients beside the honest ones, and a firewall with NAT on the proxy's host
    #[arg(long)]
    hostile: bool,
}

/// How long flows that have lost an end may stay after all clients have stopped.
const LAST_FLOWS: Duration = Duration::from_secs(180);
/// What memory may grow by before it counts as a leak, besides a quarter: the allocator's own.
const SLACK: u64 = 4 << 20;
/// Descriptors that the proxy may keep open without a flow: idle pipes of each of two workers.
const KEPT_DESCRIPTORS: u64 = 2 * 8 * 2;

/// What clients do, and how many of them do it.
#[derive(Debug, Clone, Copy)]
enum Habit {
    Short,
    Small,
    Large,
    Doomed,
    Idle,
    Mute,
}

const HABITS: [(Habit, usize); 6] =
    [(Habit::Short, 6), (Habit::Small, 8), (Habit::Large, 4), (Habit::Doomed, 12), (Habit::Idle, 150), (Habit::Mute, 4)];

impl Habit {
    fn plan(self, dice: &mut Dice, serial: u64, hostile: bool) -> Plan {
        let mut plan =
            Plan { kind: Kind::Transfer, serial, seed: dice.next() as u32, up: 0, down: 0, rate: 0, early: dice.chance(0.5), kill: None };
        let mut sizes = |least, most| {
            let (way, one, other) = (dice.between(0, 2), dice.spread(least, most), dice.spread(least, most));
            (plan.up, plan.down) = [(one, 0), (0, one), (one, other)][way as usize];
        };
        match self {
            Habit::Short => (plan.up, plan.down) = (dice.between(1, 1000), dice.between(1, 1000)),
            Habit::Small => sizes(1, 1_000_000),
            Habit::Large => {
                sizes(5_000_000, 200_000_000);
                plan.rate = dice.spread(5_000_000, 60_000_000);
            }
            Habit::Doomed => {
                sizes(1_000_000, 40_000_000);
                plan.rate = dice.spread(1_000_000, 20_000_000);
                let after = dice.between(0, plan.up + plan.down);
                let (client, silent) = (dice.chance(0.5), dice.chance(0.4));
                // Behind NAT far legs have ports of their own, which come again too soon for a server to
                // stay silent towards one.
                plan.kill = Some(Kill { client, silent: silent && (client || !hostile), after });
            }
            Habit::Idle => plan.kind = Kind::Idle,
            Habit::Mute => plan.kind = Kind::Mute,
        }
        plan
    }

    /// Rests between connections: a multiple of what keeps the machine at half load.
    fn rest(self, world: &World, dice: &mut Dice) {
        let unit = Duration::from_micros(world.pause_us.load(Relaxed));
        world.rest(match self {
            Habit::Short => unit,
            Habit::Small => unit * 4,
            Habit::Large => unit * 200,
            Habit::Doomed => Duration::from_millis(dice.between(100, 4000)),
            Habit::Idle | Habit::Mute => Duration::from_millis(dice.between(100, 1000)),
        });
    }
}

impl Soak {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        ensure!(self.minutes > 0.0, "--minutes must be more than 0");
        let network = Network::new("reno")?;
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("proxy.toml");
        let mut dice = Dice::new(self.seed);
        fs::write(&path, trouble::configuration(&mut dice, self.hostile))?;
        let Network { client, server, .. } = &network;
        ends::prepare(client, server)?;
        if self.hostile {
            hostile::prepare(&network)?;
        }
        let before = traces(&network.middle)?;
        let world = World {
            payload: Arc::new(Payload::new()),
            ledger: Arc::new(Ledger::default()),
            stop: Arc::new(AtomicBool::new(false)),
            open: Arc::new(AtomicU64::new(0)),
            pause_us: Arc::new(AtomicU64::new(20_000)),
            client: client.clone(),
            server: server.clone(),
        };
        ends::serve(&world)?;
        if self.hostile {
            hostile::serve(&world)?;
        }
        let mut proxy = Proxy::start(&network, &tandem, &path)?;
        let log = proxy.0.stderr.take().context("no log")?;
        let (heard, log) = watch::read_log(log, world.ledger.clone());
        let begun = Instant::now();
        let at_start = await_start(&network, proxy.0.id())?;
        let troubles = Troubles::default();
        let failures = Mutex::new(Vec::<String>::new());
        let fail = |why: String| {
            eprintln!("FAILURE: {why}");
            failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(why);
        };
        let mut clients = start_clients(&world, &mut dice, self.hostile)?;
        let harm = Arc::new(hostile::Counts::default());
        if self.hostile {
            clients.extend(hostile::start(&world, &mut dice, &harm)?);
        }
        let (mut samples, process) = (Vec::new(), proxy.0.id());
        let tell = |name: &'static str, outcome: Result<()>| {
            if let Err(error) = outcome {
                fail(format!("{name}: {error:#}"));
            }
        };
        let dices: Vec<Dice> = (0..3).map(|_| Dice::new(dice.next())).collect();
        thread::scope(|scope| {
            scope.spawn(|| watch::keep_half_load(&world, process));
            scope.spawn(|| tell("cuts", trouble::cut_links(&world, &network, self.hostile, &troubles, dices[0].clone())));
            scope.spawn(|| tell("reloads", trouble::reload(&world, (&path, process, self.hostile), &heard, &troubles, dices[1].clone())));
            scope.spawn(|| tell("bypass", trouble::bypass(&world, &network, &tandem, &troubles, dices[2].clone())));
            let end = begun + Duration::from_secs_f64(self.minutes * 60.0);
            let mut last = (at_start.clone(), Instant::now(), watch::ticks());
            for minute in 1.. {
                let next = (begun + Duration::from_secs(60 * minute)).min(end);
                thread::sleep(next.saturating_duration_since(Instant::now()));
                world.ledger.tidy(false);
                match Sample::take(&network, process) {
                    Ok(sample) => {
                        report(&world, &troubles, begun, &sample, &mut last);
                        if self.hostile {
                            println!("           hostile clients: {harm}");
                        }
                        samples.push(sample);
                    }
                    Err(error) => {
                        fail(format!("the proxy can't be looked at: {error:#}"));
                        break;
                    }
                }
                if next >= end {
                    break;
                }
            }
            world.stop.store(true, Relaxed);
        });
        await_clients(clients, &fail);
        self.finish(&network, &world, &mut proxy, &tandem, (&at_start, &samples), &fail);
        drop(log.join());
        if traces(&network.middle)? != before {
            fail(format!("what is left in the middle:\n{}\ninstead of:\n{before}", traces(&network.middle)?));
        }
        let sums = world.ledger.sums();
        let mut failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if sums.violations > 0 {
            failures.push(format!("{} violations, the first: {:#?}", sums.violations, world.ledger.told()));
        }
        for (what, count) in [("cuts", &troubles.cuts), ("reloads", &troubles.reloads), ("changes of the bypass list", &troubles.bypasses)]
        {
            if count.load(Relaxed) == 0 {
                failures.push(format!("there were no {what}"));
            }
        }
        println!(
            "connections {} complete {} killed {} failed {} not connected {} unsplit {}; {} flows ({:.1} GB) counted alike by both ends and \
             the proxy",
            sums.begun,
            sums.complete,
            sums.killed,
            sums.failed,
            sums.not_connected,
            sums.unsplit,
            sums.exact,
            sums.exact_bytes as f64 / 1e9
        );
        if failures.is_empty() {
            println!("PASS after {:.0} s", begun.elapsed().as_secs_f64());
            return Ok(ExitCode::SUCCESS);
        }
        println!("FAIL after {:.0} s: {}", begun.elapsed().as_secs_f64(), failures.join("; "));
        Ok(ExitCode::FAILURE)
    }

    /// All clients have stopped: the proxy is to become empty, its books are compared, it is stopped.
    fn finish(
        &self,
        network: &Network,
        world: &World,
        proxy: &mut Proxy,
        tandem: &std::path::Path,
        (at_start, samples): (&Sample, &[Sample]),
        fail: &impl Fn(String),
    ) {
        let process = proxy.0.id();
        let begun = Instant::now();
        let last = loop {
            let sample = match Sample::take(network, process) {
                Ok(sample) => sample,
                Err(error) => return fail(format!("the proxy can't be looked at: {error:#}")),
            };
            let sums = world.ledger.sums();
            // The log is written a moment later.
            let told: u64 = sums.lines.values().sum();
            let ended: u64 = sample.ended.iter().map(|(_, count)| count).sum();
            if sample.flows == 0 && world.open.load(Relaxed) == 0 && told == ended {
                break sample;
            }
            if begun.elapsed() > LAST_FLOWS {
                fail(format!(
                    "{} flows, {} connections of servers are left, {told} of {ended} ends of flows were told",
                    sample.flows,
                    world.open.load(Relaxed)
                ));
                break sample;
            }
            thread::sleep(Duration::from_millis(200));
        };
        world.ledger.tidy(true);
        self.compare(world, network, at_start, samples, &last, fail);
        match network.middle.command(&tandem.to_string_lossy()).args(["flows", "--json"]).output() {
            Ok(output) if output.stdout == b"[]\n" => {}
            other => fail(format!("tandem flows says {other:?}")),
        }
        if let Err(error) = proxy.stop() {
            fail(format!("{error:#}"));
        }
    }
}

impl Soak {
    /// Whether what was counted adds up, and nothing was kept.
    fn compare(&self, world: &World, network: &Network, at_start: &Sample, samples: &[Sample], last: &Sample, fail: &impl Fn(String)) {
        let sums = world.ledger.sums();
        let lines: Vec<(String, u64)> = sums.lines.iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
        if lines != last.ended {
            fail(format!("the log tells of {lines:?}, the metrics of {:?}", last.ended));
        }
        if (sums.up, sums.down) != (last.up, last.down) {
            fail(format!("the log sums up to {} and {} bytes, the metrics to {} and {}", sums.up, sums.down, last.up, last.down));
        }
        // The firewall counts retransmitted SYNs again, and forged SYNs, which never become flows.
        let ended: u64 = last.ended.iter().map(|(_, count)| count).sum();
        let again = syns_again(&network.client).unwrap_or(0);
        if !self.hostile && !(ended + last.flows..=ended + last.flows + again).contains(&last.split) {
            fail(format!(
                "the firewall split {} connections ({again} SYNs were sent again), {ended} have ended, {} are alive",
                last.split, last.flows
            ));
        }
        let passed = last.bypassed + last.unsplit;
        if !self.hostile && !(sums.unsplit..=sums.unsplit + again + sums.not_connected).contains(&passed) {
            fail(format!("the firewall let {passed} pass ({again} SYNs were sent again), {} were not split", sums.unsplit));
        }
        let reference = samples.get(1).or(samples.first()).unwrap_or(at_start);
        println!(
            "at the end: rss {:.1} MiB (minute 2: {:.1}), descriptors {} (at the start: {}), split {} bypassed {} unsplit {} (SYNs sent again: {again}), \
         ended {:?}",
            mebibytes(last.rss),
            mebibytes(reference.rss),
            last.descriptors,
            at_start.descriptors,
            last.split,
            last.bypassed,
            last.unsplit,
            last.ended
        );
        if last.rss > reference.rss + reference.rss / 4 + SLACK {
            fail(format!("memory has grown from {} to {} bytes", reference.rss, last.rss));
        }
        if last.descriptors > at_start.descriptors + KEPT_DESCRIPTORS {
            fail(format!("{} descriptors are open, of which the proxy needs {}", last.descriptors, at_start.descriptors));
        }
    }
}

/// SYNs that a host sent again.
fn syns_again(host: &Host) -> Option<u64> {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/netstat").ok()).ok()??;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let at = lines.next()?.split_whitespace().position(|name| name == "TCPSynRetrans")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// One line a minute.
fn report(world: &World, troubles: &Troubles, begun: Instant, sample: &Sample, last: &mut (Sample, Instant, (u64, u64))) {
    let (before, at, ticks) = last;
    let (wall, now) = (at.elapsed().as_secs_f64(), watch::ticks());
    let sums = world.ledger.sums();
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
        sums.begun,
        sums.complete,
        sums.killed,
        sums.failed,
        sums.not_connected,
        troubles.cuts.load(Relaxed),
        troubles.reloads.load(Relaxed),
        troubles.refused.load(Relaxed),
        troubles.bypasses.load(Relaxed),
        sums.violations,
    );
    *last = (sample.clone(), Instant::now(), now);
}

/// The proxy, until it is dropped.
struct Proxy(Child);

impl Proxy {
    fn start(network: &Network, tandem: &std::path::Path, configuration: &std::path::Path) -> Result<Self> {
        let child = network
            .middle
            .command(&tandem.to_string_lossy())
            .args(["proxy", "-c"])
            .arg(configuration)
            .env_remove("TANDEM_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", tandem.display()))?;
        Ok(Proxy(child))
    }

    /// A clean stop, which without flows takes no time.
    fn stop(&mut self) -> Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "the proxy ended with {status}");
                return Ok(());
            }
            ensure!(begun.elapsed() < Duration::from_secs(20), "the proxy does not stop");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the proxy answers: how it is before anything has come.
fn await_start(network: &Network, process: u32) -> Result<Sample> {
    let begun = Instant::now();
    loop {
        match Sample::take(network, process) {
            Ok(sample) => return Ok(sample),
            Err(error) if begun.elapsed() > Duration::from_secs(20) => return Err(error.context("the proxy does not start")),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Everything the proxy could leave behind on its host.
fn traces(host: &Host) -> Result<String> {
    let mut all = String::new();
    for (program, arguments) in [
        ("nft", "list ruleset"),
        ("ip", "rule"),
        ("ip", "-6 rule"),
        ("ip", "-4 route show table all"),
        ("ip", "-6 route show table 21572"),
        ("tc", "qdisc"),
        // What the proxy changes while it runs.
        ("cat", "/proc/sys/net/ipv4/tcp_early_demux"),
    ] {
        let output = host.command(program).args(arguments.split(' ')).output().with_context(|| format!("cannot run {program}"))?;
        all += &format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(all)
}

fn start_clients(world: &World, dice: &mut Dice, hostile: bool) -> Result<Vec<thread::JoinHandle<()>>> {
    let (serials, ports) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU16::new(0)));
    let mut clients = Vec::new();
    for (habit, count) in HABITS {
        for _ in 0..count {
            let (mut dice, inner) = (Dice::new(dice.next()), world.clone());
            let (serials, ports) = (serials.clone(), ports.clone());
            let work = move || {
                while !inner.is_over() {
                    let plan = habit.plan(&mut dice, serials.fetch_add(1, Relaxed), hostile);
                    let server = ends::SERVERS[usize::from(dice.chance(0.25))];
                    let to = SocketAddr::new(server.into(), dice.between(ends::PORTS.start.into(), u64::from(ends::PORTS.end) - 1) as u16);
                    // One after the other, so that none comes again while the dead of its connection is remembered.
                    let port = || 10_000 + ports.fetch_add(1, Relaxed) % 50_000;
                    let from = plan.kill.map(|_| SocketAddr::new(ends::DOOMED.into(), port()));
                    ends::call(&inner, &plan, from, to);
                    habit.rest(&inner, &mut dice);
                }
            };
            clients.push(world.client.spawn("client", work)?);
        }
    }
    Ok(clients)
}

/// Waits for all clients; one that hangs is a failure.
fn await_clients(clients: Vec<thread::JoinHandle<()>>, fail: &impl Fn(String)) {
    let begun = Instant::now();
    while clients.iter().any(|client| !client.is_finished()) {
        if begun.elapsed() > LAST_FLOWS {
            let left = clients.iter().filter(|client| !client.is_finished()).count();
            return fail(format!("{left} clients never ended"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    if clients.into_iter().any(|client| client.join().is_err()) {
        fail("a client panicked".into());
    }
}
