//! Shares: what one client can take of the cache, and that others are served meanwhile.

use crate::common::*;
use image::{ExtendedColorType, ImageEncoder as _, codecs::png::PngEncoder};

/// A picture that takes a while to be made smaller.
fn drawing() -> Vec<u8> {
    let (width, height) = (1400_u32, 1000_u32);
    let pixels: Vec<u8> =
        (0..width * height).flat_map(|at| [(at % width / 6) as u8, (at / width / 4) as u8, (at.wrapping_mul(at) % 97) as u8]).collect();
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&pixels, width, height, ExtendedColorType::Rgb8).unwrap();
    png
}

#[test]
fn pictures_of_one_client_do_not_delay_anothers() {
    let png = drawing();
    let origin =
        Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], Steps::all(png.clone())));
    let (cache, busy, other) = (before(origin.address, |_| {}), Client::new(), Client::new());
    let at = cache.addresses()[0];
    let ask = |path: &str| request("GET", path, &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..8).map(|number| busy.spawn(at, ask(&format!("/{number}")))).collect();
    eventually("all of them have come", || origin.count() == 8 && cache.stats().pictures >= 1);
    let reply = other.ask_from([127, 0, 0, 2], at, ask("/other"));
    let made = cache.stats().pictures;
    eprintln!("{made} pictures made until the other client had its own");
    assert_eq!(reply.field("content-type"), "image/webp");
    // In the order of the requests it would have been the ninth, or the eighth.
    assert!(made < 8, "{made} pictures were made until the other client had its own");
    for one in asked {
        assert_eq!(busy.wait(one).unwrap().status, 200);
    }
}

#[test]
fn pictures_beyond_the_bound_pass_unchanged() {
    let png = drawing();
    let sent = png.clone();
    let origin =
        Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], Steps::all(sent.clone())));
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let ask = |number: usize| request("GET", &format!("/{number}"), &[("accept", "image/webp")]);
    let asked: Vec<_> = (0..30).map(|number| client.spawn(cache.addresses()[0], ask(number))).collect();
    let replies: Vec<Reply> = asked.into_iter().map(|one| client.wait(one).unwrap()).collect();
    let unchanged = replies.iter().filter(|reply| reply.field("content-type") == "image/png").count();
    eprintln!("{unchanged} of 30 pictures unchanged");
    assert!(unchanged > 0 && unchanged < 30, "{unchanged} of 30 pictures unchanged");
    assert!(replies.iter().all(|reply| reply.status == 200 && (reply.field("content-type") == "image/webp" || reply.body == png)));
    // A picture that was skipped is made when it is asked for again.
    eventually("it is never made", || client.ask(cache.addresses()[0], ask(29)).field("content-type") == "image/webp");
}
