//! What congestion controllers cost: nanoseconds of processor time per ACK, as the kernel counts
//! them for BPF programs, and processor time of the whole machine per gigabyte. The baseline is the
//! kernel's own cubic, called from BPF, so that the same clock counts it.
//!
//! `bpf_costs` reads the kernel's counters, `baselines` has the kernel's own controllers,
//! `bottleneck` is the link that the flows fill, `table` has the results.

mod baselines;
mod bottleneck;
mod bpf_costs;
mod sys;
mod table;

use crate::{
    load::{self, BulkFlows, LoadServers},
    measurement::{BenchMetric, Measurement, note_given_up, undisturbed},
};
use anyhow::{Context as _, Result, ensure};
use baselines::{BpfBaseline, EMPTY_PROGRAM, EmptyProgram};
use bottleneck::RateLimit;
use bpf_costs::{BpfRunCount, BpfStatistics};
use kernel::Controller;
use measurements::MeasurementRecord;
use std::{collections::BTreeMap, fs, net::SocketAddr, thread, time::Duration};
use table::{BASELINE, ControllerTurn, NATIVE};
use testbed::{CpuClocks, SINK_PORT, ThreeHosts};

/// Measures what each of Tandem's congestion controllers costs, in nanoseconds per ACK, beside the
/// kernel's own
#[derive(Debug, clap::Args)]
pub(crate) struct ControllerCost {
    /// Rounds; each controller is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Which controllers to measure beside the kernel's; absent: all
    #[arg(long, value_delimiter = ',')]
    controllers: Option<Vec<String>>,
    /// Duration of a measurement
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// Rate of the link, on the wire
    #[arg(long, default_value_t = 200, value_name = "MBIT/S")]
    rate: u64,
    /// Flows that share the link
    #[arg(long, default_value_t = 4)]
    flows: usize,
    /// How often a measurement is repeated if other programs disturb it
    #[arg(long, default_value_t = 5)]
    tries: usize,
}

/// A controller to measure.
struct ControllerCase {
    /// Name in the table.
    name: String,
    /// Name for the socket option.
    control: String,
    /// Name of its BPF registration, if it has one.
    ops: Option<String>,
    /// Whether it needs the link's capacity.
    needs_capacity: bool,
}

/// The monitor's program for links that a qdisc shapes.
const MONITOR: &str = "td_dequeue";

impl ControllerCost {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        // First the steps that need privileges and type information, which may fail.
        let controllers = self.controllers()?;
        let _held = controllers.iter().map(|controller| kernel::load(controller.name(), &[])).collect::<kernel::Result<Vec<_>>>()?;
        let _statistics = BpfStatistics::begin()?;
        let baselines = BpfBaseline::all()?;
        let _empty = EmptyProgram::attach()?;
        let network = ThreeHosts::new("reno")?;
        // Send each packet separately, so that there is an ACK for every two: links for which
        // controllers matter have no segments of 64 KiB.
        network.client.ip(&["link set dev near gso_max_segs 1".into()])?;
        let servers = LoadServers::start(&network)?;
        let subjects = subjects(&baselines, &controllers);
        record.rounds = self.runs as u64;
        record.tables = table::tables();
        let (mut given_up, mut at) = (0, 0);
        for round in 0..self.runs {
            for subject in &subjects {
                let turn = undisturbed(self.tries, || {
                    let (measures, turn) = self.turn(&network, &servers, subject)?;
                    eprintln!("round {}, {:12} {turn}; {measures}", round + 1, subject.name);
                    Ok((measures, turn))
                });
                match turn.with_context(|| subject.name.clone())? {
                    Some(turn) => table::add(&mut record.tables, round, at, &subject.name, &turn),
                    None => given_up += 1,
                }
                at += 1;
            }
        }
        note_given_up(record, given_up);
        Ok(())
    }

    fn controllers(&self) -> Result<Vec<Controller>> {
        let Some(names) = &self.controllers else { return Ok(Controller::all().collect()) };
        let known = || Controller::all().map(Controller::name).collect::<Vec<_>>().join(", ");
        names
            .iter()
            .map(|name| Controller::named(name).with_context(|| format!("there is no controller {name:?}: there are {}", known())))
            .collect()
    }

    /// Measures flows under one controller after they have warmed up.
    fn turn(&self, network: &ThreeHosts, servers: &LoadServers, subject: &ControllerCase) -> Result<(Measurement, ControllerTurn)> {
        let bytes_per_s = self.rate * 1_000_000 / 8;
        let _link =
            if subject.needs_capacity { RateLimit::at_sender(network, bytes_per_s)? } else { RateLimit::at_middle(network, bytes_per_s)? };
        let flows = BulkFlows { to: SocketAddr::new(ThreeHosts::SERVER, SINK_PORT), count: self.flows, control: Some(&subject.control) };
        let (bytes, (before, after, spent)) = load::send(network, servers, flows, || {
            let (before, clocks) = (KernelCounters::take(network, subject)?, CpuClocks::read()?);
            thread::sleep(Duration::from_secs_f64(self.seconds));
            let spent = clocks.since(&[])?;
            Ok((before, KernelCounters::take(network, subject)?, spent))
        })?;
        let cpu_s_per_gb = spent.machine.as_secs_f64() / (bytes as f64 / 1e9);
        let measures = Measurement::new(spent)
            .with(BenchMetric::CpuPerGigabyte, cpu_s_per_gb)
            .with(BenchMetric::Throughput, bytes as f64 * 8e-9 / spent.wall.as_secs_f64());
        let since = |name: &String, count: &BpfRunCount| *count - before.callbacks.get(name).copied().unwrap_or_default();
        let turn = ControllerTurn {
            acks: after.acks - before.acks,
            packets: after.packets - before.packets,
            callbacks: after.callbacks.iter().map(|(name, count)| (name.clone(), since(name, count))).collect(),
            empty: after.empty - before.empty,
            monitor: subject.needs_capacity.then(|| after.monitor - before.monitor),
            cpu_s_per_gb,
        };
        ensure!(turn.acks > 0, "no ACK came back");
        ensure!(subject.ops.is_none() || turn.callbacks.values().any(|count| count.runs > 0), "the kernel counted no run of its programs");
        Ok((measures, turn))
    }
}

/// The kernel's own controllers, the same called from BPF, and Tandem's.
fn subjects(baselines: &[BpfBaseline], controllers: &[Controller]) -> Vec<ControllerCase> {
    let native = |name: &str| ControllerCase { name: name.into(), control: name.into(), ops: None, needs_capacity: false };
    let mut subjects: Vec<ControllerCase> = baselines.iter().map(|baseline| native(baseline.name)).collect();
    subjects.extend(baselines.iter().map(|baseline| ControllerCase {
        name: format!("{} by BPF", baseline.name),
        control: baseline.control(),
        ops: Some(baseline.ops()),
        needs_capacity: false,
    }));
    subjects.extend(controllers.iter().map(|controller| ControllerCase {
        name: format!("td_{}", controller.name()),
        control: format!("td_{}", controller.name()),
        ops: Some(format!("td_ops_{}", controller.name())),
        needs_capacity: controller.needs_capacity(),
    }));
    debug_assert!([NATIVE, BASELINE].iter().all(|name| subjects.iter().any(|subject| subject.name == *name)));
    subjects
}

/// The kernel's counters at one moment.
struct KernelCounters {
    callbacks: BTreeMap<String, BpfRunCount>,
    monitor: BpfRunCount,
    empty: BpfRunCount,
    acks: u64,
    packets: u64,
}

impl KernelCounters {
    fn take(network: &ThreeHosts, subject: &ControllerCase) -> Result<Self> {
        let callbacks = subject.ops.as_deref().map(bpf_costs::of_controller).transpose()?.unwrap_or_default();
        let (monitor, empty) = (bpf_costs::of_program(MONITOR), bpf_costs::of_program(EMPTY_PROGRAM));
        // `/proc/net` would be that of the process's first thread.
        let text =
            network.client.enter(|| fs::read_to_string("/proc/thread-self/net/snmp"))?.context("cannot read /proc/thread-self/net/snmp")?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:")).map(str::split_whitespace);
        let counters: BTreeMap<&str, u64> = match (lines.next(), lines.next()) {
            (Some(names), Some(values)) => names.zip(values.map(|value| value.parse().unwrap_or(0))).collect(),
            _ => BTreeMap::new(),
        };
        let counter = |name: &str| counters.get(name).copied().with_context(|| format!("/proc/thread-self/net/snmp has no {name}"));
        Ok(KernelCounters { callbacks, monitor, empty, acks: counter("InSegs")?, packets: counter("OutSegs")? })
    }
}
