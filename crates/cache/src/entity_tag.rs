//! Entity tags of transformed bodies (RFC 9110 §8.8).
//!
//! A body that was compressed or transcoded here is no longer the same byte for byte, so that its
//! tag must be weak (§8.8.1). A client that edits the resource sends that tag back in `If-Match`,
//! and its server would not find it equal to its own. The weak tag therefore carries a mark, by
//! which the server's strong tag is restored in requests: `"v1"` ↔ `W/"v1;tandem"`. A weak tag
//! without the mark is the server's own, and passes as it is in both directions.

use hyper::{
    HeaderMap,
    header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH},
};

const WEAK: &[u8] = b"W/\"";
const MARKED_END: &[u8] = b";tandem\"";

/// The tag that a transformed body gets in place of the server's strong `tag`. None where that is
/// not strong: it covers transformed bodies then.
fn marked(tag: &[u8]) -> Option<HeaderValue> {
    let opaque = tag.trim_ascii().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    HeaderValue::from_bytes(&[WEAK, opaque, MARKED_END].concat()).ok()
}

/// Makes the entity tag one for a transformed body.
pub(crate) fn mark(headers: &mut HeaderMap) {
    if let Some(marked) = headers.get(ETAG).and_then(|tag| marked(tag.as_bytes())) {
        headers.insert(ETAG, marked);
    }
}

/// Restores the server's tags in the conditions of a request. Returns `If-None-Match` as received
/// where that was changed.
pub(crate) fn restore(headers: &mut HeaderMap) -> Option<Vec<HeaderValue>> {
    restore_field(headers, &IF_MATCH);
    restore_field(headers, &IF_NONE_MATCH)
}

/// As [`restore`], for one field. Returns its values as received where they were changed.
fn restore_field(headers: &mut HeaderMap, name: &HeaderName) -> Option<Vec<HeaderValue>> {
    let received: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let restored: Vec<HeaderValue> = received.iter().map(|value| restored(value.as_bytes()).unwrap_or_else(|| value.clone())).collect();
    if restored == received {
        return None;
    }
    headers.remove(name);
    for value in restored {
        headers.append(name, value);
    }
    Some(received)
}

/// A list of entity tags with the server's tags in place of the marked ones. None where it has no
/// marked ones.
fn restored(list: &[u8]) -> Option<HeaderValue> {
    let mut rest = list;
    let mut text = Vec::with_capacity(list.len());
    // Each turn takes a tag with what is before it. A tag has no quotes and may have commas.
    while let Some(begin) = rest.iter().position(|byte| *byte == b'"') {
        let length = begin + 1 + rest[begin + 1..].iter().position(|byte| *byte == b'"')? + 1;
        let tag = &rest[..length];
        let before = begin.checked_sub(2).filter(|from| tag[*from..].starts_with(WEAK));
        match before.filter(|_| tag[begin + 1..].ends_with(MARKED_END)) {
            Some(from) => text.extend_from_slice(&[&tag[..from], &tag[begin..length - MARKED_END.len()], b"\""].concat()),
            None => text.extend_from_slice(tag),
        }
        rest = &rest[length..];
    }
    text.extend_from_slice(rest);
    if text == list { None } else { HeaderValue::from_bytes(&text).ok() }
}

/// Makes the entity tag of a 304 the one that the client has. `received`: its `If-None-Match` as
/// received, where that had marked tags. Returns whether that is a marked tag.
pub(crate) fn mark_if_client_has_marked(headers: &mut HeaderMap, received: Option<&[HeaderValue]>) -> bool {
    let Some(marked) = headers.get(ETAG).and_then(|tag| marked(tag.as_bytes())) else { return false };
    let has = |list: &HeaderValue| list.as_bytes().windows(marked.len()).any(|part| part == marked.as_bytes());
    let is_marked = received.is_some_and(|received| received.iter().any(has));
    if is_marked {
        headers.insert(ETAG, marked);
    }
    is_marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: HeaderName, value: &[u8]) -> HeaderMap {
        [(name, HeaderValue::from_bytes(value).unwrap())].into_iter().collect()
    }

    #[test]
    fn only_strong_tags_are_marked() {
        for (tag, expected) in [
            ("\"v1\"", "W/\"v1;tandem\""),
            ("\"\"", "W/\";tandem\""),
            ("W/\"v1\"", "W/\"v1\""),
            ("W/\"v1;tandem\"", "W/\"v1;tandem\""),
            ("v1", "v1"),
            ("\"", "\""),
        ] {
            let mut headers = with(ETAG, tag.as_bytes());
            mark(&mut headers);
            assert_eq!(headers[ETAG], expected, "{tag}");
        }
    }

    #[test]
    fn the_tags_of_servers_are_restored() {
        for (list, expected) in [
            ("W/\"v1;tandem\"", "\"v1\""),
            ("\"a\", W/\"b;tandem\" ,W/\"c\",W/\"d,;tandem\"", "\"a\", \"b\" ,W/\"c\",\"d,\""),
            ("W/\"v1\"", "W/\"v1\""),
            ("\"v1;tandem\"", "\"v1;tandem\""),
            ("*", "*"),
            ("W/\"v1;tandem", "W/\"v1;tandem"),
            ("\"a", "\"a"),
        ] {
            let mut headers = with(IF_MATCH, list.as_bytes());
            headers.insert(IF_NONE_MATCH, headers[IF_MATCH].clone());
            let received = restore(&mut headers);
            assert_eq!(
                (&headers[IF_MATCH], &headers[IF_NONE_MATCH]),
                (&HeaderValue::from_static(expected), &HeaderValue::from_static(expected))
            );
            assert_eq!(received, (list != expected).then(|| vec![HeaderValue::from_static(list)]));
        }
    }

    #[test]
    fn a_304_has_the_tag_that_the_client_has() {
        for (received, expected) in
            [(Some("\"a\", W/\"v1;tandem\""), "W/\"v1;tandem\""), (Some("W/\"a;tandem\""), "\"v1\""), (None, "\"v1\"")]
        {
            let mut headers = with(ETAG, b"\"v1\"");
            let received = received.map(|text| vec![HeaderValue::from_static(text)]);
            mark_if_client_has_marked(&mut headers, received.as_deref());
            assert_eq!(headers[ETAG], expected);
        }
    }

    proptest! {
        #[test]
        fn a_marked_tag_is_restored(opaque in "[!#-~\u{80}-\u{ff}]{0,12}") {
            let tag = [b"\"", opaque.as_bytes(), b"\""].concat();
            let mut headers = with(IF_MATCH, marked(&tag).unwrap().as_bytes());
            restore(&mut headers);
            prop_assert_eq!(headers[IF_MATCH].as_bytes(), &tag[..]);
        }

        #[test]
        fn arbitrary_lists_do_not_panic(list in "[W/\"; ,a-c]{0,30}(;tandem)?\"?") {
            restore(&mut with(IF_NONE_MATCH, list.as_bytes()));
        }
    }
}
