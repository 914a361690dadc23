//! Compares the crates' dependencies with docs/architecture.md: each arrow of its graph is a
//! dependency, each dependency is an arrow or a chain of arrows, and each crate has a row in the
//! table.

use crate::{documents::root, imports::crate_directories};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// The crates that each crate uses, by the names of their directories.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the dependencies in the manifests.
fn dependencies() -> Graph {
    let mut graph = Graph::new();
    for directory in crate_directories(&root()) {
        let Ok(text) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let manifest: toml::Table = text.parse().unwrap_or_else(|why| panic!("{}: {why}", directory.display()));
        let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|key| manifest.get(key)?.as_table());
        let used = tables.flat_map(|table| table.keys().cloned()).collect();
        graph.insert(directory.file_name().unwrap().to_string_lossy().into_owned(), used);
    }
    // Only dependencies on crates of the workspace count.
    let rooms: BTreeSet<String> = graph.keys().cloned().collect();
    graph.values_mut().for_each(|used| used.retain(|name| rooms.contains(name)));
    graph
}

/// Returns the arrows of the graph on the page.
fn arrows(page: &str) -> Graph {
    let mut graph = Graph::new();
    let drawn = page.split_once("```mermaid\n").and_then(|(_, rest)| rest.split_once("```")).expect("there is a graph").0;
    for line in drawn.lines() {
        if let Some((used, user)) = line.split_once("-->") {
            graph.entry(user.trim().to_string()).or_default().insert(used.trim().to_string());
        }
    }
    graph
}

/// Returns all crates that a crate uses, directly or through others.
fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(name) = waiting.pop() {
        for used in graph.get(name).into_iter().flatten() {
            if found.insert(used.clone()) {
                waiting.push(used);
            }
        }
    }
    found
}

#[test]
fn crates_depend_on_each_other_as_the_graph_shows() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (dependencies, arrows) = (dependencies(), arrows(&page));
    let mut wrong = Vec::new();
    for (user, used) in &dependencies {
        let shown = reachable(&arrows, user);
        wrong.extend(used.difference(&shown).map(|used| format!("{user} depends on {used}, but the graph has no chain of arrows for it")));
    }
    for (user, used) in &arrows {
        let real = dependencies.get(user).cloned().unwrap_or_default();
        wrong.extend(used.difference(&real).map(|used| format!("the arrow {used} --> {user} is not a dependency")));
        for used in used {
            let others = arrows[user].iter().filter(|other| *other != used);
            if others.into_iter().any(|other| reachable(&arrows, other).contains(used)) {
                wrong.push(format!("the arrow {used} --> {user} is redundant: other arrows imply it"));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/architecture.md and the manifests differ:\n{}", wrong.join("\n"));
}

#[test]
fn every_crate_has_a_row_in_the_table() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let dependencies = dependencies();
    let has_row = |name: &str| ["crates/", "tools/", ""].iter().any(|group| page.contains(&format!("\n| `{group}{name}` |")));
    let missing: Vec<_> = dependencies.keys().filter(|name| !has_row(name)).collect();
    assert!(missing.is_empty(), "docs/architecture.md has no row for {missing:?}");
}
