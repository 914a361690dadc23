//! The files of a crate have no import cycles.
//!
//! The graph has a node for each file of a program or library, and an edge for each import of an
//! item that is defined in another file: by `use`, or by a path in code such as `super::limit()`. A
//! re-export counts as its source, so that `crate::Rate` leads to the file that defines `Rate`. A
//! module and its child modules may use each other's items: the use of a child does not count as an
//! import, nor does use by tests alone (`#[cfg(test)]`).

use crate::documents::root;
use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fs,
    path::{Path, PathBuf},
};
use syn::{
    Attribute, Item, UseTree, Visibility,
    visit::{self, Visit},
};

/// A name that `use` brings into a module.
struct Alias {
    path: Vec<String>,
    /// Whether other modules may use the name as well.
    is_reexport: bool,
}

#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// Names of items that the module defines.
    items: BTreeSet<String>,
    aliases: HashMap<String, Alias>,
    globs: Vec<Vec<String>>,
    /// Paths in the code of this module, `use` declarations aside.
    paths: BTreeSet<Vec<String>>,
}

/// What a path resolves to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item of this module.
    Item(usize),
}

/// The modules of one program or library; the first is its root.
#[derive(Default)]
struct Program {
    modules: Vec<Module>,
    files: Vec<PathBuf>,
}

/// The imported paths, by importing and imported file.
type Imports = BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>;

impl Program {
    fn read(root: &Path) -> Self {
        let mut program = Program::default();
        let directory = root.parent().unwrap().to_path_buf();
        program.add_file(root, &directory, None);
        program
    }

    /// Adds the module in `path`, whose child modules are in `directory`, and returns its number.
    fn add_file(&mut self, path: &Path, directory: &Path, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(path).unwrap_or_else(|why| panic!("cannot read {}: {why}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|why| panic!("cannot parse {}: {why}", path.display()));
        self.files.push(path.to_path_buf());
        self.add_module(&parsed.items, self.files.len() - 1, directory, parent)
    }

    fn add_module(&mut self, items: &[Item], file: usize, directory: &Path, parent: Option<usize>) -> usize {
        let number = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        for item in items.iter().filter(|item| !attributes(item).iter().any(is_for_tests)) {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let child = match &module.content {
                        Some((_, items)) => self.add_module(items, file, &directory.join(&name), Some(number)),
                        None => {
                            let (path, inside) = self.module_file(&module.attrs, &name, file, directory);
                            self.add_file(&path, &inside, Some(number))
                        }
                    };
                    self.modules[number].children.insert(name, child);
                }
                Item::Use(item) => self.modules[number].add_use(&item.tree, &mut Vec::new(), !matches!(item.vis, Visibility::Inherited)),
                _ => {
                    self.modules[number].items.extend(name_of(item));
                    let mut found = Paths { module: &mut self.modules[number] };
                    found.visit_item(item);
                }
            }
        }
        number
    }

    /// Returns the file of the module `name` that `file` declares, and the directory of that
    /// module's child modules.
    fn module_file(&self, attributes: &[Attribute], name: &str, file: usize, directory: &Path) -> (PathBuf, PathBuf) {
        if let Some(path) = attributes.iter().find_map(path_attribute) {
            let path = self.files[file].parent().unwrap().join(path);
            let inside = path.parent().unwrap().to_path_buf();
            return (path, inside);
        }
        let inside = directory.join(name);
        let plain = directory.join(format!("{name}.rs"));
        (if plain.exists() { plain } else { inside.join("mod.rs") }, inside)
    }

    /// Resolves `path` in a module. `None`: an item of another crate, or a name that no file here
    /// defines.
    fn resolve(&self, from: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            name => self.find(from, name, seen)?,
        };
        rest.iter().try_fold(start, |target, name| match target {
            Target::Module(module) if name == "super" => Some(Target::Module(self.modules[module].parent?)),
            Target::Module(module) => self.find(module, name, seen),
            // A variant of an enum, an associated item.
            Target::Item(_) => Some(target),
        })
    }

    /// Resolves a name in a module.
    fn find(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Target> {
        if !seen.insert((module, name.to_string())) {
            return None;
        }
        let inside = &self.modules[module];
        let found = if let Some(child) = inside.children.get(name) {
            Some(Target::Module(*child))
        } else if inside.items.contains(name) {
            Some(Target::Item(module))
        } else if let Some(alias) = inside.aliases.get(name) {
            self.resolve(module, &alias.path, seen)
        } else {
            let mut through = |glob: &Vec<String>| match self.resolve(module, glob, seen)? {
                Target::Module(other) if other != module => self.find(other, name, seen),
                _ => None,
            };
            inside.globs.iter().find_map(&mut through)
        };
        seen.remove(&(module, name.to_string()));
        found
    }

    /// Whether a module is a descendant of one in `file`.
    fn is_below(&self, module: usize, file: usize) -> bool {
        let mut above = std::iter::successors(self.modules[module].parent, |&number| self.modules[number].parent);
        above.any(|number| self.modules[number].file == file)
    }

    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (number, module) in self.modules.iter().enumerate() {
            let own = module.aliases.values().filter(|alias| !alias.is_reexport).map(|alias| &alias.path);
            for path in own.chain(&module.paths) {
                // An imported module is used by a path through it, which counts itself.
                if let Some(Target::Item(other)) = self.resolve(number, path, &mut BTreeSet::new()) {
                    let to = self.modules[other].file;
                    if to != module.file && !self.is_below(other, module.file) {
                        imports.entry(module.file).or_default().entry(to).or_default().insert(path.join("::"));
                    }
                }
            }
        }
        imports
    }

    /// Returns the shortest cycle of files, if there is one, as a line for each import.
    fn cycle(&self, base: &Path) -> Option<Vec<String>> {
        let imports = self.imports();
        let cycles = (0..self.files.len()).filter_map(|file| shortest_cycle(&imports, file));
        let cycle = cycles.min_by_key(Vec::len)?;
        let name = |file: usize| self.files[file].strip_prefix(base).unwrap_or(&self.files[file]).display().to_string();
        let line = |(&from, &to): (&usize, &usize)| {
            let paths: Vec<&str> = imports[&from][&to].iter().map(String::as_str).collect();
            format!("  {} imports {}: {}", name(from), name(to), paths.join(", "))
        };
        let next = cycle.iter().cycle().skip(1);
        Some(cycle.iter().zip(next).map(line).collect())
    }
}

/// Returns the shortest cycle through a file: its files in the order of imports.
fn shortest_cycle(imports: &Imports, start: usize) -> Option<Vec<usize>> {
    let mut came_from = HashMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(file) = waiting.pop_front() {
        for &next in imports.get(&file).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut path = vec![file];
                while path[path.len() - 1] != start {
                    path.push(came_from[&path[path.len() - 1]]);
                }
                path.reverse();
                return Some(path);
            }
            came_from.entry(next).or_insert_with(|| {
                waiting.push_back(next);
                file
            });
        }
    }
    None
}

impl Module {
    fn add_use(&mut self, tree: &UseTree, before: &mut Vec<String>, is_reexport: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_use(&path.tree, before, is_reexport);
                before.pop();
            }
            UseTree::Name(name) => self.add_alias(&name.ident.to_string(), &name.ident.to_string(), before, is_reexport),
            UseTree::Rename(name) => self.add_alias(&name.ident.to_string(), &name.rename.to_string(), before, is_reexport),
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, before, is_reexport)),
        }
    }

    fn add_alias(&mut self, item: &str, name: &str, before: &[String], is_reexport: bool) {
        // `use a::b::{self}` is `use a::b`.
        let (path, name) = match (item, before.last()) {
            ("self", Some(last)) => (before.to_vec(), if name == "self" { last } else { name }),
            _ => ([before, &[item.to_string()]].concat(), name),
        };
        // `use … as _` is an import too.
        let name = if name == "_" { path.join("::") } else { name.to_string() };
        self.aliases.insert(name, Alias { path, is_reexport });
    }
}

/// Collects the paths in an item's code.
struct Paths<'a> {
    module: &'a mut Module,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.module.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.module.add_use(&item.tree, &mut Vec::new(), false);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

impl Paths<'_> {
    /// Adds the paths in the arguments of a macro. These have no syntax tree: identifiers joined by
    /// `::` count as a path.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.add_path(&mut path);
                    self.add_tokens(group.stream());
                    colons = 0;
                }
                _ => {
                    self.add_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.add_path(&mut path);
    }

    fn add_path(&mut self, path: &mut Vec<String>) {
        if !path.is_empty() {
            self.module.paths.insert(std::mem::take(path));
        }
    }
}

/// Returns the file that `#[path = "…"]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
    attribute.path().is_ident("path").then(|| text.value())
}

/// Whether the attribute is `#[cfg(test)]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    attribute.path().is_ident("cfg") && list.tokens.to_string() == "test"
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the directories of all crates of the workspace, sorted within each group.
pub(crate) fn crate_directories(root: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for group in ["crates", "tools"] {
        let mut crates: Vec<PathBuf> = fs::read_dir(root.join(group)).unwrap().map(|entry| entry.unwrap().path()).collect();
        crates.sort();
        directories.extend(crates);
    }
    directories.push(root.join("python"));
    directories
}

/// Returns the root files of a crate's library, programs and tests.
fn programs(directory: &Path) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["src/lib.rs", "src/main.rs"].map(|name| directory.join(name)).into();
    for folder in ["src/bin", "tests"] {
        for entry in fs::read_dir(directory.join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            roots.push(if path.is_dir() { path.join("main.rs") } else { path });
        }
    }
    roots.retain(|path| path.is_file() && path.extension().is_some_and(|extension| extension == "rs"));
    roots.sort();
    roots
}

#[test]
fn files_have_no_import_cycles() {
    let root = root();
    let (mut found, mut files) = (String::new(), 0);
    for directory in crate_directories(&root) {
        for path in programs(&directory) {
            let program = Program::read(&path);
            files += program.files.len();
            if let Some(cycle) = program.cycle(&root) {
                found += &format!("{}:\n{}\n", path.strip_prefix(&root).unwrap().display(), cycle.join("\n"));
            }
        }
    }
    assert!(files > 300, "only {files} files were read");
    assert!(found.is_empty(), "import cycles (the shortest of each program):\n{found}");
}

/// Writes a crate of these files to a temporary directory, and returns its shortest import cycle.
fn cycle_of(files: &[(&str, &str)]) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Program::read(&directory.path().join("lib.rs")).cycle(directory.path()).map(|lines| lines.join("\n"))
}

#[test]
fn import_cycles_are_found() {
    let two =
        [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "use super::a; pub struct B; fn f(_: a::A) {}")];
    assert_eq!(cycle_of(&two).unwrap(), "  a.rs imports b.rs: crate::b::B\n  b.rs imports a.rs: a::A");
    let in_macro = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub const A: u8 = 1;"),
        ("b.rs", "pub fn B() { print!(\"{}\", crate::a::A); }"),
    ];
    assert!(cycle_of(&in_macro).is_some());
    let through_reexport =
        [("lib.rs", "mod a; mod b; pub use a::A;"), ("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "pub struct B(crate::A);")];
    assert!(cycle_of(&through_reexport).is_some());
    let three = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "pub fn a() { crate::b::b() }"),
        ("b.rs", "pub fn b() { crate::c::c() }"),
        ("c.rs", "use crate::a::*; pub fn c() { a() }"),
    ];
    assert_eq!(cycle_of(&three).unwrap().lines().count(), 3);
}

#[test]
fn imports_without_a_cycle_are_accepted() {
    let naming_a_child = [("lib.rs", "mod a; pub use a::A; pub struct B;"), ("a.rs", "pub struct A(crate::B);")];
    assert_eq!(cycle_of(&naming_a_child), None);
    let parent_and_child =
        [("lib.rs", "mod a;"), ("a.rs", "mod b; use b::B; pub struct A(B);"), ("a/b.rs", "pub struct B; fn f(_: super::A) {}")];
    assert_eq!(cycle_of(&parent_and_child), None);
    let tests_apart = [("lib.rs", "pub fn f() {} #[cfg(test)] mod tests;"), ("tests.rs", "use super::*; fn g() { f() }")];
    assert_eq!(cycle_of(&tests_apart), None);
    let siblings = [
        ("lib.rs", "mod a; pub use a::{b::B, c::C};"),
        ("a/mod.rs", "pub mod b; pub mod c;"),
        ("a/b.rs", "pub struct B(super::c::C);"),
        ("a/c.rs", "pub struct C;"),
    ];
    assert_eq!(cycle_of(&siblings), None);
}
