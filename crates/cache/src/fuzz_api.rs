//! For those who try the cache with what they have made up: all that is understood of a message's fields, without a socket.

use crate::{client_connection, fields, negotiate, semantics};
use hyper::{HeaderMap, Method, Request, StatusCode, header::HeaderName};
use std::time::{Duration, SystemTime};

/// Understands a request and its answer: a line with the request's URI, its fields, an empty line, the answer's fields. Lines that are no fields are left out.
pub fn message(bytes: &[u8]) {
    client_connection::kind(bytes, false);
    client_connection::kind(bytes, true);
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let uri = lines.next().unwrap_or_default();
    let asked = take(&mut lines);
    let mut answered = take(&mut lines);
    let Ok(request) = Request::builder().method(Method::GET).uri(uri).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    parts.headers = asked;
    let request = Request::from_parts(parts.clone(), ());
    let servers = [None, "192.0.2.1:80".parse().ok()];
    for target in servers.into_iter().filter_map(|server| fields::Target::of(&request, server).ok()) {
        for name in answered.values().filter_map(|value| value.to_str().ok()) {
            target.beside(name);
        }
        let question = semantics::question(&target, &parts.headers);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let rules = semantics::Rules::of(&question, StatusCode::OK, &answered, now);
        rules.may_be_stored(&answered);
        rules.is_worth_it(&answered, now);
    }
    semantics::is_there_already(&parts.headers, &answered);
    if let semantics::Part::Range(first, last) = semantics::part(&parts, &answered, 1000) {
        assert!(first <= last && last < 1000, "a part that is not in it");
    }
    negotiate::coding(&parts.headers);
    negotiate::told_of_codings(&parts.headers);
    negotiate::accepts(&parts.headers, "image/webp", true);
    negotiate::is_compressible(&negotiate::media_type(&answered));
    fields::has_been_here(&parts.headers, "tandem");
    fields::strip(&mut answered);
}

fn take<'a>(lines: &mut impl Iterator<Item = &'a str>) -> HeaderMap {
    let fields = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(':'));
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (name.trim().parse::<HeaderName>(), value.trim().parse()) {
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn nothing_is_too_strange(
            uri in "(http://[a-z:\\[\\]@.0-9]{0,12}/?|/|\\*)[ -~]{0,10}",
            asked in prop::collection::vec(field(), 0..8),
            answered in prop::collection::vec(field(), 0..8),
        ) {
            super::message(format!("{uri}\n{}\n\n{}\n", asked.join("\n"), answered.join("\n")).as_bytes());
        }

        #[test]
        fn nor_is_anything_else(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            super::message(&bytes);
        }
    }

    fn field() -> impl Strategy<Value = String> {
        let name = "(cache-control|age|date|expires|vary|etag|last-modified|range|if-range|if-none-match|if-modified-since|accept|accept-encoding|\
                    content-type|host|via|connection|pragma|location|[a-z-]{1,8})";
        let value = "((max-age|s-maxage|stale-if-error|no-store|private|max-stale|bytes|gzip|br|q|W/)[=;, \"]{0,2}[0-9]{0,21}[,; ]{0,2}){0,3}[ -~]{0,20}";
        (name, value).prop_map(|(name, value)| format!("{name}: {value}"))
    }
}
