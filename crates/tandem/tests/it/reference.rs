//! The committed reference pages equal those generated from the code, and outcomes match their
//! schema.

use crate::common::{TANDEM, scenario_files, skip};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_reference_is_up_to_date() {
    let made = tempfile::tempdir().unwrap();
    assert!(Command::new(TANDEM).arg("reference").arg(made.path()).status().unwrap().success());
    assert_eq!(files(made.path()), files(&committed()), "run make reference");
    for name in files(made.path()) {
        let text = |directory: &Path| fs::read_to_string(directory.join(&name)).unwrap();
        assert!(text(made.path()) == text(&committed()), "docs/reference/{name} is out of date: run make reference");
    }
}

fn schema(name: &str) -> jsonschema::Validator {
    let text = fs::read_to_string(committed().join(name)).unwrap();
    jsonschema::draft202012::new(&serde_json::from_str(&text).unwrap()).unwrap()
}

/// Returns the schema violations of a value.
fn faults(schema: &jsonschema::Validator, value: &serde_json::Value) -> Vec<String> {
    schema.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Runs `tandem run` and validates its outcomes. Which keys have values depends on the engine and
/// the scenario.
fn check_outcomes(scenario: &str, more: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(scenario);
    let output = Command::new(TANDEM).arg("run").arg(path).args(["--json", "--series"]).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcomes: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!outcomes.as_array().unwrap().is_empty());
    let faults = faults(&schema("outcome.schema.json"), &outcomes);
    assert!(faults.is_empty(), "{scenario} {more:?}:\n{}", faults.join("\n"));
}

#[test]
fn outcomes_of_theory_and_sim_match_the_schema() {
    check_outcomes("demo.toml", &["--on", "sim", "--case", "split cubic/cubic", "--set", "flow.1.bytes=200kB", "--seeds", "2"]);
    check_outcomes("demo.toml", &["--on", "bound"]);
    check_outcomes("tandem.toml", &["--on", "theory"]);
    check_outcomes("two-wlans.toml", &["--on", "sim", "--set", "foreground.jobs=100"]);
}

#[test]
fn outcomes_of_the_lab_match_the_schema() {
    if skip("outcomes_of_the_lab_match_the_schema", &[]) {
        return;
    }
    check_outcomes("demo.toml", &["--case", "split cubic/cubic", "--set", "flow.1.bytes=100kB"]);
}

/// A TOML value as JSON.
fn json(value: toml::Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn every_scenario_file_matches_the_schema() {
    let schema = schema("scenario.schema.json");
    for path in scenario_files() {
        let file: toml::Value = toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let faults = faults(&schema, &json(file));
        assert!(faults.is_empty(), "{}:\n{}", path.display(), faults.join("\n"));
    }
}

#[test]
fn the_proxy_configuration_matches_the_schema() {
    let file: toml::Value = toml::from_str(include_str!("../../../proxy/tests/proxy.toml")).unwrap();
    let faults = faults(&schema("proxy.schema.json"), &json(file));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
