//! Decides by the header section of a request, before hyper sees it, whether hyper can represent
//! it. What it cannot represent is passed on to the server as it came.

use crate::{
    error_response::ErrorResponse,
    fields::is_safe,
    framing::{self, BodyFraming, FramingError, end_of_head, fields, start_of_head},
    limits::MAX_HEADER_FIELDS,
    target::TargetResource,
};
use hyper::{
    Request, StatusCode, Uri, Version,
    header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING},
};
use std::net::SocketAddr;

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum RequestVerdict {
    /// hyper parses it.
    Parse {
        /// The framing of its body.
        framing: BodyFraming,
        /// The header section for hyper, where folded lines had to be joined (RFC 9112 §5.2). It is
        /// as long as the one received.
        unfolded: Option<Vec<u8>>,
    },
    /// It goes to the server as it came, for this reason.
    Verbatim(String),
    /// It gets this response. Where the request ends is uncertain, and so the connection ends.
    Refuse(ErrorResponse),
}

fn refuse(text: &str) -> RequestVerdict {
    RequestVerdict::Refuse(ErrorResponse::new(StatusCode::BAD_REQUEST, text))
}

/// Judges a complete header section. `server`: the destination of the connection, none in an
/// explicit proxy.
pub(crate) fn judge(head: &[u8], server: Option<SocketAddr>) -> RequestVerdict {
    if let Some(text) = forbidden(head) {
        return refuse(text);
    }
    let unfolded = unfold(head);
    let head = unfolded.as_deref().unwrap_or(head);
    let is_http_11 = start_line(head).ends_with(b"HTTP/1.1");
    let framing = match framing::of_request(fields(head), is_http_11) {
        Ok(framing) => framing,
        Err(FramingError::Ambiguous(text)) => return refuse(text),
        Err(FramingError::UnknownCoding) => return RequestVerdict::Verbatim("it has transfer codings besides chunked".into()),
    };
    match unrepresentable(head, server) {
        Some(why) => RequestVerdict::Verbatim(why),
        None => RequestVerdict::Parse { framing, unfolded },
    }
}

/// The start line of a header section.
pub(crate) fn start_line(head: &[u8]) -> &[u8] {
    head[start_of_head(head)..].split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end()
}

/// Why a request must be refused whatever its server would do with it: recipients differ in how
/// they parse it.
fn forbidden(head: &[u8]) -> Option<&'static str> {
    let head = &head[start_of_head(head)..];
    let has_bare_cr = head.iter().zip(head.iter().skip(1).chain(b" ")).any(|(byte, next)| *byte == b'\r' && *next != b'\n');
    // RFC 9110 §5.5.
    if has_bare_cr || head.contains(&0) {
        return Some("the header section of the request has a NUL byte, or a CR that is not followed by LF");
    }
    let mut lines = head.split(|byte| *byte == b'\n').skip(1).peekable();
    // RFC 9112 §2.2.
    if lines.peek().is_some_and(|line| matches!(line.first(), Some(b' ' | b'\t'))) {
        return Some("the first field of the request begins with white space");
    }
    // RFC 9112 §5.1. A folded line has no name.
    let names = lines.filter(|line| !matches!(line.first(), Some(b' ' | b'\t')));
    let mut names = names.filter_map(|line| Some(&line[..line.iter().position(|byte| *byte == b':')?]));
    if names.any(|name| name.last().is_some_and(|byte| matches!(byte, b' ' | b'\t'))) {
        return Some("a field of the request has white space before its colon");
    }
    // RFC 9112 §3.2.
    if fields(head).filter(|(name, _)| name.eq_ignore_ascii_case(b"host")).count() > 1 {
        return Some("the request has more than one Host field");
    }
    None
}

/// The header section with the line ends of folded lines replaced by spaces (RFC 9112 §5.2). None
/// where there are none.
fn unfold(head: &[u8]) -> Option<Vec<u8>> {
    let mut unfolded: Option<Vec<u8>> = None;
    for (at, pair) in head.windows(2).enumerate().skip(start_of_head(head)) {
        if let [b'\n', b' ' | b'\t'] = pair {
            let text = unfolded.get_or_insert_with(|| head.to_vec());
            text[at] = b' ';
            if text[at - 1] == b'\r' {
                text[at - 1] = b' ';
            }
        }
    }
    unfolded
}

/// Why hyper cannot represent a request such that the server gets what the client means.
fn unrepresentable(head: &[u8], server: Option<SocketAddr>) -> Option<String> {
    let request = match parse(head) {
        Ok(request) => request,
        Err(why) => return Some(why),
    };
    let method = request.method().as_str();
    let has_length = [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| request.headers().contains_key(name));
    // The source client of Icecast sends its stream after the header section, without a length.
    if method == "SOURCE" && !has_length {
        return Some("a SOURCE request has a body without a length".into());
    }
    // An explicit proxy forwards one connection's requests to many servers: it needs the rest.
    server?;
    if method == "CONNECT" {
        return Some("it opens a tunnel (CONNECT): the destination is a proxy itself".into());
    }
    // By RFC 9112 §6.3 these have no body, but clients that stream to a server send one, and
    // senders with a body before HTTP/1.1 could end it by closing the connection.
    let is_old = request.version() == Version::HTTP_10;
    if !has_length && (method == "PUT" || (is_old && matches!(method, "POST" | "PATCH"))) {
        return Some(format!("a {method} request has no length: it may have a body all the same"));
    }
    TargetResource::of(&request, server).err()
}

/// Parses what the rules look at: the start line, `Host` and the fields of the framing.
fn parse(head: &[u8]) -> Result<Request<()>, String> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADER_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    parsed.parse(head).map_err(|why| format!("it cannot be parsed: {why}"))?;
    let target = parsed.path.unwrap_or_default();
    // hyper would drop a fragment.
    let uri = Uri::try_from(target).ok().filter(|_| !target.contains('#'));
    let mut request = Request::new(());
    *request.uri_mut() = uri.ok_or("its target has characters that a URI does not have")?;
    *request.method_mut() = parsed.method.and_then(|method| method.parse().ok()).ok_or("it has no method")?;
    *request.version_mut() = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    for name in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
        for field in parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name.as_str())) {
            if let Ok(value) = HeaderValue::from_bytes(field.value) {
                request.headers_mut().append(&name, value);
            }
        }
    }
    Ok(request)
}

/// The resource that a request may change, where it can be told.
pub(crate) fn changed_resource(bytes: &[u8], server: SocketAddr) -> Option<TargetResource> {
    let request = parse(&bytes[..end_of_head(bytes, 0)?]).ok()?;
    if is_safe(request.method()) { None } else { TargetResource::of(&request, Some(server)).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(head: &[u8], is_explicit: bool) -> RequestVerdict {
        judge(head, Some("192.0.2.1:80".parse().unwrap()).filter(|_| !is_explicit))
    }

    #[test]
    fn what_hyper_represents_is_parsed() {
        for head in [
            &b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"[..],
            b"\r\nget /a|b?j={x} HTTP/1.1\nHost: a.example\n\n",
            b"GET /x HTTP/1.0\r\n\r\n",
            b"PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a.example\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n",
        ] {
            assert!(matches!(verdict(head, false), RequestVerdict::Parse { unfolded: None, .. }), "{}", head.escape_ascii());
        }
        let RequestVerdict::Parse { unfolded: Some(joined), framing } =
            verdict(b"GET / HTTP/1.1\r\nHost: a.example\r\nX: 1\r\n 2\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n", false)
        else {
            panic!("a folded line is not joined")
        };
        assert_eq!(&joined[..], b"GET / HTTP/1.1\r\nHost: a.example\r\nX: 1   2\r\nTransfer-Encoding:  \tchunked\r\n\r\n");
        assert_eq!(framing, BodyFraming::Chunked);
    }

    #[test]
    fn what_hyper_does_not_represent_is_passed_on() {
        let host = "Host: a.example\r\n\r\n";
        for (head, in_explicit_proxy) in [
            (format!("GET /a<b> HTTP/1.1\r\n{host}"), true),
            (format!("GET /a`b HTTP/1.1\r\n{host}"), true),
            (format!("GET /?q=\u{e9}<i> HTTP/1.1\r\n{host}"), true),
            (format!("GET /a#part HTTP/1.1\r\n{host}"), true),
            (format!("GET / HTTP/1.1\r\nno colon\r\n{host}"), true),
            (format!("GET / HTTP/1.1\r\nA name: x\r\n{host}"), true),
            (format!("GET / HTTP/1.1\r\nX: a\u{1}b\r\n{host}"), true),
            (format!("GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n{host}"), true),
            (format!("SOURCE /live HTTP/1.0\r\n{host}"), true),
            (format!("PUT /live HTTP/1.1\r\n{host}"), false),
            (format!("POST /cgi HTTP/1.0\r\n{host}"), false),
            (format!("CONNECT b.example:443 HTTP/1.1\r\n{host}"), false),
            ("GET / HTTP/1.1\r\n\r\n".into(), false),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n".into(), false),
            ("GET / HTTP/1.1\r\nHost: b\u{fc}cher.example\r\n\r\n".into(), false),
            (format!("GET ftp://a.example/ HTTP/1.1\r\n{host}"), false),
        ] {
            assert!(matches!(verdict(head.as_bytes(), false), RequestVerdict::Verbatim(_)), "{head:?}");
            assert_eq!(matches!(verdict(head.as_bytes(), true), RequestVerdict::Verbatim(_)), in_explicit_proxy, "{head:?}");
        }
        assert!(matches!(verdict(b"GET /caf\xe9 HTTP/1.1\r\nHost: a\r\n\r\n", false), RequestVerdict::Verbatim(_)));
    }

    /// RFC 9112 §11.2.
    #[test]
    fn what_recipients_could_parse_differently_is_refused() {
        for lines in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5\r\nContent-Length: 6\r\nno colon",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding : chunked",
            "X-A\t: 1",
            "Host: b",
            "X: a\rb",
            "X: a\0b",
        ] {
            for is_explicit in [false, true] {
                let head = format!("POST http://a/ HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
                assert!(matches!(verdict(head.as_bytes(), is_explicit), RequestVerdict::Refuse(_)), "{lines:?}");
            }
        }
        assert!(matches!(verdict(b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", false), RequestVerdict::Refuse(_)));
    }

    proptest! {
        #[test]
        fn arbitrary_heads_do_not_panic(
            line in "(GET|PUT|[a-z]{1,3}) [ -~]{0,12} HTTP/1\\.[0-2]",
            lines in prop::collection::vec("(Host|Content-Length|Transfer-Encoding|[!-~]{0,6}) ?:? ?[ -~\r\t]{0,12}(\r?\n[ \t][ -~]{0,4})?", 0..5),
        ) {
            let head = format!("{line}\r\n{}\r\n\r\n", lines.join("\r\n"));
            for is_explicit in [false, true] {
                if let RequestVerdict::Parse { unfolded: Some(unfolded), .. } = verdict(head.as_bytes(), is_explicit) {
                    prop_assert_eq!(unfolded.len(), head.len());
                }
            }
        }
    }
}
