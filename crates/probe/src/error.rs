//! Why a probe, or a responder, could not do its work.

/// Why something could not be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket would not do it.
    #[error("could not {what}: {why}")]
    Socket {
        /// What was attempted, on what, and the cure where there is one.
        what: String,
        /// Why not.
        why: std::io::Error,
    },
    /// The responder won't.
    #[error("the responder at {at} will not help: {why}")]
    Refused {
        /// Which.
        at: std::net::SocketAddr,
        /// Why not.
        why: String,
    },
    /// The host has no address.
    #[error("could not find an address of {host}: {why}")]
    NoAddress {
        /// Which.
        host: String,
        /// Why not.
        why: String,
    },
}
