//! A file with the files that it includes, merged into one table that remembers where each key
//! stands.
//!
//! What an included file has stands where `include` stands: before the tables of the including
//! file, since TOML allows a key of the root only there. Tables are merged, lists of tables are
//! joined in this order, and any other key may be set only once.

use crate::{Fault, FileError, place, table};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// The key of the root that names other files.
const KEY: &str = "include";
/// The most files that include each other: the first one, and so many below it.
const MOST_NESTED: usize = 8;
/// The most files of a configuration.
const MOST_FILES: usize = 256;
/// The largest TOML file, in bytes.
pub const LARGEST_FILE: u64 = 16 << 20;

/// Why a file with its includes cannot be used.
#[derive(Debug)]
pub enum LoadError {
    /// The first file cannot be read.
    Unreadable(io::Error),
    /// A file is wrong, or a file that it includes cannot be read.
    File(Box<FileError>),
}

/// A text file of a configuration.
#[derive(Debug, Clone)]
struct Source {
    /// Its name in errors.
    origin: String,
    path: PathBuf,
    text: String,
}

/// Where a part of the merged table stands.
#[derive(Debug, Clone)]
struct Placed {
    /// Path of the part in the merged table, with indices from 0.
    path: String,
    /// Index of the source.
    source: usize,
    /// Its path in that source.
    local: String,
}

/// A line of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file's name.
    pub origin: String,
    /// The line, from 1.
    pub line: usize,
}

/// A TOML file and all that it includes.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    sources: Vec<Source>,
    places: Vec<Placed>,
    table: Table,
}

impl Sources {
    /// Reads the file at `path` and the files that it includes.
    ///
    /// # Errors
    /// A file cannot be read or is not TOML, a key is set in two places, or includes are nested too
    /// deeply or in a circle.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let text = read(path).map_err(LoadError::Unreadable)?;
        let mut sources = Sources::default();
        sources.add(&text, path, 0).map_err(|error| LoadError::File(Box::new(error)))?;
        Ok(sources)
    }

    /// A text alone. It includes nothing, whatever its `include` says.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn of_text(text: &str, origin: &str) -> Result<Self, FileError> {
        let table = table(text, origin)?;
        let source = Source { origin: origin.into(), path: PathBuf::from(origin), text: text.into() };
        let places = vec![Placed { path: String::new(), source: 0, local: String::new() }];
        Ok(Sources { sources: vec![source], places, table })
    }

    /// The merged table, without `include`.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Paths of the files that were read, the first one first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.sources.iter().map(|source| source.path.as_path())
    }

    /// Finds the file and the line of a fault's key.
    pub fn place(&self, fault: &Fault) -> FileError {
        let Some((source, local)) = self.source_of(&fault.path) else { return place("", "", fault) };
        let error = place(&source.text, &source.origin, &Fault::new(local, &fault.message));
        // The numbers of list members count those of all files, as other errors do.
        FileError { key: crate::from_one(&fault.path), ..error }
    }

    /// Where the key at `path` (indices from 0) stands.
    pub fn line_of(&self, path: &str) -> Option<SourceLine> {
        let (source, local) = self.source_of(path)?;
        let line = place(&source.text, &source.origin, &Fault::new(local, "")).line?;
        Some(SourceLine { origin: source.origin.clone(), line })
    }

    /// The file in which the key at `path` (indices from 0) stands.
    pub fn file_of(&self, path: &str) -> Option<&Path> {
        self.source_of(path).map(|(source, _)| source.path.as_path())
    }

    /// The source of the key at `path`, and the key's path in it: by the longest part of the path
    /// whose place is known.
    fn source_of(&self, path: &str) -> Option<(&Source, String)> {
        let rest = |placed: &Placed| {
            let rest = path.strip_prefix(placed.path.as_str())?;
            (placed.path.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
        };
        let (placed, rest) = self.places.iter().filter_map(|it| Some((it, rest(it)?))).max_by_key(|(it, _)| it.path.len())?;
        Some((&self.sources[placed.source], format!("{}{rest}", placed.local)))
    }

    /// Adds a file: first what it includes, then its own keys.
    fn add(&mut self, text: &str, path: &Path, depth: usize) -> Result<(), FileError> {
        let origin = path.display().to_string();
        let mut table = table(text, &origin)?;
        let included = table.remove(KEY);
        let number = self.sources.len();
        self.sources.push(Source { origin: origin.clone(), path: path.into(), text: text.into() });
        let wrong = |fault: Fault| place(text, &origin, &fault);
        for (key, pattern) in patterns(included).map_err(wrong)? {
            for file in files(path, &pattern).map_err(|why| wrong(Fault::new(&key, why)))? {
                let refuse = |why: String| wrong(Fault::new(&key, format!("cannot include {}: {why}", file.display())));
                if self.sources.len() >= MOST_FILES {
                    return Err(refuse(format!("there are {MOST_FILES} files already: join some")));
                }
                if depth >= MOST_NESTED {
                    return Err(refuse(format!("{MOST_NESTED} files include each other already: include it from an earlier one")));
                }
                if let Some(other) = self.sources.iter().find(|source| is_same(&source.path, &file)) {
                    let cure = if other.path == path || depth > 0 { "do files include each other in a circle? " } else { "" };
                    return Err(refuse(format!("it has been read already: {cure}name it once")));
                }
                let text = read(&file).map_err(|why| refuse(why.to_string()))?;
                self.add(&text, &file, depth + 1)?;
            }
        }
        self.merge(table, number)
    }

    /// Merges a source's keys into the whole.
    fn merge(&mut self, table: Table, source: usize) -> Result<(), FileError> {
        let mut whole = std::mem::take(&mut self.table);
        let merged = self.merge_table(&mut whole, table, source, "", "");
        self.table = whole;
        merged
    }

    fn merge_table(&mut self, whole: &mut Table, table: Table, source: usize, path: &str, local: &str) -> Result<(), FileError> {
        for (key, value) in table {
            let (path, local) = (crate::under(path, &key), crate::under(local, &key));
            match (whole.get_mut(&key), value) {
                (None, value) => {
                    self.place_new(&path, &local, &value, source);
                    whole.insert(key, value);
                }
                (Some(Value::Table(present)), Value::Table(more)) => self.merge_table(present, more, source, &path, &local)?,
                (Some(Value::Array(present)), Value::Array(more)) if is_tables(present) && is_tables(&more) => {
                    for (index, item) in more.into_iter().enumerate() {
                        let path = format!("{path}[{}]", present.len());
                        self.places.push(Placed { path, source, local: format!("{local}[{index}]") });
                        present.push(item);
                    }
                }
                _ => {
                    let before = self.line_of(&path).map_or_else(|| "before".into(), |at| format!("at {}:{}", at.origin, at.line));
                    let Source { origin, text, .. } = &self.sources[source];
                    return Err(place(text, origin, &Fault::new(local, format!("is set {before} too: remove one of the two"))));
                }
            }
        }
        Ok(())
    }

    /// Remembers where a key stands that the whole did not have.
    fn place_new(&mut self, path: &str, local: &str, value: &Value, source: usize) {
        self.places.push(Placed { path: path.into(), source, local: local.into() });
        // Tables may get keys, and lists of tables members, of other files: each has its own place.
        match value {
            Value::Table(table) => {
                for (key, value) in table {
                    self.place_new(&crate::under(path, key), &crate::under(local, key), value, source);
                }
            }
            Value::Array(items) if is_tables(items) => {
                let items =
                    (0..items.len()).map(|index| Placed { path: format!("{path}[{index}]"), source, local: format!("{local}[{index}]") });
                self.places.extend(items);
            }
            _ => {}
        }
    }
}

fn is_tables(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(Value::is_table)
}

/// The text of a file: of a regular one, of a size that a person or a program writes.
fn read(path: &Path) -> io::Result<String> {
    files::read_text(path, LARGEST_FILE)
}

/// Whether two paths name the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
    real(one) == real(other)
}

/// The patterns of `include`, each with its path in the file.
fn patterns(included: Option<Value>) -> Result<Vec<(String, String)>, Fault> {
    let wrong = |key: String| Fault::new(key, "names files: write a path, or a list such as [\"conf.d/*.toml\"]");
    match included {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![(KEY.into(), one)]),
        Some(Value::Array(several)) => several
            .into_iter()
            .enumerate()
            .map(|(index, one)| match one {
                Value::String(one) => Ok((format!("{KEY}[{index}]"), one)),
                _ => Err(wrong(format!("{KEY}[{index}]"))),
            })
            .collect(),
        Some(_) => Err(wrong(KEY.into())),
    }
}

/// The files that a pattern names, sorted. It is relative to the directory of the file that has it.
/// A pattern without wildcards names one file, which must be there.
fn files(including: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let directory = including.parent().unwrap_or(Path::new(""));
    if !pattern.contains(['*', '?', '[']) {
        return Ok(vec![directory.join(pattern)]);
    }
    let pattern_of = if Path::new(pattern).is_absolute() {
        pattern.to_owned()
    } else {
        // Without a directory, `*.toml` is that of the working directory.
        let directory = glob::Pattern::escape(&directory.display().to_string());
        if directory.is_empty() { pattern.to_owned() } else { format!("{directory}/{pattern}") }
    };
    // Hidden files are those of editors.
    let options = glob::MatchOptions { require_literal_leading_dot: true, require_literal_separator: true, ..Default::default() };
    let paths = glob::glob_with(&pattern_of, options).map_err(|why| format!("cannot parse the pattern {pattern:?}: {why}"))?;
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(|why| format!("cannot search for {pattern:?}: {why}"))?;
    paths.sort();
    Ok(paths)
}
