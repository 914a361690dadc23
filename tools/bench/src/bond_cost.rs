//! Processor time per gigabyte of a bond's two ends. For comparison, between the same hosts and in
//! turn: a relay between two plain connections, and a program that copies each byte into its memory
//! and out again, as any sender must that may have to retransmit.

use crate::{
    load::{self, BulkFlows, LoadServers},
    measurement::{BenchMetric, Measurement, note_given_up, undisturbed},
};
use anyhow::{Context as _, Result, ensure};
use lab::Host;
use measurements::{MeasurementRecord, SampleColumn, SampleRatio, SampleTable};
use std::{
    env, fmt, fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use testbed::{CpuClocks, FIRST_ECHO_PORT, SINK_PORT, ThreeHosts, process_cpu_time};

/// Where applications connect to the bond or the relay: for the sink, and for the echo server.
const IN: [(Ipv4Addr, u16); 2] = [(Ipv4Addr::LOCALHOST, 5000), (Ipv4Addr::LOCALHOST, 5001)];
/// Port of the bond's accepting end.
const BOND_PORT: u16 = 7000;
/// Addresses of the dialling host, one for each network. The networks share one link, which is as
/// fast as memory.
const NETWORKS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 1, 1), Ipv4Addr::new(10, 79, 1, 3)];

/// Measures the processor time per gigabyte of a bond's ends, beside a plain relay
#[derive(Debug, clap::Args)]
pub(crate) struct BondCost {
    /// Rounds; each mode is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Duration of a measurement
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// Flows from client to server
    #[arg(long, default_value_t = 1)]
    flows: usize,
    /// How often a measurement is repeated if other programs disturb it
    #[arg(long, default_value_t = 5)]
    tries: usize,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
}

/// How the flows are forwarded.
#[derive(Debug, Clone, Copy)]
enum ForwardingMode {
    Relay,
    Copy,
    Bond { networks: usize, tls: bool },
}

const FORWARDING_MODES: [ForwardingMode; 5] = [
    ForwardingMode::Relay,
    ForwardingMode::Copy,
    ForwardingMode::Bond { networks: 1, tls: false },
    ForwardingMode::Bond { networks: 2, tls: false },
    ForwardingMode::Bond { networks: 2, tls: true },
];

impl fmt::Display for ForwardingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardingMode::Relay => write!(f, "relay"),
            ForwardingMode::Copy => write!(f, "copies alone"),
            ForwardingMode::Bond { networks, tls } => write!(f, "bond over {networks}{}", if *tls { ", TLS" } else { "" }),
        }
    }
}

/// Columns of the table, in CPU s/GB: the process that accepts the flows, and the other end's.
const ENDS: [&str; 2] = ["end that accepts the flows", "other end"];

impl BondCost {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs as u64;
        let throughput = BenchMetric::Throughput.column();
        let over_relay = |of: &str| SampleColumn {
            ratio: Some(SampleRatio { of: of.into(), over: ENDS[0].into(), row: Some(ForwardingMode::Relay.to_string()) }),
            ..SampleColumn::new("×", "", 2)
        };
        let [accepting, other] = ENDS.map(|end| [SampleColumn::new(end, "CPU s/GB", 3), over_relay(end)]);
        record.tables = vec![SampleTable::new("cost", "", [&accepting[..], &other, std::slice::from_ref(&throughput)].concat())];
        let network = ThreeHosts::new("reno")?;
        network.client.ip(&[format!("addr add {}/24 dev near", NETWORKS[1])])?;
        let servers = LoadServers::start(&network)?;
        let mut given_up = 0;
        for round in 0..self.runs {
            for mode in FORWARDING_MODES {
                let row = record.tables[0].row(&mode.to_string());
                let turn = undisturbed(self.tries, || {
                    let (measures, costs) = self.turn(&network, &servers, mode)?;
                    eprintln!("round {}, {mode}: {measures}; each {costs:.3?} CPU s/GB", round + 1);
                    Ok((measures.clone(), (measures, costs)))
                });
                let Some((measures, costs)) = turn.with_context(|| mode.to_string())? else {
                    given_up += 1;
                    continue;
                };
                ENDS.iter().zip(costs).for_each(|(end, cost)| row.add(end, round, cost));
                if let Some(figure) = measures.figure(BenchMetric::Throughput) {
                    row.add(&throughput.head, round, figure);
                }
            }
        }
        note_given_up(record, given_up);
        Ok(())
    }

    /// One measurement, and CPU s/GB of each process, the one that accepts the flows first.
    fn turn(&self, network: &ThreeHosts, servers: &LoadServers, mode: ForwardingMode) -> Result<(Measurement, Vec<f64>)> {
        let tandem = testbed::resolve_program(&self.tandem);
        let middle = RunningForwarder::start(network, &tandem, mode)?;
        let processes: Vec<u32> = middle.children.iter().map(Child::id).collect();
        let flows = BulkFlows { to: IN[0].into(), count: self.flows, control: None };
        let times = || {
            processes.iter().map(|process| process_cpu_time(*process as i32).map_or(Duration::ZERO, |(_, time)| time)).collect::<Vec<_>>()
        };
        let (bytes, (spent, each)) = load::send(network, servers, flows, || {
            let (clocks, before) = (CpuClocks::read()?, times());
            thread::sleep(Duration::from_secs_f64(self.seconds));
            let each: Vec<Duration> = times().iter().zip(before).map(|(after, before)| *after - before).collect();
            Ok((clocks.since(&processes)?, each))
        })?;
        let gigabytes = bytes as f64 / 1e9;
        let measures = Measurement::new(spent)
            .with(BenchMetric::CpuPerGigabyte, spent.machine.as_secs_f64() / gigabytes)
            .with(BenchMetric::Throughput, bytes as f64 * 8e-9 / spent.wall.as_secs_f64());
        Ok((measures, each.iter().map(|time| time.as_secs_f64() / gigabytes).collect()))
    }
}

/// The processes between client and server; killed when dropped.
struct RunningForwarder {
    children: Vec<Child>,
    directory: TempDir,
}

impl RunningForwarder {
    fn start(network: &ThreeHosts, tandem: &Path, mode: ForwardingMode) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let key = directory.path().join("bond.key");
        fs::write(&key, "a key of thirty-two bytes, no less")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let listen =
            |port: u16, at: (Ipv4Addr, u16)| ["--listen".to_string(), format!("forward={}:{}={}:{port}", at.0, at.1, ThreeHosts::SERVER)];
        let places = [(SINK_PORT, IN[0]), (FIRST_ECHO_PORT, IN[1])];
        let listeners = places.map(|(port, at)| listen(port, at)).concat();
        let mut middle = RunningForwarder { children: Vec::new(), directory };
        match mode {
            ForwardingMode::Relay => middle.run(&network.client, tandem, &[vec!["proxy".into()], listeners].concat())?,
            ForwardingMode::Copy => {
                let between = places.map(|(port, (address, at))| format!("{address}:{at}={}:{port}", ThreeHosts::SERVER));
                middle.run(&network.client, &env::current_exe()?, &[vec!["copy".into()], between.to_vec()].concat())?;
            }
            ForwardingMode::Bond { networks, tls } => {
                let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                let secret = format!("--key bond.key {}", if tls { "--tls" } else { "" });
                let over = |source: &Ipv4Addr| format!("--network {source},to={}:{BOND_PORT}", ThreeHosts::SERVER);
                let over = NETWORKS.iter().take(networks).map(over).collect::<Vec<_>>().join(" ");
                let connect = [words(format!("bond connect {secret} {over}")), listeners].concat();
                middle.run(&network.client, tandem, &connect)?;
                middle.run(
                    &network.server,
                    tandem,
                    &words(format!("bond serve --allow {} --listen 0.0.0.0:{BOND_PORT} {secret}", ThreeHosts::SERVER)),
                )?;
            }
        }
        let ready = middle.await_ready(&network.client);
        ready.with_context(|| format!("its log: {}", fs::read_to_string(middle.directory.path().join("log")).unwrap_or_default()))?;
        Ok(middle)
    }

    fn run(&mut self, host: &Host, tandem: &Path, arguments: &[String]) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.directory.path().join("log"))?;
        let mut command = host.command(&tandem.to_string_lossy());
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children.push(command.spawn().with_context(|| format!("cannot run {}", tandem.display()))?);
        Ok(())
    }

    /// Waits until an exchange succeeds.
    fn await_ready(&self, client: &Host) -> Result<()> {
        let ask = || -> std::io::Result<()> {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::from(IN[1]), Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"?")?;
            stream.read_exact(&mut [0])
        };
        let begun = Instant::now();
        while client.enter(ask)?.is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "it does not answer within 10 s");
            thread::sleep(Duration::from_millis(100));
        }
        // Give the bond time to fill its pool of connections over each network.
        thread::sleep(Duration::from_millis(500));
        Ok(())
    }
}

impl Drop for RunningForwarder {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Copies from one connection to another without any processing, and without any bound but the
/// kernel's
#[derive(Debug, clap::Args)]
pub(crate) struct CopyRelay {
    /// Addresses to listen at and to dial: 127.0.0.1:5000=192.0.2.1:9000
    #[arg(required = true)]
    between: Vec<String>,
}

/// Bytes of a read, as many as an end of a bond reads at once.
const AT_ONCE: usize = 2 << 20;

impl CopyRelay {
    pub(crate) fn run(&self) -> Result<()> {
        let serve = |between: &str| -> Result<()> {
            let (from, to) = between.split_once('=').with_context(|| format!("{between} is not FROM=TO"))?;
            for near in TcpListener::bind(from).with_context(|| format!("cannot listen on {from}"))?.incoming() {
                let (near, far) = (near?, TcpStream::connect(to)?);
                let back = (far.try_clone()?, near.try_clone()?);
                thread::spawn(move || copy(near, far));
                thread::spawn(move || copy(back.0, back.1));
            }
            Ok(())
        };
        thread::scope(|scope| {
            let serving: Vec<_> = self.between.iter().map(|between| scope.spawn(|| serve(between))).collect();
            serving.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow::anyhow!("it panicked"))?)
        })
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; AT_ONCE];
    let mut go = || -> io::Result<()> {
        loop {
            match from.read(&mut buffer)? {
                0 => return to.shutdown(Shutdown::Write),
                count => to.write_all(&buffer[..count])?,
            }
        }
    };
    if go().is_err() {
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
