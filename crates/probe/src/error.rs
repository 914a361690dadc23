//! Errors of prober and responder.

/// Why probing failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket operation failed.
    #[error("could not {what}: {why}")]
    Socket {
        /// What was attempted, on what, and the cure where there is one.
        what: String,
        /// The cause.
        why: std::io::Error,
    },
    /// The responder refused to help.
    #[error("the responder at {at} will not help: {why}")]
    Refused {
        /// Address of the responder.
        at: std::net::SocketAddr,
        /// Its reason.
        why: String,
    },
    /// The host has no address.
    #[error("could not find an address of {host}: {why}")]
    NoAddress {
        /// The host, as it was given.
        host: String,
        /// The cause.
        why: String,
    },
}
