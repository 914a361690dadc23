//! A client's request, and the request that is forwarded to its server.

use crate::{
    admission::RequestReservation,
    blob::{BlobEnd, BlobWriter},
    body::{BodyPart, BodyStream, IncomingBody, MessageBody, send_rest, stream_blob},
    client::Client,
    conditions::PRECONDITIONS,
    entity_tag, fields, negotiate, semantics,
    server_pool::ServerAddress,
    target::TargetResource,
};
use hyper::{
    HeaderMap, Method, Request, StatusCode, Uri, Version,
    body::{Body as _, Incoming},
    header::{
        ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, RANGE, TE, TRANSFER_ENCODING, UPGRADE,
    },
    http::request::Parts,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, time::timeout};

/// How long the server of a request with `Expect: 100-continue` may take to send a 100. Then the
/// client gets one from this proxy (RFC 9110 §10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request as received, without hop-by-hop fields.
pub(crate) struct ClientRequest {
    pub(crate) parts: Parts,
    pub(crate) target: TargetResource,
    /// The request that the caching rules see.
    pub(crate) presented: Request<()>,
    /// None when it has none, or when that has been forwarded.
    pub(crate) body: Option<Incoming>,
    /// `Accept-Encoding` as received. In `parts` it may have a canonical spelling.
    pub(crate) accept_encoding: HeaderMap,
    /// `If-None-Match` as received, where it has tags of transformed bodies. In `parts` it has the
    /// server's tags.
    pub(crate) marked_tags: Option<Vec<HeaderValue>>,
    pub(crate) reservation: Arc<RequestReservation>,
    /// The protocol to which the client asks to switch.
    pub(crate) upgrade: Option<HeaderValue>,
    accepts_trailers: bool,
    had_body: bool,
}

impl ClientRequest {
    pub(crate) fn new(
        client: &Client,
        mut parts: Parts,
        body: Incoming,
        target: TargetResource,
        reservation: Arc<RequestReservation>,
    ) -> Self {
        let body = (!body.is_end_stream()).then_some(body);
        let lists = |field: &HeaderName, word: &str| {
            negotiate::list_elements(&parts.headers, field).any(|element| element.eq_ignore_ascii_case(word))
        };
        let upgrade = parts.headers.get(UPGRADE).filter(|_| lists(&CONNECTION, "upgrade")).cloned();
        // The upgrade to clear-text HTTP/2 is obsolete (RFC 9113 §3.1), and not forwarded.
        let upgrade = upgrade.filter(|protocol| !protocol.as_bytes().eq_ignore_ascii_case(b"h2c"));
        let accepts_trailers = lists(&TE, "trailers");
        let accept_encoding = parts.headers.get_all(ACCEPT_ENCODING).iter().map(|value| (ACCEPT_ENCODING, value.clone())).collect();
        fields::strip_hop_by_hop(&mut parts.headers);
        parts.headers.remove(HOST);
        if let Some(codings) = negotiate::canonical_accept_encoding(&parts.headers) {
            parts.headers.insert(ACCEPT_ENCODING, codings);
        }
        join_cookies(&mut parts.headers);
        let marked_tags = entity_tag::restore(&mut parts.headers);
        let presented = semantics::presented_request(&target, &parts.headers);
        fields::add_via(&mut parts.headers, parts.version, &client.shared.pseudonym);
        let had_body = body.is_some();
        ClientRequest { parts, target, presented, body, accept_encoding, marked_tags, reservation, upgrade, accepts_trailers, had_body }
    }

    /// The server that the request is forwarded to.
    pub(crate) fn server(&self, client: &Client) -> ServerAddress {
        client.server_of(&self.target)
    }

    /// Whether the response may be stored for others: a GET without a body, which could change the
    /// response.
    pub(crate) fn is_get(&self) -> bool {
        self.parts.method == Method::GET && !self.had_body
    }

    pub(crate) fn is_head(&self) -> bool {
        self.parts.method == Method::HEAD
    }

    /// Its fields, as they are forwarded.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Whether it is conditional, or asks for a range.
    pub(crate) fn is_conditional_or_range(&self) -> bool {
        PRECONDITIONS.iter().chain(&[RANGE]).any(|name| self.headers().contains_key(name))
    }

    /// The request for the server, without a body. `validation`, if given, replaces its own
    /// conditions.
    pub(crate) fn without_body(&self, validation: Option<&[(HeaderName, HeaderValue)]>) -> Request<MessageBody> {
        let mut headers = self.parts.headers.clone();
        if let Some(host) = self.target.host() {
            headers.insert(HOST, host);
        }
        // A method that usually has a body needs a length to say that it has none (RFC 9110 §8.6).
        if !self.had_body && matches!(self.parts.method, Method::POST | Method::PUT | Method::PATCH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        if self.accepts_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if let Some(protocol) = &self.upgrade {
            headers.insert(UPGRADE, protocol.clone());
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if let Some(validation) = validation {
            PRECONDITIONS.iter().chain(&[RANGE]).for_each(|name| drop(headers.remove(name)));
            validation.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
        }
        let mut request = Request::new(MessageBody::empty());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.forwarded_uri();
        *request.headers_mut() = headers;
        request
    }

    /// The request target that the server gets (RFC 9112 §3.2). A client that has sent the absolute
    /// form to a server takes it for a proxy.
    fn forwarded_uri(&self) -> Uri {
        let is_absolute = self.parts.uri.scheme().is_some() && self.parts.version != Version::HTTP_2;
        if is_absolute && self.target.server.is_some() {
            return self.parts.uri.clone();
        }
        self.target.origin_form().unwrap_or_else(|| Uri::from_static("/"))
    }

    /// The request for the server, with its body; and a function that returns for how long the body
    /// has made no progress.
    pub(crate) async fn with_body(&mut self, client: &Client) -> (Request<MessageBody>, impl Fn() -> Duration + use<>) {
        let last_progress = Arc::new(Mutex::new(Instant::now()));
        let clock = last_progress.clone();
        let stalled_for = move || clock.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let mut request = self.without_body(None);
        let Some(body) = self.body.take() else { return (request, stalled_for) };
        let source = IncomingBody {
            body,
            connection: None,
            timeout: client.shared.config.patience,
            counters: client.shared.counters.clone(),
            received: None,
            window: self.reservation.window(),
        };
        let stream = if client.shared.config.hold {
            // The body is received before the request is forwarded: the client gets its 100 from
            // here.
            request.headers_mut().remove(EXPECT);
            hold(client, source).await
        } else if request.headers().contains_key(EXPECT) {
            source.into_stream_when(expects_body(&mut request))
        } else {
            source.into_stream()
        };
        if stream.length.is_none() {
            // Set explicitly, since not every method is expected to have a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let body = MessageBody::stream(track_progress(stream, last_progress));
        (request.map(|_| body), stalled_for)
    }
}

/// Joins several `Cookie` fields, which HTTP/2 permits and HTTP/1.1 does not (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Waits until the server of `request` wants its body: it has sent a 100, or nothing for a while.
/// Returns false when it has sent its final response without a 100.
fn expects_body(request: &mut Request<MessageBody>) -> impl Future<Output = bool> + Send + use<> {
    let (sender, receiver) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    hyper::ext::on_informational(request, move |response| {
        if response.status() == StatusCode::CONTINUE
            && let Some(sender) = sender.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let _ = sender.send(());
        }
    });
    // hyper drops the callback with the sender once the final response is there.
    async move { !matches!(timeout(CONTINUE_TIMEOUT, receiver).await, Ok(Err(_))) }
}

/// Passes a stream on, and notes the time at which each part is taken.
fn track_progress(mut source: BodyStream, last_progress: Arc<Mutex<Instant>>) -> BodyStream {
    let (sender, stream) = BodyStream::channel(source.length);
    tokio::spawn(async move {
        loop {
            let part = tokio::select! {
                part = source.next() => part,
                () = sender.closed() => return,
            };
            let is_last = !matches!(part, Ok(BodyPart::Data(_)));
            let sent = sender.send(part).await;
            *last_progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            if sent.is_err() || is_last {
                return;
            }
        }
    });
    stream
}

/// Receives a whole body before it is forwarded. What exceeds the storage is streamed.
async fn hold(client: &Client, mut source: IncomingBody) -> BodyStream {
    let announced_length = source.length();
    let window = source.window.sibling();
    let Some(mut writer) = BlobWriter::new(client.shared.quota(), announced_length) else { return source.into_stream() };
    let reader = writer.blob().reader();
    let blob = writer.blob().clone();
    let overflow = loop {
        match source.next().await {
            Ok(BodyPart::Data(bytes)) => {
                if !writer.append(&bytes).await {
                    break Some(stream_rest(source, BodyPart::Data(bytes)));
                }
            }
            Ok(BodyPart::End(trailers)) => {
                let unstored = writer.finish(trailers).await.err();
                break unstored.map(|trailers| stream_rest(source, BodyPart::End(trailers)));
            }
            Err(_) => break None,
        }
    };
    let length = if matches!(blob.end(), Some(BlobEnd::Complete(_))) { Some(blob.length()) } else { announced_length };
    let mut stream = stream_blob(reader, 0, None, overflow, window);
    stream.length = length;
    stream
}

/// Streams what did not fit into a blob: `first`, and everything after it.
fn stream_rest(mut source: IncomingBody, first: BodyPart) -> BodyStream {
    let (sender, stream) = BodyStream::channel(None);
    tokio::spawn(async move { send_rest(&mut source, first, &sender).await });
    stream
}
