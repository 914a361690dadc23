//! Output to the terminal and to files.

use crate::CommandError;
use std::{fs, io::IsTerminal, path::Path};

/// Returns the width of the output in characters: that of the terminal, else the variable COLUMNS;
/// `None`: unlimited.
pub(crate) fn width() -> Option<usize> {
    let of_terminal =
        || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let of_environment = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    if std::io::stdout().is_terminal() { of_terminal().or_else(of_environment) } else { of_environment() }
}

/// Returns a table of texts, wrapped to the width of the output.
pub(crate) fn words_table(header: &[&str], rows: &[Vec<String>]) -> String {
    report::words_table(header, rows, width())
}

/// Writes a page, and creates its directory if necessary.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), CommandError> {
    if let Some(parent) = path.parent() {
        // If this fails, so does the write below, with the reason.
        let _ = fs::create_dir_all(parent);
    }
    fs::write(path, page).map_err(|why| {
        CommandError::Failed(format!("cannot write the page {}: {why}; choose another path with --page FILE", path.display()))
    })
}
