use super::*;
use image::{ExtendedColorType, ImageEncoder as _, Rgb, RgbImage, Rgba, RgbaImage, codecs::png::PngEncoder};
use proptest::prelude::*;

const OPTIONS: ShrinkOptions = ShrinkOptions { quality: 25, most_pixels: 2_000_000 };

/// A picture with gradients and texture, as photographs have.
fn scene(width: u32, height: u32) -> RgbImage {
    let mut noise = 12345_u32;
    RgbImage::from_fn(width, height, |x, y| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let wave = |at: u32, long: f64| (f64::from(at) / long).sin() * 60.0;
        let grain = f64::from(noise >> 28);
        let value = |shift: f64| (128.0 + shift + wave(x, 37.0) + wave(y, 23.0) * wave(x + y, 11.0) / 60.0 + grain).clamp(0.0, 255.0) as u8;
        Rgb([value(0.0), value(20.0), value(-20.0)])
    })
}

fn jpeg(picture: &RgbImage, quality: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes, quality).encode(picture, picture.width() as u16, picture.height() as u16, ColorType::Rgb).unwrap();
    bytes
}

fn png(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes).write_image(pixels, width, height, color).unwrap();
    bytes
}

/// Peak signal-to-noise ratio, dB.
fn psnr(one: &RgbImage, other: &RgbImage) -> f64 {
    assert_eq!(one.dimensions(), other.dimensions());
    let squares: f64 = one.as_raw().iter().zip(other.as_raw()).map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2)).sum();
    10.0 * (255.0_f64.powi(2) * one.as_raw().len() as f64 / squares.max(1e-9)).log10()
}

#[test]
fn transcoded_pictures_are_smaller_and_similar() {
    let scene = scene(640, 480);
    let original = jpeg(&scene, 90);
    for to in [PictureFormat::Jpeg, PictureFormat::WebP] {
        let small = shrink(&original, PictureFormat::Jpeg, to, OPTIONS).unwrap();
        assert!(small.len() * 3 < original.len(), "{to:?}: {} of {}", small.len(), original.len());
        let seen = image::load_from_memory(&small).unwrap().into_rgb8();
        let quality = psnr(&scene, &seen);
        assert!(quality > 28.0, "{to:?}: {quality} dB");
    }
}

#[test]
fn higher_quality_is_larger_and_more_similar() {
    let scene = scene(320, 240);
    let original = jpeg(&scene, 95);
    let of = |quality| {
        let small = shrink(&original, PictureFormat::Jpeg, PictureFormat::Jpeg, ShrinkOptions { quality, ..OPTIONS }).unwrap();
        (small.len(), psnr(&scene, &image::load_from_memory(&small).unwrap().into_rgb8()))
    };
    let (low, high) = (of(15), of(60));
    assert!(low.0 < high.0 && low.1 < high.1, "{low:?} {high:?}");
}

#[test]
fn pictures_that_would_not_be_smaller_are_unchanged() {
    let original = jpeg(&scene(320, 240), 5);
    let reason = shrink(&original, PictureFormat::Jpeg, PictureFormat::Jpeg, OPTIONS).unwrap_err();
    assert!(reason.contains("instead of"), "{reason}");
}

#[test]
fn transparency_is_kept_or_the_picture_is_unchanged() {
    let clear = RgbaImage::from_fn(300, 300, |x, y| Rgba([x as u8, y as u8, (x * y) as u8, (x / 2) as u8]));
    let original = png(&clear, 300, 300, ExtendedColorType::Rgba8);
    assert!(shrink(&original, PictureFormat::Png, PictureFormat::Jpeg, OPTIONS).unwrap_err().contains("transparency"));
    let small = shrink(&original, PictureFormat::Png, PictureFormat::WebP, OPTIONS).unwrap();
    let seen = image::load_from_memory(&small).unwrap().into_rgba8();
    assert!(seen.pixels().zip(clear.pixels()).all(|(a, b)| a.0[3].abs_diff(b.0[3]) <= 8));
    // An alpha channel that is opaque everywhere is dropped.
    let opaque = RgbaImage::from_fn(300, 300, |x, y| Rgba([x as u8, y as u8, (x * y) as u8, 255]));
    assert!(shrink(&png(&opaque, 300, 300, ExtendedColorType::Rgba8), PictureFormat::Png, PictureFormat::Jpeg, OPTIONS).is_ok());
}

#[test]
fn the_orientation_is_applied() {
    let scene = scene(200, 100);
    let mut rotated = Vec::new();
    let mut encoder = Encoder::new(&mut rotated, 95);
    // A TIFF header with one entry: orientation (0x0112), a short, value 6: rotate clockwise.
    encoder.add_exif_metadata(b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0").unwrap();
    encoder.encode(&scene, 200, 100, ColorType::Rgb).unwrap();
    let seen = image::load_from_memory(&shrink(&rotated, PictureFormat::Jpeg, PictureFormat::Jpeg, OPTIONS).unwrap()).unwrap();
    assert_eq!((seen.width(), seen.height()), (100, 200));
}

#[test]
fn colour_profiles_other_than_srgb_are_kept() {
    let with = |profile: &[u8]| {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, 95);
        encoder.add_icc_profile(profile).unwrap();
        encoder.encode(&scene(200, 100), 200, 100, ColorType::Rgb).unwrap();
        bytes
    };
    let wide = with(b"a profile of Display P3 colours");
    let small = shrink(&wide, PictureFormat::Jpeg, PictureFormat::Jpeg, OPTIONS).unwrap();
    let mut decoder = JpegDecoder::new(Cursor::new(&small)).unwrap();
    assert_eq!(decoder.icc_profile().unwrap().unwrap(), b"a profile of Display P3 colours");
    assert!(shrink(&wide, PictureFormat::Jpeg, PictureFormat::WebP, OPTIONS).unwrap_err().contains("profile"));
    assert!(shrink(&with(b"..sRGB IEC61966.."), PictureFormat::Jpeg, PictureFormat::WebP, OPTIONS).is_ok());
}

#[test]
fn oversized_pictures_are_refused_before_they_are_decoded() {
    // A PNG whose header claims 60000 × 60000 pixels, without pixel data.
    let mut bomb = png(&[0; 3], 1, 1, ExtendedColorType::Rgb8);
    bomb[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    let reason = shrink(&bomb, PictureFormat::Png, PictureFormat::WebP, OPTIONS).unwrap_err();
    assert!(reason.contains("60000×60000") || reason.contains("imit"), "{reason}");
    // A decompression bomb: equal pixels, few bytes.
    let flat = png(&vec![0; 3 * 3000 * 1000], 3000, 1000, ExtendedColorType::Rgb8);
    assert!(flat.len() < 100_000);
    assert!(shrink(&flat, PictureFormat::Png, PictureFormat::WebP, OPTIONS).unwrap_err().contains("pixels"));
    // A JPEG whose frame header claims the maximum size.
    let mut jpeg = jpeg(&scene(16, 16), 50);
    let frame = jpeg.windows(2).position(|at| at == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert!(shrink(&jpeg, PictureFormat::Jpeg, PictureFormat::Jpeg, OPTIONS).unwrap_err().contains("65535×65535"));
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())))
}

#[test]
fn cmyk_pictures_are_unchanged() {
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes, 90).encode(&[7; 4 * 64 * 64], 64, 64, ColorType::Cmyk).unwrap();
    assert!(shrink(&bytes, PictureFormat::Jpeg, PictureFormat::Jpeg, OPTIONS).unwrap_err().contains("CMYK"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Pictures with bytes changed or cut off: never a panic, never more bytes than the original.
    #[test]
    fn damaged_pictures_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12), cut in any::<prop::sample::Index>(), whole in any::<bool>(),
        png_instead in any::<bool>(),
    ) {
        let scene = scene(96, 64);
        let mut bytes = if png_instead { png(&scene, 96, 64, ExtendedColorType::Rgb8) } else { jpeg(&scene, 90) };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        let from = if png_instead { PictureFormat::Png } else { PictureFormat::Jpeg };
        for to in [PictureFormat::Jpeg, PictureFormat::WebP] {
            if let Ok(small) = shrink(&bytes, from, to, OPTIONS) {
                prop_assert!(small.len() < bytes.len());
            }
        }
        components(&bytes);
    }
}
