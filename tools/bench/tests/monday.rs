//! A few rows of `tandem-bench monday`: with the file of `tandem setup` nothing is slower than
//! without a proxy.

use measurements::{MeasurementRecord, median};
use std::{fs, path::Path, process::Command};

/// A single run of a varying link differs from the next by less.
const NOISE: f64 = 1.15;

#[test]
fn the_file_of_setup_makes_nothing_slower() {
    const TEST: &str = "the_file_of_setup_makes_nothing_slower";
    if let Err(why) = lab::Host::new("probe") {
        return testing::skipped(TEST, &why);
    }
    if let Some(program) = testing::missing(&["nft"]) {
        return testing::skipped(TEST, &format!("there is no {program}"));
    }
    let bench = env!("CARGO_BIN_EXE_tandem-bench");
    let tandem = Path::new(bench).with_file_name("tandem");
    let directory = tempfile::tempdir().unwrap();
    // Receivers of a first window of 64 kB; downloads and pages, without a proxy and with the file.
    let rows = "GEO,LTE,Windows,100 kB,1 MB,six,no proxy,setup";
    let mut command = Command::new(bench);
    command.args(["--record".as_ref(), directory.path().as_os_str()]);
    command.args(["monday", "--runs", "1", "--jobs", "4", "--only", rows, "--tandem"]).arg(tandem);
    let played = command.output().unwrap();
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    let record = fs::read_to_string(directory.path().join("monday.json")).unwrap();
    let record: MeasurementRecord = serde_json::from_str(&record).unwrap();
    let mut quotients = Vec::new();
    for table in record.tables.iter().filter(|table| table.name != "summary") {
        for row in &table.rows {
            let seconds = |setting| median(&table.samples(&row.name, setting).iter().copied().flatten().collect::<Vec<f64>>());
            quotients.push((format!("{}, {}", table.name, row.name), seconds("setup") / seconds("no proxy")));
        }
    }
    assert_eq!(quotients.len(), 6, "{quotients:?}");
    assert!(quotients.iter().all(|(_, quotient)| *quotient < NOISE), "{quotients:?}");
    assert!(quotients.iter().any(|(_, quotient)| *quotient < 0.9), "no row is faster: {quotients:?}");
}
