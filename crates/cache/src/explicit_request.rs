//! A request of an explicit proxy's client that is passed on as it came: only what a proxy has to
//! change is parsed and changed (RFC 9112 §3.2, RFC 9110 §7.6.1).

use crate::{
    error_response::ErrorResponse,
    framing::{self, BodyFraming, FramingError, end_of_head, fields, start_of_head},
    request_head::start_line,
    server_pool::ServerAddress,
};
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderValue, PROXY_AUTHORIZATION},
    http::uri::Authority,
};

/// Fields that concern the connection to the proxy alone, and `Host`, which is made of the target.
const NOT_FORWARDED: [&[u8]; 8] =
    [b"host", b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"te", b"upgrade", b"http2-settings"];

/// A request, ready to be sent to its server.
#[derive(Debug)]
pub(crate) struct ExplicitRequest {
    pub(crate) server: ServerAddress,
    /// Its header section in origin-form. The server closes the connection after its response.
    pub(crate) head: Vec<u8>,
    /// The framing of its body. None: the body ends when the client has finished.
    pub(crate) framing: Option<BodyFraming>,
    /// `Proxy-Authorization` as received.
    pub(crate) credentials: HeaderMap,
    /// Bytes of the header section as received.
    pub(crate) length: usize,
}

fn bad_request(text: impl Into<String>) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, text)
}

impl ExplicitRequest {
    /// The request whose header section is at the beginning of `bytes`.
    ///
    /// # Errors
    /// 400 where its server or its end cannot be told.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, ErrorResponse> {
        let length = end_of_head(bytes, 0).ok_or_else(|| bad_request("the header section of the request is incomplete"))?;
        let received = &bytes[..length];
        let line = start_line(received);
        let words = line.iter().position(|byte| *byte == b' ').zip(line.iter().rposition(|byte| *byte == b' '));
        let (first, last) = words.filter(|(first, last)| first < last).ok_or_else(|| bad_request("the request line has no target"))?;
        let (method, target, version) = (&line[..first], line[first + 1..last].trim_ascii(), &line[last + 1..]);
        let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"http://"));
        let Some(rest) = scheme.map(|scheme| &target[scheme.len()..]) else {
            return Err(bad_request("this is a proxy: send the whole URI (GET http://host/path), with the scheme http"));
        };
        let (authority, path) = rest.split_at(rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len()));
        let host =
            Authority::try_from(authority).ok().filter(|authority| !authority.as_str().contains('@') && !authority.host().is_empty());
        let Some(host) = host else {
            return Err(bad_request(format!("the host of the request, {}, is not a host name or address", authority.escape_ascii())));
        };
        let framing = match framing::of_request(fields(received), version.ends_with(b"1")) {
            // The source client of Icecast: see `request_head`.
            Ok(BodyFraming::Length(0)) if method == b"SOURCE" => None,
            Ok(framing) => Some(framing),
            Err(FramingError::UnknownCoding) => Some(BodyFraming::Chunked),
            Err(FramingError::Ambiguous(text)) => return Err(bad_request(text)),
        };
        let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
        let mut head = [method, b" ", slash, path, b" ", version, b"\r\nHost: ", host.as_str().as_bytes(), b"\r\n"].concat();
        head.extend_from_slice(&forwarded_lines(received));
        head.extend_from_slice(b"Connection: close\r\n\r\n");
        let credentials = fields(received).filter(|(name, _)| name.eq_ignore_ascii_case(PROXY_AUTHORIZATION.as_str().as_bytes()));
        let credentials = credentials.filter_map(|(_, value)| Some((PROXY_AUTHORIZATION, HeaderValue::from_bytes(value).ok()?))).collect();
        Ok(ExplicitRequest { server: ServerAddress::of(None, host.as_str(), 80), head, framing, credentials, length })
    }
}

/// The lines of a header section that its server gets, as they came.
fn forwarded_lines(received: &[u8]) -> Vec<u8> {
    let listed: Vec<&[u8]> = fields(received)
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
        .collect();
    // RFC 9112 §6.3: the transfer coding decides, and a length beside it must not be forwarded.
    let is_coded = fields(received).any(|(name, _)| name.eq_ignore_ascii_case(b"transfer-encoding"));
    let is_framing = |name: &[u8]| name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding");
    let is_dropped = |name: &[u8]| {
        NOT_FORWARDED.iter().any(|dropped| name.eq_ignore_ascii_case(dropped))
            || (is_coded && name.eq_ignore_ascii_case(b"content-length"))
            || (!is_framing(name) && listed.iter().any(|dropped| name.eq_ignore_ascii_case(dropped)))
    };
    let mut lines = Vec::new();
    let mut is_kept = true;
    for line in received[start_of_head(received)..].split_inclusive(|byte| *byte == b'\n').skip(1) {
        // A folded line belongs to the field before it.
        if !matches!(line.first(), Some(b' ' | b'\t')) {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
            is_kept = !name.is_empty() && !is_dropped(name);
        }
        if is_kept || line.trim_ascii_start().starts_with(b":") {
            lines.extend_from_slice(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_concerns_the_proxy_is_changed() {
        let received =
            b"POST HTTP://A.example:81/a<b>\xe9?q=`x`#y HTTP/1.1\r\nHost: other\r\nx-A:  1 \r\nProxy-Authorization: Basic eDp5\r\n  z\r\n\
            Proxy-Connection: keep-alive\r\nConnection: x-own, content-length\r\nX-Own: 1\r\nno colon\r\nContent-Length: 3\r\n\r\nabc";
        let request = ExplicitRequest::of(received).unwrap();
        let expected = b"POST /a<b>\xe9?q=`x`#y HTTP/1.1\r\nHost: A.example:81\r\nx-A:  1 \r\nno colon\r\nContent-Length: 3\r\nConnection: close\r\n\r\n";
        assert_eq!(request.head.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!((request.server, request.framing), (ServerAddress::Name("A.example:81".into()), Some(BodyFraming::Length(3))));
        assert_eq!(request.credentials[PROXY_AUTHORIZATION], "Basic eDp5");
        assert_eq!(&received[request.length..], b"abc");
        let bare = ExplicitRequest::of(b"GET http://a?<b> HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(&bare.head[..], b"GET /?<b> HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn without_a_server_or_an_end_it_is_refused() {
        for received in [
            "GET /a<b> HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET https://a/<b> HTTP/1.1\r\n\r\n",
            "GET http:///<b> HTTP/1.1\r\n\r\n",
            "GET http://me@a/<b> HTTP/1.1\r\n\r\n",
            "GET http://a b/ HTTP/1.1\r\n\r\n",
            "GET http://a/<b> HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "GET http://a/<b> HTTP/1.1\r\n",
            "GET\r\n\r\n",
        ] {
            assert!(ExplicitRequest::of(received.as_bytes()).is_err(), "{received}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_requests_do_not_panic(
            line in "(GET|POST) ?(http://)?[ -~]{0,20} ?(HTTP/1.1)?",
            lines in prop::collection::vec("(Connection|Content-Length|[!-~]{0,6}):?[ -~]{0,12}", 0..5),
        ) {
            if let Ok(request) = ExplicitRequest::of(format!("{line}\r\n{}\r\n\r\n", lines.join("\r\n")).as_bytes()) {
                prop_assert!(end_of_head(&request.head, 0) == Some(request.head.len()));
            }
        }
    }
}
