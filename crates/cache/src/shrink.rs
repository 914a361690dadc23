//! Transcodes pictures to fewer bytes with little visible loss. Pictures are untrusted: their
//! memory is bounded before they are decoded, and what is not fully understood is left unchanged.

use image::{
    DynamicImage, ImageDecoder, Limits,
    codecs::{jpeg::JpegDecoder, png::PngDecoder},
    metadata::Orientation,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::io::Cursor;

/// The format of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    /// JPEG
    Jpeg,
    /// PNG
    Png,
    /// WebP
    WebP,
}

impl PictureFormat {
    /// The format with this media type, if it is one that can be decoded.
    pub(crate) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "image/jpeg" | "image/jpg" => Some(PictureFormat::Jpeg),
            "image/png" => Some(PictureFormat::Png),
            _ => None,
        }
    }

    /// Its media type.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            PictureFormat::Jpeg => "image/jpeg",
            PictureFormat::Png => "image/png",
            PictureFormat::WebP => "image/webp",
        }
    }

    /// Whether these bytes have the signature of this format.
    pub(crate) fn has_signature(self, bytes: &[u8]) -> bool {
        match self {
            PictureFormat::Jpeg => bytes.starts_with(b"\xff\xd8\xff"),
            PictureFormat::Png => bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
            PictureFormat::WebP => bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"),
        }
    }
}

/// How pictures are transcoded.
#[derive(Debug, Clone, Copy)]
pub struct ShrinkOptions {
    /// Quality of JPEG and WebP, 1 to 100.
    pub quality: u8,
    /// Pictures with more pixels are left unchanged.
    pub most_pixels: u64,
}

/// Size of a transcoded picture, tenths of the original, at most. A larger one is not worth the
/// loss of quality.
const MAX_SIZE_TENTHS: usize = 9;
/// Size of a colour profile that is copied, bytes at most.
const MAX_PROFILE_BYTES: usize = 8 * 1024;
/// Width and height of a WebP picture, pixels at most.
const MAX_WEBP_SIDE: u32 = 16383;

/// Transcodes `original` from one format to another.
///
/// # Errors
/// Why the picture is left unchanged.
pub fn shrink(original: &[u8], from: PictureFormat, to: PictureFormat, options: ShrinkOptions) -> Result<Vec<u8>, String> {
    let picture = decode(original, from, options)?;
    let small = match to {
        PictureFormat::Jpeg => encode_jpeg(picture, options.quality)?,
        PictureFormat::WebP => encode_webp(picture, options.quality)?,
        PictureFormat::Png => return Err("pictures are not transcoded to PNG".into()),
    };
    if small.len() * 10 > original.len() * MAX_SIZE_TENTHS {
        return Err(format!("it would have {} bytes instead of {}", small.len(), original.len()));
    }
    Ok(small)
}

fn encode_jpeg(picture: DecodedPicture, quality: u8) -> Result<Vec<u8>, String> {
    let DecodedPicture { pixels, profile } = picture;
    if pixels.color().has_alpha() {
        return Err("JPEG has no transparency".into());
    }
    let failed = |why: jpeg_encoder::EncodingError| format!("cannot encode a JPEG: {why}");
    let mut small = Vec::new();
    let mut encoder = Encoder::new(&mut small, quality.clamp(1, 100));
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.set_progressive(true);
    encoder.set_optimized_huffman_tables(true);
    if let Some(profile) = &profile {
        encoder.add_icc_profile(profile).map_err(failed)?;
    }
    let sides = (u16::try_from(pixels.width()), u16::try_from(pixels.height()));
    let (Ok(width), Ok(height)) = sides else { return Err("it is larger than a JPEG can be".into()) };
    if pixels.color().has_color() {
        encoder.encode(&pixels.into_rgb8(), width, height, ColorType::Rgb).map_err(failed)?;
    } else {
        encoder.encode(&pixels.into_luma8(), width, height, ColorType::Luma).map_err(failed)?;
    }
    Ok(small)
}

fn encode_webp(picture: DecodedPicture, quality: u8) -> Result<Vec<u8>, String> {
    let DecodedPicture { pixels, profile } = picture;
    // The encoder writes no profile.
    if profile.is_some() {
        return Err("its colours need a profile".into());
    }
    let (width, height) = (pixels.width(), pixels.height());
    if width.max(height) > MAX_WEBP_SIDE {
        return Err("it is larger than a WebP can be".into());
    }
    let quality = f32::from(quality.clamp(1, 100));
    let encoded = if pixels.color().has_alpha() {
        webp::Encoder::from_rgba(&pixels.into_rgba8(), width, height).encode_simple(false, quality)
    } else {
        webp::Encoder::from_rgb(&pixels.into_rgb8(), width, height).encode_simple(false, quality)
    };
    Ok(encoded.map_err(|why| format!("cannot encode a WebP: {why:?}"))?.to_vec())
}

/// A decoded picture, with its orientation applied, and its colour profile where that is not sRGB.
struct DecodedPicture {
    pixels: DynamicImage,
    profile: Option<Vec<u8>>,
}

fn decode(original: &[u8], format: PictureFormat, options: ShrinkOptions) -> Result<DecodedPicture, String> {
    let source = Cursor::new(original);
    match format {
        PictureFormat::Jpeg => {
            if components(original) == Some(4) {
                return Err("it is made for printing (CMYK)".into());
            }
            decode_pixels(JpegDecoder::new(source).map_err(cannot_decode)?, options)
        }
        PictureFormat::Png => {
            let decoder = PngDecoder::with_limits(source, decoder_limits(options)).map_err(cannot_decode)?;
            if decoder.is_apng().map_err(cannot_decode)? {
                return Err("it is animated".into());
            }
            decode_pixels(decoder, options)
        }
        PictureFormat::WebP => Err("WebP pictures are not transcoded".into()),
    }
}

fn cannot_decode(why: image::ImageError) -> String {
    format!("it cannot be decoded: {why}")
}

fn decoder_limits(options: ShrinkOptions) -> Limits {
    let mut limits = Limits::no_limits();
    // Bytes per pixel: four channels of 16 bits, and as much for the decoder's own buffers.
    limits.max_alloc = Some(options.most_pixels.saturating_mul(16).max(1 << 16));
    limits
}

fn decode_pixels<D: ImageDecoder>(mut decoder: D, options: ShrinkOptions) -> Result<DecodedPicture, String> {
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > options.most_pixels {
        return Err(format!("it has {width}×{height} pixels, more than the {} that are transcoded", options.most_pixels));
    }
    decoder.set_limits(decoder_limits(options)).map_err(cannot_decode)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let profile = decoder.icc_profile().map_err(cannot_decode)?.filter(|profile| !is_srgb(profile));
    if profile.as_ref().is_some_and(|profile| profile.len() > MAX_PROFILE_BYTES) {
        return Err("its colour profile is large".into());
    }
    let mut pixels = DynamicImage::from_decoder(decoder).map_err(cannot_decode)?;
    pixels.apply_orientation(orientation);
    if pixels.color().has_alpha() && is_opaque(&pixels) {
        pixels = DynamicImage::ImageRgb8(pixels.into_rgb8());
    }
    Ok(DecodedPicture { pixels, profile })
}

fn is_opaque(pixels: &DynamicImage) -> bool {
    pixels.as_rgba8().is_some_and(|rgba| rgba.pixels().all(|pixel| pixel.0[3] == u8::MAX))
}

/// Whether a colour profile is sRGB, as without a profile: its name says so, in ASCII or UTF-16.
fn is_srgb(profile: &[u8]) -> bool {
    profile.windows(4).any(|at| at == b"sRGB") || profile.windows(7).any(|at| at == b"s\0R\0G\0B")
}

/// Number of components in the frame header of a JPEG (ITU-T T.81 §B.2.2).
fn components(jpeg: &[u8]) -> Option<u8> {
    let mut at = 2;
    loop {
        let marker = jpeg.get(at..at + 4)?;
        if marker[0] != 0xff {
            return None;
        }
        match marker[1] {
            // Fill bytes, then markers without a segment.
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => return jpeg.get(at + 9).copied(),
            _ => at += 2 + usize::from(u16::from_be_bytes([marker[2], marker[3]])),
        }
    }
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
