use super::*;
use crate::{blob::Writer, budget::Budget};
use proptest::prelude::*;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
}

fn target() -> fields::Target {
    fields::Target { server: None, authority: "a.example".into(), path: "/x".into() }
}

fn asked(fields: &[(&str, &str)]) -> Request<()> {
    question(&target(), &headers(fields))
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// An answer that came at second 0.
fn entry(request: &[(&str, &str)], answer: &[(&str, &str)]) -> Entry {
    let room = Arc::new(crate::blob::tests::Fixed(Budget::new(1000), Budget::new(1000)));
    let writer = Writer::new(room, None).unwrap();
    let fields = headers(answer);
    let rules = Rules::of(&asked(request), StatusCode::OK, &fields, at(0));
    Entry::new(rules, StatusCode::OK, fields, writer.blob().clone())
}

fn storable(request: &[(&str, &str)], status: u16, answer: &[(&str, &str)]) -> bool {
    let fields = headers(answer);
    Rules::of(&asked(request), StatusCode::from_u16(status).unwrap(), &fields, at(0)).may_be_stored(&fields)
}

/// RFC 9111 §3.
#[test]
fn what_may_be_stored() {
    assert!(storable(&[], 200, &[("cache-control", "max-age=60")]));
    assert!(storable(&[], 404, &[]));
    assert!(!storable(&[], 200, &[("cache-control", "private")]));
    assert!(!storable(&[], 200, &[("Cache-Control", "Private")]), "directives have no case");
    assert!(!storable(&[], 200, &[("cache-control", "max-age=60"), ("cache-control", "No-Store")]), "on a line of its own");
    assert!(!storable(&[("cache-control", "no-store")], 200, &[("cache-control", "max-age=60")]));
    assert!(!storable(&[("authorization", "Basic x")], 200, &[("cache-control", "max-age=60")]));
    assert!(storable(&[("authorization", "Basic x")], 200, &[("cache-control", "public, max-age=60")]));
    assert!(!storable(&[], 200, &[("cache-control", "max-age=60"), ("vary", "*")]));
    assert!(!storable(&[], 200, &[("cache-control", "max-age=60"), ("cache-control", "x=\"ü\"")]), "what can't be read may forbid it");
    assert!(!storable(&[], 206, &[("cache-control", "max-age=60")]));
    assert!(!storable(&[], 500, &[]));
}

/// RFC 9111 §4.2.
#[test]
fn how_long_it_is_fresh() {
    let entry = entry(&[], &[("cache-control", "s-maxage=60, max-age=5"), ("age", "10")]);
    assert_eq!(entry.judge(&asked(&[]), at(49)), Verdict::Fresh);
    assert_eq!(entry.age(at(49)), 59);
    assert_eq!(entry.judge(&asked(&[]), at(51)), Verdict::Stale);
    assert_eq!(entry.judge(&asked(&[("cache-control", "no-cache")]), at(1)), Verdict::Stale);
    assert_eq!(entry.judge(&asked(&[("cache-control", "max-age=5")]), at(1)), Verdict::Stale);
    // A stale one is for nobody: `s-maxage` forbids it (§5.2.2.10), and who may have one is asked about anyway.
    assert_eq!(entry.judge(&asked(&[("cache-control", "max-stale=30")]), at(60)), Verdict::Stale);
}

#[test]
fn an_answer_with_a_cookie_is_asked_for_anew() {
    let one = entry(&[], &[("cache-control", "max-age=60"), ("set-cookie", "a=b")]);
    assert_eq!(one.judge(&asked(&[]), at(1)), Verdict::Stale);
}

/// RFC 9111 §4.1.
#[test]
fn a_variant_is_for_those_who_ask_alike() {
    let entry = entry(&[("accept-language", "de")], &[("cache-control", "max-age=60"), ("vary", "Accept-Language"), ("vary", "x-kind")]);
    assert_eq!(entry.judge(&asked(&[("accept-language", "de")]), at(1)), Verdict::Fresh);
    assert_eq!(entry.judge(&asked(&[("accept-language", "en")]), at(1)), Verdict::Other);
    assert_eq!(entry.judge(&asked(&[]), at(1)), Verdict::Other);
    assert_eq!(entry.judge(&asked(&[("accept-language", "de"), ("x-kind", "1")]), at(1)), Verdict::Other);
}

#[test]
fn extreme_ages_do_no_harm() {
    for age in ["18446744073709551615", "-1", "x", "99999999999999999999999"] {
        let entry =
            entry(&[], &[("cache-control", "max-age=18446744073709551615"), ("age", age), ("expires", "Sun, 99 Nov 9999 00:00:00 GMT")]);
        entry.judge(&asked(&[("cache-control", "max-stale=18446744073709551615, min-fresh=18446744073709551615")]), at(1));
        entry.may_stand_in(&asked(&[("cache-control", "stale-if-error=18446744073709551615")]), at(1 << 40));
    }
}

/// RFC 5861 §4.
#[test]
fn when_a_stale_one_may_stand_in() {
    let of =
        |answer: &str, request: &[(&str, &str)], second| entry(&[], &[("cache-control", answer)]).may_stand_in(&asked(request), at(second));
    assert!(of("max-age=10, stale-if-error=60", &[], 60));
    assert!(!of("max-age=10, stale-if-error=60", &[], 71));
    assert!(!of("max-age=10", &[], 20));
    assert!(of("max-age=10", &[("cache-control", "stale-if-error=60")], 20));
    assert!(!of("max-age=10, stale-if-error=60, must-revalidate", &[], 20));
    assert!(!of("max-age=10, stale-if-error=60", &[("cache-control", "no-cache")], 20));
}

/// RFC 9111 §3.2 and §4.3.4.
#[test]
fn a_304_makes_it_fresh_and_keeps_its_shape() {
    let old =
        entry(&[], &[("cache-control", "max-age=1"), ("etag", "\"a\""), ("content-type", "text/plain"), ("x-old", "1"), ("age", "1")]);
    let answer =
        headers(&[("cache-control", "max-age=60"), ("etag", "W/\"a\""), ("content-type", "text/html"), ("link", "<a>"), ("link", "<b>")]);
    let new = old.freshened(&asked(&[]), &answer, at(100)).unwrap();
    assert_eq!(new.headers["content-type"], "text/plain");
    assert_eq!(new.headers["x-old"], "1");
    assert_eq!(new.headers.get_all("link").iter().count(), 2);
    assert_eq!(new.judge(&asked(&[]), at(150)), Verdict::Fresh);
    assert_eq!(new.age(at(150)), 50);
    assert!(old.freshened(&asked(&[]), &headers(&[("etag", "\"b\"")]), at(100)).is_none(), "it is about another one");
}

/// RFC 9110 §13.
#[test]
fn who_has_it_already() {
    let answer = headers(&[("etag", "\"a\""), ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT")]);
    for (name, value, there) in [
        ("if-none-match", "\"a\"", true),
        ("if-none-match", "\"b\", W/\"a\"", true),
        ("if-none-match", "*", true),
        ("if-none-match", "\"b\"", false),
        ("if-modified-since", "Tue, 14 Nov 2023 22:00:00 GMT", true),
        ("if-modified-since", "Tue, 14 Nov 2023 21:59:59 GMT", false),
        ("if-modified-since", "yesterday", false),
    ] {
        assert_eq!(is_there_already(&headers(&[(name, value)]), &answer), there, "{name}: {value}");
    }
    let both = headers(&[("if-none-match", "\"b\""), ("if-modified-since", "Tue, 14 Nov 2023 23:00:00 GMT")]);
    assert!(!is_there_already(&both, &answer), "the tag decides");
}

fn part_of(range: &str, condition: Option<&str>, length: u64) -> Part {
    let answer =
        headers(&[("etag", "\"a\""), ("last-modified", "Tue, 14 Nov 2023 22:00:00 GMT"), ("date", "Tue, 14 Nov 2023 22:13:20 GMT")]);
    let request = Request::builder().header(RANGE, range);
    let request = condition.into_iter().fold(request, |request, condition| request.header(IF_RANGE, condition));
    part(&request.body(()).unwrap().into_parts().0, &answer, length)
}

/// RFC 9110 §14.
#[test]
fn what_part_is_meant() {
    for (range, meant) in [
        ("bytes=0-0", Part::Range(0, 0)),
        ("bytes=5-", Part::Range(5, 9)),
        ("bytes=5-99", Part::Range(5, 9)),
        ("bytes=-3", Part::Range(7, 9)),
        ("bytes=-99", Part::Range(0, 9)),
        ("bytes=10-", Part::Beyond),
        ("bytes=-0", Part::Beyond),
        ("bytes=5-4", Part::Whole),
        ("bytes=0-1,3-4", Part::Whole),
        ("lines=0-1", Part::Whole),
        ("bytes=+1-2", Part::Whole),
        ("bytes=99999999999999999999-", Part::Beyond),
    ] {
        assert_eq!(part_of(range, None, 10), meant, "{range}");
    }
    assert_eq!(part_of("bytes=0-", None, 0), Part::Beyond);
}

#[test]
fn a_part_of_something_else_is_no_use() {
    assert_eq!(part_of("bytes=0-1", Some("\"a\""), 10), Part::Range(0, 1));
    for other in ["\"b\"", "W/\"a\"", "Tue, 14 Nov 2023 21:00:00 GMT", "nonsense"] {
        assert_eq!(part_of("bytes=0-1", Some(other), 10), Part::Whole, "{other}");
    }
    assert_eq!(part_of("bytes=0-1", Some("Tue, 14 Nov 2023 22:00:00 GMT"), 10), Part::Range(0, 1));
}

proptest! {
    #[test]
    fn a_part_is_always_in_it(range in "bytes=[0-9]{0,22}-[0-9]{0,22}|[ -~]{0,20}", length in 0_u64..50) {
        if let Part::Range(first, last) = part_of(&range, None, length) {
            prop_assert!(first <= last && last < length);
        }
    }
}
