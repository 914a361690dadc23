//! Files that another user may have named, written or planted.
//!
//! A program that runs with more rights than the one who names a file must not wait for it, read
//! without end, or print it. [`read`] and [`open`] take regular files up to a size;
//! [`quotation`] and [`shorten_quotations`] bound what an error repeats of their contents.
//!
//! A program must not write through a symbolic link that another user has planted either.
//! [`Draft`] replaces a configuration file as a whole; [`Distrust`] says which files and
//! directories another user can change.

mod bounded;
mod draft;
mod quotation;
mod trust;

pub use bounded::{Bounded, open, read, read_text};
pub use draft::Draft;
pub use quotation::{LONGEST_QUOTATION, quotation, shorten_quotations, window};
pub use trust::{Distrust, is_foreign_link};
