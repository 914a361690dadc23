//! What tests of the lab share.

use std::{fs::OpenOptions, io::Write};

/// Whether `test` must be skipped because this process may not make hosts; the reason goes to the file that TANDEM_SKIPS names.
pub(crate) fn skip(test: &str) -> bool {
    let Err(error) = lab::Host::new("probe") else { return false };
    note(test, &error);
    true
}

/// Says that a test, or a part of one, was skipped.
pub(crate) fn note(test: &str, why: &dyn std::fmt::Display) {
    eprintln!("SKIP {test}: {why}");
    if let Ok(path) = std::env::var("TANDEM_SKIPS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{test}: {why}");
    }
}
