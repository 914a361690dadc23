//! Payload that both endpoints can compute.

use testbed::SplitMix64;

/// An endless stream of bytes, addressable at any position. It repeats after a prime number of
/// random bytes, so that a shift by a round number is detected.
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    const LENGTH: u64 = 1_048_573;
    const PIECE: u64 = 64 * 1024;

    pub(crate) fn new() -> Self {
        let mut random = SplitMix64::new(1);
        let mut bytes: Vec<u8> = (0..Self::LENGTH.div_ceil(8)).flat_map(|_| random.next_u64().to_ne_bytes()).collect();
        bytes.truncate(Self::LENGTH as usize);
        bytes.extend_from_within(..Self::PIECE as usize);
        Payload(bytes)
    }

    /// Bytes of stream `seed` from `position` on, at most `most` and at most one piece.
    pub(crate) fn piece(&self, seed: u64, position: u64, most: u64) -> &[u8] {
        let start = ((seed + position) % Self::LENGTH) as usize;
        &self.0[start..start + most.min(Self::PIECE) as usize]
    }

    /// Whether these are the bytes of stream `seed` from `position` on.
    pub(crate) fn is(&self, seed: u64, mut position: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let piece = self.piece(seed, position, bytes.len() as u64);
            let (now, rest) = bytes.split_at(piece.len());
            if now != piece {
                return false;
            }
            (position, bytes) = (position + now.len() as u64, rest);
        }
        true
    }
}
