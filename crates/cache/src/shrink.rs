//! Makes a picture that looks much the same of fewer bytes. Pictures come from anywhere: what they may cost is bounded before they are decoded,
//! and what is not fully understood stays as it is.

use image::{
    DynamicImage, ImageDecoder, Limits,
    codecs::{jpeg::JpegDecoder, png::PngDecoder},
    metadata::Orientation,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::io::Cursor;

/// A kind of picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// JPEG
    Jpeg,
    /// PNG
    Png,
    /// WebP
    WebP,
}

impl Kind {
    /// Of a media type.
    pub(crate) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "image/jpeg" | "image/jpg" => Some(Kind::Jpeg),
            "image/png" => Some(Kind::Png),
            _ => None,
        }
    }

    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Kind::Jpeg => "image/jpeg",
            Kind::Png => "image/png",
            Kind::WebP => "image/webp",
        }
    }

    /// Whether these bytes begin as those of a picture of this kind do.
    pub(crate) fn begins(self, bytes: &[u8]) -> bool {
        match self {
            Kind::Jpeg => bytes.starts_with(b"\xff\xd8\xff"),
            Kind::Png => bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
            Kind::WebP => bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"),
        }
    }
}

/// What may become of a picture.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// JPEG and WebP know qualities of 1 to 100.
    pub quality: u8,
    /// Pictures with more pixels stay as they are.
    pub most_pixels: u64,
}

/// A smaller one must be at most this many tenths of the original, else it is not worth the loss.
const WORTH_TENTHS: usize = 9;
/// The largest profile of colours that a picture takes along.
const PROFILE: usize = 8 * 1024;

/// The picture `original` as one of the kind `to`, or why it stays as it is.
pub fn shrink(original: &[u8], from: Kind, to: Kind, wish: Wish) -> Result<Vec<u8>, String> {
    let picture = decode(original, from, wish)?;
    let (width, height) = (picture.pixels.width(), picture.pixels.height());
    let small = match to {
        Kind::Jpeg if picture.pixels.color().has_alpha() => return Err("JPEG has no transparency".into()),
        Kind::Jpeg => {
            let mut small = Vec::new();
            let mut encoder = Encoder::new(&mut small, wish.quality.clamp(1, 100));
            encoder.set_sampling_factor(SamplingFactor::F_2_2);
            encoder.set_progressive(true);
            encoder.set_optimized_huffman_tables(true);
            let said = |why: jpeg_encoder::EncodingError| format!("cannot make a JPEG: {why}");
            if let Some(profile) = &picture.profile {
                encoder.add_icc_profile(profile).map_err(said)?;
            }
            let sizes = (u16::try_from(width), u16::try_from(height));
            let (Ok(width), Ok(height)) = sizes else { return Err("it is larger than a JPEG can be".into()) };
            if picture.pixels.color().has_color() {
                encoder.encode(&picture.pixels.into_rgb8(), width, height, ColorType::Rgb).map_err(said)?;
            } else {
                encoder.encode(&picture.pixels.into_luma8(), width, height, ColorType::Luma).map_err(said)?;
            }
            small
        }
        Kind::WebP => {
            if picture.profile.is_some() {
                return Err("its colours need a profile".into());
            }
            if width.max(height) > 16383 {
                return Err("it is larger than a WebP can be".into());
            }
            let quality = f32::from(wish.quality.clamp(1, 100));
            let made = if picture.pixels.color().has_alpha() {
                webp::Encoder::from_rgba(&picture.pixels.into_rgba8(), width, height).encode_simple(false, quality)
            } else {
                webp::Encoder::from_rgb(&picture.pixels.into_rgb8(), width, height).encode_simple(false, quality)
            };
            made.map_err(|why| format!("cannot make a WebP: {why:?}"))?.to_vec()
        }
        Kind::Png => return Err("a PNG can't be made smaller without a loss of its meaning".into()),
    };
    if small.len() * 10 > original.len() * WORTH_TENTHS {
        return Err(format!("it would have {} bytes instead of {}", small.len(), original.len()));
    }
    Ok(small)
}

/// A picture, upright, and what its colours mean where that is not sRGB.
struct Picture {
    pixels: DynamicImage,
    profile: Option<Vec<u8>>,
}

fn decode(original: &[u8], kind: Kind, wish: Wish) -> Result<Picture, String> {
    let said = |why: image::ImageError| format!("it can't be decoded: {why}");
    let source = Cursor::new(original);
    match kind {
        Kind::Jpeg => {
            if components(original) == Some(4) {
                return Err("it is made for printing (CMYK)".into());
            }
            upright(JpegDecoder::new(source).map_err(said)?, wish)
        }
        Kind::Png => {
            let decoder = PngDecoder::with_limits(source, limits(wish)).map_err(said)?;
            if decoder.is_apng().map_err(said)? {
                return Err("it moves".into());
            }
            upright(decoder, wish)
        }
        Kind::WebP => Err("it is small already".into()),
    }
}

fn limits(wish: Wish) -> Limits {
    let mut limits = Limits::no_limits();
    // 16 bits of four channels, and as much to work with.
    limits.max_alloc = Some(wish.most_pixels.saturating_mul(16).max(1 << 16));
    limits
}

fn upright<D: ImageDecoder>(mut decoder: D, wish: Wish) -> Result<Picture, String> {
    let said = |why: image::ImageError| format!("it can't be decoded: {why}");
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > wish.most_pixels {
        return Err(format!("it has {width}×{height} pixels, more than the {} that are worked on", wish.most_pixels));
    }
    decoder.set_limits(limits(wish)).map_err(said)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let profile = decoder.icc_profile().map_err(said)?.filter(|profile| !is_srgb(profile));
    if profile.as_ref().is_some_and(|profile| profile.len() > PROFILE) {
        return Err("its profile of colours is large".into());
    }
    let mut pixels = DynamicImage::from_decoder(decoder).map_err(said)?;
    pixels.apply_orientation(orientation);
    if pixels.color().has_alpha() && is_opaque(&pixels) {
        pixels = DynamicImage::ImageRgb8(pixels.into_rgb8());
    }
    Ok(Picture { pixels, profile })
}

fn is_opaque(pixels: &DynamicImage) -> bool {
    pixels.as_rgba8().is_some_and(|rgba| rgba.pixels().all(|pixel| pixel.0[3] == u8::MAX))
}

/// Whether a profile is of the colours that pictures without one have: it is named so, in one of two codings.
fn is_srgb(profile: &[u8]) -> bool {
    profile.windows(4).any(|at| at == b"sRGB") || profile.windows(7).any(|at| at == b"s\0R\0G\0B")
}

/// How many components the frame of a JPEG has (ITU T.81 §B.2.2).
fn components(jpeg: &[u8]) -> Option<u8> {
    let mut at = 2;
    loop {
        let marker = jpeg.get(at..at + 4)?;
        if marker[0] != 0xff {
            return None;
        }
        match marker[1] {
            // Fill bytes, and markers without a segment.
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
