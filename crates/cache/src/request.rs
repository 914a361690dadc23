//! A request as it goes on to its server.

use crate::{
    admission::Exchange,
    blob::{End, Writer},
    body::{Body, Flow, Part, Source, read_out},
    fields::{self, Target},
    negotiate, semantics,
    server_pool::Where,
    shared::Caller,
};
use hyper::{
    HeaderMap, Method, Request, Uri,
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

/// How long a client that wants to be asked for its body waits for its server to do so, before it is asked here.
const EXPECTED: Duration = Duration::from_secs(1);

/// A request that came.
pub(crate) struct Asked {
    pub(crate) parts: Parts,
    pub(crate) target: Target,
    /// As the rules of caching are asked about it.
    pub(crate) question: Request<()>,
    /// None when it has none, or when it has gone on.
    pub(crate) body: Option<Incoming>,
    /// The codings that the client accepts, before its server is told of them in other words.
    pub(crate) accepted: HeaderMap,
    /// Its reservation.
    pub(crate) exchange: Arc<Exchange>,
    /// Protocol that the connection is to go on with.
    pub(crate) upgrade: Option<HeaderValue>,
    wants_trailers: bool,
    had_body: bool,
}

impl Asked {
    /// Where it goes on to.
    pub(crate) fn destination(&self, caller: &Caller) -> Where {
        Where::of(caller.server, &self.target.authority, 80)
    }

    pub(crate) fn new(caller: &Caller, mut parts: Parts, body: Incoming, target: Target, exchange: Arc<Exchange>) -> Self {
        let body = (!body.is_end_stream()).then_some(body);
        let names = |field: &HeaderName, word: &str| negotiate::tokens(&parts.headers, field).any(|token| token.eq_ignore_ascii_case(word));
        let upgrade = parts.headers.get(UPGRADE).filter(|_| names(&CONNECTION, "upgrade")).cloned();
        // HTTP/2 in clear text begins otherwise, and need not be understood further on.
        let upgrade = upgrade.filter(|to| !to.as_bytes().eq_ignore_ascii_case(b"h2c"));
        let wants_trailers = names(&TE, "trailers");
        let accepted = parts.headers.get_all(ACCEPT_ENCODING).iter().map(|value| (ACCEPT_ENCODING, value.clone())).collect();
        fields::strip(&mut parts.headers);
        parts.headers.remove(HOST);
        if let Some(codings) = negotiate::told_of_codings(&parts.headers) {
            parts.headers.insert(ACCEPT_ENCODING, codings);
        }
        // HTTP/2 may send them apart, HTTP/1.1 may not (RFC 9113 §8.2.3).
        let crumbs: Vec<&[u8]> = parts.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if crumbs.len() > 1
            && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
        {
            parts.headers.insert(COOKIE, cookie);
        }
        let question = semantics::question(&target, &parts.headers);
        fields::add_via(&mut parts.headers, parts.version, &caller.house.name);
        let had_body = body.is_some();
        Asked { parts, target, question, body, accepted, exchange, upgrade, wants_trailers, had_body }
    }

    /// Whether its answer may be for others: a body would have its say in what it asks for.
    pub(crate) fn is_get(&self) -> bool {
        self.parts.method == Method::GET && !self.had_body
    }

    pub(crate) fn is_head(&self) -> bool {
        self.parts.method == Method::HEAD
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Whether it asks for a part only, or only on a condition.
    pub(crate) fn is_special(&self) -> bool {
        semantics::CONDITIONS.iter().chain(&[RANGE]).any(|name| self.headers().contains_key(name))
    }

    /// It, without a body, for its server; with `validation` in the place of its own conditions where that is given.
    pub(crate) fn bare(&self, validation: Option<&[(HeaderName, HeaderValue)]>) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.target.origin_form().unwrap_or_else(|| Uri::from_static("/"));
        let mut headers = self.parts.headers.clone();
        if let Some(host) = self.target.host() {
            headers.insert(HOST, host);
        }
        // Of a method that is expected to have a body some servers want to hear that it has none (RFC 9110 §8.6).
        if !self.had_body && matches!(self.parts.method, Method::POST | Method::PUT | Method::PATCH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        if self.wants_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if let Some(to) = &self.upgrade {
            headers.insert(UPGRADE, to.clone());
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if let Some(validation) = validation {
            semantics::CONDITIONS.iter().chain(&[RANGE]).for_each(|name| drop(headers.remove(name)));
            validation.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
        }
        *request.headers_mut() = headers;
        request
    }

    /// It, with its body, for its server; and since when nothing of that has moved.
    pub(crate) async fn whole(&mut self, caller: &Caller) -> (Request<Body>, impl Fn() -> Duration + use<>) {
        let moved = Arc::new(Mutex::new(Instant::now()));
        let look = moved.clone();
        let waited = move || look.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let mut request = self.bare(None);
        let Some(body) = self.body.take() else { return (request, waited) };
        let patience = caller.house.config.patience;
        let window = self.exchange.window();
        let source = Source { body, lease: None, patience, counters: caller.house.counters.clone(), came: None, window };
        let flow = if caller.house.config.hold {
            // The client is asked for all of it here and now.
            request.headers_mut().remove(EXPECT);
            stored(caller, source).await
        } else if request.headers().contains_key(EXPECT) {
            let (tell, told) = oneshot::channel();
            let tell = Mutex::new(Some(tell));
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == hyper::StatusCode::CONTINUE
                    && let Some(tell) = tell.lock().unwrap_or_else(PoisonError::into_inner).take()
                {
                    let _ = tell.send(());
                }
            });
            // When it has been answered without its body nobody takes that any more.
            source.flow_from(async move { !matches!(timeout(EXPECTED, told).await, Ok(Err(_))) })
        } else {
            source.flow()
        };
        if flow.length.is_none() {
            // Said outright, since there are methods that are not expected to have a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let body = Body::flow(watched(flow, moved));
        (request.map(|_| body), waited)
    }
}

/// A flow whose every part is noted when it is taken.
fn watched(mut source: Flow, moved: Arc<Mutex<Instant>>) -> Flow {
    let (sender, flow) = Flow::channel(source.length);
    tokio::spawn(async move {
        loop {
            let part = tokio::select! {
                part = source.next() => part,
                () = sender.closed() => return,
            };
            let last = !matches!(part, Ok(Part::Bytes(_)));
            let taken = sender.send(part).await;
            *moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            if taken.is_err() || last {
                return;
            }
        }
    });
    flow
}

/// What comes, once all of it has come; what is too much for that, from when there is no more room.
async fn stored(caller: &Caller, mut source: Source) -> Flow {
    let (length, window) = (source.length(), source.window.another());
    let Some(mut writer) = Writer::new(caller.house.room(), length) else { return source.flow() };
    let reader = writer.blob().reader();
    let blob = writer.blob().clone();
    let beyond = loop {
        match source.next().await {
            Ok(Part::Bytes(bytes)) => {
                if !writer.push(&bytes).await {
                    break Some(rest(source, Part::Bytes(bytes)));
                }
            }
            Ok(Part::End(trailers)) => break writer.finish(trailers).await.err().map(|trailers| rest(source, Part::End(trailers))),
            Err(_) => break None,
        }
    };
    let length = if matches!(blob.end(), Some(End::Whole(_))) { Some(blob.length()) } else { length };
    let mut flow = read_out(reader, 0, None, beyond, window);
    flow.length = length;
    flow
}

/// What did not fit into a blob: this part, and all that comes after it.
fn rest(mut source: Source, first: Part) -> Flow {
    let (sender, flow) = Flow::channel(None);
    tokio::spawn(async move { crate::body::send_rest(&mut source, first, &sender).await });
    flow
}
