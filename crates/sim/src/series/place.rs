//! The places of connections in their flows, and of their ends in the network.

/// The place of a connection in its flow, and of its ends in the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionPlace {
    /// The number of its flow.
    pub(super) flow: u32,
    /// The index of the split whose proxy sends on it; [`NO_SPLIT`]: the flow's sender does.
    pub(super) split_before: u32,
    /// The index of the split whose proxy receives on it; [`NO_SPLIT`]: the flow's receiver does.
    pub(super) split_behind: u32,
    /// Its first link, and one past its last link, whichever way its data goes.
    pub(super) links: [u16; 2],
    /// Its data goes from the last link to the first.
    pub(super) is_reverse: bool,
}

/// The end of a leg without a split.
pub(super) const NO_SPLIT: u32 = u32::MAX;

impl ConnectionPlace {
    /// Whether it is the connection of the flow's sender.
    pub(super) fn is_first(self) -> bool {
        self.split_before == NO_SPLIT
    }

    /// Whether it is the connection of the flow's receiver.
    pub(super) fn is_last(self) -> bool {
        self.split_behind == NO_SPLIT
    }
}
