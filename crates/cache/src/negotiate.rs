//! Proactive content negotiation (RFC 9110 §12.5): which codings and media types a client accepts.

use hyper::{
    HeaderMap,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderName, HeaderValue},
};

/// The elements of a list-based field (RFC 9110 §5.6.1), over all of its lines, trimmed.
pub(crate) fn list_elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// A content coding (RFC 9110 §8.4.1) that this proxy can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Brotli,
    Zstd,
    Gzip,
}

impl ContentCoding {
    /// All codings, those that compress text best first.
    pub(crate) const ALL: [ContentCoding; 3] = [ContentCoding::Brotli, ContentCoding::Zstd, ContentCoding::Gzip];

    /// Its name in `Content-Encoding`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ContentCoding::Brotli => "br",
            ContentCoding::Zstd => "zstd",
            ContentCoding::Gzip => "gzip",
        }
    }

    /// Memory that an encoder takes, bytes at most.
    pub(crate) const fn memory(self) -> u64 {
        match self {
            ContentCoding::Brotli => 4 << 20,
            ContentCoding::Zstd => 5 << 20,
            ContentCoding::Gzip => 512 << 10,
        }
    }
}

/// An element in lower case and its weight (`q`, RFC 9110 §12.4.2) in thousandths: 1000 where it
/// has none, 0 where that cannot be parsed.
fn weighted(element: &str) -> (String, u32) {
    let mut parts = element.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let weight = weight.map_or(1.0, |text| text.trim().parse::<f64>().ok().filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(0.0));
    (name, (weight * 1000.0).round() as u32)
}

fn weighted_list(headers: &HeaderMap, name: &HeaderName) -> Vec<(String, u32)> {
    list_elements(headers, name).map(weighted).collect()
}

/// The coding with the highest weight in `Accept-Encoding` (RFC 9110 §12.5.3); of equal ones that
/// which compresses best. None where the client prefers identity.
pub(crate) fn preferred_coding(headers: &HeaderMap) -> Option<ContentCoding> {
    let accepted = weighted_list(headers, &ACCEPT_ENCODING);
    let weight_of = |coding: &str| {
        let names = |name: &str| name == coding || (coding == "gzip" && name == "x-gzip");
        accepted.iter().find(|(name, _)| names(name)).map(|(_, weight)| *weight)
    };
    let any_other = weight_of("*").unwrap_or(0);
    let identity = weight_of("identity").unwrap_or(0);
    let codings = ContentCoding::ALL.into_iter().map(|coding| (coding, weight_of(coding.name()).unwrap_or(any_other)));
    let acceptable = codings.filter(|(_, weight)| *weight > 0 && *weight >= identity);
    // `max_by_key` returns the last of equal elements; the first one is wanted.
    acceptable.rev().max_by_key(|(_, weight)| *weight).map(|(coding, _)| coding)
}

/// `Accept-Encoding` in a canonical spelling and order, for the server: clients that accept the
/// same codings then share one stored response. None where that would change the meaning.
pub(crate) fn canonical_accept_encoding(headers: &HeaderMap) -> Option<HeaderValue> {
    const COMMON: [&str; 4] = ["gzip", "deflate", "br", "zstd"];
    let accepted = weighted_list(headers, &ACCEPT_ENCODING);
    let is_expressible = accepted.iter().all(|(name, weight)| *weight == 1000 && (name == "identity" || COMMON.contains(&name.as_str())));
    let listed: Vec<&str> = COMMON.into_iter().filter(|coding| accepted.iter().any(|(name, _)| name == coding)).collect();
    (is_expressible && !listed.is_empty()).then(|| HeaderValue::from_str(&listed.join(", ")).ok()).flatten()
}

/// Whether a client accepts a media type, by name or by a wildcard; without `Accept` it does (RFC
/// 9110 §12.5.1).
pub(crate) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let accepted = weighted_list(headers, &ACCEPT);
    let wildcard = format!("{}/*", media_type.split('/').next().unwrap_or_default());
    let precedence = |range: &str| match range {
        _ if range == media_type => 3,
        _ if range == wildcard => 2,
        "*/*" => 1,
        _ => 0,
    };
    // The most specific media range decides.
    let matching = accepted.iter().filter(|(range, _)| precedence(range) > 0);
    accepted.is_empty() || matching.max_by_key(|(range, _)| precedence(range)).is_some_and(|(_, weight)| *weight > 0)
}

/// Whether a client names a media type in `Accept`. Wildcards do not count: clients that send `*/*`
/// need not know the type.
pub(crate) fn accepts_by_name(headers: &HeaderMap, media_type: &str) -> bool {
    let accepted = weighted_list(headers, &ACCEPT);
    accepted.iter().rfind(|(name, _)| name == media_type).is_some_and(|(_, weight)| *weight > 0)
}

/// The media type in `Content-Type`, without its parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(hyper::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether data of a media type is usually not compressed yet.
pub(crate) fn is_compressible(media_type: &str) -> bool {
    // Each event must reach the client at once.
    if media_type == "text/event-stream" {
        return false;
    }
    let (kind, subtype) = media_type.split_once('/').unwrap_or_default();
    let applications = [
        "json",
        "javascript",
        "x-javascript",
        "ecmascript",
        "xml",
        "wasm",
        "manifest+json",
        "x-ndjson",
        "sql",
        "rtf",
        "x-tar",
        "vnd.ms-fontobject",
    ];
    kind == "text"
        || subtype.ends_with("+json")
        || subtype.ends_with("+xml")
        || (kind == "application" && applications.contains(&subtype))
        || (kind == "font" && ["ttf", "otf", "collection"].contains(&subtype))
        || (kind == "image" && ["bmp", "x-icon", "vnd.microsoft.icon", "x-ms-bmp"].contains(&subtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn the_coding_with_the_highest_weight_is_preferred() {
        for (accepted, expected) in [
            ("gzip, deflate, br, zstd", Some(ContentCoding::Brotli)),
            ("gzip, zstd", Some(ContentCoding::Zstd)),
            ("gzip;q=1.0, br;q=0.5", Some(ContentCoding::Gzip)),
            ("br;q=0, *", Some(ContentCoding::Zstd)),
            ("*;q=0", None),
            ("identity, gzip;q=0.5", None),
            ("deflate", None),
            ("x-gzip", Some(ContentCoding::Gzip)),
            ("gzip;q=nonsense", None),
            ("", None),
        ] {
            assert_eq!(preferred_coding(&with(ACCEPT_ENCODING, accepted)), expected, "{accepted}");
        }
        assert_eq!(preferred_coding(&HeaderMap::new()), None);
    }

    #[test]
    fn equal_accept_encodings_get_the_same_spelling() {
        for (accepted, expected) in [
            ("br, gzip,deflate", Some("gzip, deflate, br")),
            ("deflate, gzip, br", Some("gzip, deflate, br")),
            ("gzip;q=0.5, br", None),
            ("dcb, gzip", None),
            ("*", None),
            ("identity", None),
        ] {
            assert_eq!(canonical_accept_encoding(&with(ACCEPT_ENCODING, accepted)), expected.map(HeaderValue::from_static), "{accepted}");
        }
    }

    #[test]
    fn media_types_are_accepted_by_name_or_wildcard() {
        let chromium = with(ACCEPT, "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8");
        assert!(accepts_by_name(&chromium, "image/webp") && accepts(&chromium, "image/jpeg"));
        let curl = with(ACCEPT, "*/*");
        assert!(!accepts_by_name(&curl, "image/webp") && accepts(&curl, "image/jpeg"));
        let picky = with(ACCEPT, "image/*, image/jpeg;q=0");
        assert!(!accepts(&picky, "image/jpeg") && accepts(&picky, "image/png"));
        assert!(accepts(&HeaderMap::new(), "image/jpeg") && !accepts_by_name(&HeaderMap::new(), "image/webp"));
    }

    proptest! {
        #[test]
        fn arbitrary_values_do_not_panic(value in "[ -~]{0,60}") {
            let headers = with(ACCEPT_ENCODING, &value);
            if let Some(coding) = preferred_coding(&headers) {
                prop_assert!(value.to_lowercase().contains(coding.name()) || value.contains('*'));
            }
            canonical_accept_encoding(&headers);
            let headers = with(ACCEPT, &value);
            accepts(&headers, "image/webp");
            accepts_by_name(&headers, "image/webp");
        }
    }
}
