//! What the machine's processors did: in all, for whom, and whether somebody else was at work.

use anyhow::{Context as _, Result};
use rustix::process::Pid;
use std::{
    collections::{HashMap, HashSet},
    fs,
    time::{Duration, Instant},
};

/// A look at the processors' clocks.
pub struct CpuClocks {
    at: Instant,
    /// Time in which a processor was at work …
    busy: Duration,
    /// … and in which it would have been, but was somebody else's: this machine is a virtual one.
    stolen: Duration,
    /// CPU time of each process, by its number: (parent, time).
    processes: HashMap<i32, (i32, Duration)>,
}

/// What happened between two looks.
#[derive(Debug, Clone, Copy)]
pub struct CpuUsage {
    pub wall: Duration,
    /// Of all processors together, the kernel's share included.
    pub machine: Duration,
    /// Of the processes in the middle.
    pub proxy: Duration,
    /// Of programs that have nothing to do with this, and of other machines on the same hardware.
    pub others: Duration,
}

impl CpuClocks {
    pub fn read() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let ticks: Vec<u64> = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
        let tick = 1000 / rustix::param::clock_ticks_per_second();
        // user nice system idle iowait irq softirq steal
        let sum = |of: &[usize]| Duration::from_millis(of.iter().filter_map(|&index| ticks.get(index)).sum::<u64>() * tick);
        let (busy, stolen) = (sum(&[0, 1, 2, 5, 6]), sum(&[7]));
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(known) = process_cpu_time(process) {
                processes.insert(process, known);
            }
        }
        Ok(CpuClocks { at: Instant::now(), busy, stolen, processes })
    }

    /// What has been spent since; `proxy` are the processes in the middle, which may have children.
    pub fn since(&self, proxy: &[u32]) -> Result<CpuUsage> {
        let now = CpuClocks::read()?;
        let (wall, machine, stolen) = (now.at - self.at, now.busy.saturating_sub(self.busy), now.stolen.saturating_sub(self.stolen));
        let mut middle: HashSet<i32> = proxy.iter().map(|&id| id as i32).collect();
        // A few generations are enough for whoever forks.
        for _ in 0..3 {
            middle.extend(now.processes.iter().filter(|(_, (parent, _))| middle.contains(parent)).map(|(id, _)| *id).collect::<Vec<_>>());
        }
        let own = Pid::as_raw(Some(rustix::process::getpid()));
        let mut spent = CpuUsage { wall, machine, proxy: Duration::ZERO, others: stolen };
        for (&process, &(parent, time)) in &now.processes {
            let before = self.processes.get(&process).map_or(Duration::ZERO, |(_, before)| *before);
            let time = time.saturating_sub(before);
            if middle.contains(&process) {
                spent.proxy += time;
            } else if process != own && parent != KERNEL && process != KERNEL {
                spent.others += time;
            }
        }
        Ok(spent)
    }
}

/// The parent of the kernel's own threads.
const KERNEL: i32 = 2;

/// Parent and CPU time of a process: all its threads, those of its children that have ended too.
pub fn process_cpu_time(process: i32) -> Option<(i32, Duration)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    let tick = 1000 / rustix::param::clock_ticks_per_second();
    Some((fields.get(1)?.parse().ok()?, Duration::from_millis(ticks * tick)))
}

/// Memory held by these processes, and by the kernel in objects of all kinds, in bytes. Free memory would tell of everything, and so of
/// much that has nothing to do with this.
pub fn memory_held(processes: &[u32]) -> Result<f64> {
    // What the kernel's caches keep of objects that are gone is in nobody's use.
    for cache in fs::read_dir("/sys/kernel/slab").into_iter().flatten().flatten() {
        let _ = fs::write(cache.path().join("shrink"), "1");
    }
    let mut bytes = 0.0;
    let mut add = |path: &str, names: &[&str]| -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        for name in names {
            let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("{path} has no {name}"))?;
            bytes += line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0;
        }
        Ok(())
    };
    add("/proc/meminfo", &["Slab:", "KernelStack:", "PageTables:", "VmallocUsed:", "Percpu:"])?;
    for process in processes {
        add(&format!("/proc/{process}/status"), &["VmRSS:"])?;
    }
    Ok(bytes)
}
