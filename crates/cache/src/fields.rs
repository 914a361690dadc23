//! Header fields that a proxy removes, adds or normalises (RFC 9110 §7.6, RFC 9111).

use crate::negotiate::list_elements;
use hyper::{
    HeaderMap, Method, Version,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION,
        SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};

/// Hop-by-hop fields, whether `Connection` lists them or not (RFC 9110 §7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];
/// End-to-end fields that are kept even if `Connection` lists them: a sender must not list fields
/// that all recipients need (RFC 9110 §7.6.1).
const END_TO_END: [HeaderName; 7] = [AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, SET_COOKIE, VIA];
/// Upper bound of `Age`, seconds, as for delta-seconds in RFC 9111 §1.2.2.
const MAX_AGE: u64 = 1 << 31;

/// Removes hop-by-hop fields, and `Content-Length`, which is set again from the body that is sent.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = list_elements(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    for name in listed.iter().filter(|name| !END_TO_END.contains(name)).chain(&HOP_BY_HOP).chain(&[CONTENT_LENGTH]) {
        headers.remove(name);
    }
}

/// The value of `Content-Length`, bytes.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Appends this proxy to `Via` (RFC 9110 §7.6.3). `version` is that of the message received.
pub(crate) fn add_via(headers: &mut HeaderMap, version: Version, pseudonym: &str) {
    let version = match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{version} {pseudonym}")) {
        headers.append(VIA, value);
    }
}

/// Whether `Via` lists this proxy: the request has come back to it.
pub(crate) fn via_lists(headers: &HeaderMap, pseudonym: &str) -> bool {
    list_elements(headers, &VIA).any(|hop| hop.split_whitespace().nth(1) == Some(pseudonym))
}

/// Whether all values of a field are visible ASCII. Directives in others cannot be read.
pub(crate) fn is_readable(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().all(|value| value.to_str().is_ok())
}

/// Removes a field, and returns all of its values.
pub(crate) fn remove_all(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let values = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    values
}

/// Normalises fields for `http-cache-semantics`: one line per name with the values joined, cache
/// directives in lower case (their names are case-insensitive), and an `Age` that cannot overflow.
pub(crate) fn normalize_for_caching(headers: &HeaderMap) -> HeaderMap {
    let mut joined = HeaderMap::with_capacity(headers.keys_len());
    for name in headers.keys() {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let mut value = values.next().unwrap_or_default().to_vec();
        for more in values {
            value.extend_from_slice(b", ");
            value.extend_from_slice(more);
        }
        if *name == CACHE_CONTROL {
            value.make_ascii_lowercase();
        }
        if *name == AGE {
            let age = std::str::from_utf8(&value).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(MAX_AGE);
            value = age.min(MAX_AGE).to_string().into_bytes();
        }
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            joined.insert(name, value);
        }
    }
    joined
}

/// Whether a method is safe: it changes no state on the server (RFC 9110 §9.2.1).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_hop_by_hop_fields_are_removed() {
        let mut fields = headers(&[
            ("connection", "close, X-Private, cache-control"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("cache-control", "private"),
            ("x-public", "2"),
        ]);
        strip_hop_by_hop(&mut fields);
        let left: Vec<&str> = fields.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["cache-control", "x-public"]);
    }

    #[test]
    fn field_lines_are_joined_and_normalized() {
        let mut fields = headers(&[("cache-control", "No-Store"), ("age", "99999999999999999999")]);
        fields.append("cache-control", "MAX-AGE=5".parse().unwrap());
        let joined = normalize_for_caching(&fields);
        assert_eq!(joined["cache-control"], "no-store, max-age=5");
        assert_eq!(joined["age"], "2147483648");
    }

    proptest! {
        #[test]
        fn arbitrary_fields_do_not_panic(
            fields in prop::collection::vec(("[a-z-]{1,12}|connection|age|cache-control|via", "[ -~]{0,40}"), 0..12),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
            }
            let joined = normalize_for_caching(&headers);
            prop_assert_eq!(joined.len(), headers.keys_len());
            via_lists(&headers, "x");
            strip_hop_by_hop(&mut headers);
            prop_assert!(!headers.contains_key(CONNECTION));
        }
    }
}
