//! Helper of the lab's tests.

/// Whether `test` must be skipped because this process cannot make network namespaces; reports it
/// if so.
pub(crate) fn skip(test: &str) -> bool {
    let Err(error) = lab::Host::new("probe") else { return false };
    testing::skipped(test, &error);
    true
}
