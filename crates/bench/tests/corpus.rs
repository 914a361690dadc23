//! A small labelled corpus, made in the lab and looked at by the detector: no false alarm, no miss. And one of the operators of Wei et al., probed.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::PathBuf,
    process::{Command, Output},
};

const BENCH: &str = env!("CARGO_BIN_EXE_tandem-bench");

/// Says that a test, or a part of it, was skipped.
fn note(test: &str, why: &str) {
    eprintln!("SKIP {test}: {why}");
    if let Ok(path) = std::env::var("TANDEM_SKIPS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{test}: {why}");
    }
}

/// What this machine lacks for any corpus.
fn lacks() -> Option<String> {
    if let Err(error) = lab::Host::new("probe") {
        return Some(error.to_string());
    }
    let missing = |(program, argument, package): (&str, &str, &str)| {
        let ran = Command::new(program).arg(argument).output();
        ran.is_err().then(|| format!("there is no {program} (Debian package {package})"))
    };
    [("tcpdump", "--version", "tcpdump"), ("ethtool", "--version", "ethtool"), ("nft", "--version", "nftables")]
        .into_iter()
        .find_map(missing)
}

/// Built beside this program when the whole workspace is.
fn tandem() -> String {
    PathBuf::from(BENCH).with_file_name("tandem").to_str().unwrap().into()
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(BENCH).args(arguments).env("RUST_BACKTRACE", "0").output().unwrap()
}

#[test]
fn a_small_corpus_has_no_false_alarm_and_no_miss() {
    const TEST: &str = "a_small_corpus_has_no_false_alarm_and_no_miss";
    if let Some(why) = lacks() {
        return note(TEST, &why);
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let made = bench(&["corpus", "--small", "--out", at, "--tandem", &tandem()]);
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    for line in said.lines().filter(|line| line.starts_with("without ")) {
        note(TEST, line);
    }
    let checked = bench(&["corpus-check", at, "--json"]);
    let result: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let number = |key: &str| result[key].as_u64().unwrap();
    // Both kinds are in it, whatever is not installed: forwarding under seven conditions, and a relay of the corpus's own.
    assert!(number("pairs") >= 16, "{}", number("pairs"));
    assert_eq!((number("false_alarms"), number("misses"), number("cannot_tell")), (0, 0, 0), "{result:#}");
    // A method that is told what it needs calls nothing split that is not; and the passive ones see a download that is held.
    for method in ["method 1", "method 2", "method 3"] {
        let rows = result["methods"][method].as_object().unwrap();
        let alarms = rows.iter().filter(|(row, said)| row.starts_with("end-to-end") && said[0] != 0);
        assert_eq!(alarms.count(), 0, "{method}: {rows:#?}");
    }
    let seen = &result["methods"]["method 2"]["tcp-proxy, down"];
    assert!(seen[0].as_u64() >= Some(2) && seen[1] == 0, "{seen}");
    assert!(checked.status.success());
}

/// The one of whose cells there is one of each kind, side by side on one host.
#[test]
fn an_operators_cells_are_found_as_they_are_printed() {
    if let Some(why) = lacks() {
        return note("an_operators_cells_are_found_as_they_are_printed", &why);
    }
    let probed = bench(&["operators", "--only", "GPRS-I, TCP", "--bytes", "50kB", "--tandem", &tandem()]);
    let said = String::from_utf8_lossy(&probed.stdout);
    assert!(probed.status.success(), "{said}\n{}", String::from_utf8_lossy(&probed.stderr));
    for cell in
        ["FTP | No | end-to-end", "HTTP data | Split-TCP | split-tcp", "HTTP image | TCP proxy | tcp-proxy", "TCP | Split-TCP | split-tcp"]
    {
        assert!(said.contains(&format!("| {cell} |")), "{cell}: {said}");
    }
}
