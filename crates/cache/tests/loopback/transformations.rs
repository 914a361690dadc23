//! What bodies become on their way: compressed, smaller pictures, and what stays as it is.

use crate::common::*;
use image::{ExtendedColorType, ImageEncoder as _, codecs::png::PngEncoder};
use std::io::Read as _;

fn page() -> Vec<u8> {
    (0..500).flat_map(|line| format!("<p>Line {line} of a page that says much the same.</p>\n").into_bytes()).collect()
}

/// Something with slopes and texture, as photographs have.
pub(crate) fn photograph(width: u16, height: u16) -> Vec<u8> {
    let mut noise = 1_u32;
    let pixels: Vec<u8> = (0..u32::from(height))
        .flat_map(|y| (0..u32::from(width)).map(move |x| (x, y)))
        .flat_map(|(x, y)| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let wave = (f64::from(x) / 31.0).sin() * 50.0 + (f64::from(x + 2 * y) / 17.0).cos() * 30.0 + f64::from(noise >> 28);
            [120.0, 140.0, 100.0].map(|base: f64| (base + wave) as u8)
        })
        .collect();
    let mut bytes = Vec::new();
    jpeg_encoder::Encoder::new(&mut bytes, 92).encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// An origin at all of whose paths is this JPEG.
pub(crate) fn serve_pictures(picture: &[u8]) -> Origin {
    let picture = picture.to_vec();
    Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/jpeg")], Steps::all(picture.clone())))
}

fn plain(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).unwrap(),
        "zstd" => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut plain).unwrap(),
        _ => return bytes.to_vec(),
    };
    plain
}

#[test]
fn text_is_compressed_for_those_who_accept_it() {
    let origin = Origin::start(|request| {
        let control = if request.uri().path() == "/passed" { "no-store" } else { "max-age=60" };
        answer(200, &[("cache-control", control), ("content-type", "text/html; charset=utf-8"), ("etag", "\"v1\"")], Steps::all(page()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let at = cache.addresses()[0];
    for path in ["/kept", "/kept", "/passed"] {
        for (accepted, coding) in [("gzip", "gzip"), ("gzip, br", "br"), ("zstd", "zstd"), ("deflate", ""), ("gzip;q=0", "")] {
            let reply = client.get(at, path, &[("accept-encoding", accepted)]);
            assert_eq!(reply.field("content-encoding"), coding, "{path} {accepted}");
            assert!(reply.whole && plain(coding, &reply.body) == page(), "{path} {accepted}");
            assert_eq!(reply.field("vary"), "accept-encoding");
            assert_eq!(reply.field("etag"), if coding.is_empty() { "\"v1\"" } else { "W/\"v1\"" });
            assert!(coding.is_empty() || reply.body.len() * 5 < page().len());
        }
    }
    // What a client has compressed, it has.
    let reply = client.get(at, "/kept", &[("accept-encoding", "br"), ("if-none-match", "W/\"v1\"")]);
    assert_eq!((reply.status, reply.field("etag")), (304, "W/\"v1\""));
    assert_eq!(client.get(at, "/kept", &[("if-none-match", "\"v1\"")]).field("etag"), "\"v1\"");
    // A part is one of what came.
    let part = client.get(at, "/kept", &[("accept-encoding", "br"), ("range", "bytes=3-9")]);
    assert_eq!((part.status, &part.body[..]), (206, &page()[3..=9]));
    assert_eq!(cache.stats().origin_bytes, (page().len() * (1 + 5)) as u64, "kept once, passed five times");
    assert!(cache.stats().compressed_bytes_saved > 0);
}

#[test]
fn what_must_not_or_need_not_be_compressed_is_not() {
    let origin = Origin::start(|request| {
        let (kind, more) = match request.uri().path() {
            "/forbidden" => ("text/plain", ("cache-control", "no-transform")),
            "/gzip" => ("text/plain", ("content-encoding", "gzip")),
            "/sealed" => ("text/plain", ("repr-digest", "sha-256=:AAAA:")),
            "/video" => ("video/mp4", ("x-nothing", "1")),
            "/events" => ("text/event-stream", ("x-nothing", "1")),
            _ => ("text/plain", ("x-nothing", "1")),
        };
        let fields = [("cache-control", "max-age=60"), ("content-type", kind), more];
        answer(200, &fields, Steps::all(page()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    for path in ["/forbidden", "/gzip", "/sealed", "/video", "/events", "/asked"] {
        let wanted = if path == "/asked" { ("cache-control", "no-transform") } else { ("x-nothing", "1") };
        let reply = client.get(cache.addresses()[0], path, &[("accept-encoding", "gzip"), wanted]);
        assert!(reply.body == page(), "{path}");
        assert_eq!(reply.field("content-encoding"), if path == "/gzip" { "gzip" } else { "" }, "{path}");
    }
}

#[test]
fn a_page_that_is_made_slowly_is_seen_slowly() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let origin = Origin::start(move |_| {
        let steps = vec![Step::Send(page()), Step::Gate(waits.clone()), Step::Send(b"the end".to_vec())];
        answer(200, &[("cache-control", "no-store"), ("content-type", "text/html")], Steps::new(steps, None))
    });
    let cache = before(origin.address, |_| {});
    use std::io::Write as _;
    let mut client = std::net::TcpStream::connect(cache.addresses()[0]).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(client, "GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    let mut reader = std::io::BufReader::new(&mut client);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
    }
    // All of what has been sent can be had before the rest comes.
    let mut decoder = flate2::read::GzDecoder::new(reader);
    let mut first = vec![0; page().len()];
    decoder.read_exact(&mut first).unwrap();
    assert!(first == page());
    gate.add_permits(1);
    let mut rest = String::new();
    decoder.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "the end");
}

#[test]
fn pictures_become_smaller_for_those_who_take_them() {
    let original = photograph(640, 480);
    let sent = original.clone();
    let origin = Origin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/jpeg"), ("etag", "\"v1\"")], Steps::all(sent.clone()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    let at = cache.addresses()[0];
    for (accepted, kind) in
        [("image/webp,image/*,*/*;q=0.8", "image/webp"), ("*/*", "image/jpeg"), ("image/jpeg", "image/jpeg"), ("*/*", "image/jpeg")]
    {
        let reply = client.get(at, "/", &[("accept", accepted)]);
        assert_eq!((reply.field("content-type"), reply.field("vary"), reply.field("etag")), (kind, "accept", "W/\"v1\""));
        assert!(reply.body.len() * 3 < original.len(), "{} of {}", reply.body.len(), original.len());
        let seen = image::load_from_memory(&reply.body).unwrap();
        assert_eq!((seen.width(), seen.height()), (640, 480));
    }
    let stats = cache.stats();
    assert_eq!((stats.pictures, origin.count()), (2, 1), "each is made once");
    assert!(stats.picture_bytes_saved > 4 * original.len() as u64 / 2);
    // Who takes neither, or wants a part, gets what came.
    for fields in [[("accept", "image/png"), ("x-nothing", "1")], [("accept", "*/*"), ("cache-control", "no-transform")]] {
        let reply = client.get(at, "/", &fields);
        assert!(reply.body == original && reply.field("etag") == "\"v1\"", "{fields:?}");
    }
    // A part of what came is for who has the rest of just that; another may have the beginning of a smaller one.
    let part = client.get(at, "/", &[("range", "bytes=0-99"), ("if-range", "\"v1\"")]);
    assert!(part.status == 206 && part.body == original[..100]);
    for condition in [("x-nothing", "1"), ("if-range", "W/\"v1\"")] {
        let whole = client.get(at, "/", &[("range", "bytes=100-"), condition]);
        assert_eq!((whole.status, whole.field("content-type"), whole.field("accept-ranges")), (200, "image/jpeg", "none"), "{condition:?}");
        assert!(whole.body.len() * 3 < original.len());
    }
    // Nor is the length of one that of the other, and who has one has it.
    let head = client.ask(at, request("HEAD", "/", &[]));
    assert_eq!((head.status, head.field("content-length"), head.field("etag")), (200, "", "W/\"v1\""));
    let same = client.get(at, "/", &[("if-none-match", "W/\"v1\"")]);
    assert_eq!((same.status, same.field("etag"), same.field("vary")), (304, "W/\"v1\"", "accept"));
}

#[test]
fn pictures_that_are_not_to_be_touched_are_not() {
    let original = photograph(320, 240);
    let sent = original.clone();
    let origin = Origin::start(move |request| {
        let control = match request.uri().path() {
            "/forbidden" => "max-age=60, no-transform",
            "/private" => "private, max-age=60",
            "/no-store" => "no-store",
            _ => "max-age=60",
        };
        let kind = if request.uri().path() == "/lies" { "image/png" } else { "image/jpeg" };
        answer(200, &[("cache-control", control), ("content-type", kind)], Steps::all(sent.clone()))
    });
    let (cache, client) = (before(origin.address, |_| {}), Client::new());
    for path in ["/forbidden", "/private", "/no-store", "/lies"] {
        let reply = client.get(cache.addresses()[0], path, &[("accept", "image/webp, */*")]);
        assert!(reply.whole && reply.body == original, "{path}");
        assert_eq!(reply.field("content-type"), if path == "/lies" { "image/png" } else { "image/jpeg" });
    }
    let (plain, client) = (before(origin.address, |config| config.pictures = None), Client::new());
    assert!(client.get(plain.addresses()[0], "/", &[]).body == original);
}

#[test]
fn a_picture_that_is_a_bomb_passes_unopened() {
    // Ten million pixels of nothing: a few kilobytes outside.
    let mut bomb = Vec::new();
    PngEncoder::new(&mut bomb).write_image(&vec![0; 30_000_000], 5000, 2000, ExtendedColorType::Rgb8).unwrap();
    let sent = bomb.clone();
    let origin =
        Origin::start(move |_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], Steps::all(sent.clone())));
    let (cache, client) = (before(origin.address, |config| config.most_pixels = 9_999_999), Client::new());
    assert!(client.get(cache.addresses()[0], "/", &[("accept", "image/webp")]).body == bomb);
    assert_eq!(cache.stats().pictures, 0);
}

/// A page and what it needs, straight from its origin and through the cache, the second time from what is kept.
#[test]
fn a_page_means_the_same_through_the_cache() {
    let picture = photograph(200, 150);
    let origin = Origin::start(move |request| {
        let (kind, body) = match request.uri().path() {
            "/" => ("text/html", page()),
            "/style.css" => ("text/css", b"p { color: green }\n".repeat(100)),
            "/script.js" => ("application/javascript", b"let a = 1;\n".repeat(100)),
            "/data.json" => ("application/json", b"[1,2,3]".to_vec()),
            "/picture" => ("image/jpeg", picture.clone()),
            "/empty" => return answer(204, &[("cache-control", "max-age=60")], Steps::all("")),
            "/moved" => return answer(301, &[("location", "/style.css"), ("cache-control", "max-age=60")], Steps::all("")),
            _ => return answer(404, &[("content-type", "text/plain"), ("x-why", "none")], Steps::all("there is none")),
        };
        answer(
            200,
            &[("cache-control", "max-age=60"), ("content-type", kind), ("content-language", "en"), ("x-own", "1")],
            Steps::all(body),
        )
    });
    let client = Client::new();
    let cache = before(origin.address, |config| config.pictures = None);
    for path in ["/", "/style.css", "/script.js", "/data.json", "/picture", "/empty", "/moved", "/none"] {
        let straight = client.get(origin.address, path, &[]);
        for accepted in ["identity", "gzip", "br", "zstd"] {
            let through = client.get(cache.addresses()[0], path, &[("accept-encoding", accepted)]);
            assert_eq!(through.status, straight.status, "{path}");
            assert!(plain(through.field("content-encoding"), &through.body) == straight.body, "{path} {accepted}");
            for name in straight.headers.keys().filter(|name| !["date", "content-length"].contains(&name.as_str())) {
                assert_eq!(through.headers.get(name), straight.headers.get(name), "{path} {accepted} {name}");
            }
        }
    }
}

/// What a browser makes of a page: the same elements, pictures of the same sizes, the same styles.
#[test]
fn a_browser_shows_the_same_page() {
    const BROWSER: &str = "chromium";
    if skip("a_browser_shows_the_same_page", BROWSER) {
        return;
    }
    let picture = photograph(320, 200);
    let origin = Origin::start(move |request| {
        let script = "onload = () => { document.getElementById('seen').textContent = [...document.images].map(i => i.naturalWidth + 'x' + \
                      i.naturalHeight) + ' ' + getComputedStyle(document.querySelector('p')).color }";
        let page = format!(
            "<!doctype html><link rel=stylesheet href=/style.css>{}<p>Hello</p><pre id=seen></pre><script>{script}</script>{}",
            (0..6).map(|number| format!("<img src=/picture/{number}>")).collect::<String>(),
            "<!-- padding -->".repeat(50)
        );
        let (kind, body) = match request.uri().path() {
            "/" => ("text/html", page.into_bytes()),
            "/style.css" => ("text/css", b"p { color: rgb(1, 2, 3) }\n".repeat(20)),
            path if path.starts_with("/picture/") => ("image/jpeg", picture.clone()),
            _ => return answer(404, &[], Steps::all("")),
        };
        answer(200, &[("cache-control", "max-age=60"), ("content-type", kind)], Steps::all(body))
    });
    let cache = before(origin.address, |_| {});
    let see = |through: bool| {
        let home = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("timeout");
        command.args(["60", BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]);
        command.arg(format!("--user-data-dir={}", home.path().display())).args(["--virtual-time-budget=20000", "--dump-dom"]);
        if through {
            command.arg(format!("--proxy-server={}", cache.addresses()[1])).arg("--proxy-bypass-list=<-loopback>");
        }
        let output = command.arg(format!("http://{}/", origin.address)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let straight = see(false);
    assert!(straight.contains(">320x200,320x200,320x200,320x200,320x200,320x200 rgb(1, 2, 3)<"), "{straight}");
    for round in ["fetched", "kept"] {
        assert_eq!(see(true), straight, "{round}");
    }
    let stats = cache.stats();
    assert!(stats.pictures == 6 && stats.hits >= 8 && stats.compressed > 0, "{stats:?}");
}

/// What curl makes of it.
#[test]
fn curl_understands_it() {
    if skip("curl_understands_it", "curl") {
        return;
    }
    let origin = Origin::start(|_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "text/html")], Steps::all(page())));
    let cache = before(origin.address, |_| {});
    let curl = |arguments: &[&str]| {
        let proxy = format!("http://{}", cache.addresses()[1]);
        // Through both at once it would be asked twice for the same.
        let at = format!("http://{}/", if arguments.contains(&"PROXY") { origin.address } else { cache.addresses()[0] });
        let arguments: Vec<&str> = arguments.iter().map(|argument| if *argument == "PROXY" { proxy.as_str() } else { *argument }).collect();
        let output =
            std::process::Command::new("curl").args(["-sS", "--max-time", "20", "--noproxy", ""]).args(arguments).arg(at).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert!(curl(&[]) == page());
    assert!(curl(&["--compressed"]) == page());
    assert!(curl(&["-x", "PROXY"]) == page());
    assert!(curl(&["-p", "-x", "PROXY"]) == page(), "through a tunnel");
    assert!(curl(&["-r", "10-19"]) == page()[10..=19]);
    let head = String::from_utf8(curl(&["-I"])).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("; hit"), "{head}");
    let version = std::process::Command::new("curl").arg("-V").output().unwrap().stdout;
    if String::from_utf8_lossy(&version).contains("HTTP2") {
        assert!(curl(&["--http2-prior-knowledge", "--compressed"]) == page());
    }
}
