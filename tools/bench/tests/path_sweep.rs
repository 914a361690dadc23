//! A few of the paths of `tandem-bench paths`: no receive buffer overruns, and no sender on a
//! lossless leg has a retransmission timeout.

use std::process::Command;

#[test]
fn a_full_buffer_drops_nothing_that_its_window_admitted() {
    const TEST: &str = "a_full_buffer_drops_nothing_that_its_window_admitted";
    if let Err(why) = lab::Host::new("probe") {
        return testing::skipped(TEST, &why);
    }
    if let Some(program) = testing::missing(&["nft"]) {
        return testing::skipped(TEST, &format!("there is no {program}"));
    }
    for (rates, rtts) in [("10Mbit", "20ms"), ("50Mbit", "600ms")] {
        let arguments = ["paths", "--rates", rates, "--rtts", rtts, "--buffers", "64KiB,1MiB"];
        let played = Command::new(env!("CARGO_BIN_EXE_tandem-bench")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&played.stdout);
        assert!(played.status.success(), "{said}{}", String::from_utf8_lossy(&played.stderr));
        assert_eq!(said.matches("KiB | ").count() + said.matches("MiB | ").count(), 2, "{said}");
        assert!(said.ends_with("0 points fail.\n"), "{said}");
    }
}
