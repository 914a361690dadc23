//! Generates the content that a transfer carries.

use crate::transfer_record::Application;
use jpeg_encoder::{ColorType, Encoder};
use xxhash_rust::xxh3::Xxh3;

/// Generates about `length` bytes in the format of the application. The same `nonce` gives the same
/// content.
pub(crate) fn generate(application: Application, nonce: &str, length: u64) -> Vec<u8> {
    let mut state = Xxh3::new();
    state.update(nonce.as_bytes());
    let mut number = state.digest();
    let mut next = move || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as u32
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    match application {
        Application::Tcp | Application::Ftp => (0..length).map(|_| next() as u8).collect(),
        Application::HttpData => {
            const WORDS: [&str; 8] = ["a", "connection", "is", "split", "or", "whole", "end", "to"];
            let mut text = String::from("<!DOCTYPE html>\n<title>probe</title>\n<pre>\n");
            while text.len() + 8 < length {
                text += WORDS[next() as usize % WORDS.len()];
                text.push(if next() % 12 == 0 { '\n' } else { ' ' });
            }
            (text + "\n</pre>\n").into_bytes()
        }
        Application::HttpImage => image(length, next),
    }
}

/// Generates a JPEG of about `length` bytes: smooth shapes with noise, at high quality, so that a
/// compressing proxy has much to save.
fn image(length: usize, mut next: impl FnMut() -> u32) -> Vec<u8> {
    // At this quality a pixel takes about half a byte.
    let side = ((2.0 * length as f64).sqrt() as u16).clamp(16, 3000);
    let shade = |x: u16, y: u16, noise: u32| {
        (f64::from(x) / 17.0).sin() * 50.0 + (f64::from(y) / 23.0).cos() * 50.0 + 128.0 + f64::from(noise % 31) - 15.0
    };
    let mut pixels = Vec::with_capacity(usize::from(side) * usize::from(side));
    for y in 0..side {
        pixels.extend((0..side).map(|x| shade(x, y, next()).clamp(0.0, 255.0) as u8));
    }
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes, 95)
        .encode(&pixels, side, side, ColorType::Luma)
        .expect("the picture has as many pixels as it should, and a vector takes all");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_format_of_their_application() {
        for application in [Application::Tcp, Application::HttpData, Application::HttpImage, Application::Ftp] {
            let (one, again, other) =
                (generate(application, "a", 50_000), generate(application, "a", 50_000), generate(application, "b", 50_000));
            assert!(one == again && one != other, "{application}");
            assert!((25_000..100_000).contains(&one.len()), "{application}: {}", one.len());
        }
        let image = generate(Application::HttpImage, "a", 50_000);
        assert!(image.starts_with(&[0xff, 0xd8, 0xff]) && image.ends_with(&[0xff, 0xd9]));
        assert!(generate(Application::HttpData, "a", 5000).is_ascii());
    }
}
