//! What BPF programs cost, as the kernel itself counts it: their runs, and the time in them.

use super::sys;
use anyhow::{Context as _, Result};
use libbpf_rs::{
    MapType,
    query::{MapInfoIter, ProgInfoIter},
};
use std::{collections::BTreeMap, ops::Sub, os::fd::OwnedFd};

/// The kernel counts while this lives.
pub(super) struct BpfStatistics {
    _kept: OwnedFd,
}

impl BpfStatistics {
    pub(super) fn begin() -> Result<Self> {
        let cure = "the kernel does not count what BPF programs cost: it takes Linux 5.8 or newer, and root (CAP_SYS_ADMIN)";
        Ok(BpfStatistics { _kept: sys::count_runs().context(cure)? })
    }
}

/// What a program has done so far, or between two looks.
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

/// The callbacks of a controller by their names, as they stand: the programs that were loaded together with the newest registration of
/// this name. (Programs of one object share its type information, and their names are the same in every controller.)
pub(super) fn of_controller(ops: &str) -> Result<BTreeMap<String, BpfRunCount>> {
    // The kernel keeps so much of a name.
    let kept = &ops[..ops.len().min(15)];
    let maps = MapInfoIter::default().filter(|map| map.ty == MapType::StructOps && map.name.to_str() == Ok(kept));
    let map = maps.max_by_key(|map| map.id).with_context(|| format!("{ops} is not in the kernel"))?;
    let programs = ProgInfoIter::default().filter(|program| program.btf_id == map.btf_id);
    Ok(programs
        .map(|program| {
            let name = program.name.to_string_lossy();
            // What stands before the first underscore is whose it is.
            let callback = name.split_once('_').map_or(&*name, |(_, callback)| callback);
            (callback.to_owned(), BpfRunCount { runs: program.run_cnt, time_ns: program.run_time_ns })
        })
        .collect())
}

/// The newest program of this name, as it stands; nothing where there is none.
pub(super) fn of_program(name: &str) -> BpfRunCount {
    let programs = ProgInfoIter::default().filter(|program| program.name.to_str() == Ok(name));
    programs
        .max_by_key(|program| program.id)
        .map_or(BpfRunCount::default(), |program| BpfRunCount { runs: program.run_cnt, time_ns: program.run_time_ns })
}
