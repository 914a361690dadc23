//! Compresses a body as it comes. What has come is sent on when no more is there at the moment: a page that is made slowly is seen slowly,
//! not at its end.

use crate::negotiate::Coding;
use brotli::CompressorWriter;
use flate2::{Compression, write::GzEncoder};
use std::io::{self, Write as _};
use zstd::stream::write::Encoder as ZstdEncoder;

/// Of brotli's 0 to 11: from 6 on it becomes slow for little.
const BROTLI_QUALITY: u32 = 5;
/// Base-2 logarithm of brotli's window: what a small client can hold.
const BROTLI_WINDOW: u32 = 19;
const ZSTD_LEVEL: i32 = 6;
/// Browsers refuse larger windows (RFC 9659).
const ZSTD_WINDOW: u32 = 20;

/// See the module.
pub(crate) enum Encoder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    pub(crate) fn new(coding: Coding) -> io::Result<Self> {
        Ok(match coding {
            Coding::Brotli => Encoder::Brotli(Box::new(CompressorWriter::new(Vec::new(), 16 * 1024, BROTLI_QUALITY, BROTLI_WINDOW))),
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW)?;
                Encoder::Zstd(encoder)
            }
            Coding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Compression::default())),
        })
    }

    /// Takes more in, and returns what has come out; with `flush` all that can be made of it.
    pub(crate) fn push(&mut self, bytes: &[u8], flush: bool) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Brotli(encoder) => {
                encoder.write_all(bytes)?;
                if flush {
                    encoder.flush()?;
                }
                Ok(std::mem::take(encoder.get_mut()))
            }
            Encoder::Zstd(encoder) => {
                encoder.write_all(bytes)?;
                if flush {
                    encoder.flush()?;
                }
                Ok(std::mem::take(encoder.get_mut()))
            }
            Encoder::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                if flush {
                    encoder.flush()?;
                }
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    /// What is left.
    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Brotli(encoder) => Ok(encoder.into_inner()),
            Encoder::Zstd(encoder) => encoder.finish(),
            Encoder::Gzip(encoder) => encoder.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read as _;

    fn decode(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).unwrap(),
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut plain).unwrap(),
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
        };
        plain
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn what_goes_in_comes_out(pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..4000), any::<bool>()), 0..8)) {
            for coding in Coding::ALL {
                let mut encoder = Encoder::new(coding).unwrap();
                let (mut packed, mut plain) = (Vec::new(), Vec::new());
                for (piece, flush) in &pieces {
                    plain.extend_from_slice(piece);
                    packed.extend(encoder.push(piece, *flush).unwrap());
                }
                packed.extend(encoder.finish().unwrap());
                prop_assert_eq!(decode(coding, &packed), plain);
            }
        }
    }

    #[test]
    fn what_is_flushed_can_be_read_at_once() {
        let mut encoder = Encoder::new(Coding::Gzip).unwrap();
        let packed = encoder.push(b"the first line\n", true).unwrap();
        let mut plain = [0; 15];
        flate2::read::GzDecoder::new(&packed[..]).read_exact(&mut plain).unwrap();
        assert_eq!(&plain, b"the first line\n");
    }
}
