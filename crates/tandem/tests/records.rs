//! The engines answer the papers' experiments as recorded, and the pages of the documentation are
//! made of the records.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");
/// Experiments of which a seed takes longer than this, in the recorded run, play one case only,
/// seconds.
const MOST_SECONDS: f64 = 3.0;

fn documentation() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Runs `tandem paper` and returns its output.
fn paper(arguments: &[&str]) -> String {
    let output = Command::new(TANDEM).arg("paper").args(arguments).output().unwrap();
    assert!(output.status.success(), "tandem paper {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The answer to one entry as JSON.
fn answer(arguments: &[&str]) -> Value {
    let list: Value = serde_json::from_str(&paper(&[arguments, &["--json"]].concat())).unwrap();
    list[0].clone()
}

/// The entries of all papers, as listed.
fn entries() -> Vec<String> {
    let list: Value = serde_json::from_str(&paper(&["--json"])).unwrap();
    list.as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn pages_are_made_of_the_records() {
    let made = tempfile::tempdir().unwrap();
    let mut pages = vec![documentation().join("papers.md")];
    pages.extend(fs::read_dir(documentation().join("papers")).unwrap().map(|page| page.unwrap().path()));
    assert!(pages.len() > 5, "{pages:?}");
    for page in pages {
        let copy = made.path().join(page.file_name().unwrap());
        fs::copy(&page, &copy).unwrap();
        paper(&["--render", copy.to_str().unwrap()]);
        let is_same = fs::read_to_string(&copy).unwrap() == fs::read_to_string(&page).unwrap();
        assert!(is_same, "the tables of {} are not those of the records: run make papers-docs", page.display());
    }
}

/// The outcomes of an answer that an engine in virtual time gave.
fn virtual_outcomes(answer: &Value) -> Vec<&Value> {
    let all = answer["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|outcome| outcome["engine"] != "lab").collect()
}

fn is_same_run(a: &Value, b: &Value) -> bool {
    ["engine", "case", "seed"].iter().all(|key| a[*key] == b[*key])
}

/// Plays the first seed of an experiment again. Returns what differs from the record.
fn differences_of_experiment(id: &str, recorded: &Value) -> Vec<String> {
    let known = virtual_outcomes(recorded);
    let Some(first) = known.first() else { return Vec::new() };
    let runs = recorded["runs"].as_array().unwrap().iter().filter(|run| run["engine"] != "lab");
    let seconds: f64 = runs.clone().map(|run| run["seconds"].as_f64().unwrap() / run["seeds"].as_f64().unwrap().max(1.0)).sum();
    let engines = runs.map(|run| run["engine"].as_str().unwrap()).collect::<Vec<_>>().join(",");
    let case = first["case"].as_str().unwrap();
    let mut arguments = vec![id, "--seeds", "1", "--on", &engines];
    if seconds > MOST_SECONDS {
        arguments.extend(["--case", case]);
    }
    let played = answer(&arguments);
    let mut found = Vec::new();
    let mut merged: Vec<Value> = known.iter().map(|outcome| (*outcome).clone()).collect();
    for outcome in virtual_outcomes(&played) {
        let Some(old) = merged.iter_mut().find(|old| is_same_run(old, outcome)) else {
            found.push(format!("{id}: {} with seed {} on {} is not recorded", outcome["case"], outcome["seed"], outcome["engine"]));
            continue;
        };
        found.extend(number_difference(id, old, outcome, &known));
        *old = outcome.clone();
        // Two cases that are equal in the record stay so.
        papers::round_as_recorded(old);
    }
    found.extend(verdict_differences(id, &merged));
    found
}

/// The difference of two outcomes of the same seed in goodput, if it is more than half the width of
/// the 95 % interval of the recorded mean, and more than half a percent.
fn number_difference(id: &str, old: &Value, new: &Value, known: &[&Value]) -> Option<String> {
    let goodput = |outcome: &Value| outcome["goodput_bps"].as_f64().unwrap();
    let same: Vec<f64> =
        known.iter().filter(|one| one["case"] == old["case"] && one["engine"] == old["engine"]).map(|one| goodput(one)).collect();
    let allowed = outcome::half_width(&same).max(0.005 * goodput(old));
    // Not `>`: a difference that is not a number is one.
    let is_close = (goodput(new) - goodput(old)).abs() <= allowed;
    (!is_close).then(|| {
        format!("{id}: {}, seed {}: goodput {} bit/s, recorded {}", old["case"], old["seed"], new["goodput_bps"], old["goodput_bps"])
    })
}

/// The claims whose verdict with these outcomes differs from the recorded one.
fn verdict_differences(id: &str, outcomes: &[Value]) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), Value::from(outcomes.to_vec()).to_string()).unwrap();
    let engines = ["sim", "theory"].into_iter().filter(|engine| outcomes.iter().any(|outcome| outcome["engine"] == *engine));
    let engines = engines.collect::<Vec<_>>().join(",");
    let now = answer(&[id, "--on", &engines, "--from", file.path().to_str().unwrap()]);
    let recorded = answer(&[id, "--on", &engines, "--recorded"]);
    let (now, recorded) = (now["judged"].as_array().unwrap(), recorded["judged"].as_array().unwrap());
    assert_eq!(now.len(), recorded.len(), "{id}");
    let changed = now.iter().zip(recorded).filter(|(now, recorded)| now["verdict"] != recorded["verdict"]);
    changed.map(|(now, recorded)| format!("{id}: {}: {}, recorded {}", now["says"], now["verdict"], recorded["verdict"])).collect()
}

/// Computes a table again. Returns what differs from the record.
fn differences_of_table(id: &str, recorded: &Value) -> Vec<String> {
    let computed = answer(&[id]);
    let (now, recorded) = (computed["rows"].as_array().unwrap(), recorded["rows"].as_array().unwrap());
    if now.len() != recorded.len() {
        return vec![format!("{id}: {} rows, recorded {}", now.len(), recorded.len())];
    }
    let differs = |now: &Value, recorded: &Value| {
        let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let (new, old) = (number(now, "here"), number(recorded, "here"));
        let allowed = number(recorded, "half_width").max(1e-5 * old.abs());
        now["holds"] != recorded["holds"] || !((new - old).abs() <= allowed || new.is_nan() && old.is_nan())
    };
    let changed = now.iter().zip(recorded).filter(|(now, recorded)| differs(now, recorded));
    changed.map(|(now, recorded)| format!("{id}: {}: {}, recorded {}", now["of"], now["here"], recorded["here"])).collect()
}

#[test]
fn engines_answer_as_recorded() {
    let mut found = Vec::new();
    let mut compared = 0;
    for id in entries() {
        let is_recorded = Command::new(TANDEM).args(["paper", &id, "--recorded", "--json"]).output().unwrap();
        let Ok(recorded) = serde_json::from_slice::<Value>(&is_recorded.stdout) else { continue };
        let recorded = recorded[0].clone();
        let runs = recorded["runs"].as_array().cloned().unwrap_or_default();
        if recorded.get("rows").is_some() {
            let is_quick = runs.iter().all(|run| run["engine"] == "equations" && run["seconds"].as_f64().unwrap() < MOST_SECONDS);
            if !runs.is_empty() && is_quick {
                found.extend(differences_of_table(&id, &recorded));
                compared += 1;
            }
        } else if !runs.is_empty() {
            found.extend(differences_of_experiment(&id, &recorded));
            compared += 1;
        }
    }
    assert!(compared > 10, "only {compared} records were compared");
    assert!(
        found.is_empty(),
        "{} differences from what is recorded; if they are meant, run make papers-record:\n{}",
        found.len(),
        found.join("\n")
    );
}
