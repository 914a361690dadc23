//! Chance, and bytes that both ends know.

/// Random numbers: the same seed, the same numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, each as likely as the others.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    /// From `least` to `most`, each size as likely as twice that size.
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let (least, most) = (least as f64, most as f64);
        (least * (most / least).powf(self.share())) as u64
    }

    pub fn chance(&mut self, of: f64) -> bool {
        self.share() < of
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[(self.next() % all.len() as u64) as usize]
    }
}

/// Bytes without end, from any place on: random ones that come again only after a prime number of bytes, so that a shift by any
/// round number shows.
pub struct Payload(Vec<u8>);

impl Payload {
    const LENGTH: u64 = 1_048_573;
    const PIECE: u64 = 64 * 1024;

    pub fn new() -> Self {
        let mut dice = Dice::new(1);
        let mut bytes: Vec<u8> = (0..Self::LENGTH.div_ceil(8)).flat_map(|_| dice.next().to_ne_bytes()).collect();
        bytes.truncate(Self::LENGTH as usize);
        bytes.extend_from_within(..Self::PIECE as usize);
        Payload(bytes)
    }

    /// Some bytes of the stream `seed` from `position` on; no more than `most`, nor than a piece.
    pub fn piece(&self, seed: u64, position: u64, most: u64) -> &[u8] {
        let start = ((seed + position) % Self::LENGTH) as usize;
        &self.0[start..start + most.min(Self::PIECE) as usize]
    }

    /// Whether these are the bytes of the stream `seed` from `position` on.
    pub fn is(&self, seed: u64, mut position: u64, mut bytes: &[u8]) -> bool {
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
