//! For fuzzing: the parsing of messages, without sockets.

use crate::{
    conditions, entity_tag, explicit_request::ExplicitRequest, fields, negotiate, protocol, request_head, response_head, semantics,
    target::TargetResource,
};
use hyper::{HeaderMap, Method, Request, StatusCode, header::HeaderName};
use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

/// Parses a request and its response: a line with the request's URI, its fields, an empty line, the
/// response's fields. Lines that are not fields are skipped. The bytes are also judged as the
/// header section of a request and of a response.
///
/// # Panics
/// When a requested range is outside the body.
pub fn message(bytes: &[u8]) {
    protocol::detect(bytes, false);
    protocol::detect(bytes, true);
    let servers = [None, Some(SocketAddr::from(([192, 0, 2, 1], 80)))];
    for server in servers {
        request_head::judge(bytes, server);
    }
    response_head::judge(bytes);
    let _ = ExplicitRequest::of(bytes);
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let uri = lines.next().unwrap_or_default();
    let request_fields = parse_fields(&mut lines);
    let mut response_fields = parse_fields(&mut lines);
    let Ok(request) = Request::builder().method(Method::GET).uri(uri).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    parts.headers = request_fields;
    let request = Request::from_parts(parts.clone(), ());
    for target in servers.into_iter().filter_map(|server| TargetResource::of(&request, server).ok()) {
        for location in response_fields.values().filter_map(|value| value.to_str().ok()) {
            target.same_origin(location);
        }
        let presented = semantics::presented_request(&target, &parts.headers);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let rules = semantics::CachingRules::new(&presented, StatusCode::OK, &response_fields, now);
        rules.is_storable(&response_fields);
        rules.is_reusable(&response_fields, now);
    }
    conditions::is_not_modified(&parts.headers, &response_fields);
    if let conditions::RequestedRange::Bytes(first, last) = conditions::requested_range(&parts, &response_fields, 1000) {
        assert!(first <= last && last < 1000, "the range {first}-{last} is outside a body of 1000 bytes");
    }
    negotiate::preferred_coding(&parts.headers);
    negotiate::canonical_accept_encoding(&parts.headers);
    negotiate::accepts_by_name(&parts.headers, "image/webp");
    negotiate::accepts(&parts.headers, "image/jpeg");
    negotiate::is_compressible(&negotiate::media_type(&response_fields));
    fields::via_lists(&parts.headers, "tandem");
    fields::strip_hop_by_hop(&mut response_fields);
    entity_tag::restore(&mut parts.headers);
}

fn parse_fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> HeaderMap {
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
        fn unusual_fields_do_not_panic(
            uri in "(http://[a-z:\\[\\]@.0-9]{0,12}/?|/|\\*)[ -~]{0,10}",
            request in prop::collection::vec(field(), 0..8),
            response in prop::collection::vec(field(), 0..8),
        ) {
            super::message(format!("{uri}\n{}\n\n{}\n", request.join("\n"), response.join("\n")).as_bytes());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
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
