//! Compiles the BPF programs: one object for each controller, and one for the egress monitor.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let headers = env::var("DEP_TANDEM_CONTROL_INCLUDE").expect("crate control exports the path of its headers");
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("crate libbpf-sys exports the path of its headers");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed={headers}");

    let layout = format!("{:08x}", hash(&[format!("{headers}/intf.h"), "bpf/link_records.h".into()]));
    println!("cargo::rustc-env=TD_LAYOUT={layout}");
    let layout = format!("-DTD_LAYOUT={layout}");
    let build = hash(&[sources(&headers), sources("bpf")].concat());
    println!("cargo::rustc-env=TD_BUILD={build}");
    let build = format!("-DTD_BUILD={build}u");

    // One object each, so that only the programs in use are loaded.
    for controller in control::Controller::all() {
        compile(
            "bpf/controller.bpf.c",
            &out.join(format!("{}.bpf.o", controller.name())),
            &[&headers, &libbpf],
            &[
                &format!("-DTD_NAME={}", controller.name()),
                &format!("-DTD_OWNS_WINDOW={}", u8::from(controller.owns_window())),
                &layout,
                &build,
            ],
        );
    }
    compile("bpf/monitor.bpf.c", &out.join("monitor.bpf.o"), &[&headers, &libbpf], &[&layout]);
}

/// FNV-1a of files. That of the files that define the layout of the shared records is part of the
/// maps' names, since programs find shared maps by name; that of all sources tells builds apart.
fn hash(files: &[String]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    for file in files {
        let text = fs::read(file).unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
        hash = text.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    }
    hash
}

/// The files of a directory, in the order of their names.
fn sources(directory: &str) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap_or_else(|error| panic!("cannot read {directory}: {error}"));
    let mut files: Vec<String> = files.flatten().map(|file| file.path().display().to_string()).collect();
    files.sort();
    files
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
        Ok(status) => panic!("{clang} failed to compile {source}: {status}"),
        Err(error) => panic!("cannot run {clang}, which compiles the BPF programs: {error}; install clang, or set CLANG"),
    }
}
