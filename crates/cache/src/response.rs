//! The response to a client: a stored response, whole or in part, unchanged, compressed or as a
//! smaller picture.

use crate::{
    blob::{BlobEnd, BlobReader, Medium},
    body::{BodyStream, Compression, MessageBody, stream_blob},
    cache_status::{CACHE_STATUS, CacheOutcome},
    client::Client,
    conditions::{self, RequestedRange},
    entity_tag,
    error_response::ErrorResponse,
    fields,
    limits::BODY_WINDOW,
    negotiate,
    picture_protocol::MAX_PICTURE_BYTES,
    pictures::{PictureRequest, Unchanged},
    reply::{Reply, ReplyResult},
    request::ClientRequest,
    semantics::{StoredResponse, cache_directive},
    shrink::PictureFormat,
};
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    header::{
        ACCEPT_RANGES, AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue,
        RANGE, VARY,
    },
};
use std::{sync::Arc, time::SystemTime};

/// Size of a body that is compressed, bytes at least.
const MIN_COMPRESSED_BYTES: u64 = 256;

/// A response that is in the store, or on its way there.
pub(crate) struct SelectedResponse {
    pub(crate) stored: Arc<StoredResponse>,
    pub(crate) outcome: CacheOutcome,
    /// Reads the body from its beginning. It prevents the eviction of the response.
    pub(crate) reader: BlobReader,
    /// The part of the body that did not fit into the storage.
    pub(crate) overflow: Option<BodyStream>,
}

impl SelectedResponse {
    /// A response from the store.
    pub(crate) fn new(stored: Arc<StoredResponse>, outcome: CacheOutcome) -> Self {
        SelectedResponse { reader: stored.blob.reader(), stored, outcome, overflow: None }
    }
}

/// The formats of a picture that this client can get.
struct PictureFormats {
    original: PictureFormat,
    /// Those that it may be transcoded to, the best first; at least one.
    accepted: Vec<PictureFormat>,
}

/// Makes the response to `request` from a stored response.
///
/// # Errors
/// 502 when responses are held until they are complete, and the server broke off.
pub(crate) async fn respond(client: &Arc<Client>, request: &ClientRequest, selected: SelectedResponse) -> ReplyResult {
    let SelectedResponse { stored, outcome, reader, overflow } = selected;
    let mut headers = response_headers(client, request, &stored, outcome);
    if stored.status == StatusCode::OK && conditions::is_not_modified(request.headers(), &stored.headers) {
        return Ok(Reply::unchanged(not_modified(request, headers), outcome));
    }
    if client.shared.config.hold && matches!(stored.blob.ended().await, BlobEnd::Aborted) {
        return Err(ErrorResponse::new(StatusCode::BAD_GATEWAY, "the server broke off in the middle of its response"));
    }
    let formats = picture_formats(client, request, &stored, &headers);
    // A client may have the beginning of a smaller picture: a range of the original would not fit
    // to it. It gets a range only if it names the entity tag of the original.
    let wants_range = request.headers().contains_key(RANGE)
        && (formats.is_none() || conditions::if_range_matches_etag(request.headers(), &stored.headers));
    if let Some(formats) = formats.as_ref().filter(|_| request.is_get() && !wants_range)
        && let Some(response) = picture(client, request, &stored, formats, &mut headers).await
    {
        return Ok(Reply { response, outcome, form: "picture" });
    }
    if wants_range
        && stored.status == StatusCode::OK
        && let Some(length) = stored.blob.known_length()
    {
        match conditions::requested_range(&request.parts, &stored.headers, length) {
            RequestedRange::Whole => {}
            RequestedRange::Bytes(first, last) => {
                let body = stream_blob(reader, first, Some(last + 1 - first), None, request.reservation.window());
                return Ok(Reply::unchanged(partial_content(headers, (first, last), length, body), outcome));
            }
            RequestedRange::Unsatisfiable => return Ok(Reply::unchanged(range_not_satisfiable(headers, length), outcome)),
        }
    }
    Ok(whole(client, request, SelectedResponse { stored, outcome, reader, overflow }, headers, formats.is_some()))
}

/// The fields of a response from the store, before its form is chosen.
fn response_headers(client: &Client, request: &ClientRequest, stored: &StoredResponse, outcome: CacheOutcome) -> HeaderMap {
    let pseudonym = &client.shared.pseudonym;
    let now = SystemTime::now();
    let mut headers = stored.headers.clone();
    if outcome != CacheOutcome::Miss {
        headers.insert(AGE, HeaderValue::from(stored.age(now)));
    }
    if let Ok(value) = HeaderValue::from_str(&format!("{pseudonym}; {}", cache_status(outcome, stored, now))) {
        headers.append(CACHE_STATUS, value);
    }
    fields::add_via(&mut headers, Version::HTTP_11, pseudonym);
    add_negotiated_vary(client, request, stored.status, &mut headers, true);
    headers
}

/// The parameters of `Cache-Status` (RFC 9211 §2).
fn cache_status(outcome: CacheOutcome, stored: &StoredResponse, now: SystemTime) -> String {
    let ttl = stored.time_to_live(now);
    match outcome {
        CacheOutcome::Hit => format!("hit; ttl={ttl}"),
        CacheOutcome::Revalidated => format!("fwd=stale; fwd-status=304; ttl={ttl}"),
        CacheOutcome::Stale => "hit; detail=stand-in".into(),
        _ => "fwd=uri-miss".into(),
    }
}

/// A 206 with the bytes from `first` to `last` of a body of `length` bytes.
fn partial_content(mut headers: HeaderMap, (first, last): (u64, u64), length: u64, body: BodyStream) -> Response<MessageBody> {
    if let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{last}/{length}")) {
        headers.insert(CONTENT_RANGE, range);
    }
    make(StatusCode::PARTIAL_CONTENT, headers, MessageBody::stream(body))
}

/// A 416 for a body of `length` bytes.
fn range_not_satisfiable(mut headers: HeaderMap, length: u64) -> Response<MessageBody> {
    if let Ok(range) = HeaderValue::from_str(&format!("bytes */{length}")) {
        headers.insert(CONTENT_RANGE, range);
    }
    headers.remove(CONTENT_TYPE);
    make(StatusCode::RANGE_NOT_SATISFIABLE, headers, MessageBody::empty())
}

/// The whole response, compressed where possible. `may_be_picture`: other requests for it may get a
/// smaller picture.
fn whole(client: &Arc<Client>, request: &ClientRequest, selected: SelectedResponse, mut headers: HeaderMap, may_be_picture: bool) -> Reply {
    let SelectedResponse { stored, outcome, reader, overflow } = selected;
    let length = stored.blob.known_length();
    let compression = compression(client, request, stored.status, &mut headers, length);
    let form = compression.as_ref().map_or("", |compression| compression.coding.name());
    let body = if request.is_head() {
        if may_be_picture {
            weaken_etag(&mut headers);
        }
        if let Some(length) = length.filter(|_| compression.is_none() && !may_be_picture) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        MessageBody::empty()
    } else {
        let mut stream = stream_blob(reader, 0, None, overflow, request.reservation.window());
        // Trailers need chunked coding, and so a body without a known length.
        stream.length = length.filter(|_| !matches!(stored.blob.end(), Some(BlobEnd::Complete(Some(_)))));
        if let Some(compression) = compression {
            stream = stream.compressed(compression, client.shared.counters.clone());
        }
        MessageBody::stream(stream)
    };
    let mut response = make(stored.status, headers, body);
    if let Some(phrase) = &stored.phrase {
        response.extensions_mut().insert(phrase.clone());
    }
    Reply { response, outcome, form }
}

fn make(status: StatusCode, headers: HeaderMap, body: MessageBody) -> Response<MessageBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Adjusts a 304 of a server for a client that may have the response in another form.
pub(crate) fn adjust_not_modified(client: &Client, request: &ClientRequest, headers: &mut HeaderMap) {
    restore_etag(request, headers);
    // The client replaces its stored `Vary` by that of the 304 (RFC 9111 §3.2).
    if headers.contains_key(VARY) {
        let config = &client.shared.config;
        if config.compress {
            add_vary(headers, "accept-encoding");
        }
        if config.pictures.is_some() {
            add_vary(headers, "accept");
        }
    }
}

/// Makes the fields of a 304 those of the form that the client has: it replaces its own by them.
fn restore_etag(request: &ClientRequest, headers: &mut HeaderMap) {
    if entity_tag::mark_if_client_has_marked(headers, request.marked_tags.as_deref()) {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    }
}

/// A 304 for a response with these fields (RFC 9110 §15.4.5).
fn not_modified(request: &ClientRequest, mut headers: HeaderMap) -> Response<MessageBody> {
    restore_etag(request, &mut headers);
    for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH] {
        headers.remove(name);
    }
    make(StatusCode::NOT_MODIFIED, headers, MessageBody::empty())
}

/// Makes the entity tag weak and excludes ranges: the body is no longer the same byte for byte (RFC
/// 9110 §8.8.1).
fn weaken_etag(headers: &mut HeaderMap) {
    entity_tag::mark(headers);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
}

fn add_vary(headers: &mut HeaderMap, field: &'static str) {
    if !negotiate::list_elements(headers, &VARY).any(|name| name == "*" || name.eq_ignore_ascii_case(field)) {
        headers.append(VARY, HeaderValue::from_static(field));
    }
}

/// Adds the request fields by which this proxy chooses the form of a response to `Vary`. Only
/// stored pictures are transcoded.
pub(crate) fn add_negotiated_vary(client: &Client, request: &ClientRequest, status: StatusCode, headers: &mut HeaderMap, is_stored: bool) {
    if !may_transform(request, status, headers) {
        return;
    }
    let config = &client.shared.config;
    let media_type = negotiate::media_type(headers);
    if config.compress && negotiate::is_compressible(&media_type) {
        add_vary(headers, "accept-encoding");
    }
    if is_stored && config.pictures.is_some() && status == StatusCode::OK && PictureFormat::of(&media_type).is_some() {
        add_vary(headers, "accept");
    }
}

/// Whether a body may be transformed (RFC 9110 §7.7): it is whole, not encoded yet, no digest
/// covers it, and neither side forbids it.
fn may_transform(request: &ClientRequest, status: StatusCode, headers: &HeaderMap) -> bool {
    const DIGESTS: [HeaderName; 5] = [
        HeaderName::from_static("content-md5"),
        HeaderName::from_static("digest"),
        HeaderName::from_static("content-digest"),
        HeaderName::from_static("repr-digest"),
        HeaderName::from_static("signature"),
    ];
    let is_plain = negotiate::list_elements(headers, &CONTENT_ENCODING).all(|coding| coding.eq_ignore_ascii_case("identity"));
    status != StatusCode::PARTIAL_CONTENT
        && is_plain
        && !headers.contains_key(CONTENT_RANGE)
        && DIGESTS.iter().all(|digest| !headers.contains_key(digest))
        && [headers, request.headers()].iter().all(|headers| cache_directive(headers, "no-transform").is_none())
}

/// How a body is to be compressed, with the memory for that reserved; `headers` then say so. None
/// where it is not compressed. `length` is that of the body, bytes, where it is known.
pub(crate) fn compression(
    client: &Client,
    request: &ClientRequest,
    status: StatusCode,
    headers: &mut HeaderMap,
    length: Option<u64>,
) -> Option<Compression> {
    let is_compressible = client.shared.config.compress && negotiate::is_compressible(&negotiate::media_type(headers));
    if !is_compressible || !may_transform(request, status, headers) {
        return None;
    }
    if request.headers().contains_key(RANGE) || length.is_some_and(|length| length < MIN_COMPRESSED_BYTES) {
        return None;
    }
    let coding = negotiate::preferred_coding(&request.accept_encoding)?;
    let quota = client.shared.quota();
    let mut share = quota.empty_shares().memory;
    if !quota.try_resize(&mut share, coding.memory() + BODY_WINDOW as u64, Medium::Memory) {
        return None;
    }
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    weaken_etag(headers);
    Some(Compression { coding, share })
}

/// The formats of a response that is a picture. None where it passes unchanged for this client.
fn picture_formats(client: &Client, request: &ClientRequest, stored: &StoredResponse, headers: &HeaderMap) -> Option<PictureFormats> {
    let original = PictureFormat::of(&negotiate::media_type(headers)).filter(|_| client.shared.config.pictures.is_some())?;
    let too_large = stored.blob.known_length().is_some_and(|length| length > MAX_PICTURE_BYTES);
    if stored.status != StatusCode::OK || !may_transform(request, stored.status, headers) || too_large {
        return None;
    }
    let mut accepted = Vec::new();
    if negotiate::accepts_by_name(request.headers(), PictureFormat::WebP.media_type()) {
        accepted.push(PictureFormat::WebP);
    }
    if negotiate::accepts(request.headers(), PictureFormat::Jpeg.media_type()) {
        accepted.push(PictureFormat::Jpeg);
    }
    (!accepted.is_empty()).then_some(PictureFormats { original, accepted })
}

/// The response with a smaller picture; takes `headers` then. None where the picture passes
/// unchanged.
async fn picture(
    client: &Arc<Client>,
    request: &ClientRequest,
    stored: &Arc<StoredResponse>,
    formats: &PictureFormats,
    headers: &mut HeaderMap,
) -> Option<Response<MessageBody>> {
    let shared = &client.shared;
    if !matches!(stored.blob.ended().await, BlobEnd::Complete(_)) || stored.blob.length() > MAX_PICTURE_BYTES {
        return None;
    }
    let wanted = PictureRequest { from: formats.original, accepted: &formats.accepted, client: client.address.ip() };
    let smaller = match stored.pictures.smaller(&stored.blob, wanted, &shared.transcoder, &shared.quota()).await {
        Ok(smaller) => smaller,
        Err(why) => {
            match why {
                Unchanged::QueueFull => shared.counters.pictures_skipped.add(1),
                Unchanged::WorkerFailed => shared.counters.pictures_failed.add(1),
                Unchanged::NotSmaller => {}
            }
            return None;
        }
    };
    if smaller.is_new {
        shared.counters.pictures.add(1);
    }
    shared.counters.picture_bytes_saved.add(stored.blob.length() - smaller.blob.length());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(smaller.format.media_type()));
    weaken_etag(headers);
    let length = smaller.blob.length();
    let body = stream_blob(smaller.blob.reader(), 0, Some(length), None, request.reservation.window());
    Some(make(StatusCode::OK, std::mem::take(headers), MessageBody::stream(body)))
}
