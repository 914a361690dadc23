//! How many runs the machine can carry at once, and on which cores.

use rustix::thread::CpuSet;
use scenario::Scenario;
use std::time::Duration;

/// Packets per second and link that a machine with two cores forwards in real time without falling
/// behind, with a margin.
const PACKETS_PER_S: f64 = 60_000.0;
/// Flows that a machine with two cores starts in real time without delaying any: each has threads
/// of its own.
const FLOWS: usize = 400;
/// The most runs in real time at once: more progress bars than this are not readable.
const MAX_AT_ONCE: usize = 8;

/// How many runs in real time the machine can carry at once, judged by the heaviest of these.
pub(crate) fn parallel_runs(scenarios: &[&Scenario]) -> usize {
    let packets_per_s = |scenario: &Scenario| {
        let slowest = scenario.links.iter().map(|link| link.rate.bits_per_s()).min().unwrap_or(0);
        let parallel: u64 = scenario.networks.iter().map(|network| network.link.rate.bits_per_s()).sum();
        (slowest as f64 * scenario.links.len() as f64 + parallel as f64) / 12_000.0
    };
    let heaviest = scenarios.iter().map(|scenario| packets_per_s(scenario)).fold(1.0, f64::max);
    let flows = scenarios.iter().map(|scenario| scenario.flow_specs(scenario.seed).len()).max().unwrap_or(0).max(1);
    ((PACKETS_PER_S / heaviest) as usize).min(FLOWS / flows).clamp(1, MAX_AT_ONCE)
}

/// The delay between the starts of runs side by side. Random transfers arrive at the same times
/// under the same seed: runs that start together would be busy together, each time with more than
/// the machine carries.
pub(crate) fn start_offset(scenarios: &[&Scenario], jobs: usize) -> Duration {
    let between_arrivals =
        |scenario: &&Scenario| scenario.parallel().map(|parallel| parallel.arrivals_per_s(0)).filter(|rate| *rate > 0.0).map(f64::recip);
    Duration::from_secs_f64(scenarios.iter().filter_map(between_arrivals).fold(0.0, f64::max) / jobs as f64)
}

/// The cores that this process may use.
pub(crate) fn usable_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Keeps the calling thread, and the threads that it starts, on one of `cores`, in turn by `worker`.
/// A run in real time consists of threads that wake each other for every packet. On a virtual
/// machine, where waking a thread on another core is expensive, 28 runs side by side took 1.6 times
/// the processor time that they take when each stays on one core.
pub(crate) fn pin_to_core(cores: &[usize], worker: usize) {
    let Some(core) = cores.get(worker % cores.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(*core);
    // Without permission the runs are only slower.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
