//! `tandem doctor`: what this machine can do, and the cure for what it can't. Each need is tried, not guessed.

use crate::{Failure, output, service::usage};
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

/// Tries each need of each command and says what is missing and how to mend it.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Prints JSON: a list of needs
    #[arg(long)]
    json: bool,
    /// Measures the link emulator too: asked against delivered, at 1, 10, 100 and 1000 Mbit/s (half a minute)
    #[arg(long)]
    lab: bool,
    /// Whether this host's windows are enough for a link, given as rate and round trip: 100Mbit,600ms
    #[arg(long, value_name = "RATE,RTT", value_parser = link)]
    link: Option<(Rate, Span)>,
    /// A configuration of the proxy: tries all that it would need to start here, as `tandem proxy --check` does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which proxy to look at, where several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

fn link(text: &str) -> Result<(Rate, Span), String> {
    let (rate, rtt) = text.split_once(',').ok_or("write a rate and a round trip, such as 100Mbit,600ms")?;
    let wrong = |error: units::UnitError| error.to_string();
    Ok((rate.trim().parse().map_err(wrong)?, rtt.trim().parse().map_err(wrong)?))
}

/// Something a command needs.
#[derive(Debug, Serialize)]
struct Need {
    command: &'static str,
    need: String,
    ok: bool,
    /// Whether the command works without it, less well.
    optional: bool,
    found: String,
    cure: String,
}

#[derive(Debug, Serialize)]
struct Measured {
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

impl Doctor {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut needs = needs();
        needs.extend(self.findings().into_iter().map(|finding| {
            let (ok, found, cure) = match finding.said {
                Ok(found) => (true, found, String::new()),
                Err(cure) => (false, String::new(), cure),
            };
            Need { command: "proxy", need: finding.what.into(), ok, optional: true, found, cure }
        }));
        needs.extend(self.trials()?);
        let measured = if self.lab { measure()? } else { Vec::new() };
        if self.json {
            let value = serde_json::json!({ "needs": needs, "emulator": measured });
            outln!("{value:#}");
        } else {
            print_needs(&needs);
            if self.lab {
                print_measured(&measured);
            }
        }
        if needs.iter().all(|need| need.ok || need.optional) { Ok(()) } else { Err(Failure::Silent(1)) }
    }
}

impl Doctor {
    /// What the configuration would need to start; without one, what a proxy on a router does.
    fn trials(&self) -> Result<Vec<Need>, Failure> {
        let Some(file) = &self.config else {
            return Ok(check::try_host().into_iter().map(|trial| need_of(trial, true)).collect());
        };
        let Service { config, name, metrics } = Service::read(file).map_err(usage)?;
        config.check().map_err(usage)?;
        let trials = check::try_start(&config, Some(&name), metrics);
        Ok(trials.into_iter().map(|trial| need_of(trial, false)).collect())
    }

    /// What a running proxy shows, and what a link asks for.
    fn findings(&self) -> Vec<Finding> {
        let remote = Remote::named(&self.name);
        let mut findings = match (remote.status(), remote.flows()) {
            (Ok(status), Ok(flows)) => diagnosis::of_proxy(&status, &flows),
            // None runs here, which is no fault.
            _ => Vec::new(),
        };
        if let Some(((rate, rtt), bounds)) = self.link.zip(diagnosis::bounds_of_host()) {
            findings.extend(diagnosis::of_link(rate, rtt, bounds));
        }
        findings
    }
}

fn need_of(trial: Trial, optional: bool) -> Need {
    let need = format!("{} {}", trial.attempt, trial.subject);
    let (ok, optional, found, cure) = match trial.result {
        TrialResult::Works(found) => (true, optional, found, String::new()),
        TrialResult::Doubtful { why, cure } => (false, true, String::new(), format!("{why}; {cure}")),
        TrialResult::Fails { why, cure } => (false, optional, String::new(), format!("{why}; {cure}")),
    };
    Need { command: "proxy", need, ok, optional, found, cure }
}

fn needs() -> Vec<Need> {
    let mut needs = Vec::new();
    let mut add = |command, need: &str, optional, tried: Result<String, String>| {
        let (ok, found, cure) = match tried {
            Ok(found) => (true, found, String::new()),
            Err(cure) => (false, String::new(), cure),
        };
        needs.push(Need { command, need: need.into(), ok, optional, found, cure });
    };
    let host = lab::Host::new("doctor");
    let in_host = |work: &(dyn Fn(&lab::Host) -> Result<String, String> + Sync)| match &host {
        Ok(host) => work(host),
        Err(_) => Err("needs network namespaces first, see above".into()),
    };
    add("demo, run, lab", "network namespaces", false, host.as_ref().map(|_| "made one".to_string()).map_err(ToString::to_string));
    add(
        "demo, run, lab",
        "TUN devices",
        false,
        in_host(&|host| lab::try_tun(host).map(|()| "made one".into()).map_err(|error| error.to_string())),
    );
    // In batches, which BusyBox's cannot do.
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
            Err(format!("this kernel has {controllers}: load what is missing ({modules}), or use a kernel that is built with it"))
        },
    );
    add(
        "run, lab",
        "real-time scheduling",
        true,
        lab::try_realtime_scheduling().then(|| "granted".to_string()).ok_or_else(|| {
            "the emulator shares the processor with everything else and may be late under load: run as root, or with CAP_SYS_NICE".into()
        }),
    );
    add(
        "demo, run, proxy",
        "interception (nftables TPROXY, routing rules)",
        false,
        in_host(&|host| {
            let listen = vec![proxy::Listen::transparent((Ipv6Addr::UNSPECIFIED, 5000).into())];
            let config = proxy::Config { listen, ..proxy::Config::default() };
            let tried = host.enter(|| proxy::Proxy::start(config, |_| {}).map(drop)).map_err(|error| error.to_string())?;
            tried.map(|()| "installed and removed in a namespace".into()).map_err(|error| error.to_string())
        }),
    );
    add(
        "control, proxy",
        "controllers of Tandem's own (BPF struct_ops)",
        true,
        kernel::load("reno", &[]).map(|_| "put one into the kernel and took it out".into()).map_err(|error| error.to_string()),
    );
    add("proxy", "the egress monitor (BPF)", true, kernel::Monitor::new().map(|_| "loaded".into()).map_err(|error| error.to_string()));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // Two sockets a flow, for each thread.
    let flows = limit.saturating_sub(400) / 2;
    add(
        "proxy",
        "open files",
        true,
        if limit >= 4096 {
            Ok(format!("{limit}: {flows} flows a thread"))
        } else {
            Err(format!("the limit is {limit}, which is for {flows} flows a thread: raise it (ulimit -n 65536)"))
        },
    );
    needs
}

fn print_needs(needs: &[Need]) {
    let row = |need: &Need| {
        let mark = match (need.ok, need.optional) {
            (true, _) => "✓",
            (false, true) => "~",
            (false, false) => "✗",
        };
        [mark, need.command, &need.need, if need.ok { &need.found } else { &need.cure }].map(str::to_owned).into()
    };
    let rows: Vec<Vec<String>> = needs.iter().map(row).collect();
    out!("{}", output::words_table(&["", "command", "need", "found, or the cure"], &rows));
}

/// Beyond this the emulator's thread did not get its processor in time.
const MOST_LATE_S: f64 = 0.001;

/// Asked against delivered at the rates that matter; loss at 1 %.
fn measure() -> Result<Vec<Measured>, Failure> {
    const LOSS: f64 = 0.01;
    let delay = Span(20_000_000);
    [1, 10, 100, 1000]
        .into_iter()
        .map(|mbit| {
            let rate = Rate(mbit * 1_000_000);
            let span = Duration::from_secs(2);
            let found = lab::calibrate(rate, delay, Some(scenario::Loss::PerPacket(LOSS)), 1, span)
                .map_err(|error| Failure::Failed(error.to_string()))?;
            Ok(Measured {
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

fn print_measured(measured: &[Measured]) {
    let row = |row: &Measured| {
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
    let header = [
        "rate asked",
        "sent into it",
        "delivered",
        "delay asked",
        "delivered",
        "jitter p99",
        "loss asked",
        "delivered",
        "packets",
        "late p99",
    ];
    out!("\nthe link emulator, measured from outside:\n{}", output::words_table(&header, &rows));
    // What was not sent can't be delivered, and who is late is not the link.
    let slow = |row: &&Measured| row.offered_rate_bps < 1.01 * row.rate_bps as f64 || row.late_p99_s > MOST_LATE_S;
    if let Some(row) = measured.iter().find(slow) {
        outln!("from {} on it is this machine that falls behind, not the link: leave it idle, or ask for less", Rate(row.rate_bps));
    }
}
