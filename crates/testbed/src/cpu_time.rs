//! Processor time: of the whole machine, of the processes under test, and of programs that have
//! nothing to do with the measurement.

use anyhow::{Context as _, Result};
use rustix::process::Pid;
use std::{
    collections::{HashMap, HashSet},
    fs,
    time::{Duration, Instant},
};

/// Counters of processor time at one moment.
pub struct CpuClocks {
    at: Instant,
    /// Time in which a processor was at work.
    busy: Duration,
    /// Time that the hypervisor gave to other virtual machines.
    stolen: Duration,
    /// Parent process and processor time of each process, by process number.
    processes: HashMap<i32, (i32, Duration)>,
}

/// Processor time between two moments.
#[derive(Debug, Clone, Copy)]
pub struct CpuUsage {
    /// Time that passed.
    pub wall: Duration,
    /// Busy time of all processors together, including the kernel's.
    pub machine: Duration,
    /// Time of the processes under test and their children.
    pub proxy: Duration,
    /// Time of unrelated programs, and of other virtual machines on the same hardware.
    pub others: Duration,
}

impl CpuClocks {
    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn read() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let ticks: Vec<u64> = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
        let tick = 1000 / rustix::param::clock_ticks_per_second();
        // Columns: user nice system idle iowait irq softirq steal.
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

    /// Processor time since these counters were read. `proxy` are the processes under test, which
    /// may have children.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn since(&self, proxy: &[u32]) -> Result<CpuUsage> {
        let now = CpuClocks::read()?;
        let (wall, machine, stolen) = (now.at - self.at, now.busy.saturating_sub(self.busy), now.stolen.saturating_sub(self.stolen));
        let mut middle: HashSet<i32> = proxy.iter().map(|&id| id as i32).collect();
        // Three generations suffice for every program that is measured.
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

/// The parent process (kthreadd) of the kernel's threads.
const KERNEL: i32 = 2;

/// Parent process and processor time of a process: all threads, and children that have ended and
/// were waited for. `None` if there is no such process.
pub fn process_cpu_time(process: i32) -> Option<(i32, Duration)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    let tick = 1000 / rustix::param::clock_ticks_per_second();
    Some((fields.get(1)?.parse().ok()?, Duration::from_millis(ticks * tick)))
}

/// Memory, in bytes, held by these processes and by the kernel in all kinds of objects. The amount
/// of free memory would also count what unrelated programs hold.
///
/// # Errors
///
/// If `/proc` cannot be read, or one of the processes has ended.
pub fn memory_held(processes: &[u32]) -> Result<f64> {
    // Slab caches keep objects that were freed; shrinking returns them.
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
