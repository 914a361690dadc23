//! Named random streams: one generator for each purpose, so that a change in one use does not
//! change the numbers of the others.

use rand_pcg::Pcg64;

/// The purpose of a random stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Start times of the flows of a group.
    Starts,
    /// Access delays of the flows of a group.
    AccessDelays,
    /// Losses on a link.
    Losses,
    /// Cross traffic on a link.
    Cross,
    /// Contents of the payload.
    Payload,
    /// Sizes of transfers.
    Sizes,
    /// Times and sizes of an application's writes.
    Offers,
    /// Arrival times of the transfers of a class.
    Arrivals,
    /// Reordering on a link.
    Detours,
    /// Losses on a link against the direction of the data.
    ReverseLosses,
    /// Bit errors on a link.
    BitErrors,
    /// Outages of a link.
    Outages,
    /// Jitter on a link.
    Jitter,
    /// Duplicates on a link.
    Duplicates,
    /// Drops of a queue under active management.
    Queue,
    /// Start times of the connections of a group of TCP cross traffic.
    CrossFlowStarts,
    /// Sizes of these connections.
    CrossFlowSizes,
    /// Sizes and times of a web client.
    Web,
    /// Start times of the browsers of a page.
    PageStarts,
    /// Start times of the clients of an exchange.
    ExchangeStarts,
    /// Backoffs of the stations of a wireless network.
    Contention,
}

/// The generator for `purpose` and `index` (the number of the flow group, of the link …) under
/// `seed`.
pub fn stream(seed: u64, purpose: Purpose, index: u64) -> Pcg64 {
    // The increment of a PCG selects the stream; the state is the seed's.
    let state = (u128::from(seed) << 64) | 0x9e37_79b9_7f4a_7c15;
    Pcg64::new(state, (u128::from(purpose as u64 + 1) << 64) | u128::from(index))
}
