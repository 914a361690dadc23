//! HTTP/1.1 heads and bodies, as far as a probe needs them.

use crate::transfer_record::Application;

/// Upper bound on the head of a message, bytes.
pub(crate) const HEAD: usize = 8 << 10;

/// Head of a request.
pub(crate) fn request_head(application: Application, nonce: &str, host: &str, body: Option<usize>) -> String {
    let (kind, name) = media_type(application);
    let (verb, rest) = match body {
        None => ("GET", "Accept: */*\r\n".to_string()),
        Some(length) => ("POST", format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n")),
    };
    format!("{verb} /tandem/{nonce}.{name} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tandem-detect\r\n{rest}Connection: close\r\n\r\n")
}

/// Head of a response.
pub(crate) fn response_head(application: Application, body: usize) -> String {
    let kind = media_type(application).0;
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {body}\r\nCache-Control: public, max-age=600\r\nConnection: close\r\n\r\n"
    )
}

fn media_type(application: Application) -> (&'static str, &'static str) {
    if application == Application::HttpImage { ("image/jpeg", "jpg") } else { ("text/html", "html") }
}

/// Offset of the body.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()))
}

pub(super) fn content_length(head: &[u8]) -> Option<usize> {
    field(&String::from_utf8_lossy(head), "content-length")?.parse().ok()
}

pub(super) fn is_chunked(head: &str) -> bool {
    field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

/// Decodes chunked transfer coding (RFC 9112 §7.1). Stops at a malformed chunk.
pub(super) fn decode_chunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(length) = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16) else { break };
        let Some(chunk) = rest.get(end + 2..).and_then(|behind| behind.get(..length)).filter(|_| length > 0) else { break };
        body.extend(chunk);
        rest = rest.get(end + 2 + length + 2..).unwrap_or_default();
    }
    body
}
