//! Detects the protocol of a connection from the first bytes that its client sends.

use crate::framing::start_of_head;

/// The connection preface of HTTP/2 (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a request line up to which the protocol may stay undecided, bytes.
const MAX_REQUEST_LINE: usize = 8 * 1024;
/// Length of a method, bytes at most.
const MAX_METHOD: usize = 20;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    Http1,
    /// HTTP/2 in clear text, with prior knowledge.
    Http2,
    Tls,
    Other,
    /// More bytes are needed.
    Undecided,
}

/// The protocol of a connection that begins with `first`. `is_complete`: no more bytes will come,
/// and the result is not `Undecided`.
pub(crate) fn detect(first: &[u8], is_complete: bool) -> ClientProtocol {
    let start = &first[..first.len().min(HTTP2_PREFACE.len())];
    if start == HTTP2_PREFACE {
        return ClientProtocol::Http2;
    }
    if !first.is_empty() && HTTP2_PREFACE.starts_with(start) && !is_complete {
        return ClientProtocol::Undecided;
    }
    // A TLS record of type handshake, of any version (RFC 8446 §5.1).
    if first.starts_with(&[0x16, 0x03]) {
        return ClientProtocol::Tls;
    }
    // Empty lines may come before a request line (RFC 9112 §2.2). A client that sends nothing else
    // may wait for a reply.
    let first = &first[start_of_head(first)..];
    if first.is_empty() || !may_be_request_line(first) {
        return ClientProtocol::Other;
    }
    match first.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = first[..end].trim_ascii_end();
            if line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") { ClientProtocol::Http1 } else { ClientProtocol::Other }
        }
        None if first.len() >= MAX_REQUEST_LINE => ClientProtocol::Http1,
        None if is_complete => ClientProtocol::Other,
        None => ClientProtocol::Undecided,
    }
}

/// Whether `first` can be the beginning of a request line: a method, a space and the beginning of a
/// request target (RFC 9112 §3).
fn may_be_request_line(first: &[u8]) -> bool {
    let length = first.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    let (method, rest) = first.split_at(length);
    match rest {
        [] => length <= MAX_METHOD,
        [b' '] => length > 0,
        [b' ', b'/' | b'*' | b'h' | b'H', ..] => length > 0,
        // The target of CONNECT is a host and a port.
        [b' ', ..] => method == b"CONNECT",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn protocols_are_detected() {
        for (first, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], ClientProtocol::Http1),
            (b"CONNECT example.org:443 HTTP/1.1\r\n", ClientProtocol::Http1),
            (b"M-SEARCH * HTTP/1.1\r\n", ClientProtocol::Http1),
            (b"GET /x HTTP/1.0\n", ClientProtocol::Http1),
            (b"\r\nGET /x HTTP/1.1\r\n", ClientProtocol::Http1),
            (b"\r\n", ClientProtocol::Other),
            (HTTP2_PREFACE, ClientProtocol::Http2),
            (b"PRI * HTTP/2.0\r\n\r\n", ClientProtocol::Undecided),
            (b"\x16\x03\x01\x02\x00", ClientProtocol::Tls),
            (b"EHLO example.org\r\n", ClientProtocol::Other),
            (b"USER anonymous\r\n", ClientProtocol::Other),
            (b"OPTIONS * RTSP/1.0\r\n", ClientProtocol::Other),
            (b"SSH-2.0-OpenSSH\r\n", ClientProtocol::Other),
            (b"\0\x01\x02", ClientProtocol::Other),
            (b"GE", ClientProtocol::Undecided),
            (b"GET /a/long/path", ClientProtocol::Undecided),
        ] {
            assert_eq!(detect(first, false), expected, "{}", first.escape_ascii());
        }
        assert_eq!(detect(b"GET /a/long/path", true), ClientProtocol::Other);
        assert_eq!(detect(b"", true), ClientProtocol::Other);
    }

    proptest! {
        /// Once the protocol is detected, more bytes do not change it.
        #[test]
        fn detection_is_final(first in "(GET|POST|PRI|EHLO|[A-Z]{1,4})( |/|\\* HTTP/2.0|h|x){0,3}[ -~]{0,20}(\r\n| HTTP/1.1\r\n)?", cut in 0_usize..40) {
            let bytes = first.as_bytes();
            let cut = cut.min(bytes.len());
            let early = detect(&bytes[..cut], false);
            if early != ClientProtocol::Undecided && cut > 0 {
                prop_assert_eq!(detect(bytes, false), early);
            }
            prop_assert_ne!(detect(bytes, true), ClientProtocol::Undecided);
        }
    }
}
