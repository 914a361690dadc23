//! The machine that measures: what it is, how busy it is, and which sources its programs are of.

use anyhow::{Context as _, Result};
use std::{fs, process::Command, thread, time::Duration};

/// Processors and kernel of this machine.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map_or("processors", |(_, model)| model.trim());
    let count = thread::available_parallelism().map_or(1, usize::from);
    let uname = rustix::system::uname();
    format!("{count} × {model}, {} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

/// Share of the processors that programs use, %, over two seconds. The load average would still
/// include a build that has just ended.
pub(crate) fn busy_percent() -> Result<f64> {
    let ticks = || -> Result<(u64, u64)> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
        let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).map(str::parse).collect::<Result<_, _>>().context("in /proc/stat")?;
        let all: u64 = ticks.iter().sum();
        Ok((all - ticks.get(3..5).map_or(0, |idle| idle.iter().sum()), all))
    };
    let (used, all) = ticks()?;
    thread::sleep(Duration::from_secs(2));
    let (used_after, all_after) = ticks()?;
    Ok((used_after - used) as f64 * 100.0 / (all_after - all).max(1) as f64)
}

/// The commit of the sources in the current directory, with "+" if they differ from it; "unknown"
/// without git.
pub(crate) fn revision() -> String {
    let git = |arguments: &[&str]| Command::new("git").args(["-c", "safe.directory=*"]).args(arguments).output().ok();
    let head = git(&["rev-parse", "--short=10", "HEAD"]).filter(|output| output.status.success());
    let Some(head) = head else { return "unknown".into() };
    let is_same = git(&["diff", "--quiet", "HEAD", "--", ":/crates", ":/tools"]).is_some_and(|output| output.status.success());
    format!("{}{}", String::from_utf8_lossy(&head.stdout).trim(), if is_same { "" } else { "+" })
}
