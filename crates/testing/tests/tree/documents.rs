//! Checks of the Markdown pages: the targets of relative links and anchors exist, lines are at most
//! 100 columns wide, and the book lists every page of `docs/`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

const MOST_COLUMNS: usize = 100;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all Markdown files of the root directory and of `docs/`, sorted by path.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root().join("docs")];
    let inside = |directory: &Path| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    found.extend(inside(&root()).into_iter().filter(is_page));
    while let Some(directory) = waiting.pop() {
        for path in inside(&directory) {
            if path.is_dir() {
                waiting.push(path);
            } else if is_page(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the lines of a page with their numbers, without fenced code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((index + 1, line));
        }
    }
    lines
}

/// Returns the targets of a line's links, `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// Returns the anchors of a page: of its headings, by the rules of GitHub and mdBook, and those that
/// are written as `<a id="name"></a>`.
fn anchors(text: &str) -> HashSet<String> {
    let headings = prose(text).into_iter().filter_map(|(_, line)| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()));
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
        kept.replace(' ', "-")
    };
    let written = text.lines().filter_map(|line| Some(line.strip_prefix("<a id=\"")?.split_once('"')?.0.to_owned()));
    headings.map(anchor).chain(written).collect()
}

#[test]
fn targets_of_relative_links_exist() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            for target in targets(line).filter(|target| !target.contains("://")) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                // Pictures have no anchors.
                let has_anchor = || fs::read_to_string(&path).is_ok_and(|linked| anchors(&linked).contains(anchor));
                let is_there = if anchor.is_empty() { path.exists() } else { has_anchor() };
                if !is_there {
                    broken.push(format!("{}:{number}: {target}", page.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links without a target:\n{}", broken.join("\n"));
}

#[test]
fn lines_are_at_most_100_columns_wide() {
    // Tables cannot be wrapped. Exempt: a list of links, a page with a generated part, and two
    // pages that are not wrapped yet.
    let exempt = ["SUMMARY.md", "kernels.md", "architecture.md", "CHANGELOG.md"];
    let mut wide = Vec::new();
    for page in pages().into_iter().filter(|page| !exempt.iter().any(|name| page.ends_with(name))) {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            let may_be_wide = line.starts_with('|') || line.starts_with("<!--") || !line.trim_start().contains(' ');
            if line.chars().count() > MOST_COLUMNS && !may_be_wide {
                wide.push(format!("{}:{number}: {} columns", page.display(), line.chars().count()));
            }
        }
    }
    assert!(wide.is_empty(), "lines that are too wide:\n{}", wide.join("\n"));
}

#[test]
fn the_book_lists_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: HashSet<PathBuf> = summary.lines().flat_map(targets).map(|target| docs.join(target)).collect();
    let left_out: Vec<_> =
        pages().into_iter().filter(|page| page.starts_with(&docs) && !page.ends_with("SUMMARY.md") && !listed.contains(page)).collect();
    assert!(left_out.is_empty(), "pages that docs/SUMMARY.md does not list: {left_out:?}");
}
