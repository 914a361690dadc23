//! Random numbers that are the same for the same seed.

/// A pseudorandom generator (SplitMix64): the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer from `least` to `most`, both included, uniformly distributed.
    pub fn uniform(&mut self, least: u64, most: u64) -> u64 {
        least + self.next_u64() % (most - least + 1)
    }

    /// An integer from `least` to `most`, uniformly distributed on a logarithmic scale.
    pub fn log_uniform(&mut self, least: u64, most: u64) -> u64 {
        let (least, most) = (least as f64, most as f64);
        (least * (most / least).powf(self.unit())) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, of: f64) -> bool {
        self.unit() < of
    }

    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of the items, uniformly chosen.
    ///
    /// # Panics
    ///
    /// If there are no items.
    pub fn choose<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[(self.next_u64() % all.len() as u64) as usize]
    }
}
