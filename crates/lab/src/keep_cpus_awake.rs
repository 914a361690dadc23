//! Keeps the processors of a virtual machine from halting while a network is up.
//!
//! A hypervisor deschedules a halted virtual processor, and on a busy host schedules it again late.
//! Links with little traffic, which wake up a thousand times a second for a short time, delivered
//! packets tens of milliseconds late, where the same machine under full load was on time. So one
//! thread of the idle scheduling class, which yields to all other threads, spins on each processor
//! while a network is up. Real hardware wakes up within microseconds, and needs no such threads.

use crate::sys;
use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// How many [`CpusAwake`] live, and the flag that stops the spinning threads.
static HOLDERS: Mutex<(usize, Option<Arc<AtomicBool>>)> = Mutex::new((0, None));

/// A guard: while at least one lives, the processors of a virtual machine do not halt.
#[derive(Debug)]
pub(crate) struct CpusAwake(());

impl CpusAwake {
    /// Starts the spinning threads if this is the first guard.
    pub(crate) fn keep() -> Self {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.0 += 1;
        if holders.0 == 1 && is_virtual() {
            let stop = Arc::new(AtomicBool::new(false));
            let processors = thread::available_parallelism().map_or(1, usize::from);
            for processor in 0..processors {
                let stop = stop.clone();
                // If a thread cannot be started, packets may be late, which the run reports.
                let _ = thread::Builder::new().name("awake".into()).spawn(move || {
                    if sys::pin_as_idle_class(processor) {
                        while !stop.load(Relaxed) {}
                    }
                });
            }
            holders.1 = Some(stop);
        }
        CpusAwake(())
    }
}

impl Drop for CpusAwake {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.0 -= 1;
        if holders.0 == 0
            && let Some(stop) = holders.1.take()
        {
            stop.store(true, Relaxed);
        }
    }
}

/// Whether this is a virtual machine, according to the processor flags.
fn is_virtual() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.lines().filter(|line| line.starts_with("flags")).any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}
