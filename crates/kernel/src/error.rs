//! What can go wrong, with its cure.

use crate::sys;
use std::{io, path::PathBuf};

/// Why something could not be done in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such controller.
    #[error("there is no controller {name:?}: there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A tunable is not one of the controller's.
    #[error("{controller} has no tunable {name:?}: it has {known}")]
    Tunable {
        /// Whose it was to be.
        controller: String,
        /// What was asked for.
        name: String,
        /// What it has.
        known: String,
    },
    /// It is in the kernel, with other tunables than were asked for.
    #[error("td_{0} is in this kernel already, with other tunables: unload it first (`tandem control unload {0}`), or ask for none")]
    Tuned(String),
    /// Another version's programs are in the kernel.
    #[error(
        "programs of another version of Tandem are in this kernel, and share nothing with this one's: end what has them (a proxy, a run), and take \
         out what stays (`tandem control list`, `tandem control unload`), with that version"
    )]
    OtherVersion,
    /// The kernel has no type information.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux), which programs need to find its structs: use one built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// The kernel can't take congestion controls from programs.
    #[error("this kernel takes no congestion controllers from programs (BPF struct_ops): use Linux 5.6 or newer")]
    NoStructOps,
    /// The verifier knows nothing of what a program does.
    #[error("could not {attempt}: it is too old for programs that {what}; use Linux 6.0 or newer ({refusal})")]
    TooOld {
        /// What was attempted.
        attempt: String,
        /// What the program does.
        what: &'static str,
        /// What the verifier said.
        refusal: String,
    },
    /// This process may not load programs.
    #[error(
        "this process may not load programs into the kernel: run it as root, or with the capabilities CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    Privilege,
    /// The kernel refused.
    #[error("could not {attempt}: {error:#}{}", refusal.as_ref().map(|said| format!(" (the verifier: {said})")).unwrap_or_default())]
    Kernel {
        /// What was attempted.
        attempt: String,
        /// What libbpf and the kernel say.
        error: libbpf_rs::Error,
        /// What the verifier said of a program that it refused.
        refusal: Option<String>,
    },
    /// The BPF file system could not be had.
    #[error("could not keep {what} in the BPF file system at {path}: {error}", path = path.display())]
    Pin {
        /// What was to be kept.
        what: String,
        /// Where.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A controller is not in the kernel.
    #[error("td_{0} is not in this kernel")]
    NotLoaded(String),
    /// It is held by processes, not by the BPF file system.
    #[error("td_{0} is in this kernel because a running program holds it: it goes when that program ends")]
    HeldElsewhere(String),
    /// No room for a further link.
    #[error("the kernel's programs have records for {0} links, and all are in use")]
    Full(usize),
    /// A system call failed.
    #[error("could not {attempt}: {error}")]
    System {
        /// What was attempted.
        attempt: String,
        /// Why not.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
        let attempt = attempt.into();
        move |error| match error.kind() {
            // The verifier's refusals are of this kind too.
            libbpf_rs::ErrorKind::PermissionDenied if !sys::may_load() => Error::Privilege,
            _ => Error::Kernel { attempt, error, refusal: None },
        }
    }

    /// As [`Error::kernel`], of an object with programs that was loaded just now.
    pub(crate) fn load(attempt: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
        let attempt = attempt.into();
        move |error| match (Error::kernel(attempt)(error), sys::take_refusal()) {
            (Error::Kernel { attempt, .. }, Some(refusal)) if refusal.starts_with("no write support") => {
                Error::TooOld { attempt, what: "set a connection's pacing rate", refusal }
            }
            (Error::Kernel { attempt, .. }, Some(refusal)) if refusal.starts_with("unknown func bpf_spin_lock") => {
                Error::TooOld { attempt, what: "share records under a lock", refusal }
            }
            (Error::Kernel { attempt, error, .. }, refusal) => Error::Kernel { attempt, error, refusal },
            (other, _) => other,
        }
    }

    pub(crate) fn system(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let attempt = attempt.into();
        move |error| Error::System { attempt, error }
    }
}
