//! The program under test.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The absolute path of a program that was named by a path, since commands may change the
/// directory. A name that is no path of a file stays as it is and is looked up in `PATH`.
pub fn resolve_program(program: &Path) -> PathBuf {
    fs::canonicalize(program).unwrap_or_else(|_| program.to_owned())
}
