//! Transformations of bodies: compression, smaller pictures, and bodies that must not be changed.

use crate::common::*;
use image::{ExtendedColorType, ImageEncoder as _, codecs::png::PngEncoder};
use std::io::Read as _;

fn page() -> Vec<u8> {
    (0..500).flat_map(|line| format!("<p>Line {line} of a page that says much the same.</p>\n").into_bytes()).collect()
}

/// A picture with gradients and texture, as photographs have.
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

/// An origin server with this JPEG at all paths.
pub(crate) fn serve_pictures(picture: &[u8]) -> TestOrigin {
    let picture = picture.to_vec();
    TestOrigin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/jpeg")], ScriptedBody::all(picture.clone()))
    })
}

fn decode(coding: &str, bytes: &[u8]) -> Vec<u8> {
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
fn text_is_compressed_for_clients_that_accept_it() {
    let origin = TestOrigin::start(|request| {
        let control = if request.uri().path() == "/passed" { "no-store" } else { "max-age=60" };
        answer(
            200,
            &[("cache-control", control), ("content-type", "text/html; charset=utf-8"), ("etag", "\"v1\"")],
            ScriptedBody::all(page()),
        )
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    for path in ["/kept", "/kept", "/passed"] {
        for (accepted, coding) in [("gzip", "gzip"), ("gzip, br", "br"), ("zstd", "zstd"), ("deflate", ""), ("gzip;q=0", "")] {
            let reply = client.get(at, path, &[("accept-encoding", accepted)]);
            assert_eq!(reply.field("content-encoding"), coding, "{path} {accepted}");
            assert!(reply.whole && decode(coding, &reply.body) == page(), "{path} {accepted}");
            assert_eq!(reply.field("vary"), "accept-encoding");
            assert_eq!(reply.field("etag"), if coding.is_empty() { "\"v1\"" } else { "W/\"v1;tandem\"" });
            assert!(coding.is_empty() || reply.body.len() * 5 < page().len());
        }
    }
    // A client with the compressed form gets a 304.
    let reply = client.get(at, "/kept", &[("accept-encoding", "br"), ("if-none-match", "W/\"v1;tandem\"")]);
    assert_eq!((reply.status, reply.field("etag")), (304, "W/\"v1;tandem\""));
    assert_eq!(client.get(at, "/kept", &[("if-none-match", "\"v1\"")]).field("etag"), "\"v1\"");
    // Ranges are of the uncompressed body.
    let part = client.get(at, "/kept", &[("accept-encoding", "br"), ("range", "bytes=3-9")]);
    assert_eq!((part.status, &part.body[..]), (206, &page()[3..=9]));
    assert_eq!(cache.stats().origin_bytes, (page().len() * (1 + 5)) as u64, "kept once, passed five times");
    assert!(cache.stats().compressed_bytes_saved > 0);
}

#[test]
fn protected_and_compressed_bodies_are_unchanged() {
    let origin = TestOrigin::start(|request| {
        let (kind, more) = match request.uri().path() {
            "/forbidden" => ("text/plain", ("cache-control", "no-transform")),
            "/gzip" => ("text/plain", ("content-encoding", "gzip")),
            "/sealed" => ("text/plain", ("repr-digest", "sha-256=:AAAA:")),
            "/video" => ("video/mp4", ("x-nothing", "1")),
            "/events" => ("text/event-stream", ("x-nothing", "1")),
            _ => ("text/plain", ("x-nothing", "1")),
        };
        let fields = [("cache-control", "max-age=60"), ("content-type", kind), more];
        answer(200, &fields, ScriptedBody::all(page()))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/forbidden", "/gzip", "/sealed", "/video", "/events", "/asked"] {
        let wanted = if path == "/asked" { ("cache-control", "no-transform") } else { ("x-nothing", "1") };
        let reply = client.get(cache.addresses()[0], path, &[("accept-encoding", "gzip"), wanted]);
        assert!(reply.body == page(), "{path}");
        assert_eq!(reply.field("content-encoding"), if path == "/gzip" { "gzip" } else { "" }, "{path}");
    }
}

#[test]
fn a_slow_page_is_flushed() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waits = gate.clone();
    let origin = TestOrigin::start(move |_| {
        let steps = vec![BodyStep::Send(page()), BodyStep::Gate(waits.clone()), BodyStep::Send(b"the end".to_vec())];
        answer(200, &[("cache-control", "no-store"), ("content-type", "text/html")], ScriptedBody::new(steps, None))
    });
    let cache = cache_for(origin.address, |_| {});
    use std::io::Write as _;
    let mut client = std::net::TcpStream::connect(cache.addresses()[0]).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(client, "GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    let mut reader = std::io::BufReader::new(&mut client);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
    }
    // Everything sent so far can be decoded before the rest is sent.
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
fn pictures_are_transcoded_for_clients_that_accept_it() {
    let original = photograph(640, 480);
    let sent = original.clone();
    let origin = TestOrigin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/jpeg"), ("etag", "\"v1\"")], ScriptedBody::all(sent.clone()))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    for (accepted, kind) in
        [("image/webp,image/*,*/*;q=0.8", "image/webp"), ("*/*", "image/jpeg"), ("image/jpeg", "image/jpeg"), ("*/*", "image/jpeg")]
    {
        let reply = client.get(at, "/", &[("accept", accepted)]);
        assert_eq!((reply.field("content-type"), reply.field("vary"), reply.field("etag")), (kind, "accept", "W/\"v1;tandem\""));
        assert!(reply.body.len() * 3 < original.len(), "{} of {}", reply.body.len(), original.len());
        let seen = image::load_from_memory(&reply.body).unwrap();
        assert_eq!((seen.width(), seen.height()), (640, 480));
    }
    let stats = cache.stats();
    assert_eq!((stats.pictures, origin.count()), (2, 1), "each version is made once");
    assert!(stats.picture_bytes_saved > 4 * original.len() as u64 / 2);
    // Clients that accept neither format get the original.
    for fields in [[("accept", "image/png"), ("x-nothing", "1")], [("accept", "*/*"), ("cache-control", "no-transform")]] {
        let reply = client.get(at, "/", &fields);
        assert!(reply.body == original && reply.field("etag") == "\"v1\"", "{fields:?}");
    }
    // A range of the original is for clients that have a part of the original; others may have the
    // beginning of a smaller picture.
    let part = client.get(at, "/", &[("range", "bytes=0-99"), ("if-range", "\"v1\"")]);
    assert!(part.status == 206 && part.body == original[..100]);
    for condition in [("x-nothing", "1"), ("if-range", "W/\"v1;tandem\"")] {
        let whole = client.get(at, "/", &[("range", "bytes=100-"), condition]);
        assert_eq!((whole.status, whole.field("content-type"), whole.field("accept-ranges")), (200, "image/jpeg", "none"), "{condition:?}");
        assert!(whole.body.len() * 3 < original.len());
    }
    // HEAD gives no length, since the forms differ; a weak tag matches both forms.
    let head = client.ask(at, request("HEAD", "/", &[]));
    assert_eq!((head.status, head.field("content-length"), head.field("etag")), (200, "", "W/\"v1;tandem\""));
    let same = client.get(at, "/", &[("if-none-match", "W/\"v1;tandem\"")]);
    assert_eq!((same.status, same.field("etag"), same.field("vary")), (304, "W/\"v1;tandem\"", "accept"));
}

#[test]
fn protected_pictures_are_unchanged() {
    let original = photograph(320, 240);
    let sent = original.clone();
    let origin = TestOrigin::start(move |request| {
        let control = match request.uri().path() {
            "/forbidden" => "max-age=60, no-transform",
            "/private" => "private, max-age=60",
            "/no-store" => "no-store",
            _ => "max-age=60",
        };
        let kind = if request.uri().path() == "/lies" { "image/png" } else { "image/jpeg" };
        answer(200, &[("cache-control", control), ("content-type", kind)], ScriptedBody::all(sent.clone()))
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    for path in ["/forbidden", "/private", "/no-store", "/lies"] {
        let reply = client.get(cache.addresses()[0], path, &[("accept", "image/webp, */*")]);
        assert!(reply.whole && reply.body == original, "{path}");
        assert_eq!(reply.field("content-type"), if path == "/lies" { "image/png" } else { "image/jpeg" });
    }
    let (plain, client) = (cache_for(origin.address, |config| config.pictures = None), TestClient::new());
    assert!(client.get(plain.addresses()[0], "/", &[]).body == original);
}

#[test]
fn a_decompression_bomb_passes_unchanged() {
    // Ten million black pixels in a few kilobytes.
    let mut bomb = Vec::new();
    PngEncoder::new(&mut bomb).write_image(&vec![0; 30_000_000], 5000, 2000, ExtendedColorType::Rgb8).unwrap();
    let sent = bomb.clone();
    let origin = TestOrigin::start(move |_| {
        answer(200, &[("cache-control", "max-age=60"), ("content-type", "image/png")], ScriptedBody::all(sent.clone()))
    });
    let (cache, client) = (cache_for(origin.address, |config| config.most_pixels = 9_999_999), TestClient::new());
    assert!(client.get(cache.addresses()[0], "/", &[("accept", "image/webp")]).body == bomb);
    assert_eq!(cache.stats().pictures, 0);
}

/// Responses of all kinds, directly from the origin and through the cache.
#[test]
fn responses_are_equivalent_through_the_cache() {
    let picture = photograph(200, 150);
    let origin = TestOrigin::start(move |request| {
        let (kind, body) = match request.uri().path() {
            "/" => ("text/html", page()),
            "/style.css" => ("text/css", b"p { color: green }\n".repeat(100)),
            "/script.js" => ("application/javascript", b"let a = 1;\n".repeat(100)),
            "/data.json" => ("application/json", b"[1,2,3]".to_vec()),
            "/picture" => ("image/jpeg", picture.clone()),
            "/empty" => return answer(204, &[("cache-control", "max-age=60")], ScriptedBody::all("")),
            "/moved" => return answer(301, &[("location", "/style.css"), ("cache-control", "max-age=60")], ScriptedBody::all("")),
            _ => return answer(404, &[("content-type", "text/plain"), ("x-why", "none")], ScriptedBody::all("there is none")),
        };
        answer(
            200,
            &[("cache-control", "max-age=60"), ("content-type", kind), ("content-language", "en"), ("x-own", "1")],
            ScriptedBody::all(body),
        )
    });
    let client = TestClient::new();
    let cache = cache_for(origin.address, |config| config.pictures = None);
    for path in ["/", "/style.css", "/script.js", "/data.json", "/picture", "/empty", "/moved", "/none"] {
        let direct = client.get(origin.address, path, &[]);
        for accepted in ["identity", "gzip", "br", "zstd"] {
            let through = client.get(cache.addresses()[0], path, &[("accept-encoding", accepted)]);
            assert_eq!(through.status, direct.status, "{path}");
            assert!(decode(through.field("content-encoding"), &through.body) == direct.body, "{path} {accepted}");
            for name in direct.headers.keys().filter(|name| !["date", "content-length"].contains(&name.as_str())) {
                assert_eq!(through.headers.get(name), direct.headers.get(name), "{path} {accepted} {name}");
            }
        }
    }
}

/// A browser sees the same elements, picture sizes and styles through the cache.
#[test]
fn a_browser_renders_the_same_page() {
    const BROWSER: &str = "chromium";
    if skip("a_browser_renders_the_same_page", BROWSER) {
        return;
    }
    let picture = photograph(320, 200);
    let origin = TestOrigin::start(move |request| {
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
            _ => return answer(404, &[], ScriptedBody::all("")),
        };
        answer(200, &[("cache-control", "max-age=60"), ("content-type", kind)], ScriptedBody::all(body))
    });
    let cache = cache_for(origin.address, |_| {});
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
    let direct = see(false);
    assert!(direct.contains(">320x200,320x200,320x200,320x200,320x200,320x200 rgb(1, 2, 3)<"), "{direct}");
    for round in ["fetched", "kept"] {
        assert_eq!(see(true), direct, "{round}");
    }
    let stats = cache.stats();
    assert!(stats.pictures == 6 && stats.hits >= 8 && stats.compressed > 0, "{stats:?}");
}

#[test]
fn curl_gets_the_same_page() {
    if skip("curl_gets_the_same_page", "curl") {
        return;
    }
    let origin =
        TestOrigin::start(|_| answer(200, &[("cache-control", "max-age=60"), ("content-type", "text/html")], ScriptedBody::all(page())));
    let cache = cache_for(origin.address, |_| {});
    let curl = |arguments: &[&str]| {
        let proxy = format!("http://{}", cache.addresses()[1]);
        // With the explicit proxy the origin is named directly, not the forwarding listener.
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

/// A client may edit a resource whose representation it got compressed, and ask whether that has
/// changed: its server finds its own entity tag, even if it compares tags as text.
#[test]
fn conditions_on_compressed_responses_reach_the_server() {
    let origin = TestOrigin::start(|request| {
        let condition = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_string());
        let fields = [("content-type", "text/plain"), ("etag", "\"v1\""), ("cache-control", "private, no-cache")];
        if condition("if-none-match").as_deref() == Some("\"v1\"") {
            return answer(304, &fields[1..2], ScriptedBody::all(""));
        }
        match condition("if-match").as_deref() {
            None | Some("\"v1\"") => answer(200, &fields, ScriptedBody::all("text ".repeat(500))),
            Some(_) => answer(412, &[], ScriptedBody::all("")),
        }
    });
    let (cache, client) = (cache_for(origin.address, |_| {}), TestClient::new());
    let at = cache.addresses()[0];
    let page = client.get(at, "/", &[("accept-encoding", "gzip")]);
    let tag = page.field("etag").to_string();
    assert!(page.field("content-encoding") == "gzip" && tag.starts_with("W/"), "{page:?}");
    let again = client.get(at, "/", &[("accept-encoding", "gzip"), ("if-none-match", &tag)]);
    assert_eq!((again.status, again.field("etag")), (304, &tag[..]));
    let edit = |tag: &str| client.ask(at, request("PUT", "/", &[("content-length", "0"), ("if-match", tag)])).status;
    assert_eq!((edit(&tag), edit("\"v1\""), edit("\"v0\"")), (200, 200, 412));
    // A weak tag of the server's own is not changed.
    assert_eq!(edit("W/\"v1\""), 412);
    assert_eq!(origin.seen().pop().unwrap().headers()["if-match"], "W/\"v1\"");
}
