//! A bond is never much worse than the better of its networks alone: thirty random pairs of
//! networks in the simulator, with transfers that take one to ten seconds over the faster one.
//! `tandem-bench pairs` plays the same in the lab.

use std::process::Command;

#[test]
fn a_bond_is_as_good_as_the_better_of_its_networks() {
    for seconds in ["1", "2", "5", "10"] {
        let arguments = ["pairs", "--on", "sim", "--count", "30", "--seeds", "4", "--seconds", seconds];
        let played = Command::new(env!("CARGO_BIN_EXE_tandem-bench")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&played.stdout);
        assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
        assert_eq!(said.lines().filter(|line| line.contains(" ± ") && line.contains('|')).count(), 30, "{said}");
        assert!(said.lines().last().unwrap().ends_with("; 0 below -3 %"), "{seconds} s: {said}");
    }
}
