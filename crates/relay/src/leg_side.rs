//! The two legs of a split connection.

/// One of the two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegSide {
    /// The accepted connection.
    Near,
    /// The dialled connection.
    Far,
}

impl LegSide {
    /// The other leg.
    pub fn other(self) -> Self {
        match self {
            LegSide::Near => LegSide::Far,
            LegSide::Far => LegSide::Near,
        }
    }
}
