//! Errors of this crate: what was attempted, why it failed, the cure.

use crate::sys;
use std::{io, path::PathBuf};

/// Why an operation in the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such controller.
    #[error("unknown controller {name:?}: choose one of {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names of all controllers.
        known: String,
    },
    /// The controller has no such tunable, or not with this value.
    #[error(transparent)]
    Tunable(#[from] control::TunableError),
    /// There is a file of an own controller, but it cannot be used.
    #[error(transparent)]
    Own(#[from] control::OwnError),
    /// The file of an own controller is for records of another layout.
    #[error(
        "cannot load the controller {} into the kernel: it was built by another version of Tandem, whose programs share other records; \
         build it again: tandem control build {name}.h", file.display()
    )]
    OtherLayout {
        /// Its name.
        name: String,
        /// Its file.
        file: PathBuf,
    },
    /// Another build of an own controller is in the kernel.
    #[error(
        "another build of td_{0} is loaded in this kernel: unload it first (`tandem control unload {0}`), or end the programs that use it"
    )]
    OtherBuild(String),
    /// The controller is loaded with other tunables.
    #[error("td_{0} is loaded in this kernel with other tunables: unload it first (`tandem control unload {0}`), or give no tunables")]
    OtherTunables(String),
    /// Programs of another version, with another record layout, are loaded.
    #[error(
        "programs of another version of Tandem are loaded in this kernel, and cannot share link records with this one: stop the programs that use \
         them (a proxy, a run), and unload pinned ones (`tandem control list`, `tandem control unload`), with that version"
    )]
    OtherVersion,
    /// The kernel has no type information.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux), which BPF programs need to find its structs: use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// The kernel has no struct_ops for congestion controls.
    #[error("this kernel does not support congestion control by BPF (struct_ops): use Linux 5.6 or newer")]
    NoStructOps,
    /// The verifier is too old for what a program does.
    #[error("cannot {attempt}: this kernel is too old for BPF programs that {what}; use Linux 6.0 or newer ({refusal})")]
    TooOld {
        /// What was attempted.
        attempt: String,
        /// What the program does.
        what: &'static str,
        /// The verifier's message.
        refusal: String,
    },
    /// This process lacks the privilege to load programs.
    #[error(
        "this process may not load BPF programs: run it as root, or with the capabilities CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    Privilege,
    /// The kernel, or libbpf, refused.
    #[error("cannot {attempt}: {error:#}{}", refusal.as_ref().map(|reason| format!(" (the verifier: {reason})")).unwrap_or_default())]
    Kernel {
        /// What was attempted.
        attempt: String,
        /// The error of libbpf or the kernel.
        error: libbpf_rs::Error,
        /// The verifier's reason, if it refused a program.
        refusal: Option<String>,
    },
    /// A pin in the BPF file system failed.
    #[error("cannot {attempt} in the BPF file system at {path}: {error}", path = path.display())]
    Pin {
        /// What was attempted.
        attempt: String,
        /// The path of the pin.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The controller is not loaded.
    #[error("td_{0} is not loaded in this kernel; `tandem control list` shows what is, `tandem control load {0}` loads it")]
    NotLoaded(String),
    /// The controller is not pinned, but held by a process.
    #[error("td_{0} is loaded because a running program uses it: it is unloaded when that program ends")]
    HeldElsewhere(String),
    /// All link records are in use; there are this many.
    #[error("cannot watch another link: all {0} link records are in use; stop a program that watches links")]
    AllRecordsInUse(usize),
    /// A system call failed.
    #[error("cannot {attempt}: {error}")]
    System {
        /// What was attempted.
        attempt: String,
        /// The error.
        error: io::Error,
    },
}

impl Error {
    /// Whether the kernel lacks what is needed. Other errors are temporary, or depend on this
    /// process or on other loaded programs.
    pub fn is_of_kernel(&self) -> bool {
        matches!(self, Error::NoBtf | Error::NoStructOps | Error::TooOld { .. } | Error::Kernel { refusal: Some(_), .. })
    }

    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
        let attempt = attempt.into();
        move |error| match error.kind() {
            // The verifier's refusals have this kind too.
            libbpf_rs::ErrorKind::PermissionDenied if !sys::may_load() => Error::Privilege,
            _ => Error::Kernel { attempt, error, refusal: None },
        }
    }

    /// As [`Error::kernel`], for the load of an object: adds the verifier's reason.
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
