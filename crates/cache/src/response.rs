//! An answer that is stored, or being stored, as the client wants it: all of it or a part, as it came, compressed, or as a smaller picture.

use crate::{
    access_log::From,
    blob::{End, Reader},
    body::{Body, Flow, Packing, read_out},
    error_response::ErrorResponse,
    fields,
    limits::WINDOW,
    negotiate, picture_protocol,
    pictures::{Smaller, Wanted},
    reply::{CACHE_STATUS, Reply},
    request::Asked,
    semantics::{self, Entry, Part, directive},
    shared::Caller,
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
pub(crate) async fn give(caller: &Arc<Caller>, asked: &Asked, given: Given) -> Reply {
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
    say_what_varies(caller, asked, entry.status, &mut headers, true);
    if entry.status == StatusCode::OK && semantics::is_there_already(asked.headers(), &entry.headers) {
        return Ok((not_modified(asked, headers), from, ""));
    }
    if house.config.hold && matches!(entry.blob.ended().await, End::Cut) {
        return Err(ErrorResponse { status: StatusCode::BAD_GATEWAY, text: "its server broke off in the middle of it".into() });
    }
    let other = other_kinds(caller, asked, &entry, &headers);
    // Who may have the beginning of a smaller picture is given all of one: a part of what that was made of would not fit to it.
    let in_parts = asked.headers().contains_key(RANGE) && (other.is_none() || semantics::has_this(asked.headers(), &entry.headers));
    if let Some((kind, kinds)) = other.as_ref().filter(|_| asked.is_get() && !in_parts)
        && let Some(smaller) = picture(caller, asked, &entry, *kind, kinds, &mut headers).await
    {
        return Ok((smaller, from, "picture"));
    }
    let length = entry.blob.known_length();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = entry.status;
    if in_parts
        && entry.status == StatusCode::OK
        && let Some(length) = length
    {
        match semantics::part(&asked.parts, &entry.headers, length) {
            Part::Whole => {}
            Part::Range(first, last) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                if let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{last}/{length}")) {
                    headers.insert(CONTENT_RANGE, range);
                }
                *response.headers_mut() = headers;
                *response.body_mut() = Body::flow(read_out(reader, first, Some(last + 1 - first), None, asked.exchange.window()));
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
    let packing = compression(caller, asked, entry.status, &mut headers, length);
    let form = packing.as_ref().map_or("", |packing| packing.coding.name());
    if asked.is_head() {
        if other.is_some() {
            weaken(&mut headers);
        }
        if let Some(length) = length.filter(|_| packing.is_none() && other.is_none()) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    } else {
        let mut flow = read_out(reader, 0, None, beyond, asked.exchange.window());
        // Trailers come with chunks alone.
        flow.length = length.filter(|_| !matches!(entry.blob.end(), Some(End::Whole(Some(_)))));
        if let Some(packing) = packing {
            flow = flow.compressed(packing, house.counters.clone());
        }
        *response.body_mut() = Body::flow(flow);
    }
    *response.headers_mut() = headers;
    Ok((response, from, form))
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

/// A 304 of an origin's for a client that may have been given another form of what it is about.
pub(crate) fn pass_not_modified(caller: &Caller, asked: &Asked, headers: &mut HeaderMap) {
    keep_tag(asked, headers);
    // What it says takes the place of what was said before.
    if headers.contains_key(VARY) {
        let config = &caller.house.config;
        for (_, on) in [(config.compress, "accept-encoding"), (config.pictures.is_some(), "accept")].iter().filter(|(may, _)| *may) {
            add_vary(headers, on);
        }
    }
}

/// The tag stays as the client has it: that of another form is weak.
fn keep_tag(asked: &Asked, headers: &mut HeaderMap) {
    if let Some(tag) = headers.get(ETAG).and_then(|tag| tag.to_str().ok())
        && !negotiate::tokens(asked.headers(), &IF_NONE_MATCH).any(|asked| asked == tag)
    {
        weaken(headers);
    }
}

fn not_modified(asked: &Asked, mut headers: HeaderMap) -> Response<Body> {
    keep_tag(asked, &mut headers);
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
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
}

fn add_vary(headers: &mut HeaderMap, on: &'static str) {
    if !negotiate::tokens(headers, &VARY).any(|name| name == "*" || name.eq_ignore_ascii_case(on)) {
        headers.append(VARY, HeaderValue::from_static(on));
    }
}

/// Says by what of a request others may be given another form of it; pictures have others only where they are stored.
pub(crate) fn say_what_varies(caller: &Caller, asked: &Asked, status: StatusCode, headers: &mut HeaderMap, is_stored: bool) {
    let (config, kind) = (&caller.house.config, negotiate::media_type(headers));
    if !may_transform(asked, status, headers) {
        return;
    }
    if config.compress && negotiate::is_compressible(&kind) {
        add_vary(headers, "accept-encoding");
    }
    if is_stored && config.pictures.is_some() && status == StatusCode::OK && Kind::of(&kind).is_some() {
        add_vary(headers, "accept");
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

/// What a body is to be compressed with, if at all: if there is room for that. The fields say so then.
pub(crate) fn compression(
    caller: &Caller,
    asked: &Asked,
    status: StatusCode,
    headers: &mut HeaderMap,
    length: Option<u64>,
) -> Option<Packing> {
    let possible = caller.house.config.compress && negotiate::is_compressible(&negotiate::media_type(headers));
    if !possible || !may_transform(asked, status, headers) {
        return None;
    }
    if asked.headers().contains_key(RANGE) || length.is_some_and(|length| length < LEAST) {
        return None;
    }
    let coding = negotiate::coding(&asked.accepted)?;
    let room = caller.house.room();
    let mut share = room.shares().0;
    if !room.take(&mut share, coding.memory() + WINDOW as u64, false) {
        return None;
    }
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    weaken(headers);
    Some(Packing { coding, share })
}

/// The kind that a picture is of, and those that it may be made into for this client; none where it stays as it is.
fn other_kinds(caller: &Caller, asked: &Asked, entry: &Entry, headers: &HeaderMap) -> Option<(Kind, Vec<Kind>)> {
    let kind = Kind::of(&negotiate::media_type(headers)).filter(|_| caller.house.config.pictures.is_some())?;
    let too_large = entry.blob.known_length().is_some_and(|length| length > picture_protocol::LARGEST);
    if entry.status != StatusCode::OK || !may_transform(asked, entry.status, headers) || too_large {
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
    (!kinds.is_empty()).then_some((kind, kinds))
}

/// The answer with a smaller picture, where one comes out smaller.
async fn picture(
    caller: &Arc<Caller>,
    asked: &Asked,
    entry: &Arc<Entry>,
    kind: Kind,
    kinds: &[Kind],
    headers: &mut HeaderMap,
) -> Option<Response<Body>> {
    let house = &caller.house;
    if !matches!(entry.blob.ended().await, End::Whole(_)) || entry.blob.length() > picture_protocol::LARGEST {
        return None;
    }
    let wanted = Wanted { from: kind, kinds, client: caller.client.ip() };
    let (made, small, new) = match entry.pictures.smaller(&entry.blob, wanted, &house.transcoder, &house.room()).await {
        Smaller::Made(made, small, new) => (made, small, new),
        Smaller::NoPlace => {
            house.counters.pictures_skipped.add(1);
            return None;
        }
        Smaller::Failed => {
            house.counters.pictures_failed.add(1);
            return None;
        }
        Smaller::None => return None,
    };
    if new {
        house.counters.pictures.add(1);
    }
    house.counters.picture_bytes_saved.add(entry.blob.length() - small.length());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(made.media_type()));
    weaken(headers);
    let mut response = Response::new(Body::flow(read_out(small.reader(), 0, Some(small.length()), None, asked.exchange.window())));
    *response.headers_mut() = std::mem::take(headers);
    Some(response)
}
