//! Collects the sources that the build of an own controller needs: the headers of the controllers,
//! the programs around them in the kernel, and libbpf's headers. They become part of the program.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The headers of libbpf that the programs include.
const LIBBPF: [&str; 4] = ["bpf_helpers.h", "bpf_helper_defs.h", "bpf_tracing.h", "bpf_core_read.h"];
/// Of the directory of the kernel's programs: all but the egress monitor.
const MONITOR: &str = "monitor.bpf.c";

fn main() {
    let variable = |name: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")));
    let sources = variable("OUT_DIR").join("sources");
    let (headers, libbpf) = (variable("DEP_TANDEM_CONTROL_INCLUDE"), variable("DEP_BPF_INCLUDE").join("bpf"));
    let programs = variable("CARGO_MANIFEST_DIR").join("../kernel/bpf");
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(sources.join("bpf")).expect("OUT_DIR is writable");
    for directory in [headers, programs] {
        println!("cargo::rerun-if-changed={}", directory.display());
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("cannot read {}: {error}", directory.display()));
        for entry in entries {
            let path = entry.expect("a readable directory").path();
            let name = path.file_name().expect("entries have names");
            if name != MONITOR {
                copy(&path, &sources.join(name));
            }
        }
    }
    for name in LIBBPF {
        copy(&libbpf.join(name), &sources.join("bpf").join(name));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("cannot copy {} to {}: {error}", from.display(), to.display()));
}
