//! The two legs of a split connection.

/// One of the two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The accepted connection.
    Near,
    /// The dialled connection.
    Far,
}

impl Side {
    /// The other leg.
    pub fn other(self) -> Self {
        match self {
            Side::Near => Side::Far,
            Side::Far => Side::Near,
        }
    }
}
