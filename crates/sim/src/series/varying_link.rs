//! A link that changes at given times.

use scenario::LinkChanges;
use std::iter::Peekable;

/// A link that changes during the run.
#[derive(Debug)]
pub(super) struct VaryingLink {
    /// Its index, from 0.
    pub(super) link: usize,
    /// What is to come.
    pub(super) changes: Peekable<LinkChanges>,
}
