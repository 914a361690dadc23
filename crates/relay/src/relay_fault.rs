//! An error of a direction.

use std::io;

/// Which socket an error came from.
#[derive(Debug)]
pub enum RelayFault {
    /// The socket that is read.
    Source(io::Error),
    /// The socket that is written to.
    Destination(io::Error),
    /// Neither: bytes in a pipe could not be read.
    Own,
}
