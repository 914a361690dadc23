//! Keeps the processors of a virtual machine from halting while there is a network.
//!
//! A virtual processor that has nothing to do is taken away, and on a busy host it comes back late: links of a light load, which wake up a thousand
//! times a second and do little, were seen to be tens of milliseconds late where the same machine under full load was punctual. So a
//! thread of the idle class, which gives way to everything, turns on each processor for as long as there is a network. On real hardware, which
//! wakes up in microseconds, nothing is done.

use crate::sys;
use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Who wants the processors awake, and what tells the threads to end.
static HOLDERS: Mutex<(usize, Option<Arc<AtomicBool>>)> = Mutex::new((0, None));

/// As long as one of these lives, the processors are awake.
#[derive(Debug)]
pub(crate) struct Awake(());

impl Awake {
    pub(crate) fn keep() -> Self {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.0 += 1;
        if holders.0 == 1 && is_virtual() {
            let stop = Arc::new(AtomicBool::new(false));
            let processors = thread::available_parallelism().map_or(1, usize::from);
            for processor in 0..processors {
                let stop = stop.clone();
                // Without one of them a run is as it would be anyway.
                let _ = thread::Builder::new().name("awake".into()).spawn(move || {
                    if sys::be_idle_on(processor) {
                        while !stop.load(Relaxed) {}
                    }
                });
            }
            holders.1 = Some(stop);
        }
        Awake(())
    }
}

impl Drop for Awake {
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

/// Whether this machine is somebody's guest: processors say so.
fn is_virtual() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.lines().filter(|line| line.starts_with("flags")).any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}
