//! Where the body of an HTTP/1 message ends (RFC 9112 §6), found without decoding it.

/// How the end of a body is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// This many bytes follow the header section.
    Length(u64),
    /// Chunked coding (RFC 9112 §7.1).
    Chunked,
}

/// Why the end of a message cannot be told from its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramingError {
    /// Two recipients could find two different ends (RFC 9112 §6.3, §11.2).
    Ambiguous(&'static str),
    /// There are transfer codings besides chunked.
    UnknownCoding,
}

/// The framing of a request with these fields (RFC 9112 §6.3). The rules are those of hyper, or
/// stricter.
///
/// # Errors
/// When the fields contradict each other, or name transfer codings that hyper does not decode.
pub(crate) fn of_request<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, is_http_11: bool) -> Result<BodyFraming, FramingError> {
    let mut length = None;
    let mut codings = Vec::new();
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = std::str::from_utf8(value).ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
            let Some(number) = digits.and_then(|text| text.parse::<u64>().ok()) else {
                return Err(FramingError::Ambiguous("Content-Length of the request is not a number"));
            };
            if length.is_some_and(|before| before != number) {
                return Err(FramingError::Ambiguous("the request has two different Content-Length fields"));
            }
            length = Some(number);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            codings.extend(value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
        }
    }
    if codings.is_empty() {
        return Ok(BodyFraming::Length(length.unwrap_or(0)));
    }
    if !is_http_11 {
        return Err(FramingError::Ambiguous("a request of HTTP/1.0 cannot have Transfer-Encoding"));
    }
    match chunked_alone(&codings) {
        // With both fields the coding decides, and the length is not forwarded.
        Some(true) => Ok(BodyFraming::Chunked),
        Some(false) => Err(FramingError::UnknownCoding),
        None => Err(FramingError::Ambiguous("the last Transfer-Encoding of the request is not chunked")),
    }
}

/// Whether chunked is the only transfer coding (true), or the last of several (false). None where
/// the end of the body is not marked by it.
fn chunked_alone(codings: &[&[u8]]) -> Option<bool> {
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let (last, others) = codings.split_last()?;
    (is_chunked(last) && !others.iter().any(is_chunked)).then_some(others.is_empty())
}

/// Follows a body up to its end.
#[derive(Debug)]
pub(crate) struct BodyScanner(State);

#[derive(Debug)]
enum State {
    /// Bytes of the body, or of one of its chunks.
    Data {
        remaining: u64,
        is_chunk: bool,
    },
    /// The size of a chunk; none before its first digit.
    Size(Option<u64>),
    /// White space after a chunk's size.
    AfterSize(u64),
    Extension(u64),
    SizeLf(u64),
    DataCr,
    DataLf,
    /// The beginning of a line of the trailer section.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Ended,
    /// The body is not valid: hyper decides what becomes of it. Its end is not known.
    Invalid,
}

/// What part of some bytes belongs to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// The number of bytes that do.
    pub(crate) bytes: usize,
    /// Whether the body ends with them.
    pub(crate) is_end: bool,
}

impl BodyScanner {
    pub(crate) fn new(framing: BodyFraming) -> Self {
        BodyScanner(match framing {
            BodyFraming::Length(0) => State::Ended,
            BodyFraming::Length(remaining) => State::Data { remaining, is_chunk: false },
            BodyFraming::Chunked => State::Size(None),
        })
    }

    /// Continues with the next bytes of the connection.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Scanned {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.0 {
                State::Ended => break,
                State::Invalid => return Scanned { bytes: bytes.len(), is_end: false },
                State::Data { remaining, is_chunk } => {
                    let part = (bytes.len() - at).min(usize::try_from(*remaining).unwrap_or(usize::MAX));
                    at += part;
                    *remaining -= part as u64;
                    if *remaining == 0 {
                        self.0 = if *is_chunk { State::DataCr } else { State::Ended };
                    }
                }
                state => {
                    *state = next(state, bytes[at]);
                    at += 1;
                }
            }
        }
        Scanned { bytes: at, is_end: matches!(self.0, State::Ended) }
    }
}

/// The state after a byte of the chunked coding that is not data.
fn next(state: &State, byte: u8) -> State {
    let size_ends = |size| match byte {
        b' ' | b'\t' => State::AfterSize(size),
        b';' => State::Extension(size),
        b'\r' => State::SizeLf(size),
        _ => State::Invalid,
    };
    match (state, byte) {
        (State::Size(size), _) => match ((byte as char).to_digit(16), *size) {
            (Some(digit), size) => {
                let size = size.unwrap_or(0).checked_mul(16).and_then(|size| size.checked_add(u64::from(digit)));
                size.map_or(State::Invalid, |size| State::Size(Some(size)))
            }
            (None, Some(size)) => size_ends(size),
            (None, None) => State::Invalid,
        },
        (State::AfterSize(size), _) => size_ends(*size),
        (State::Extension(size), b'\r') => State::SizeLf(*size),
        (State::Extension(size), other) if other != b'\n' => State::Extension(*size),
        (State::SizeLf(0), b'\n') | (State::TrailerLf, b'\n') => State::TrailerStart,
        (State::SizeLf(size), b'\n') => State::Data { remaining: *size, is_chunk: true },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size(None),
        (State::TrailerStart, b'\r') => State::EndLf,
        (State::Trailer, b'\r') => State::TrailerLf,
        (State::TrailerStart | State::Trailer, other) if other != b'\n' => State::Trailer,
        (State::EndLf, b'\n') => State::Ended,
        _ => State::Invalid,
    }
}

/// The offset of the first byte after a header section, that is after its empty line. Empty lines
/// before it are skipped. `searched` bytes were without an end before.
pub(crate) fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    let begin = start_of_head(bytes);
    // The empty line may have begun before.
    let from = begin.max(searched.saturating_sub(2));
    (from..bytes.len()).filter(|at| bytes[*at] == b'\n').find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// The offset of the start line: empty lines may come before it (RFC 9112 §2.2).
pub(crate) fn start_of_head(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
}

/// The fields of a header section, whether they are valid or not: name and value of each line,
/// without white space around them. A line without a colon has no value.
pub(crate) fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = head[start_of_head(head)..].split(|byte| *byte == b'\n').skip(1);
    lines.map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).map(|line| match line.iter().position(|byte| *byte == b':') {
        Some(colon) => (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()),
        None => (line, &b""[..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn framings_are_strict() {
        let of = |head: &str| of_request(fields(format!("POST / HTTP/1.1\r\n{head}\r\n").as_bytes()), true);
        for (head, length) in
            [("", 0), ("Content-Length: 5\r\n", 5), ("content-length:5\r\nContent-Length: 5\r\n", 5), ("Content-Length : 7\r\n", 7)]
        {
            assert_eq!(of(head), Ok(BodyFraming::Length(length)), "{head}");
        }
        assert_eq!(of("Transfer-Encoding: Chunked\r\n"), Ok(BodyFraming::Chunked));
        assert_eq!(of("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), Ok(BodyFraming::Chunked));
        assert_eq!(of("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"), Err(FramingError::UnknownCoding));
        for head in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: +5\r\n",
            "Content-Length:\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding:\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
        ] {
            assert!(matches!(of(head), Err(FramingError::Ambiguous(_))), "{head}");
        }
        let old = of_request(fields(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), false);
        assert!(matches!(old, Err(FramingError::Ambiguous(_))));
    }

    #[test]
    fn the_end_of_a_head_is_found() {
        for (head, end) in [
            (&b"GET / HTTP/1.1\r\n\r\nbody"[..], Some(18)),
            (b"\r\n\r\nGET / HTTP/1.0\r\n\r\n", Some(22)),
            (b"GET / HTTP/1.0\n\nbody", Some(16)),
            (b"GET / HTTP/1.0\nA: b\n\r\n", Some(22)),
            (b"GET / HTTP/1.1\r\n\r", None),
            (b"\r\n\r\n", None),
        ] {
            assert_eq!(end_of_head(head, 0), end, "{}", head.escape_ascii());
            for searched in 0..end.unwrap_or(head.len()) {
                assert_eq!(end_of_head(head, searched), end, "{} from {searched}", head.escape_ascii());
            }
        }
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let chunked = b"5;a=\"b\"\r\nhello\r\nA \r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n";
        for (framing, body) in [(BodyFraming::Length(5), &b"hello"[..]), (BodyFraming::Length(0), b""), (BodyFraming::Chunked, chunked)] {
            let more = [body, b"GET /"].concat();
            // In pieces of any size.
            for size in 1..=more.len() {
                let mut scanner = BodyScanner::new(framing);
                let mut at = 0;
                for piece in more.chunks(size) {
                    let scanned = scanner.scan(piece);
                    at += scanned.bytes;
                    if scanned.is_end {
                        break;
                    }
                    assert_eq!(scanned.bytes, piece.len());
                }
                assert_eq!(at, body.len(), "{framing:?} in pieces of {size}");
            }
        }
        for invalid in
            [&b"5\nhello\r\n0\r\n\r\n"[..], b"g\r\n", b"\r\n", b"5\r\nhello0\r\n\r\n", b"10000000000000000\r\n", b"0\r\nX: 1\n\r\n"]
        {
            let scanned = BodyScanner::new(BodyFraming::Chunked).scan(&[invalid, b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"].concat());
            assert!(!scanned.is_end, "{}", invalid.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
            let cut = cut.min(bytes.len());
            let mut scanner = BodyScanner::new(BodyFraming::Chunked);
            let first = scanner.scan(&bytes[..cut]);
            prop_assert!(first.bytes <= cut && (first.is_end || first.bytes == cut));
            scanner.scan(&bytes[cut..]);
            end_of_head(&bytes, cut);
            fields(&bytes).count();
            let _ = of_request(fields(&bytes), true);
        }
    }
}
