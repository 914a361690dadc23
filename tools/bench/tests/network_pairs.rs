//! A bond is never much worse than the better of its networks alone: thirty random pairs of
//! networks in the simulator, with transfers that take one to ten seconds over the faster one.
//! `tandem-bench pairs` plays the same in the lab.

use measurements::MeasurementRecord;
use std::process::Command;

#[test]
fn a_bond_is_as_good_as_the_better_of_its_networks() {
    let folder = tempfile::tempdir().unwrap();
    for seconds in ["1", "2", "5", "10"] {
        let arguments = ["pairs", "--on", "sim", "--count", "30", "--seeds", "4", "--seconds", seconds, "--record"];
        let played = Command::new(env!("CARGO_BIN_EXE_tandem-bench")).args(arguments).arg(folder.path()).output().unwrap();
        assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
        let record = MeasurementRecord::load(folder.path(), "pairs").unwrap().unwrap();
        assert_eq!(record.table("pairs").unwrap().rows.len(), 30);
        let gains: Vec<f64> = record.table("all").unwrap().samples("means of the pairs", "gain").iter().copied().flatten().collect();
        assert!(gains.len() == 30 && gains.iter().all(|gain| *gain >= -3.0), "{seconds} s: {gains:?}");
    }
}
