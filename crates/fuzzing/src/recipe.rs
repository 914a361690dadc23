//! Derives choices from the bytes of an input. After its end, all choices are zero.

/// The remaining bytes of an input.
pub(crate) struct Recipe<'a>(pub(crate) &'a [u8]);

impl Recipe<'_> {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let here = self.0.len().min(N);
        bytes[..here].copy_from_slice(&self.0[..here]);
        self.0 = &self.0[here..];
        bytes
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.bytes())
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    /// A number below `most`, which is at most 256.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    /// A number of any magnitude: small, shifted by a power of two, or near the maximum.
    pub(crate) fn number(&mut self) -> u64 {
        let (shift, word) = (self.byte(), u64::from(self.word()));
        match shift {
            0..=63 => word << (shift % 48),
            64..=127 => u64::MAX - word,
            _ => word,
        }
    }
}
