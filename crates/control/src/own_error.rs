//! Why an own controller cannot be used: what was attempted, why it failed, the cure.

use std::path::PathBuf;

/// Why an own controller cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnError {
    /// The file does not exist or cannot be read.
    #[error("cannot read the controller {}: {why}; `tandem control build NAME.h` builds one", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error.
        why: String,
    },
    /// It was built for another version of the interface.
    #[error("cannot use the controller {}: {why}; build it again: tandem control build {name}.h", file.display())]
    OtherVersion {
        /// The file.
        file: PathBuf,
        /// Its name.
        name: String,
        /// The versions.
        why: String,
    },
    /// The file is not that of a controller.
    #[error("cannot use the controller {}: {why}; build it again: tandem control build NAME.h", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// This process has another controller of the name.
    #[error(
        "cannot use the controller {}: this process already uses {} of the same name, and a process has one controller of a name; \
         give one of them another name", file.display(), other.display()
    )]
    TwoOfOneName {
        /// The file.
        file: PathBuf,
        /// The file that is in use.
        other: PathBuf,
    },
    /// Other users may change the file.
    #[error("cannot load the controller {} into the kernel: {why}", file.display())]
    Distrusted {
        /// The file.
        file: PathBuf,
        /// Which users have write access to which file, and the cure.
        why: String,
    },
    /// Its program failed.
    #[error("the controller {} failed: {why}; correct its header and build it again", file.display())]
    Failed {
        /// The file.
        file: PathBuf,
        /// What it did.
        why: String,
    },
}
