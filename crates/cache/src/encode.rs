//! Compresses a body as it is received. The caller flushes the encoder when no more input is there
//! at the moment, so that a page that is generated slowly is not delayed until its end.

use crate::negotiate::ContentCoding;
use brotli::CompressorWriter;
use flate2::{Compression, write::GzEncoder};
use std::io;
use zstd::stream::write::Encoder as ZstdEncoder;

/// Brotli's quality, of 0 to 11. From 6 on it is much slower and hardly smaller.
const BROTLI_QUALITY: u32 = 5;
/// Base-2 logarithm of Brotli's window, bytes: what a small client can hold.
const BROTLI_WINDOW_LOG: u32 = 19;
const ZSTD_LEVEL: i32 = 6;
/// Base-2 logarithm of zstd's window, bytes. Browsers refuse more than 8 MiB (RFC 9659).
const ZSTD_WINDOW_LOG: u32 = 20;

/// A streaming encoder of one content coding.
pub(crate) enum Encoder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    /// # Errors
    /// When the encoder cannot be created.
    pub(crate) fn new(coding: ContentCoding) -> io::Result<Self> {
        Ok(match coding {
            ContentCoding::Brotli => {
                Encoder::Brotli(Box::new(CompressorWriter::new(Vec::new(), 16 * 1024, BROTLI_QUALITY, BROTLI_WINDOW_LOG)))
            }
            ContentCoding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                Encoder::Zstd(encoder)
            }
            ContentCoding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Compression::default())),
        })
    }

    /// Compresses `bytes`, and returns the output that is ready. With `flush` that is all output
    /// for the input so far.
    ///
    /// # Errors
    /// When the encoder fails.
    pub(crate) fn push(&mut self, bytes: &[u8], flush: bool) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Brotli(encoder) => {
                write(encoder, bytes, flush)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Encoder::Zstd(encoder) => {
                write(encoder, bytes, flush)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Encoder::Gzip(encoder) => {
                write(encoder, bytes, flush)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    /// Ends the encoded data, and returns the rest of the output.
    ///
    /// # Errors
    /// When the encoder fails.
    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Brotli(encoder) => Ok(encoder.into_inner()),
            Encoder::Zstd(encoder) => encoder.finish(),
            Encoder::Gzip(encoder) => encoder.finish(),
        }
    }
}

fn write(encoder: &mut impl io::Write, bytes: &[u8], flush: bool) -> io::Result<()> {
    encoder.write_all(bytes)?;
    if flush { encoder.flush() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read as _;

    fn decode(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            ContentCoding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).unwrap(),
            ContentCoding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut plain).unwrap(),
            ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
        };
        plain
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn decoding_restores_the_input(pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..4000), any::<bool>()), 0..8)) {
            for coding in ContentCoding::ALL {
                let mut encoder = Encoder::new(coding).unwrap();
                let mut encoded = Vec::new();
                let mut plain = Vec::new();
                for (piece, flush) in &pieces {
                    plain.extend_from_slice(piece);
                    encoded.extend(encoder.push(piece, *flush).unwrap());
                }
                encoded.extend(encoder.finish().unwrap());
                prop_assert_eq!(decode(coding, &encoded), plain);
            }
        }
    }

    #[test]
    fn flushed_output_can_be_decoded_at_once() {
        let mut encoder = Encoder::new(ContentCoding::Gzip).unwrap();
        let encoded = encoder.push(b"the first line\n", true).unwrap();
        let mut plain = [0; 15];
        flate2::read::GzDecoder::new(&encoded[..]).read_exact(&mut plain).unwrap();
        assert_eq!(&plain, b"the first line\n");
    }
}
