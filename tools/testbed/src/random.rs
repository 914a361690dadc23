//! Chance, and bytes that both ends know.

/// Random numbers: the same seed, the same numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, each as likely as the others.
    pub fn uniform(&mut self, least: u64, most: u64) -> u64 {
        least + self.next_u64() % (most - least + 1)
    }

    /// From `least` to `most`, each size as likely as twice that size.
    pub fn log_uniform(&mut self, least: u64, most: u64) -> u64 {
        let (least, most) = (least as f64, most as f64);
        (least * (most / least).powf(self.unit())) as u64
    }

    pub fn chance(&mut self, of: f64) -> bool {
        self.unit() < of
    }

    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn choose<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[(self.next_u64() % all.len() as u64) as usize]
    }
}
