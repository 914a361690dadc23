//! Builds the baselines: the kernel's own controllers, called from BPF, and a program that does
//! nothing.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("crate libbpf-sys exports the path of its headers");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it").as_str() {
        "x86_64" => "x86".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    };
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    for name in ["reno", "cubic", "bbr", "empty"] {
        let source = format!("bpf/{name}.bpf.c");
        let mut command = Command::new(&clang);
        command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]);
        command.arg(format!("-D__TARGET_ARCH_{arch}")).arg("-I").arg(&libbpf);
        match command.args(["-c", &source, "-o"]).arg(out.join(format!("{name}.bpf.o"))).status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{clang} could not build {source}: {status}"),
            Err(error) => panic!("{clang}, which builds programs for the kernel, could not be run: {error}; install clang, or set CLANG"),
        }
    }
}
