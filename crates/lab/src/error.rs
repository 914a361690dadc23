//! Why the lab could not do what was asked: what was attempted, on what, why it failed, the cure.

use std::{io, path::PathBuf};

/// Why the lab could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A network namespace could not be made or entered.
    #[error("cannot make the host {host} (a network namespace): {why}{}", privilege(why))]
    Namespace {
        /// Which host.
        host: String,
        /// The system's reason.
        why: io::Error,
    },
    /// A TUN device could not be made.
    #[error("cannot make the TUN device {device} on host {host}: {why}{}", tun(why))]
    Tun {
        /// Which device.
        device: String,
        /// On which host.
        host: String,
        /// The system's reason.
        why: io::Error,
    },
    /// Addresses, routes or settings were refused.
    #[error("cannot configure the host {host}: {why}")]
    Configure {
        /// Which host.
        host: String,
        /// What was said.
        why: String,
    },
    /// A proxy of the scenario did not start.
    #[error("cannot start the proxy on host {host}: {why}")]
    Proxy {
        /// On which host.
        host: String,
        /// Its reason.
        why: Box<proxy::ProxyStartError>,
    },
    /// A bond could not be set up.
    #[error("cannot set the bond up: {0}")]
    Bond(String),
    /// A proxy of the scenario was told of a new rate and did not take it.
    #[error("cannot tell the proxy on host {host} what its link carries now: {why}")]
    Reload {
        /// On which host.
        host: String,
        /// Its reason.
        why: Box<proxy::ChangeError>,
    },
    /// A capture could not be written.
    #[error("cannot write the capture {}: {why}; choose a directory that exists and can be written to", path.display())]
    Capture {
        /// Which file.
        path: PathBuf,
        /// What was said.
        why: String,
    },
    /// Something else the system refused.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's reason.
        why: io::Error,
    },
    /// A thread of the lab panicked, which is a fault in the lab itself.
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
