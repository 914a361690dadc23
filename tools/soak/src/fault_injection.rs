//! What goes wrong or changes during a soak: links are cut, the configuration is reloaded, the list
//! of bypassed prefixes changes.

use crate::{
    addresses::{BYPASSED, METRICS, SERVERS, SOCKS},
    monitor::LogEvents,
    shared::SoakState,
};
use anyhow::{Context as _, Result, ensure};
use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use testbed::{SplitMix64, ThreeHosts};

/// How often each fault was injected.
#[derive(Debug, Default)]
pub(crate) struct FaultCounts {
    pub(crate) cuts: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) bypasses: AtomicU64,
}

/// Cuts the link to the servers now and then, at either end. The pause between cuts lets TCP
/// recover: its timeouts double, and two cuts in a row would break connections that must survive
/// one. With NAT, cuts happen only at the server's end: when the middle host's interface goes down,
/// masquerading deletes its conntrack entries.
pub(crate) fn cut_links(state: &SoakState, network: &ThreeHosts, nat: bool, faults: &FaultCounts, mut random: SplitMix64) -> Result<()> {
    state.rest(Duration::from_secs(15));
    while !state.is_over() {
        let time = Duration::from_millis(random.log_uniform(500, 20_000));
        let host = if !nat && random.chance(0.5) { &network.middle } else { &network.server };
        state.ledger.begin_cut();
        let down = host.ip(&["link set far down".into()]);
        state.rest(time);
        let mut up = vec!["link set far up".to_string()];
        if host.name() == "server" {
            // The route went with the device.
            up.push("route replace default via 10.79.2.1".into());
        }
        let up = host.ip(&up);
        state.ledger.end_cut();
        down.and(up)?;
        faults.cuts.fetch_add(1, Relaxed);
        state.rest(Duration::from_secs(50 + random.uniform(0, 40)));
    }
    Ok(())
}

/// A random configuration. For a soak with hostile clients it also has a SOCKS5 listener.
pub(crate) fn configuration(random: &mut SplitMix64, hostile: bool) -> String {
    let control = ["reno", "cubic"];
    let leg = |random: &mut SplitMix64| {
        let mut text = format!("keepalive = \"10s\"\nuser_timeout = \"60s\"\ncontrol = \"{}\"\n", random.choose(&control));
        if random.chance(0.3) {
            text += &format!("not_sent = \"{}KiB\"\n", random.uniform(64, 512));
        }
        if random.chance(0.3) {
            text += &format!("receive_buffer = \"{}KiB\"\n", random.uniform(128, 1024));
        }
        if random.chance(0.3) {
            text += "dscp = \"keep\"\n";
        }
        text
    };
    let max = if random.chance(0.15) { format!("max_flows = {}\n", random.uniform(50, 200)) } else { String::new() };
    let socks = if hostile { format!("[[listen]]\nsocks5 = \"{SOCKS}\"\n\n") } else { String::new() };
    // Some configurations name their clients; the others follow the forward chain.
    let named = if hostile && random.chance(0.5) { "[[rule]]\nfrom = \"10.79.1.0/24\"\n" } else { "" };
    let (near, far) = (leg(random), leg(random));
    format!(
        "threads = 2\nbuffer = \"{}KiB\"\nidle_timeout = \"{}s\"\nlog_flows = true\nmetrics = \"{METRICS}\"\n{max}\n\
         [[listen]]\ntransparent = \"[::]:5000\"\n\n{socks}[near]\n{near}\n[far]\n{far}\n\
         [[rule]]\nports = [{BYPASSED}]\naction = \"bypass\"\n\n{named}",
        random.log_uniform(256, 8192),
        random.uniform(100, 200),
    )
}

/// Replacements that make a configuration invalid.
const WRONG: [(&str, &str); 3] =
    [("threads = 2", "threads = 3"), ("log_flows = true", "log_flows = perhaps"), ("control = \"", "control = \"no-")];

/// Writes other configurations, some of them invalid, and waits each time until the proxy's log
/// says that it took or refused it.
pub(crate) fn reload(
    state: &SoakState,
    (path, process, hostile): (&Path, u32, bool),
    log_events: &LogEvents,
    faults: &FaultCounts,
    mut random: SplitMix64,
) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(process as i32).context("no process")?;
    while !state.is_over() {
        state.rest(Duration::from_secs(random.uniform(3, 15)));
        let mut text = configuration(&mut random, hostile);
        let wrong = random.chance(0.2);
        if wrong {
            let (from, to) = random.choose(&WRONG);
            text = text.replacen(from, to, 1);
        }
        fs::write(path, text)?;
        let counter = if wrong { &log_events.refused } else { &log_events.reloaded };
        let before = counter.load(Relaxed);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
        let begun = Instant::now();
        while counter.load(Relaxed) == before {
            ensure!(
                begun.elapsed() < Duration::from_secs(30),
                "the proxy did not react to SIGHUP within 30 s (invalid configuration: {wrong})"
            );
            thread::sleep(Duration::from_millis(20));
        }
        if wrong { &faults.refused } else { &faults.reloads }.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Makes connections to the second server bypass the proxy, and ends that again.
pub(crate) fn bypass(state: &SoakState, network: &ThreeHosts, tandem: &Path, faults: &FaultCounts, mut random: SplitMix64) -> Result<()> {
    let mut on = false;
    while on || !state.is_over() {
        state.rest(Duration::from_millis(random.log_uniform(500, 20_000)));
        let word = if on { "remove" } else { "add" };
        let prefix = format!("{}/32", SERVERS[1]);
        let output = network.middle.command(&tandem.to_string_lossy()).args(["bypass", word, &prefix, "--json"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
        on = !on;
        let fits = output.status.success() && (said == "[]") != on && said.contains(&SERVERS[1].to_string()) == on;
        ensure!(fits, "tandem bypass {word} said {said:?}: {}", String::from_utf8_lossy(&output.stderr));
        faults.bypasses.fetch_add(1, Relaxed);
    }
    Ok(())
}
