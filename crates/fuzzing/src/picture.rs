//! Untrusted pictures. The first byte chooses the claimed and the wanted format.

use cache::shrink::{PictureFormat, ShrinkOptions, shrink};

/// Transcodes a picture.
///
/// # Panics
/// If the result is not smaller.
pub fn picture(bytes: &[u8]) {
    let Some((first, picture)) = bytes.split_first() else { return };
    let from = if first & 1 == 0 { PictureFormat::Jpeg } else { PictureFormat::Png };
    let to = if first & 2 == 0 { PictureFormat::Jpeg } else { PictureFormat::WebP };
    // A low limit of pixels, so that a run tries thousands of pictures.
    if let Ok(small) = shrink(picture, from, to, ShrinkOptions { quality: 25, most_pixels: 1 << 16 }) {
        assert!(small.len() < picture.len());
    }
}
