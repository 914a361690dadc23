//! Builds the programs for the kernel: a controller each, and the monitor.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let headers = env::var("DEP_TANDEM_CONTROL_INCLUDE").expect("crate control tells where its headers are");
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("crate libbpf-sys tells where its headers are");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed={headers}");

    let layout = layout(&[format!("{headers}/intf.h"), "bpf/link_records.h".into()]);
    println!("cargo::rustc-env=TD_LAYOUT={layout}");
    let layout = format!("-DTD_LAYOUT={layout}");

    // One object for each: a program that is not wanted costs nothing.
    for controller in control::Controller::all() {
        compile(
            "bpf/controller.bpf.c",
            &out.join(format!("{}.bpf.o", controller.name())),
            &[&headers, &libbpf],
            &[&format!("-DTD_NAME={}", controller.name()), &format!("-DTD_WHOLE={}", u8::from(controller.whole())), &layout],
        );
    }
    compile("bpf/monitor.bpf.c", &out.join("monitor.bpf.o"), &[&headers, &libbpf], &[&layout]);
}

/// What tells one layout of the shared records from others (FNV-1a of the files that have it): programs share them by name.
fn layout(files: &[String]) -> String {
    let mut hash = 0x811c_9dc5_u32;
    for file in files {
        let text = fs::read(file).unwrap_or_else(|error| panic!("could not read {file}: {error}"));
        hash = text.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    }
    format!("{hash:08x}")
}

fn compile(source: &str, object: &std::path::Path, includes: &[&String], defines: &[&str]) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let arch = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]);
    command.arg(format!("-D__TARGET_ARCH_{arch}")).args(defines);
    for include in includes {
        command.arg("-I").arg(include);
    }
    let done = command.args(["-c", source, "-o"]).arg(object).status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not build {source}: {status}"),
        Err(error) => panic!("{clang}, which builds programs for the kernel, could not be run: {error}; install clang, or set CLANG"),
    }
}
