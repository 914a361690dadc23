//! Compiles the native controllers, and exports the path of the headers to dependent crates.

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::metadata=include={}/c", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    cc::Build::new().file("c/native.c").std("gnu11").opt_level(2).warnings(true).extra_warnings(true).compile("tandem_control");
}
