//! Shared by the tests of all crates: looking for programs that a test needs, and reporting skipped
//! tests. Not installed.

use std::{env, fmt::Display, fs::OpenOptions, io::Write as _, path::Path};

/// Reports that a test, or a part of it, was skipped: on stderr, and in the file that the variable
/// `TANDEM_SKIPS` names, which `make test` prints at its end.
pub fn skipped(test: &str, why: &dyn Display) {
    eprintln!("SKIP {test}: {why}");
    if let Ok(path) = env::var("TANDEM_SKIPS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{test}: {why}");
    }
}

/// Returns the first of `programs`, given by name or by path, that is not installed.
pub fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    programs.iter().find(|program| !is_installed(program)).copied()
}

/// Whether the program exists. Debian keeps administration programs outside the users' `PATH`.
fn is_installed(program: &str) -> bool {
    let directories = env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    match Path::new(program) {
        path if path.is_absolute() => path.exists(),
        name => directories.split(':').any(|directory| Path::new(directory).join(name).exists()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert_eq!(missing(&["sh", "/bin/sh"]), None);
        assert_eq!(missing(&["sh", "no-such-program", "/no/such"]), Some("no-such-program"));
        assert_eq!(missing(&["/no/such"]), Some("/no/such"));
    }
}
