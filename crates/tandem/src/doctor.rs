//! `tandem doctor`: checks the requirements of each command on this machine. Each requirement is
//! tested by use, not derived from versions.

use crate::{CommandError, check::try_proxy, output, service::usage};
use clap::Args;
use intercept::check::{Trial, TrialResult};
use proxy::{
    Service, check,
    control::Remote,
    diagnosis::{self, Finding},
};
use serde::Serialize;
use std::{net::Ipv6Addr, path::PathBuf, time::Duration};
use units::{Rate, Span};

/// Check what this machine supports, and print a fix for each missing requirement
#[derive(Debug, Args)]
pub(crate) struct DoctorCommand {
    /// Print JSON: a list of requirements
    #[arg(long)]
    json: bool,
    /// Measure the link emulator as well: requested against delivered rate, delay and loss at 1,
    /// 10, 100 and 1000 Mbit/s, and what links do besides: jitter, duplicates, … (takes a minute)
    #[arg(long)]
    lab: bool,
    /// Check whether this host's maximum windows fill a link, given as rate and RTT: 100Mbit,600ms
    #[arg(long, value_name = "RATE,RTT", value_parser = link)]
    link: Option<(Rate, Span)>,
    /// Check the requirements of this proxy configuration, as `tandem proxy --check` does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the running proxy to examine, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

fn link(text: &str) -> Result<(Rate, Span), String> {
    let (rate, rtt) = text.split_once(',').ok_or("expected a rate and an RTT, such as 100Mbit,600ms")?;
    let wrong = |error: units::UnitError| error.to_string();
    Ok((rate.trim().parse().map_err(wrong)?, rtt.trim().parse().map_err(wrong)?))
}

/// A requirement of a command, and the result of its test.
#[derive(Debug, Serialize)]
struct Requirement {
    command: &'static str,
    need: String,
    ok: bool,
    /// Whether the command works without it, with restrictions.
    optional: bool,
    found: String,
    cure: String,
}

#[derive(Debug, Serialize)]
struct EmulatorMeasurement {
    rate_bps: u64,
    offered_rate_bps: f64,
    delivered_rate_bps: f64,
    late_p99_s: f64,
    delay_s: f64,
    delivered_delay_s: f64,
    jitter_p99_s: f64,
    loss_asked: f64,
    sent: u64,
    lost: u64,
    refused: u64,
}

#[derive(Debug, Serialize)]
struct MeasuredImpairment {
    ok: bool,
    what: &'static str,
    /// The keys of the link.
    link: &'static str,
    asked: f64,
    delivered: f64,
    tolerance: f64,
    packets: u64,
    refused: u64,
}

impl DoctorCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut needs = needs();
        needs.extend(self.findings().into_iter().map(|finding| {
            let (ok, found, cure) = match finding.result {
                Ok(found) => (true, found, String::new()),
                Err(cure) => (false, String::new(), cure),
            };
            Requirement { command: "proxy", need: finding.what.into(), ok, optional: true, found, cure }
        }));
        needs.extend(self.trials()?);
        let measured = if self.lab { measure()? } else { Vec::new() };
        let impairments = if self.lab { measure_impairments()? } else { Vec::new() };
        if self.json {
            let value = serde_json::json!({ "needs": needs, "emulator": measured, "impairments": impairments });
            outln!("{value:#}");
        } else {
            print_needs(&needs);
            if self.lab {
                print_measured(&measured);
                print_impairments(&impairments);
            }
        }
        if needs.iter().all(|need| need.ok || need.optional) { Ok(()) } else { Err(CommandError::Silent(1)) }
    }
}

impl DoctorCommand {
    /// Tests the requirements of the configuration; without one, those of a proxy on a router.
    fn trials(&self) -> Result<Vec<Requirement>, CommandError> {
        let Some(file) = &self.config else {
            return Ok(check::try_host().into_iter().map(|trial| need_of(trial, true)).collect());
        };
        let service = Service::read(file).map_err(usage)?;
        service.check().map_err(usage)?;
        let trials = try_proxy(&service);
        Ok(trials.into_iter().map(|trial| need_of(trial, false)).collect())
    }

    /// Examines a running proxy, and the window limits for the link given.
    fn findings(&self) -> Vec<Finding> {
        let remote = Remote::named(&self.name);
        let mut findings = match (remote.status(), remote.flows()) {
            (Ok(status), Ok(flows)) => diagnosis::of_proxy(&status, &flows),
            // No proxy of this name runs here, which is not an error.
            _ => Vec::new(),
        };
        if let Some(((rate, rtt), bounds)) = self.link.zip(diagnosis::bounds_of_host()) {
            findings.extend(diagnosis::of_link(rate, rtt, bounds));
        }
        findings
    }
}

fn need_of(trial: Trial, optional: bool) -> Requirement {
    let need = format!("{} {}", trial.attempt, trial.subject);
    let (ok, optional, found, cure) = match trial.result {
        TrialResult::Works(found) => (true, optional, found, String::new()),
        TrialResult::Doubtful { why, cure } => (false, true, String::new(), format!("{why}; {cure}")),
        TrialResult::Fails { why, cure } => (false, optional, String::new(), format!("{why}; {cure}")),
    };
    Requirement { command: "proxy", need, ok, optional, found, cure }
}

fn needs() -> Vec<Requirement> {
    let mut needs = Vec::new();
    let mut add = |command, need: &str, optional, tried: Result<String, String>| {
        let (ok, found, cure) = match tried {
            Ok(found) => (true, found, String::new()),
            Err(cure) => (false, String::new(), cure),
        };
        needs.push(Requirement { command, need: need.into(), ok, optional, found, cure });
    };
    let host = lab::Host::new("doctor");
    let in_host = |work: &(dyn Fn(&lab::Host) -> Result<String, String> + Sync)| match &host {
        Ok(host) => work(host),
        Err(_) => Err("requires network namespaces, see above".into()),
    };
    add("demo, run, lab", "network namespaces", false, host.as_ref().map(|_| "created one".to_string()).map_err(ToString::to_string));
    add(
        "demo, run, lab",
        "TUN devices",
        false,
        in_host(&|host| lab::try_tun(host).map(|()| "created one".into()).map_err(|error| error.to_string())),
    );
    // The lab uses `ip -batch`, which BusyBox lacks.
    let builds = |host: &lab::Host| host.ip(&["link set lo up".into()]).map(|()| "works".into()).map_err(|error| error.to_string());
    add("demo, run, lab", "ip (iproute2)", false, in_host(&builds));
    let lacking: Vec<&str> = ["cubic", "bbr"].into_iter().filter(|name| !kernel::has_congestion_control(name)).collect();
    let controllers = intercept::available_controllers().join(", ");
    add(
        "demo",
        "controllers cubic and bbr",
        false,
        if lacking.is_empty() {
            Ok(controllers)
        } else {
            let modules = lacking.iter().map(|name| format!("modprobe tcp_{name}")).collect::<Vec<_>>().join(", ");
            Err(format!("this kernel has {controllers}: load the missing modules ({modules}), or use a kernel with these controllers"))
        },
    );
    add(
        "run, lab",
        "real-time scheduling",
        true,
        lab::try_realtime_scheduling()
            .then(|| "granted".to_string())
            .ok_or_else(|| "without it the link emulator may fall behind under load: run as root, or with CAP_SYS_NICE".into()),
    );
    add(
        "demo, run, proxy",
        "interception (nftables TPROXY, routing rules)",
        false,
        in_host(&|host| {
            let listen = vec![proxy::ListenerConfig::transparent((Ipv6Addr::UNSPECIFIED, 5000).into())];
            let config = proxy::ProxyConfig { listen, ..proxy::ProxyConfig::default() };
            let tried = host.enter(|| proxy::Proxy::start(config, |_| {}).map(drop)).map_err(|error| error.to_string())?;
            tried.map(|()| "installed and removed in a namespace".into()).map_err(|error| error.to_string())
        }),
    );
    add(
        "control, proxy",
        "controllers of Tandem's own (BPF struct_ops)",
        true,
        kernel::load("reno", &[]).map(|_| "loaded and unloaded one".into()).map_err(|error| error.to_string()),
    );
    add("proxy", "the egress monitor (BPF)", true, kernel::Monitor::new().map(|_| "loaded".into()).map_err(|error| error.to_string()));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // A flow takes two sockets; the limit applies per thread.
    let flows = limit.saturating_sub(400) / 2;
    add(
        "proxy",
        "open files",
        true,
        if limit >= 4096 {
            Ok(format!("{limit}: {flows} flows per thread"))
        } else {
            Err(format!("the limit is {limit}, enough for {flows} flows per thread: raise it (ulimit -n 65536)"))
        },
    );
    needs
}

fn print_needs(needs: &[Requirement]) {
    let row = |need: &Requirement| {
        let mark = match (need.ok, need.optional) {
            (true, _) => "✓",
            (false, true) => "~",
            (false, false) => "✗",
        };
        [mark, need.command, &need.need, if need.ok { &need.found } else { &need.cure }].map(str::to_owned).into()
    };
    let rows: Vec<Vec<String>> = needs.iter().map(row).collect();
    out!("{}", output::words_table(&["", "command", "need", "result, or fix"], &rows));
}

/// Lateness of the emulator, seconds, above which its thread was not scheduled in time.
const MOST_LATE_S: f64 = 0.001;

/// Compares requested with delivered rate, delay and loss, at a loss of 1 %.
fn measure() -> Result<Vec<EmulatorMeasurement>, CommandError> {
    const LOSS: f64 = 0.01;
    let delay = Span(20_000_000);
    [1, 10, 100, 1000]
        .into_iter()
        .map(|mbit| {
            let rate = Rate(mbit * 1_000_000);
            let span = Duration::from_secs(2);
            let found = lab::calibrate(rate, delay, Some(scenario::Loss::PerPacket(LOSS)), 1, span)
                .map_err(|error| CommandError::Failed(error.to_string()))?;
            Ok(EmulatorMeasurement {
                rate_bps: rate.bits_per_s(),
                offered_rate_bps: found.offered_rate_bps,
                delivered_rate_bps: found.delivered_rate_bps,
                late_p99_s: found.late_p99_s,
                delay_s: delay.secs(),
                delivered_delay_s: found.delivered_delay_s,
                jitter_p99_s: found.jitter_p99_s,
                loss_asked: LOSS,
                sent: found.sent,
                lost: found.lost,
                refused: found.refused,
            })
        })
        .collect()
}

/// Compares what links do to packets besides that with what was asked.
fn measure_impairments() -> Result<Vec<MeasuredImpairment>, CommandError> {
    let measured = lab::measure_impairments(Duration::from_secs(3)).map_err(|error| CommandError::Failed(error.to_string()))?;
    let shown = |one: lab::ImpairmentMeasurement| MeasuredImpairment {
        ok: one.holds(),
        what: one.what,
        link: one.link,
        asked: one.asked,
        delivered: one.delivered,
        tolerance: one.tolerance,
        packets: one.packets,
        refused: one.refused,
    };
    Ok(measured.into_iter().map(shown).collect())
}

fn print_impairments(measured: &[MeasuredImpairment]) {
    let row = |row: &MeasuredImpairment| {
        let mark = if row.ok { "✓" } else { "✗" };
        let numbers = [row.asked, row.delivered, row.tolerance].map(|number| format!("{number:.2}"));
        [vec![mark.into(), row.what.into()], numbers.to_vec(), vec![row.packets.to_string()]].concat()
    };
    let rows: Vec<Vec<String>> = measured.iter().map(row).collect();
    let header = ["", "of a link of 20 Mbit/s and 20 ms", "asked", "delivered", "tolerance", "packets"];
    out!("\n{}", output::words_table(&header, &rows));
}

fn print_measured(measured: &[EmulatorMeasurement]) {
    let row = |row: &EmulatorMeasurement| {
        vec![
            Rate(row.rate_bps).to_string(),
            format!("{:+.1} %", (row.offered_rate_bps / row.rate_bps as f64 - 1.0) * 100.0),
            format!("{:+.3} %", (row.delivered_rate_bps / row.rate_bps as f64 - 1.0) * 100.0),
            format!("{} ms", row.delay_s * 1e3),
            format!("{:+.3} ms", (row.delivered_delay_s - row.delay_s) * 1e3),
            format!("{:.3} ms", row.jitter_p99_s * 1e3),
            format!("{:.2} %", row.loss_asked * 100.0),
            format!("{:.2} %", row.lost as f64 / row.sent.max(1) as f64 * 100.0),
            row.sent.to_string(),
            format!("{:.3} ms", row.late_p99_s * 1e3),
        ]
    };
    let rows: Vec<Vec<String>> = measured.iter().map(row).collect();
    let header = ["rate", "offered", "delivered", "delay", "delivered", "jitter p99", "loss", "delivered", "packets", "late p99"];
    out!("\nthe link emulator, measured from outside:\n{}", output::words_table(&header, &rows));
    // In these rows the machine is the bottleneck, not the emulated link.
    let slow = |row: &&EmulatorMeasurement| row.offered_rate_bps < 1.01 * row.rate_bps as f64 || row.late_p99_s > MOST_LATE_S;
    if let Some(row) = measured.iter().find(slow) {
        outln!("from {} on this machine cannot keep up with the emulated link: stop other load, or use lower rates", Rate(row.rate_bps));
    }
}
