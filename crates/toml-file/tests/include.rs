//! Files that include others.

use std::{fs, path::Path};
use toml_file::{Fault, LoadError, Sources};

/// Writes files into a new directory.
fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn read(directory: &Path) -> Result<Sources, String> {
    Sources::read(&directory.join("main.toml")).map_err(|error| match error {
        LoadError::File(error) => error.to_string().replace(&format!("{}/", directory.display()), ""),
        LoadError::Unreadable(why) => why.to_string(),
    })
}

/// The error of these files.
fn wrong(files: &[(&str, &str)]) -> String {
    read(directory(files).path()).unwrap_err()
}

#[test]
fn included_tables_come_before_those_of_the_file_in_sorted_order() {
    let files = directory(&[
        ("main.toml", "include = [\"conf.d/*.toml\", \"last.toml\"]\nthreads = 2\n[[rule]]\nto = \"main\"\n[near]\nmss = 1\n"),
        ("conf.d/20-b.toml", "[[rule]]\nto = \"b\"\n[near]\nmark = 2\n"),
        ("conf.d/10-a.toml", "[[rule]]\nto = \"a1\"\n[[rule]]\nto = \"a2\"\n"),
        ("conf.d/.hidden.toml", "is not TOML"),
        ("conf.d/notes.txt", "is not TOML"),
        ("last.toml", "[[rule]]\n\nto = \"last\"\n"),
    ]);
    let sources = read(files.path()).unwrap();
    let table = sources.table();
    let order: Vec<&str> = table["rule"].as_array().unwrap().iter().map(|rule| rule["to"].as_str().unwrap()).collect();
    assert_eq!(order, ["a1", "a2", "b", "last", "main"]);
    assert_eq!((table["near"]["mss"].as_integer(), table["near"]["mark"].as_integer()), (Some(1), Some(2)));
    assert!(!table.contains_key("include"));
    assert_eq!(sources.files().count(), 4);
    let at = |path: &str| {
        let at = sources.line_of(path).unwrap();
        format!("{}:{}", Path::new(&at.origin).file_name().unwrap().display(), at.line)
    };
    let places = ["rule[1].to", "rule[2]", "rule[3].to", "rule[4].to", "near.mss", "near.mark", "threads"].map(at);
    assert_eq!(places, ["10-a.toml:4", "20-b.toml:1", "last.toml:3", "main.toml:4", "main.toml:6", "20-b.toml:4", "main.toml:2"]);
    let error = sources.place(&Fault::new("rule[3].to", "is odd")).to_string();
    assert!(error.ends_with("/last.toml:3: rule[4].to: is odd\n  3 | to = \"last\""), "{error}");
}

#[test]
fn a_key_that_is_set_twice_names_both_places() {
    let other = |text| [("main.toml", "include = \"b.toml\"\n\nthreads = 2\n[near]\nmss = 9\n"), ("b.toml", text)];
    assert_eq!(wrong(&other("\nthreads = 3\n")), "main.toml:3: threads: is set at b.toml:2 too: remove one of the two\n  3 | threads = 2");
    assert!(wrong(&other("[near]\nmss = 9\n")).starts_with("main.toml:5: near.mss: is set at b.toml:2 too"));
    assert!(wrong(&other("near = 3\n")).starts_with("main.toml:4: near: is set at b.toml:1 too"));
}

#[test]
fn includes_that_cannot_be_followed_are_refused() {
    let error = wrong(&[("main.toml", "include = [\"a.toml\"]"), ("a.toml", "x = 1\ny = ")]);
    assert!(error.starts_with("a.toml:2: is not TOML: "), "{error}");
    let error = wrong(&[("main.toml", "x = 1\ninclude = [\"no/*.toml\", \"absent.toml\"]")]);
    assert!(error.starts_with("main.toml:2: include[2]: cannot include absent.toml: No such file"), "{error}");
    let error = wrong(&[("main.toml", "include = \"a.toml\""), ("a.toml", "include = \"main.toml\"")]);
    assert!(
        error.starts_with("a.toml:1: include: cannot include main.toml: it has been read already: do files include each other"),
        "{error}"
    );
    let error = wrong(&[("main.toml", "include = \"*.toml\"")]);
    assert!(error.contains("it has been read already"), "{error}");
    let error = wrong(&[("main.toml", "include = 3")]);
    assert!(error.starts_with("main.toml:1: include: names files: write a path"), "{error}");
    let mut deep: Vec<(String, String)> = (0..12).map(|n| (format!("{n}.toml"), format!("include = \"{}.toml\"", n + 1))).collect();
    deep[0].0 = "main.toml".into();
    let deep: Vec<(&str, &str)> = deep.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert!(wrong(&deep).contains("8 files include each other already"), "{}", wrong(&deep));
}
