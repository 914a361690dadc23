use super::*;
use crate::blob::{BlobWriter, tests::FixedQuota};

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
}

fn target() -> TargetResource {
    TargetResource { server: None, authority: "a.example".into(), path: "/x".into() }
}

fn presented(fields: &[(&str, &str)]) -> Request<()> {
    presented_request(&target(), &headers(fields))
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// A response received at second 0.
fn stored(request: &[(&str, &str)], response: &[(&str, &str)]) -> StoredResponse {
    let writer = BlobWriter::new(FixedQuota::new(1000, 1000), None).unwrap();
    let fields = headers(response);
    let rules = CachingRules::new(&presented(request), StatusCode::OK, &fields, at(0));
    StoredResponse::new(rules, (StatusCode::OK, None), fields, writer.blob().clone())
}

fn storable(request: &[(&str, &str)], status: u16, response: &[(&str, &str)]) -> bool {
    let fields = headers(response);
    CachingRules::new(&presented(request), StatusCode::from_u16(status).unwrap(), &fields, at(0)).is_storable(&fields)
}

/// RFC 9111 §3.
#[test]
fn storable_responses() {
    assert!(storable(&[], 200, &[("cache-control", "max-age=60")]));
    assert!(storable(&[], 404, &[]));
    assert!(!storable(&[], 200, &[("cache-control", "private")]));
    assert!(!storable(&[], 200, &[("Cache-Control", "Private")]), "directives are case-insensitive");
    assert!(!storable(&[], 200, &[("cache-control", "max-age=60"), ("cache-control", "No-Store")]), "on a second line");
    assert!(!storable(&[("cache-control", "no-store")], 200, &[("cache-control", "max-age=60")]));
    assert!(!storable(&[("authorization", "Basic x")], 200, &[("cache-control", "max-age=60")]));
    assert!(storable(&[("authorization", "Basic x")], 200, &[("cache-control", "public, max-age=60")]));
    assert!(!storable(&[], 200, &[("cache-control", "max-age=60"), ("vary", "*")]));
    assert!(
        !storable(&[], 200, &[("cache-control", "max-age=60"), ("cache-control", "x=\"ü\"")]),
        "a directive that cannot be read may forbid it"
    );
    assert!(!storable(&[], 206, &[("cache-control", "max-age=60")]));
    assert!(!storable(&[], 500, &[]));
}

/// RFC 9111 §4.2.
#[test]
fn freshness_lifetime_and_age() {
    let stored = stored(&[], &[("cache-control", "s-maxage=60, max-age=5"), ("age", "10")]);
    assert_eq!(stored.freshness(&presented(&[]), at(49)), Freshness::Fresh);
    assert_eq!(stored.age(at(49)), 59);
    assert_eq!(stored.freshness(&presented(&[]), at(51)), Freshness::Stale);
    assert_eq!(stored.freshness(&presented(&[("cache-control", "no-cache")]), at(1)), Freshness::Stale);
    assert_eq!(stored.freshness(&presented(&[("cache-control", "max-age=5")]), at(1)), Freshness::Stale);
    // Stale responses are validated although the client accepts them; `s-maxage` demands it
    // (§5.2.2.10).
    assert_eq!(stored.freshness(&presented(&[("cache-control", "max-stale=30")]), at(60)), Freshness::Stale);
}

#[test]
fn a_response_with_a_cookie_is_validated() {
    let one = stored(&[], &[("cache-control", "max-age=60"), ("set-cookie", "a=b")]);
    assert_eq!(one.freshness(&presented(&[]), at(1)), Freshness::Stale);
}

/// RFC 9111 §4.1.
#[test]
fn a_variant_answers_requests_with_equal_selecting_fields() {
    let stored = stored(&[("accept-language", "de")], &[("cache-control", "max-age=60"), ("vary", "Accept-Language"), ("vary", "x-kind")]);
    assert_eq!(stored.freshness(&presented(&[("accept-language", "de")]), at(1)), Freshness::Fresh);
    assert_eq!(stored.freshness(&presented(&[("accept-language", "en")]), at(1)), Freshness::NotSelected);
    assert_eq!(stored.freshness(&presented(&[]), at(1)), Freshness::NotSelected);
    assert_eq!(stored.freshness(&presented(&[("accept-language", "de"), ("x-kind", "1")]), at(1)), Freshness::NotSelected);
}

#[test]
fn extreme_ages_do_not_panic() {
    for age in ["18446744073709551615", "-1", "x", "99999999999999999999999"] {
        let stored =
            stored(&[], &[("cache-control", "max-age=18446744073709551615"), ("age", age), ("expires", "Sun, 99 Nov 9999 00:00:00 GMT")]);
        stored.freshness(&presented(&[("cache-control", "max-stale=18446744073709551615, min-fresh=18446744073709551615")]), at(1));
        stored.may_serve_on_error(&presented(&[("cache-control", "stale-if-error=18446744073709551615")]), at(1 << 40));
    }
}

/// RFC 5861 §4.
#[test]
fn stale_responses_are_served_on_error_if_permitted() {
    let of = |response: &str, request: &[(&str, &str)], second| {
        stored(&[], &[("cache-control", response)]).may_serve_on_error(&presented(request), at(second))
    };
    assert!(of("max-age=10, stale-if-error=60", &[], 60));
    assert!(!of("max-age=10, stale-if-error=60", &[], 71));
    assert!(!of("max-age=10", &[], 20));
    assert!(of("max-age=10", &[("cache-control", "stale-if-error=60")], 20));
    assert!(!of("max-age=10, stale-if-error=60, must-revalidate", &[], 20));
    assert!(!of("max-age=10, stale-if-error=60", &[("cache-control", "no-cache")], 20));
}

/// RFC 9111 §3.2 and §4.3.4.
#[test]
fn a_304_freshens_the_response_and_keeps_its_representation() {
    let old =
        stored(&[], &[("cache-control", "max-age=1"), ("etag", "\"a\""), ("content-type", "text/plain"), ("x-old", "1"), ("age", "1")]);
    let not_modified =
        headers(&[("cache-control", "max-age=60"), ("etag", "W/\"a\""), ("content-type", "text/html"), ("link", "<a>"), ("link", "<b>")]);
    let new = old.freshened(&presented(&[]), &not_modified, at(100)).unwrap();
    assert_eq!(new.headers["content-type"], "text/plain");
    assert_eq!(new.headers["x-old"], "1");
    assert_eq!(new.headers.get_all("link").iter().count(), 2);
    assert_eq!(new.freshness(&presented(&[]), at(150)), Freshness::Fresh);
    assert_eq!(new.age(at(150)), 50);
    assert!(old.freshened(&presented(&[]), &headers(&[("etag", "\"b\"")]), at(100)).is_none(), "the 304 is about a different response");
}
