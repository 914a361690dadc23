//! What BPF programs cost, as the kernel counts it: number of runs, and time.

use super::sys;
use anyhow::{Context as _, Result};
use libbpf_rs::{
    MapType,
    query::{MapInfoIter, ProgInfoIter},
};
use std::{collections::BTreeMap, ops::Sub, os::fd::OwnedFd};

/// Makes the kernel count until dropped.
pub(super) struct BpfStatistics {
    _kept: OwnedFd,
}

impl BpfStatistics {
    pub(super) fn begin() -> Result<Self> {
        let cure = "the kernel does not count what BPF programs cost: it takes Linux 5.8 or newer, and root (CAP_SYS_ADMIN)";
        Ok(BpfStatistics { _kept: sys::count_runs().context(cure)? })
    }
}

/// Runs of a program, and the time in them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BpfRunCount {
    pub(super) runs: u64,
    pub(super) time_ns: u64,
}

impl Sub for BpfRunCount {
    type Output = BpfRunCount;

    fn sub(self, before: BpfRunCount) -> BpfRunCount {
        BpfRunCount { runs: self.runs - before.runs, time_ns: self.time_ns - before.time_ns }
    }
}

/// Counts of a controller's callbacks, by name. Callbacks are the programs that share their type
/// information with the newest registration of this name, since program names are the same in every
/// controller.
pub(super) fn of_controller(ops: &str) -> Result<BTreeMap<String, BpfRunCount>> {
    // The kernel truncates names to this length.
    let kept = &ops[..ops.len().min(15)];
    let maps = MapInfoIter::default().filter(|map| map.ty == MapType::StructOps && map.name.to_str() == Ok(kept));
    let map = maps.max_by_key(|map| map.id).with_context(|| format!("{ops} is not in the kernel"))?;
    let programs = ProgInfoIter::default().filter(|program| program.btf_id == map.btf_id);
    Ok(programs
        .map(|program| {
            let name = program.name.to_string_lossy();
            // The part before the first underscore is the object's prefix.
            let callback = name.split_once('_').map_or(&*name, |(_, callback)| callback);
            (callback.to_owned(), BpfRunCount { runs: program.run_cnt, time_ns: program.run_time_ns })
        })
        .collect())
}

/// Counts of the newest program with this name; zero if there is none.
pub(super) fn of_program(name: &str) -> BpfRunCount {
    let programs = ProgInfoIter::default().filter(|program| program.name.to_str() == Ok(name));
    programs
        .max_by_key(|program| program.id)
        .map_or(BpfRunCount::default(), |program| BpfRunCount { runs: program.run_cnt, time_ns: program.run_time_ns })
}
