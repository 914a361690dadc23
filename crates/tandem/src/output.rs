//! Where output goes: the terminal and its width, and files.

use crate::Failure;
use std::{fs, io::IsTerminal, path::Path};

/// The width of the terminal that standard output is, in characters. If it is no terminal, what the
/// variable COLUMNS says; absent: no limit.
pub(crate) fn width() -> Option<usize> {
    let of_terminal =
        || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let of_environment = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    if std::io::stdout().is_terminal() { of_terminal().or_else(of_environment) } else { of_environment() }
}

/// Words in columns, as wide as the output is.
pub(crate) fn words_table(header: &[&str], rows: &[Vec<String>]) -> String {
    report::words_table(header, rows, width())
}

/// Writes a page, and its directory if that is missing.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    if let Some(parent) = path.parent() {
        // Where it cannot be made, the write fails and says why.
        let _ = fs::create_dir_all(parent);
    }
    fs::write(path, page)
        .map_err(|why| Failure::Failed(format!("cannot write the page {}: {why}; choose another place with --page FILE", path.display())))
}
