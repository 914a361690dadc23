//! Shared by the tests of all crates: looking for programs that a test needs, reporting skipped
//! tests, and programs that a test makes. Not installed.

use std::{
    env,
    fmt::Display,
    fs::{self, OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

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

/// Copies a program that is run afterwards. This process must not have the copy open for writing: a
/// program that another test starts meanwhile would inherit the descriptor for a moment, and the
/// kernel does not execute a file that is open for writing (ETXTBSY).
///
/// # Panics
///
/// If it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}", from.display(), to.display());
}

/// Writes a shell script with these commands, to be run afterwards (see [`copy_program`]).
///
/// # Panics
///
/// If it cannot be written.
pub fn write_script(path: impl AsRef<Path>, commands: &str) {
    let path = path.as_ref();
    let draft = path.with_extension("draft");
    fs::write(&draft, format!("#!/bin/sh\n{commands}\n")).unwrap();
    fs::set_permissions(&draft, Permissions::from_mode(0o755)).unwrap();
    copy_program(&draft, path);
    fs::remove_file(draft).unwrap();
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
