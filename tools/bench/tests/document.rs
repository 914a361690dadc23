//! The tables of `docs/benchmarks.md`, and of the pages beside it, are those of the records in
//! `benchmarks/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages with tables of records.
const PAGES: [&str; 3] = ["docs/benchmarks.md", "docs/explanations/bbr.md", "docs/python-study.md"];

/// Makes the tables of a page in place, and returns its text.
fn render(path: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-bench"));
    let output = command.arg("render").arg(path).arg("--from").arg(root().join("benchmarks")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(path).unwrap()
}

#[test]
fn tables_are_made_of_the_records() {
    let copy = tempfile::NamedTempFile::new().unwrap();
    for name in PAGES {
        let page = fs::read_to_string(root().join(name)).unwrap();
        fs::write(copy.path(), &page).unwrap();
        let rendered = render(copy.path());
        let differs = page.lines().zip(rendered.lines()).find(|(there, made)| there != made);
        assert!(page == rendered, "{name} is not what benchmarks/ gives: run `tandem-bench render {name}`; first: {differs:?}");
    }
}

#[test]
fn what_is_edited_by_hand_in_a_table_does_not_survive() {
    let page = fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    let copy = tempfile::NamedTempFile::new().unwrap();
    let (before, table) = page.split_once("<!-- recorded: proxy bulk1 -->").unwrap();
    fs::write(copy.path(), format!("{before}<!-- recorded: proxy bulk1 -->{}", table.replacen("| tandem-1 |", "| tandem-7 |", 1))).unwrap();
    assert_eq!(render(copy.path()), page);
}

#[test]
fn every_record_is_shown() {
    let pages = PAGES.map(|name| fs::read_to_string(root().join(name)).unwrap()).concat();
    for entry in fs::read_dir(root().join("benchmarks")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let name = name.strip_suffix(".json").unwrap_or_else(|| panic!("benchmarks/{name} is not a record"));
        let record = measurements::MeasurementRecord::load(&root().join("benchmarks"), name).unwrap().unwrap();
        for marker in record.tables.iter().map(|table| format!("{name} {}", table.name)).chain([name.to_owned()]) {
            assert!(pages.contains(&format!("<!-- recorded: {marker} -->")), "{PAGES:?} do not show {marker}");
        }
    }
}
