//! What tests of the lab share.

/// Whether `test` must be skipped because this process may not make hosts.
pub(crate) fn skip(test: &str) -> bool {
    let Err(error) = lab::Host::new("probe") else { return false };
    testing::skipped(test, &error);
    true
}
