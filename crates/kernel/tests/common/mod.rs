//! Shared by the tests of this crate.

/// Whether `test` must be skipped, because this process may not load programs or the kernel has no
/// BTF.
pub(crate) fn skip(test: &str) -> bool {
    let why = match kernel::load("reno", &[]) {
        Ok(_) => return false,
        Err(why @ (kernel::Error::Privilege | kernel::Error::NoBtf)) => why,
        Err(why) => panic!("{test}: {why}"),
    };
    testing::skipped(test, &why);
    true
}
