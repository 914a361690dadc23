//! Handles one request: chooses between the store and the origin server, and returns the response.

use crate::{
    access_log::AccessRecord,
    blob::BlobWriter,
    body::{BodyPart, BodySender, BodyStream, IncomingBody, MessageBody, Recycle as _, send_rest},
    cache_status::{CACHE_STATUS, CacheOutcome},
    client::Client,
    conditions,
    error_response::{Error, ErrorResponse},
    fields,
    origin::{OriginResponse, describe},
    proxy_auth::CHALLENGE,
    reply::{Reply, ReplyResult},
    request::ClientRequest,
    response::{self, SelectedResponse, respond},
    response_head,
    semantics::{CachingRules, Freshness, StoredResponse, cache_directive},
    shared::Shared,
    store::{CollapsedFetch, FetchLeader},
    target::TargetResource,
    tunnel::{self, Upgrade},
};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    body::{Body as _, Incoming},
    ext::ReasonPhrase,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, COOKIE, DATE, HeaderName, HeaderValue,
        LOCATION, MAX_FORWARDS, PROXY_AUTHENTICATE, RETRY_AFTER, SET_COOKIE, VIA,
    },
    http::response::Parts,
    upgrade::OnUpgrade,
};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::time::timeout;

/// How long a collapsed request waits for the response to the leading one. Then it asks the origin
/// server itself.
const COLLAPSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A response that no client reads any more is still fetched if at most this many bytes are
/// missing: a later request will find it in the store.
const FETCH_TO_END_BYTES: u64 = 256 * 1024;
/// `Retry-After` of a 503 of this proxy, seconds.
const RETRY_AFTER_SECONDS: u64 = 5;

/// Handles a request of a client.
///
/// # Errors
/// None: failures are responses with an error status. (hyper closes the connection on an error.)
pub(crate) async fn serve(client: Arc<Client>, request: Request<Incoming>) -> Result<Response<MessageBody>, Error> {
    let shared = &client.shared;
    let mut record = AccessRecord::new(&shared.counters, client.address, request.method().to_string(), request.uri().to_string());
    let reply = tokio::select! {
        reply = dispatch(&client, request, &mut record) => reply,
        (bytes, why) = client.gate.response() => {
            record.status = response_head::status(&bytes).unwrap_or_default();
            record.outcome = CacheOutcome::Verbatim;
            record.complete = true;
            record.set_failure(&why.into());
            drop(record);
            return client.gate.depart().await;
        }
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            record.set_failure(&error.text.clone().into());
            Reply::unchanged(error_page(&error), CacheOutcome::Refused)
        }
    };
    let Reply { mut response, outcome, form } = reply;
    record.status = response.status();
    record.outcome = outcome;
    record.form = form;
    let parameter = match outcome {
        CacheOutcome::Refused => Some("detail=refused"),
        CacheOutcome::Pass => Some("fwd=bypass"),
        _ => None,
    };
    if let Some(parameter) = parameter
        && let Ok(value) = HeaderValue::from_str(&format!("{}; {parameter}", shared.pseudonym))
    {
        response.headers_mut().append(CACHE_STATUS, value);
    }
    Ok(response.map(|body| body.recorded(record)))
}

/// Authenticates and admits a request, then handles it as a tunnel or as a message.
async fn dispatch(client: &Arc<Client>, mut request: Request<Incoming>, record: &mut AccessRecord) -> ReplyResult {
    client.authenticate(request.headers())?;
    if request.method() == Method::CONNECT {
        let response = tunnel::connect(client, request).await?;
        return Ok(Reply::unchanged(response, CacheOutcome::Tunnel));
    }
    let target = TargetResource::of(&request, client.server).map_err(|text| ErrorResponse::new(StatusCode::BAD_REQUEST, text))?;
    record.uri = target.uri();
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let reservation = client.admit(&parts.headers, !body.is_end_stream()).await?;
    let request = ClientRequest::new(client, parts, body, target, reservation.clone());
    let reply = handle(client, request, upgrade, record).await;
    reservation.return_connection();
    reply
}

/// The response to a request that cannot be answered otherwise.
pub(crate) fn error_page(error: &ErrorResponse) -> Response<MessageBody> {
    let mut response = Response::new(MessageBody::full(error.body()));
    *response.status_mut() = error.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            headers.insert(PROXY_AUTHENTICATE, CHALLENGE);
        }
        StatusCode::BAD_REQUEST => {
            // Where an invalid request ends is uncertain too: what follows must not be parsed as
            // the next one (request smuggling, RFC 9112 §11.2).
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

async fn handle(client: &Arc<Client>, mut request: ClientRequest, upgrade: OnUpgrade, record: &AccessRecord) -> ReplyResult {
    if fields::via_lists(&received_via(&request), &client.shared.pseudonym) {
        let text = "the request has come back to this proxy: the route to the server is a loop";
        return Err(ErrorResponse::new(StatusCode::LOOP_DETECTED, text));
    }
    if let Some(response) = end_at_last_hop(&mut request)? {
        return Ok(Reply::unchanged(response, CacheOutcome::Refused));
    }
    if request.upgrade.is_some() {
        return match tunnel::upgrade(client, request, upgrade).await? {
            Upgrade::Switched(response) => Ok(Reply::unchanged(*response, CacheOutcome::Tunnel)),
            Upgrade::Declined(declined) => {
                let (request, origin) = *declined;
                forward_response(client, request, origin, None, record).await
            }
        };
    }
    let is_cacheable = matches!(request.parts.method, Method::GET | Method::HEAD) && request.body.is_none();
    if !is_cacheable || !client.shared.config.keep || conditions::has_origin_preconditions(request.headers()) {
        return pass(client, request, record).await;
    }
    match look_up(client, &request).await? {
        Lookup::Fresh(selected) => respond(client, &request, selected).await,
        Lookup::Fetch { stale, leader } => fetch(client, request, stale, leader, record).await,
    }
}

/// `Via` as received: without this proxy, which has been appended.
fn received_via(request: &ClientRequest) -> HeaderMap {
    let hops: Vec<&HeaderValue> = request.headers().get_all(VIA).iter().collect();
    hops[..hops.len().saturating_sub(1)].iter().map(|value| (VIA, (*value).clone())).collect()
}

/// Counts `Max-Forwards` of OPTIONS and TRACE down (RFC 9110 §7.6.2). Returns the response to a
/// request that ends here.
///
/// # Errors
/// 405 for a TRACE that ends here.
fn end_at_last_hop(request: &mut ClientRequest) -> Result<Option<Response<MessageBody>>, ErrorResponse> {
    let is_counted = matches!(request.parts.method, Method::OPTIONS | Method::TRACE);
    let value = request.headers().get(MAX_FORWARDS).filter(|_| is_counted);
    let forwards = value.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match forwards {
        None => Ok(None),
        Some(0) if request.parts.method == Method::OPTIONS => Ok(Some(Response::new(MessageBody::empty()))),
        Some(0) => Err(ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "this proxy does not answer TRACE")),
        Some(forwards) => {
            request.parts.headers.insert(MAX_FORWARDS, HeaderValue::from(forwards - 1));
            Ok(None)
        }
    }
}

/// What the store has for a request.
enum Lookup {
    Fresh(SelectedResponse),
    /// The origin server must be asked.
    Fetch {
        /// A stored response to be validated.
        stale: Option<Arc<StoredResponse>>,
        /// Set where equal requests may wait for the response to this one.
        leader: Option<FetchLeader>,
    },
}

/// Looks a request up in the store. If an equal request is being fetched, waits for that first.
///
/// # Errors
/// 504 when the client wants a stored response only, and there is none that is fresh.
async fn look_up(client: &Client, request: &ClientRequest) -> Result<Lookup, ErrorResponse> {
    let shared = &client.shared;
    let mut has_waited = false;
    loop {
        let stale = match shared.store.lookup(&request.target, &request.presented, SystemTime::now()) {
            Some((stored, Freshness::Fresh)) => return Ok(Lookup::Fresh(SelectedResponse::new(stored, CacheOutcome::Hit))),
            found => found.map(|(stored, _)| stored),
        };
        if cache_directive(request.headers(), "only-if-cached").is_some() {
            let text = "the request wants a stored response only (only-if-cached), and there is none that is fresh";
            return Err(ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, text));
        }
        if has_waited || !may_collapse(request) {
            return Ok(Lookup::Fetch { stale, leader: None });
        }
        match shared.store.join_fetch(&request.target) {
            CollapsedFetch::Leader(leader) => return Ok(Lookup::Fetch { stale, leader: Some(leader) }),
            CollapsedFetch::Follower(mut fetch) => {
                shared.counters.collapsed.add(1);
                // It returns when the leader is dropped.
                let _ = timeout(COLLAPSE_TIMEOUT, fetch.changed()).await;
                has_waited = true;
            }
        }
    }
}

/// Whether equal requests may wait for the response to this one: the response is likely to be for
/// all clients.
fn may_collapse(request: &ClientRequest) -> bool {
    let headers = request.headers();
    let is_personal = [AUTHORIZATION, COOKIE].iter().any(|name| headers.contains_key(name));
    request.is_get()
        && !request.is_conditional_or_range()
        && !is_personal
        && ["no-store", "no-cache"].iter().all(|name| cache_directive(headers, name).is_none())
}

/// Forwards a request that the store cannot answer. A successful unsafe request invalidates stored
/// responses (RFC 9111 §4.4).
async fn pass(client: &Arc<Client>, mut request: ClientRequest, record: &AccessRecord) -> ReplyResult {
    let server = request.server(client);
    let is_repeatable = request.body.is_none() && request.parts.method.is_idempotent();
    let (forwarded, stalled_for) = request.with_body(client).await;
    let again = is_repeatable.then_some(|| request.without_body(None));
    let origin = client.send(&request.reservation, &server, forwarded, again, stalled_for).await?;
    let status = origin.response.status();
    if (status.is_success() || status.is_redirection()) && !fields::is_safe(&request.parts.method) {
        let store = &client.shared.store;
        let headers = origin.response.headers();
        let locations = [LOCATION, CONTENT_LOCATION].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
        locations.filter_map(|location| request.target.same_origin(location)).for_each(|target| store.invalidate(&target));
        store.invalidate(&request.target);
    }
    forward_response(client, request, origin, None, record).await
}

/// Sends a request without a body. `conditions` replace its own.
async fn send_without_body(
    client: &Arc<Client>,
    request: &ClientRequest,
    conditions: Option<&[(HeaderName, HeaderValue)]>,
) -> Result<OriginResponse, ErrorResponse> {
    let begun = Instant::now();
    let make = || request.without_body(conditions);
    client.send(&request.reservation, &request.server(client), make(), Some(make), move || begun.elapsed()).await
}

/// Asks the server whether a stored response is still valid. Where its answer to that is unusable,
/// asks for the response.
async fn validate(client: &Arc<Client>, request: &ClientRequest, stored: &Arc<StoredResponse>) -> Result<OriginResponse, ErrorResponse> {
    let begun = Instant::now();
    let conditions: Vec<_> = stored.validation_fields().collect();
    let make = || request.without_body(Some(&conditions));
    match client.validate(&request.reservation, &request.server(client), make, move || begun.elapsed()).await? {
        Some(origin) => Ok(origin),
        None => {
            client.shared.store.remove(&request.target, stored);
            send_without_body(client, request, Some(&[])).await
        }
    }
}

/// Fetches a response, or validates the stale one that is stored.
async fn fetch(
    client: &Arc<Client>,
    request: ClientRequest,
    stale: Option<Arc<StoredResponse>>,
    leader: Option<FetchLeader>,
    record: &AccessRecord,
) -> ReplyResult {
    let stale = stale.filter(|_| request.is_get());
    let sent = match &stale {
        Some(stored) => validate(client, &request, stored).await,
        None => send_without_body(client, &request, None).await,
    };
    let now = SystemTime::now();
    let has_failed = sent.as_ref().map_or(true, |origin| origin.response.status().is_server_error());
    if has_failed && let Some(stored) = stale.as_ref().filter(|stored| stored.may_serve_on_error(&request.presented, now)) {
        return respond(client, &request, SelectedResponse::new(stored.clone(), CacheOutcome::Stale)).await;
    }
    let origin = sent?;
    match stale.filter(|_| origin.response.status() == StatusCode::NOT_MODIFIED) {
        Some(stale) => revalidate(client, request, &stale, origin, leader, record, now).await,
        None => forward_response(client, request, origin, leader, record).await,
    }
}

/// Handles a 304 for a stale response: freshens it and sends it.
async fn revalidate(
    client: &Arc<Client>,
    request: ClientRequest,
    stale: &Arc<StoredResponse>,
    origin: OriginResponse,
    leader: Option<FetchLeader>,
    record: &AccessRecord,
    now: SystemTime,
) -> ReplyResult {
    let store = &client.shared.store;
    let OriginResponse { mut response, lease } = origin;
    fields::strip_hop_by_hop(response.headers_mut());
    // Its cookies are for this client only, and not stored.
    let cookies = fields::remove_all(response.headers_mut(), &SET_COOKIE);
    Box::new(lease).recycle();
    let Some(freshened) = stale.freshened(&request.presented, response.headers(), now) else {
        // The 304 is about a different response: ask again, unconditionally.
        store.remove(&request.target, stale);
        let origin = send_without_body(client, &request, Some(&[])).await?;
        return forward_response(client, request, origin, leader, record).await;
    };
    let freshened = Arc::new(freshened);
    store.insert(&request.target, &request.presented, &freshened, now);
    drop(leader);
    let mut reply = respond(client, &request, SelectedResponse::new(freshened, CacheOutcome::Revalidated)).await?;
    if !cookies.is_empty() {
        let headers = reply.response.headers_mut();
        headers.remove(SET_COOKIE);
        headers.extend(cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
    }
    Ok(reply)
}

/// Forwards the response of an origin server, and stores it where that is permitted.
async fn forward_response(
    client: &Arc<Client>,
    request: ClientRequest,
    origin: OriginResponse,
    leader: Option<FetchLeader>,
    record: &AccessRecord,
) -> ReplyResult {
    let shared = &client.shared;
    let now = SystemTime::now();
    let OriginResponse { response, lease } = origin;
    let (mut parts, body) = response.into_parts();
    let content_length = fields::content_length(&parts.headers);
    fields::strip_hop_by_hop(&mut parts.headers);
    add_date(&mut parts.headers, now);
    if request.is_head() || parts.status == StatusCode::NOT_MODIFIED {
        Box::new(lease).recycle();
        return Ok(forward_head(client, &request, parts, content_length));
    }
    let source = IncomingBody {
        body,
        connection: Some(Box::new(lease)),
        timeout: shared.config.patience,
        counters: shared.counters.clone(),
        received: Some(record.received.clone()),
        window: request.reservation.window(),
    };
    let rules = CachingRules::new(&request.presented, parts.status, &parts.headers, now);
    let is_whole = !matches!(parts.status, StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE);
    let is_storable = request.is_get() && is_whole && rules.is_storable(&parts.headers);
    let keep = shared.config.keep && rules.is_reusable(&parts.headers, now);
    let length = source.length();
    // A response that may not be stored is never on disk, and in memory only until it is sent.
    let Some(writer) = is_storable.then(|| BlobWriter::new(shared.quota(), length)).flatten() else {
        drop(leader);
        return Ok(stream_response(client, &request, parts, source));
    };
    let phrase = parts.extensions.remove();
    let stored = Arc::new(StoredResponse::new(rules, (parts.status, phrase), parts.headers, writer.blob().clone()));
    let mut selected = SelectedResponse::new(stored.clone(), CacheOutcome::Miss);
    // A body of known length has its room reserved: others may read it while it is received. One of
    // unknown length is added to the store when it is complete, and collapsed requests wait for
    // that.
    let keep_later = keep && length.is_none();
    let fill = CacheFill {
        shared: shared.clone(),
        target: request.target.clone(),
        presented: request.presented.clone(),
        is_kept: keep && length.is_some() && shared.store.insert(&request.target, &request.presented, &stored, now),
        stored,
        keep_later,
        leader: leader.filter(|_| keep_later),
    };
    let (sender, overflow) = BodyStream::channel(None);
    tokio::spawn(fill.run(source, writer, sender));
    selected.overflow = Some(overflow);
    respond(client, &request, selected).await
}

/// Adds `Date` where a server has sent none (RFC 9110 §6.6.1).
fn add_date(headers: &mut HeaderMap, now: SystemTime) {
    if !headers.contains_key(DATE)
        && let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(now))
    {
        headers.insert(DATE, date);
    }
}

/// Forwards a response that has no body: to HEAD, or a 304. Its `Content-Length` is that of the
/// body that a GET would have.
fn forward_head(client: &Client, request: &ClientRequest, mut parts: Parts, content_length: Option<u64>) -> Reply {
    if parts.status == StatusCode::NOT_MODIFIED {
        response::adjust_not_modified(client, request, &mut parts.headers);
    }
    if let Some(length) = content_length {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    fields::add_via(&mut parts.headers, Version::HTTP_11, &client.shared.pseudonym);
    Reply::unchanged(Response::from_parts(parts, MessageBody::empty()), CacheOutcome::Pass)
}

/// Forwards a response as it is received, compressed where possible.
fn stream_response(client: &Client, request: &ClientRequest, mut parts: Parts, source: IncomingBody) -> Reply {
    let has_body = !source.body.is_end_stream();
    let mut stream = source.into_stream();
    let status = parts.status;
    let mut headers = parts.headers;
    let mut form = "";
    response::add_negotiated_vary(client, request, status, &mut headers, false);
    if has_body && let Some(compression) = response::compression(client, request, status, &mut headers, stream.length) {
        form = compression.coding.name();
        stream = stream.compressed(compression, client.shared.counters.clone());
    }
    fields::add_via(&mut headers, Version::HTTP_11, &client.shared.pseudonym);
    let mut response = Response::new(if has_body { MessageBody::stream(stream) } else { MessageBody::empty() });
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if let Some(phrase) = parts.extensions.remove::<ReasonPhrase>() {
        response.extensions_mut().insert(phrase);
    }
    Reply { response, outcome: CacheOutcome::Pass, form }
}

/// Receives a response into its blob.
struct CacheFill {
    shared: Arc<Shared>,
    target: TargetResource,
    presented: Request<()>,
    stored: Arc<StoredResponse>,
    /// It is in the store already.
    is_kept: bool,
    /// It is to be added to the store when it is complete.
    keep_later: bool,
    /// Collapsed requests wait until it is complete.
    leader: Option<FetchLeader>,
}

/// How a fill ended.
enum FillEnd {
    Complete,
    /// There was no room for this part, and for those after it.
    Full(BodyPart),
    Failed(Error),
}

impl CacheFill {
    /// Receives as fast as the server sends, independent of the speed of readers. What does not fit
    /// goes to the first reader, as `overflow`, at the speed of that reader.
    async fn run(self, mut source: IncomingBody, writer: BlobWriter, overflow: BodySender) {
        let end = self.receive(&mut source, writer).await;
        match end {
            FillEnd::Complete if self.keep_later => {
                self.shared.store.insert(&self.target, &self.presented, &self.stored, SystemTime::now());
            }
            FillEnd::Complete => {}
            FillEnd::Full(part) => {
                tracing::debug!("there is no room to store all of {}: it is streamed", self.target.uri());
                self.remove();
                drop(self.leader);
                send_rest(&mut source, part, &overflow).await;
            }
            FillEnd::Failed(why) => tracing::debug!("the response for {} broke off: {}", self.target.uri(), describe(&why)),
        }
    }

    /// Receives until the end. A response that fails is removed from the store before its blob is
    /// aborted (by dropping the writer), so that no later request finds an aborted one.
    async fn receive(&self, source: &mut IncomingBody, mut writer: BlobWriter) -> FillEnd {
        let blob = self.stored.blob.clone();
        let length = source.length();
        let mut stop_when_idle = true;
        loop {
            let part = tokio::select! {
                part = source.next() => part,
                () = blob.until_idle(), if stop_when_idle => {
                    let missing = length.map(|length| length - blob.length().min(length));
                    if self.is_kept && missing.is_some_and(|missing| missing <= FETCH_TO_END_BYTES) {
                        stop_when_idle = false;
                        continue;
                    }
                    // From here on no request can find it, but one may have found it a moment ago.
                    self.remove();
                    if blob.is_idle() {
                        return FillEnd::Failed("no client reads it any more".into());
                    }
                    continue;
                }
            };
            match part {
                Ok(BodyPart::Data(bytes)) => {
                    if !writer.append(&bytes).await {
                        return FillEnd::Full(BodyPart::Data(bytes));
                    }
                }
                Ok(BodyPart::End(trailers)) => {
                    return match writer.finish(trailers).await {
                        Ok(()) => FillEnd::Complete,
                        Err(trailers) => FillEnd::Full(BodyPart::End(trailers)),
                    };
                }
                Err(why) => {
                    self.remove();
                    return FillEnd::Failed(why);
                }
            }
        }
    }

    fn remove(&self) {
        self.shared.store.remove(&self.target, &self.stored);
    }
}
