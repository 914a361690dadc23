//! What a run and a proxy say a link is lost to.

use crate::common::{TANDEM, skip};
use serde_json::Value;
use std::{fs, process::Command};

/// The account of a run by each of these engines, and whether the run is valid.
fn accounts(text: &str) -> Vec<(Value, bool)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scenario.toml");
    fs::write(&path, text).unwrap();
    let output = Command::new(TANDEM).args(["run", "--on", "sim,lab", "--json"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcomes: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    outcomes.into_iter().map(|mut outcome| (outcome["account"].take(), outcome["valid"] == true)).collect()
}

/// The share that was used, or lost to a cause.
fn share(account: &Value, of: &str) -> f64 {
    let lost = account["lost"].as_array().unwrap().iter().find(|part| part["to"] == of);
    if of == "used" { account[of].as_f64().unwrap() } else { lost.map_or(0.0, |part| part["share"].as_f64().unwrap()) }
}

#[test]
fn simulator_and_kernel_agree_on_what_is_lost() {
    const TEST: &str = "simulator_and_kernel_agree_on_what_is_lost";
    if skip(TEST, &[]) {
        return;
    }
    const LINKS: &str = "name = \"x\"\ncontrol = { sender = \"cubic\" }\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n\
                         [[link]]\nrate = \"20Mbit\"\ndelay = \"80ms\"\n";
    let traffic = [
        "[[flow]]\nbytes = \"4MB\"\n",
        "[[flow]]\nbytes = \"1MB\"\nwindow = \"60kB\"\n",
        "[[flow]]\nbytes = \"500kB\"\noffers = { every = \"50ms\", bytes = \"20kB\" }\n",
        "[[split]]\nafter = 1\n[[page]]\nservice = \"50ms\"\n[[page.object]]\nsize = \"30kB\"\ncount = 20\n",
    ];
    for traffic in traffic {
        // A run during which the machine did not keep up proves nothing.
        let runs = (0..5).map(|_| accounts(&format!("{LINKS}{traffic}"))).find(|runs| runs.iter().all(|(_, valid)| *valid));
        let Some(runs) = runs else { return testing::skipped(TEST, &"this machine never kept up") };
        let [sim, lab] = [&runs[0].0, &runs[1].0];
        for of in ["used", "handshake", "distance", "slow_start", "receiver_window", "sender", "loss"] {
            assert!((share(sim, of) - share(lab, of)).abs() < 0.1, "{of}\n{sim:#}\n{lab:#}\n{traffic}");
        }
    }
}
