//! Compiles the native controllers, and exports the path of the headers to dependent crates.

use std::{env, fs};

/// The files that define the interface between a controller and its host.
const INTERFACE: [&str; 2] = ["c/intf.h", "c/own_simulated.c"];

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::metadata=include={}/c", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rustc-env=TD_INTERFACE={}", interface());
    cc::Build::new().file("c/native.c").std("gnu11").opt_level(2).warnings(true).extra_warnings(true).compile("tandem_control");
}

/// Hash of the interface: FNV-1a of the files that define it. The files of own controllers have it,
/// so that one that was built for another interface is refused.
fn interface() -> String {
    let mut hash = 0x811c_9dc5_u32;
    for file in INTERFACE {
        let text = fs::read(file).unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
        hash = text.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    }
    format!("{hash:08x}")
}
