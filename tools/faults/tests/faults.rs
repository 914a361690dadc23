//! A small part of the campaign of `tandem-faults`. No flow gets stuck or loses a byte, nothing
//! panics, descriptors return to their number, new connections are split.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The `tandem` program, which is another package's and which Cargo puts beside this one.
fn tandem() -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_BIN_EXE_tandem-faults")).with_file_name("tandem");
    found.exists().then_some(found)
}

fn play(test: &str, arguments: &[&str], least: usize) {
    if let Err(why) = lab::Host::new("probe") {
        return testing::skipped(test, &why);
    }
    if let Some(program) = testing::missing(&["nft", "ip"]) {
        return testing::skipped(test, &format!("there is no {program}"));
    }
    let Some(tandem) = tandem() else {
        return testing::skipped(test, &"the tandem program has not been built");
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-faults"));
    let played = command.arg("--tandem").arg(tandem).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&played.stdout);
    let errors = String::from_utf8_lossy(&played.stderr);
    if errors.contains("cannot start the program under interception") {
        return testing::skipped(test, &errors);
    }
    assert!(played.status.success(), "{said}{errors}");
    // Faults were injected at all.
    let of = |line: &str| line.split_whitespace().rev().nth(4)?.parse::<usize>().ok();
    let cases: usize = said.lines().filter(|line| line.contains("all calls")).filter_map(of).sum();
    assert!(cases >= least, "{said}");
}

#[test]
fn a_proxy_survives_failed_calls() {
    let calls = "sendto,recvfrom,splice,poll,epoll_ctl,accept4,socket,pipe2,write,ioctl";
    let arguments = ["--setups", "proxy", "--phases", "run", "--calls", calls, "--errors", "ENOMEM,EMFILE,EINTR", "--places", "2"];
    play("a_proxy_survives_failed_calls", &arguments, 40);
}

#[test]
fn a_proxy_ends_in_order_though_calls_fail() {
    let arguments = ["--setups", "proxy", "--phases", "stop", "--calls", "read,write", "--errors", "ENOMEM", "--places", "6"];
    play("a_proxy_ends_in_order_though_calls_fail", &arguments, 5);
}

#[test]
fn both_ends_of_a_bond_survive_failed_calls() {
    let calls = "sendmsg,readv,splice,tee,write,epoll_ctl,mmap,sendto";
    let arguments = ["--setups", "connect,serve", "--phases", "run", "--calls", calls, "--errors", "ENOMEM", "--places", "2"];
    play("both_ends_of_a_bond_survive_failed_calls", &arguments, 20);
}
