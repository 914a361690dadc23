//! Decides by the header section of a response, before hyper sees it, whether hyper can represent
//! it. What it cannot represent is passed on to the client as it came.

use crate::{framing::start_of_head, limits::MAX_HEADER_FIELDS, request_head::start_line};
use httparse::ParserConfig;
use hyper::{StatusCode, ext::ReasonPhrase};

/// The beginning of every response that hyper parses.
const VERSION: &[u8] = b"HTTP/1.";

/// What becomes of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResponseVerdict {
    /// hyper parses it.
    Parse {
        /// Another response follows (1xx).
        is_interim: bool,
        /// Its reason phrase, where hyper would lose it.
        phrase: Option<ReasonPhrase>,
    },
    /// It goes to the client as it came, for this reason.
    Verbatim(String),
}

/// Whether these bytes can be the beginning of a response that hyper parses.
pub(crate) fn may_be_response(first: &[u8]) -> bool {
    let start = &first[start_of_head(first)..];
    let length = start.len().min(VERSION.len());
    start[..length] == VERSION[..length]
}

/// Judges a complete header section. Responses whose length is ambiguous are left to hyper, which
/// refuses them, as RFC 9112 §6.3 demands of a proxy.
pub(crate) fn judge(head: &[u8]) -> ResponseVerdict {
    let mut parser = ParserConfig::default();
    // As in the connections to servers, in `origin`.
    parser.allow_spaces_after_header_name_in_responses(true).allow_obsolete_multiline_headers_in_responses(true);
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADER_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let failure = match parser.parse_response(&mut parsed, head) {
        Ok(_) => None,
        Err(why) => Some(why.to_string()),
    };
    if let Some(why) = failure {
        return ResponseVerdict::Verbatim(format!("it cannot be parsed: {why}"));
    }
    let Some(code) = parsed.code.filter(|code| StatusCode::from_u16(*code).is_ok()) else {
        return ResponseVerdict::Verbatim("its status code is not one of HTTP".into());
    };
    let mut codings = parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("transfer-encoding"));
    let is_chunked = codings.next().map(|coding| coding.value.trim_ascii().eq_ignore_ascii_case(b"chunked"));
    // hyper reads a body in an unknown coding to the end of the connection, and drops the coding.
    if is_chunked == Some(false) || codings.next().is_some() || (is_chunked == Some(true) && parsed.version == Some(0)) {
        return ResponseVerdict::Verbatim("it has transfer codings besides chunked, or one in a response of HTTP/1.0".into());
    }
    ResponseVerdict::Parse { is_interim: (100..200).contains(&code) && code != 101, phrase: lost_phrase(head) }
}

/// The reason phrase, where it is not ASCII.
fn lost_phrase(head: &[u8]) -> Option<ReasonPhrase> {
    let phrase = start_line(head).splitn(3, |byte| *byte == b' ').nth(2)?;
    if phrase.is_ascii() { None } else { ReasonPhrase::try_from(phrase).ok() }
}

/// The status code of a response that is passed on as it came: what the second word of its first
/// line says.
pub(crate) fn status(bytes: &[u8]) -> Option<StatusCode> {
    let word = start_line(bytes).split(|byte| *byte == b' ').nth(1)?;
    StatusCode::from_bytes(word).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hyper_represents_is_parsed() {
        let plain = ResponseVerdict::Parse { is_interim: false, phrase: None };
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            "\r\nHTTP/1.0 200\r\n\r\n",
            "HTTP/1.1 520 Origin Error\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX-A : 1\r\nX-B: 1;\r\n 2\r\nTransfer-Encoding: Chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        ] {
            assert_eq!(judge(head.as_bytes()), plain, "{head:?}");
            assert!((0..head.len()).all(|cut| may_be_response(&head.as_bytes()[..cut])), "{head:?}");
        }
        assert!(matches!(judge(b"HTTP/1.1 103 Early Hints\r\n\r\n"), ResponseVerdict::Parse { is_interim: true, .. }));
        let phrase = ReasonPhrase::try_from(&b"n\xe3o encontrado"[..]).unwrap();
        let kept = ResponseVerdict::Parse { is_interim: false, phrase: Some(phrase) };
        assert_eq!(judge(b"HTTP/1.1 404 n\xe3o encontrado\r\n\r\n"), kept);
    }

    #[test]
    fn what_hyper_does_not_represent_is_passed_on() {
        for head in [
            "HTTP/1.1 200 OK\r\nSecured by Example\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX Powered By: a\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\u{1}\r\n\r\n",
            "HTTP/1.1 099 Low\r\n\r\n",
            "HTTP/1.1 1000 Long\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(matches!(judge(head.as_bytes()), ResponseVerdict::Verbatim(_)), "{head:?}");
        }
        for first in ["ICY 200 OK\r\n", "hello", "HTTP/2", "\0", "http/1.1 200 OK"] {
            assert!(!may_be_response(first.as_bytes()), "{first}");
        }
        assert_eq!(status(b"ICY 404 Not Found\r\n"), Some(StatusCode::NOT_FOUND));
        assert_eq!(status(b"hello"), None);
    }
}
