//! Randomness by name: one generator a purpose, so that a change in one use leaves the numbers of every other as they were.

use rand_pcg::Pcg64;

/// What a stream of random numbers is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// When the flows of a group start.
    Starts,
    /// The extra delay of each flow on its way in.
    AccessDelays,
    /// Losses on a link.
    Losses,
    /// Cross traffic on a link.
    Cross,
    /// The bytes that flows carry.
    Payload,
    /// How much the flows of a group send.
    Sizes,
    /// When the application of a flow writes, and how much.
    Offers,
    /// When the transfers of a class come.
    Arrivals,
    /// Which packets of a link are overtaken.
    Detours,
}

/// The generator for `purpose` number `index` (of the flow group, the link …) under `seed`: always the same numbers.
pub fn stream(seed: u64, purpose: Purpose, index: u64) -> Pcg64 {
    // PCG keeps streams apart by their increment; the state is the seed's.
    let state = (u128::from(seed) << 64) | 0x9e37_79b9_7f4a_7c15;
    Pcg64::new(state, (u128::from(purpose as u64 + 1) << 64) | u128::from(index))
}
