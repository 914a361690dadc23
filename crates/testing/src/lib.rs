//! What the tests of all crates share: what a machine lacks for a test, and how a test says that it was skipped. No part of what is installed.

use std::{env, fmt::Display, fs::OpenOptions, io::Write as _, path::Path};

/// Says that a test, or a part of one, was skipped: to who looks on, and in the file that `TANDEM_SKIPS` names, which `make test` prints at its end.
pub fn skipped(test: &str, why: &dyn Display) {
    eprintln!("SKIP {test}: {why}");
    if let Ok(path) = env::var("TANDEM_SKIPS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{test}: {why}");
    }
}

/// The first of `programs`, by name or by path, that can't be run here.
pub fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    programs.iter().find(|program| !is_there(program)).copied()
}

/// Whether there is such a program. Debian has those for root outside of others' `PATH`.
fn is_there(program: &str) -> bool {
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
