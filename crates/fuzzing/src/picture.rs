//! Pictures from anywhere. The first byte says which kind they are said to be.

use cache::shrink::{Kind, Wish, shrink};

/// Makes a picture smaller.
///
/// # Panics
/// When it is not smaller.
pub fn picture(bytes: &[u8]) {
    let Some((first, picture)) = bytes.split_first() else { return };
    let from = if first & 1 == 0 { Kind::Jpeg } else { Kind::Png };
    let to = if first & 2 == 0 { Kind::Jpeg } else { Kind::WebP };
    // So few pixels that a run makes thousands of them.
    if let Ok(small) = shrink(picture, from, to, Wish { quality: 25, most_pixels: 1 << 16 }) {
        assert!(small.len() < picture.len());
    }
}
