//! `tandem-bench pepsal` says whether PEPsal is there, and measures the rest without it.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

fn table(pepsal: &Path) -> String {
    let played = Command::new(env!("CARGO_BIN_EXE_tandem-bench")).args(["pepsal", "--runs", "0", "--pepsal"]).arg(pepsal).output().unwrap();
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    String::from_utf8(played.stdout).unwrap()
}

#[test]
fn an_absent_pepsal_is_named_and_left_out() {
    let said = table(Path::new("/nonexistent/pepsal"));
    assert!(said.contains("PEPsal is left out: cannot run /nonexistent/pepsal: "), "{said}");
    assert!(said.contains("| Tandem, td_hybla |") && !said.contains("| PEPsal, "), "{said}");
}

#[test]
fn a_pepsal_is_measured_and_its_version_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("pepsal");
    fs::write(&program, "#!/bin/sh\necho PEPSal ver. 2.0.2\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let said = table(&program);
    assert!(said.contains("PEPSal ver. 2.0.2.\n") && said.contains("| PEPsal, Hybla |"), "{said}");
}
