//! What tests of the lab share.

use std::{fs::OpenOptions, io::Write};

/// Whether `test` must be skipped because this process may not make hosts; the reason goes to the file that TANDEM_SKIPS names.
pub(crate) fn skip(test: &str) -> bool {
    let Err(error) = lab::Host::new("probe") else { return false };
    eprintln!("SKIP {test}: {error}");
    if let Ok(path) = std::env::var("TANDEM_SKIPS")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = writeln!(file, "{test}: {error}");
    }
    true
}
