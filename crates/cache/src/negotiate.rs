//! What a client accepts (RFC 9110 §12.5), and which of it it is given.

use hyper::{
    HeaderMap,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderName, HeaderValue},
};

/// The elements of a list field, over all of its lines, without the space around them.
pub(crate) fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// A content coding that bodies are compressed with here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    /// Those that make text smallest first.
    pub(crate) const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// What one that compresses takes of the memory, at most, bytes.
    pub(crate) const fn memory(self) -> u64 {
        match self {
            Coding::Brotli => 4 << 20,
            Coding::Zstd => 5 << 20,
            Coding::Gzip => 512 << 10,
        }
    }
}

/// An element and its weight in thousandths; one that says nothing has all of it, one that can't be understood none.
fn weighed(token: &str) -> (String, u32) {
    let mut parts = token.split(';').map(str::trim);
    let what = parts.next().unwrap_or_default().to_ascii_lowercase();
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let weight = weight.map_or(1.0, |text| text.trim().parse::<f64>().ok().filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(0.0));
    (what, (weight * 1000.0).round() as u32)
}

/// The coding that a client likes best, and of those that it likes as much the smallest; none where it would rather have none.
pub(crate) fn coding(headers: &HeaderMap) -> Option<Coding> {
    let wanted: Vec<(String, u32)> = tokens(headers, &ACCEPT_ENCODING).map(weighed).collect();
    let of = |name: &str| wanted.iter().find(|(what, _)| what == name || (name == "gzip" && what == "x-gzip")).map(|(_, weight)| *weight);
    let rest = of("*").unwrap_or(0);
    let identity = of("identity").unwrap_or(0);
    let best = Coding::ALL.into_iter().map(|coding| (coding, of(coding.name()).unwrap_or(rest)));
    let best = best.filter(|(_, weight)| *weight > 0 && *weight >= identity);
    // The first of equals.
    best.rev().max_by_key(|(_, weight)| *weight).map(|(coding, _)| coding)
}

/// What a server is told of a client's codings: those of the better known that it accepts at all, always in the same words, so that one answer
/// is good for many clients. None where that would say something else than the client did.
pub(crate) fn told_of_codings(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted: Vec<(String, u32)> = tokens(headers, &ACCEPT_ENCODING).map(weighed).collect();
    let plain =
        wanted.iter().all(|(what, weight)| *weight == 1000 && ["gzip", "deflate", "br", "zstd", "identity"].contains(&what.as_str()));
    let known = ["gzip", "deflate", "br", "zstd"].into_iter().filter(|name| wanted.iter().any(|(what, _)| what == name));
    let known: Vec<&str> = known.collect();
    (plain && !known.is_empty()).then(|| HeaderValue::from_str(&known.join(", ")).ok()).flatten()
}

/// Whether a client takes a media type: whether it names it, or names it or all that are like it.
pub(crate) fn accepts(headers: &HeaderMap, kind: &str, by_name: bool) -> bool {
    let mut wanted: Vec<(String, u32)> = tokens(headers, &ACCEPT).map(weighed).collect();
    if wanted.is_empty() {
        return !by_name;
    }
    let family = format!("{}/*", kind.split('/').next().unwrap_or_default());
    let near = |what: &str| match what {
        _ if what == kind => 3,
        _ if by_name => 0,
        _ if what == family => 2,
        "*/*" => 1,
        _ => 0,
    };
    // The most exact decides.
    wanted.retain(|(what, _)| near(what) > 0);
    wanted.iter().max_by_key(|(what, _)| near(what)).is_some_and(|(_, weight)| *weight > 0)
}

/// A media type without its parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(hyper::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether things of a media type become smaller by compression.
pub(crate) fn is_compressible(kind: &str) -> bool {
    // A stream of events has to come at once, event by event.
    if kind == "text/event-stream" {
        return false;
    }
    let (family, name) = kind.split_once('/').unwrap_or_default();
    let known = [
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
    family == "text"
        || name.ends_with("+json")
        || name.ends_with("+xml")
        || (family == "application" && known.contains(&name))
        || (family == "font" && ["ttf", "otf", "collection"].contains(&name))
        || (family == "image" && ["bmp", "x-icon", "vnd.microsoft.icon", "x-ms-bmp"].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn the_coding_a_client_likes_best() {
        for (said, given) in [
            ("gzip, deflate, br, zstd", Some(Coding::Brotli)),
            ("gzip, zstd", Some(Coding::Zstd)),
            ("gzip;q=1.0, br;q=0.5", Some(Coding::Gzip)),
            ("br;q=0, *", Some(Coding::Zstd)),
            ("*;q=0", None),
            ("identity, gzip;q=0.5", None),
            ("deflate", None),
            ("x-gzip", Some(Coding::Gzip)),
            ("gzip;q=nonsense", None),
            ("", None),
        ] {
            assert_eq!(coding(&with(ACCEPT_ENCODING, said)), given, "{said}");
        }
        assert_eq!(coding(&HeaderMap::new()), None);
    }

    #[test]
    fn servers_are_told_the_same_in_the_same_words() {
        for (said, told) in [
            ("br, gzip,deflate", Some("gzip, deflate, br")),
            ("deflate, gzip, br", Some("gzip, deflate, br")),
            ("gzip;q=0.5, br", None),
            ("dcb, gzip", None),
            ("*", None),
            ("identity", None),
        ] {
            assert_eq!(told_of_codings(&with(ACCEPT_ENCODING, said)), told.map(HeaderValue::from_static), "{said}");
        }
    }

    #[test]
    fn what_pictures_a_client_takes() {
        let chromium = with(ACCEPT, "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8");
        assert!(accepts(&chromium, "image/webp", true) && accepts(&chromium, "image/jpeg", false));
        let curl = with(ACCEPT, "*/*");
        assert!(!accepts(&curl, "image/webp", true) && accepts(&curl, "image/jpeg", false));
        let picky = with(ACCEPT, "image/*, image/jpeg;q=0");
        assert!(!accepts(&picky, "image/jpeg", false) && accepts(&picky, "image/png", false));
        assert!(accepts(&HeaderMap::new(), "image/jpeg", false) && !accepts(&HeaderMap::new(), "image/webp", true));
    }

    proptest! {
        #[test]
        fn nothing_said_is_too_strange(said in "[ -~]{0,60}") {
            let headers = with(ACCEPT_ENCODING, &said);
            if let Some(coding) = coding(&headers) {
                prop_assert!(said.to_lowercase().contains(coding.name()) || said.contains('*'));
            }
            told_of_codings(&headers);
            accepts(&with(ACCEPT, &said), "image/webp", true);
        }
    }
}
