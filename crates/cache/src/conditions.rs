//! Conditional requests (RFC 9110 §13) and range requests (§14) on a stored response.

use crate::negotiate::list_elements;
use hyper::{
    HeaderMap, Method,
    header::{
        DATE, ETAG, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED,
        RANGE,
    },
    http::request::Parts,
};
use std::time::{Duration, SystemTime};

/// Fields that make a request conditional (RFC 9110 §13.1).
pub(crate) const PRECONDITIONS: [HeaderName; 5] = [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE];

/// The fields that validate a stored response with its origin server (RFC 9111 §4.3.1). Empty when
/// it has no validator.
pub(crate) fn validation_fields(stored: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let field = |validator: HeaderName, condition: HeaderName| stored.get(validator).map(|value| (condition, value.clone()));
    field(ETAG, IF_NONE_MATCH).into_iter().chain(field(LAST_MODIFIED, IF_MODIFIED_SINCE))
}

/// An entity tag without its weakness indicator (RFC 9110 §8.8.3).
pub(crate) fn opaque_tag(etag: &[u8]) -> &[u8] {
    let etag = etag.trim_ascii();
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// Whether a request is answered with 304: the client has the response already (RFC 9110 §13.2.2).
pub(crate) fn is_not_modified(request: &HeaderMap, response: &HeaderMap) -> bool {
    if request.contains_key(IF_NONE_MATCH) {
        let current = response.get(ETAG).map(|etag| opaque_tag(etag.as_bytes()));
        return list_elements(request, &IF_NONE_MATCH).any(|etag| etag == "*" || Some(opaque_tag(etag.as_bytes())) == current);
    }
    let (Some(since), Some(modified)) = (date(request, &IF_MODIFIED_SINCE), date(response, &LAST_MODIFIED)) else { return false };
    modified <= since
}

/// Whether a request has preconditions that only its origin server evaluates (RFC 9111 §4.3.2).
pub(crate) fn has_origin_preconditions(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH) || headers.contains_key(IF_UNMODIFIED_SINCE)
}

/// What a request asks for of a body of known length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    /// The whole body (200).
    Whole,
    /// The first and the last byte, both within the body (206).
    Bytes(u64, u64),
    /// A range beyond the end (416).
    Unsatisfiable,
}

/// The range that a request asks for, of a body of `length` bytes. Multiple ranges get the whole
/// body, as RFC 9110 §14.2 permits.
pub(crate) fn requested_range(request: &Parts, response: &HeaderMap, length: u64) -> RequestedRange {
    let ranges: Vec<&HeaderValue> = request.headers.get_all(RANGE).iter().collect();
    let [range] = ranges[..] else { return RequestedRange::Whole };
    if request.method != Method::GET || !if_range_holds(&request.headers, response) {
        return RequestedRange::Whole;
    }
    let range = range.to_str().ok().and_then(|text| text.trim().strip_prefix("bytes=")).and_then(|text| text.split_once('-'));
    match range.map(|(first, last)| (first.trim(), last.trim())) {
        None | Some(("", "")) => RequestedRange::Whole,
        Some(("", suffix)) => suffix_range(suffix, length),
        Some((first, last)) => {
            let last = if last.is_empty() { Some(u64::MAX) } else { position(last) };
            match (position(first), last) {
                (Some(first), Some(last)) if first > last => RequestedRange::Whole,
                (Some(first), Some(_)) if first >= length => RequestedRange::Unsatisfiable,
                (Some(first), Some(last)) => RequestedRange::Bytes(first, last.min(length - 1)),
                _ => RequestedRange::Whole,
            }
        }
    }
}

/// The last `suffix` bytes of a body of `length` bytes.
fn suffix_range(suffix: &str, length: u64) -> RequestedRange {
    match position(suffix) {
        None => RequestedRange::Whole,
        Some(0) => RequestedRange::Unsatisfiable,
        Some(_) if length == 0 => RequestedRange::Unsatisfiable,
        Some(suffix) => RequestedRange::Bytes(length.saturating_sub(suffix), length - 1),
    }
}

/// A number of digits alone, saturating.
fn position(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().unwrap_or(u64::MAX))
}

fn if_range(request: &HeaderMap) -> Option<&[u8]> {
    request.get(IF_RANGE).map(|value| value.as_bytes().trim_ascii())
}

/// Whether `If-Range` has the strong entity tag of this response: the client has a part of exactly
/// these bytes.
pub(crate) fn if_range_matches_etag(request: &HeaderMap, response: &HeaderMap) -> bool {
    let Some(condition) = if_range(request) else { return false };
    condition.starts_with(b"\"") && response.get(ETAG).is_some_and(|etag| etag.as_bytes().trim_ascii() == condition)
}

/// Whether `If-Range` permits a partial response: it is absent, or matches by strong comparison
/// (RFC 9110 §13.1.5).
fn if_range_holds(request: &HeaderMap, response: &HeaderMap) -> bool {
    let Some(condition) = if_range(request) else { return true };
    if condition.starts_with(b"\"") || condition.starts_with(b"W/") {
        return if_range_matches_etag(request, response);
    }
    // A date is a strong validator only if the response was sent well after it (§8.8.2.2). 60 s is
    // the limit of RFC 7232 §2.2.2.
    let is_strong =
        date(response, &DATE).zip(date(response, &LAST_MODIFIED)).is_some_and(|(sent, modified)| sent > modified + Duration::from_secs(60));
    is_strong && date(request, &IF_RANGE).is_some_and(|asked| date(response, &LAST_MODIFIED) == Some(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use proptest::prelude::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    /// RFC 9110 §13.
    #[test]
    fn a_client_with_the_current_response_gets_304() {
        let response = headers(&[("etag", "\"a\""), ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT")]);
        for (name, value, expected) in [
            ("if-none-match", "\"a\"", true),
            ("if-none-match", "\"b\", W/\"a\"", true),
            ("if-none-match", "*", true),
            ("if-none-match", "\"b\"", false),
            ("if-modified-since", "Tue, 14 Nov 2023 22:00:00 GMT", true),
            ("if-modified-since", "Tue, 14 Nov 2023 21:59:59 GMT", false),
            ("if-modified-since", "yesterday", false),
        ] {
            assert_eq!(is_not_modified(&headers(&[(name, value)]), &response), expected, "{name}: {value}");
        }
        let both = headers(&[("if-none-match", "\"b\""), ("if-modified-since", "Tue, 14 Nov 2023 23:00:00 GMT")]);
        assert!(!is_not_modified(&both, &response), "the entity tag takes precedence");
    }

    fn range_of(range: &str, if_range: Option<&str>, length: u64) -> RequestedRange {
        let response =
            headers(&[("etag", "\"a\""), ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT"), ("date", "Tue, 14 Nov 2023 22:13:20 GMT")]);
        let request = Request::builder().header(RANGE, range);
        let request = if_range.into_iter().fold(request, |request, condition| request.header(IF_RANGE, condition));
        requested_range(&request.body(()).unwrap().into_parts().0, &response, length)
    }

    /// RFC 9110 §14.
    #[test]
    fn ranges_are_parsed_and_bounded() {
        for (range, expected) in [
            ("bytes=0-0", RequestedRange::Bytes(0, 0)),
            ("bytes=5-", RequestedRange::Bytes(5, 9)),
            ("bytes=5-99", RequestedRange::Bytes(5, 9)),
            ("bytes=-3", RequestedRange::Bytes(7, 9)),
            ("bytes=-99", RequestedRange::Bytes(0, 9)),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=5-4", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("lines=0-1", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("bytes=99999999999999999999-", RequestedRange::Unsatisfiable),
        ] {
            assert_eq!(range_of(range, None, 10), expected, "{range}");
        }
        assert_eq!(range_of("bytes=0-", None, 0), RequestedRange::Unsatisfiable);
    }

    #[test]
    fn a_changed_response_is_sent_whole() {
        assert_eq!(range_of("bytes=0-1", Some("\"a\""), 10), RequestedRange::Bytes(0, 1));
        for other in ["\"b\"", "W/\"a\"", "Tue, 14 Nov 2023 21:00:00 GMT", "nonsense"] {
            assert_eq!(range_of("bytes=0-1", Some(other), 10), RequestedRange::Whole, "{other}");
        }
        assert_eq!(range_of("bytes=0-1", Some("Tue, 14 Nov 2023 22:00:00 GMT"), 10), RequestedRange::Bytes(0, 1));
    }

    proptest! {
        #[test]
        fn ranges_are_within_the_body(range in "bytes=[0-9]{0,22}-[0-9]{0,22}|[ -~]{0,20}", length in 0_u64..50) {
            if let RequestedRange::Bytes(first, last) = range_of(&range, None, length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
