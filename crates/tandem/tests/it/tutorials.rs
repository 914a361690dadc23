//! Runs the tutorials in `docs/tutorials`: `scripts/tutorial-commands` runs the commands of each
//! page in separate namespaces and compares their output with the page.

use crate::common::{TANDEM, skip};
use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

/// Programs that the networks of all tutorials need (`scripts/tutorial-network`).
const NEEDED: [&str; 6] = ["unshare", "ip", "nft", "python3", "curl", "awk"];

/// Runs the tutorial `page`, with the binary under test first in `PATH`.
fn run_tutorial(page: &str, programs: &[&str]) {
    if skip(page, &[&NEEDED[..], programs].concat()) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binaries = Path::new(TANDEM).parent().unwrap();
    let path = format!("{}:{}:/usr/sbin:/sbin", binaries.display(), env::var("PATH").unwrap_or_default());
    let mut command = Command::new(root.join("scripts/tutorial-commands"));
    command.arg(root.join("docs/tutorials").join(page)).env("PATH", path).stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

#[test]
fn operator() {
    run_tutorial("operator.md", &[]);
}

#[test]
fn researcher() {
    run_tutorial("researcher.md", &[]);
}

#[test]
fn two_uplinks() {
    run_tutorial("two-uplinks.md", &["openssl", "tc", "sha256sum"]);
}

#[test]
fn auditor() {
    run_tutorial("auditor.md", &["tcpdump"]);
}
