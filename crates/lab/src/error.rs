//! Errors of the lab: each names what was attempted, on what, why it failed, and the cure.

use std::{io, path::PathBuf};

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A scenario without links in series was to be built as a series of links.
    #[error("cannot build scenario {scenario:?} as links in series: it has no [[link]]; build its [[network]]s as ParallelNetworks")]
    NoLinks {
        /// Name of the scenario.
        scenario: String,
    },
    /// A scenario without networks in parallel was to be built as such.
    #[error("cannot build scenario {scenario:?} as networks in parallel: it has no [[network]]; build its [[link]]s as SeriesNetwork")]
    NoNetworks {
        /// Name of the scenario.
        scenario: String,
    },
    /// A network namespace could not be made or entered.
    #[error("cannot make the host {host} (a network namespace): {why}{}", privilege(why))]
    Namespace {
        /// Name of the host.
        host: String,
        /// The error of the system call.
        why: io::Error,
    },
    /// A TUN device could not be made.
    #[error("cannot make the TUN device {device} on host {host}: {why}{}", tun(why))]
    Tun {
        /// Name of the device.
        device: String,
        /// Name of the host.
        host: String,
        /// The error of the system call.
        why: io::Error,
    },
    /// Addresses, routes or settings could not be set.
    #[error("cannot configure the host {host}: {why}")]
    Configure {
        /// Name of the host.
        host: String,
        /// What failed and why: the message of `ip`, or of the setting.
        why: String,
    },
    /// A proxy of the scenario did not start.
    #[error("cannot start the proxy on host {host}: {why}")]
    Proxy {
        /// Name of the host.
        host: String,
        /// The proxy's error.
        why: Box<proxy::ProxyStartError>,
    },
    /// A bond could not be set up.
    #[error("cannot set up the bond: {0}")]
    Bond(String),
    /// A proxy of the scenario refused the new rate of a link.
    #[error("cannot configure the proxy on host {host} for the new rate of its link: {why}")]
    Reload {
        /// Name of the host.
        host: String,
        /// The proxy's error.
        why: Box<proxy::ChangeError>,
    },
    /// A capture could not be written.
    #[error("cannot write the capture {}: {why}; choose a directory that exists and can be written to", path.display())]
    Capture {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system call or of the pcapng writer.
        why: String,
    },
    /// Another system call failed.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted, as it follows "cannot".
        what: &'static str,
        /// The error of the system call.
        why: io::Error,
    },
    /// A thread of the lab panicked: a bug in the lab.
    #[error("a thread of the lab panicked; please report this")]
    Panicked,
}

fn privilege(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => "; the lab needs root (or CAP_SYS_ADMIN and CAP_NET_ADMIN): run it with sudo",
        _ => "; see `tandem doctor`",
    }
}

fn tun(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::NotFound => {
            "; the kernel offers no /dev/net/tun: load it (modprobe tun) or, in a container, pass the device in (--device /dev/net/tun)"
        }
        io::ErrorKind::PermissionDenied => "; the lab needs root (or CAP_NET_ADMIN): run it with sudo",
        _ => "; see `tandem doctor`",
    }
}
