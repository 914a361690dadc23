//! An answer that is stored, or being stored, as the client wants it: all of it or a part, as it came, compressed, or as a smaller picture.

use crate::{
    asked::Asked,
    blob::{End, Reader},
    body::{Body, Flow, read_out},
    exchange::{CACHE_STATUS, Outcome},
    fields,
    house::Caller,
    negotiate::{self, Coding},
    origin::Trouble,
    pictures,
    record::From,
    rules::{self, Entry, Part, directive},
    shrink::Kind,
};
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    header::{
        ACCEPT_RANGES, AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
        IF_NONE_MATCH, RANGE, VARY,
    },
};
use std::{sync::Arc, time::SystemTime};

/// Bodies that are smaller are not compressed.
const LEAST: u64 = 256;

/// An answer, and where it is read.
pub(crate) struct Given {
    pub(crate) entry: Arc<Entry>,
    pub(crate) from: From,
    /// What of it is read from its beginning; it is held from the moment on at which the answer was found.
    pub(crate) reader: Reader,
    /// What did not fit.
    pub(crate) beyond: Option<Flow>,
}

/// See the module.
pub(crate) async fn give(caller: &Arc<Caller>, asked: &Asked, given: Given) -> Outcome {
    let Given { entry, from, reader, beyond } = given;
    let (house, now) = (&caller.house, SystemTime::now());
    let mut headers = entry.headers.clone();
    if from != From::Miss {
        headers.insert(AGE, HeaderValue::from(entry.age(now)));
    }
    if let Ok(value) = HeaderValue::from_str(&format!("{}; {}", house.name, status_of(from, &entry, now))) {
        headers.append(CACHE_STATUS, value);
    }
    fields::add_via(&mut headers, Version::HTTP_11, &house.name);
    if entry.status == StatusCode::OK && rules::is_there_already(asked.headers(), &entry.headers) {
        return Ok((not_modified(asked, headers), from, ""));
    }
    if house.config.hold && matches!(entry.blob.ended().await, End::Cut) {
        return Err(Trouble { status: StatusCode::BAD_GATEWAY, text: "its server broke off in the middle of it".into() });
    }
    if let Some(smaller) = picture(caller, asked, &entry, &mut headers).await {
        return Ok((smaller, from, "picture"));
    }
    let length = entry.blob.known_length();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = entry.status;
    if asked.headers().contains_key(RANGE)
        && entry.status == StatusCode::OK
        && let Some(length) = length
    {
        match rules::part(&asked.parts, &entry.headers, length) {
            Part::Whole => {}
            Part::Range(first, last) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                if let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{last}/{length}")) {
                    headers.insert(CONTENT_RANGE, range);
                }
                *response.headers_mut() = headers;
                *response.body_mut() = Body::flow(read_out(reader, first, Some(last + 1 - first), None));
                return Ok((response, from, ""));
            }
            Part::Beyond => {
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                if let Ok(range) = HeaderValue::from_str(&format!("bytes */{length}")) {
                    headers.insert(CONTENT_RANGE, range);
                }
                headers.remove(CONTENT_TYPE);
                *response.headers_mut() = headers;
                return Ok((response, from, ""));
            }
        }
    }
    let coding = compression(caller, asked, entry.status, &mut headers, length);
    if asked.is_head() {
        if let Some(length) = length.filter(|_| coding.is_none()) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    } else {
        let mut flow = read_out(reader, 0, None, beyond);
        // Trailers come with chunks alone.
        flow.length = length.filter(|_| !matches!(entry.blob.end(), Some(End::Whole(Some(_)))));
        if let Some(coding) = coding {
            flow = flow.compressed(coding, house.counters.clone());
        }
        *response.body_mut() = Body::flow(flow);
    }
    *response.headers_mut() = headers;
    Ok((response, from, coding.map_or("", Coding::name)))
}

/// What `Cache-Status` says of it.
fn status_of(from: From, entry: &Entry, now: SystemTime) -> String {
    let ttl = entry.time_to_live(now);
    match from {
        From::Hit => format!("hit; ttl={ttl}"),
        From::Revalidated => format!("fwd=stale; fwd-status=304; ttl={ttl}"),
        From::Stale => "hit; detail=stand-in".into(),
        _ => "fwd=uri-miss".into(),
    }
}

fn not_modified(asked: &Asked, mut headers: HeaderMap) -> Response<Body> {
    // The tag stays as the client has it: that of another form is weak.
    if let Some(tag) = headers.get(ETAG).and_then(|tag| tag.to_str().ok())
        && !negotiate::tokens(asked.headers(), &IF_NONE_MATCH).any(|asked| asked == tag)
    {
        weaken(&mut headers);
    }
    for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH] {
        headers.remove(name);
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    *response.headers_mut() = headers;
    response
}

/// Marks what is no longer the same byte for byte.
fn weaken(headers: &mut HeaderMap) {
    let weak = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/")).and_then(|tag| {
        let weak = [b"W/", tag.as_bytes()].concat();
        HeaderValue::from_bytes(&weak).ok()
    });
    weak.into_iter().for_each(|weak| drop(headers.insert(ETAG, weak)));
    headers.remove(ACCEPT_RANGES);
}

fn add_vary(headers: &mut HeaderMap, on: &'static str) {
    if !negotiate::tokens(headers, &VARY).any(|name| name == "*" || name.eq_ignore_ascii_case(on)) {
        headers.append(VARY, HeaderValue::from_static(on));
    }
}

/// Whether a body may be given another form (RFC 9110 §7.7): nobody forbids it, and nobody would notice a difference who was not to.
fn may_transform(asked: &Asked, status: StatusCode, headers: &HeaderMap) -> bool {
    const SEALS: [HeaderName; 5] = [
        HeaderName::from_static("content-md5"),
        HeaderName::from_static("digest"),
        HeaderName::from_static("content-digest"),
        HeaderName::from_static("repr-digest"),
        HeaderName::from_static("signature"),
    ];
    let as_it_is = negotiate::tokens(headers, &CONTENT_ENCODING).all(|coding| coding.eq_ignore_ascii_case("identity"));
    status != StatusCode::PARTIAL_CONTENT
        && as_it_is
        && !headers.contains_key(CONTENT_RANGE)
        && SEALS.iter().all(|seal| !headers.contains_key(seal))
        && [headers, asked.headers()].iter().all(|headers| directive(headers, "no-transform").is_none())
}

/// What a body is to be compressed with, if at all. The fields say so then.
pub(crate) fn compression(
    caller: &Caller,
    asked: &Asked,
    status: StatusCode,
    headers: &mut HeaderMap,
    length: Option<u64>,
) -> Option<Coding> {
    let possible = caller.house.config.compress && negotiate::is_compressible(&negotiate::media_type(headers));
    if !possible || !may_transform(asked, status, headers) {
        return None;
    }
    add_vary(headers, "accept-encoding");
    if asked.headers().contains_key(RANGE) || length.is_some_and(|length| length < LEAST) {
        return None;
    }
    let coding = negotiate::coding(&asked.accepted)?;
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    weaken(headers);
    Some(coding)
}

/// The answer with a smaller picture, where it is a picture that may be made into another and comes out smaller.
async fn picture(caller: &Arc<Caller>, asked: &Asked, entry: &Arc<Entry>, headers: &mut HeaderMap) -> Option<Response<Body>> {
    let house = &caller.house;
    let kind = Kind::of(&negotiate::media_type(headers)).filter(|_| house.config.pictures.is_some())?;
    if entry.status != StatusCode::OK || !may_transform(asked, entry.status, headers) {
        return None;
    }
    add_vary(headers, "accept");
    let too_large = entry.blob.known_length().is_some_and(|length| length > pictures::LARGEST);
    if !asked.is_get() || asked.headers().contains_key(RANGE) || too_large {
        return None;
    }
    let taken = |kind: Kind, by_name| negotiate::accepts(asked.headers(), kind.media_type(), by_name);
    let mut kinds = Vec::new();
    // WebP only for those who say that they know it.
    if taken(Kind::WebP, true) {
        kinds.push(Kind::WebP);
    }
    if taken(Kind::Jpeg, false) {
        kinds.push(Kind::Jpeg);
    }
    if kinds.is_empty() || !matches!(entry.blob.ended().await, End::Whole(_)) || entry.blob.length() > pictures::LARGEST {
        return None;
    }
    let (made, small, new) = entry.pictures.smaller(&entry.blob, kind, &kinds, &house.studio, &house.room()).await?;
    if new {
        house.counters.pictures.add(1);
    }
    house.counters.picture_bytes_saved.add(entry.blob.length() - small.length());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(made.media_type()));
    weaken(headers);
    let mut response = Response::new(Body::flow(read_out(small.reader(), 0, Some(small.length()), None)));
    *response.headers_mut() = std::mem::take(headers);
    Some(response)
}
