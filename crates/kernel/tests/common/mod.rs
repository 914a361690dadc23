//! What the tests of this crate share.

use std::io::Write as _;

/// Whether `test` must be skipped because this process may not load programs, or the kernel has no BTF; the reason goes to the file that
/// TANDEM_SKIPS names.
pub(crate) fn skip(test: &str) -> bool {
    let why = match kernel::load("reno", &[]) {
        Ok(_) => return false,
        Err(why @ (kernel::Error::Privilege | kernel::Error::NoBtf)) => why,
        Err(why) => panic!("{test}: {why}"),
    };
    eprintln!("{test} skipped: {why}");
    if let Ok(path) = std::env::var("TANDEM_SKIPS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(file, "kernel {test}: {why}");
    }
    true
}
