//! A request and its answer: from what is kept, or from its server.

use crate::{
    access_log::{From, Record},
    blob::Writer,
    body::{Body, Flow, GivesBack as _, Part, Sender, Source, send_rest},
    error_response::{Error, ErrorResponse},
    fields::{self, Target},
    origin::Lease,
    proxy_auth::CHALLENGE,
    reply::{CACHE_STATUS, Reply},
    request::Asked,
    response::{Given, give},
    semantics::{self, Entry, Rules, Verdict, directive},
    shared::{Caller, House},
    store::{Flight, Lead},
    tunnel::{self, Upgrade},
};
use hyper::{
    Method, Request, Response, StatusCode, Version,
    body::{Body as _, Incoming},
    header::{CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, HeaderValue, LOCATION, MAX_FORWARDS, SET_COOKIE},
};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::time::timeout;

/// How long those who ask for the same wait for the first one's answer to come, before they ask themselves.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(10);
/// What is still fetched though nobody waits for it any more: the next who asks will find it.
const LITTLE: u64 = 256 * 1024;
/// `Retry-After` of a 503 of its own, seconds.
const RETRY_AFTER: u64 = 5;

/// Answers a request. The error ends the connection.
pub(crate) async fn answer(caller: Arc<Caller>, mut request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let house = &caller.house;
    let mut record = Record::new(&house.counters, caller.client, request.method().clone(), request.uri().to_string());
    let outcome = if let Err(unknown) = caller.authenticate(request.headers()) {
        Err(unknown)
    } else if request.method() == Method::CONNECT {
        tunnel::connect(&caller, request).await.map(|response| (response, From::Tunnel, ""))
    } else {
        let target = Target::of(&request, caller.server).map_err(|text| ErrorResponse { status: StatusCode::BAD_REQUEST, text });
        match target {
            Err(trouble) => Err(trouble),
            Ok(target) => {
                record.uri = target.uri();
                let upgrade = hyper::upgrade::on(&mut request);
                let (parts, body) = request.into_parts();
                match caller.admit(&parts.headers, !body.is_end_stream()).await {
                    Ok(exchange) => {
                        let asked = Asked::new(&caller, parts, body, target, exchange.clone());
                        let outcome = handle(&caller, asked, upgrade, &record).await;
                        exchange.return_connection();
                        outcome
                    }
                    Err(trouble) => Err(trouble),
                }
            }
        }
    };
    let (mut response, from, form) = outcome.unwrap_or_else(|trouble| {
        let why: Error = trouble.text.clone().into();
        record.broke(&why);
        (page(trouble), From::Refused, "")
    });
    (record.status, record.from, record.form) = (response.status(), from, form);
    if matches!(from, From::Refused | From::Pass) {
        let word = if from == From::Pass { "fwd=bypass" } else { "detail=refused" };
        if let Ok(value) = HeaderValue::from_str(&format!("{}; {word}", house.name)) {
            response.headers_mut().append(CACHE_STATUS, value);
        }
    }
    Ok(response.map(|body| body.recorded(record)))
}

/// What is said to a client whose request is not answered.
fn page(trouble: ErrorResponse) -> Response<Body> {
    let mut response = Response::new(Body::of(format!("tandem cache: {}\n", trouble.text)));
    *response.status_mut() = trouble.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(hyper::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if trouble.status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(hyper::header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
    }
    if trouble.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        response.headers_mut().insert(hyper::header::PROXY_AUTHENTICATE, CHALLENGE);
    }
    if trouble.status == StatusCode::BAD_REQUEST {
        // Who is not understood once may not be understood where its request ends either.
        response.headers_mut().insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn handle(caller: &Arc<Caller>, mut asked: Asked, upgrade: hyper::upgrade::OnUpgrade, record: &Record) -> Reply {
    let house = &caller.house;
    if fields::has_been_here(&request_via(&asked), &house.name) {
        let text = "the request has come back here: this cache is on its own way to the server".into();
        return Err(ErrorResponse { status: StatusCode::LOOP_DETECTED, text });
    }
    if let Some(response) = last_hop(&mut asked)? {
        return Ok((response, From::Refused, ""));
    }
    if asked.upgrade.is_some() {
        return match tunnel::upgrade(caller, asked, upgrade).await? {
            Upgrade::Switched(response) => Ok((*response, From::Tunnel, "")),
            Upgrade::Declined(declined) => {
                let (asked, answer, lease) = *declined;
                fresh(caller, asked, answer, lease, None, record).await
            }
        };
    }
    let plain = matches!(asked.parts.method, Method::GET | Method::HEAD) && asked.body.is_none();
    if !plain || !house.config.keep || semantics::is_for_the_origin(asked.headers()) {
        return pass(caller, asked, record).await;
    }
    let (mut lead, mut waited) = (None, false);
    let stale = loop {
        let now = SystemTime::now();
        let stale = match house.store.look(&asked.target, &asked.question, now) {
            Some((entry, Verdict::Fresh)) => {
                let reader = entry.blob.reader();
                return give(caller, &asked, Given { entry, from: From::Hit, reader, beyond: None }).await;
            }
            found => found.map(|(entry, _)| entry),
        };
        if directive(asked.headers(), "only-if-cached").is_some() {
            let text = "it is not kept here, or is stale, and the request wants nothing else".into();
            return Err(ErrorResponse { status: StatusCode::GATEWAY_TIMEOUT, text });
        }
        if waited || !may_join(&asked) {
            break stale;
        }
        match house.store.fly(&asked.target) {
            Flight::Lead(leads) => {
                lead = Some(leads);
                break stale;
            }
            Flight::Follow(mut flight) => {
                house.counters.collapsed.add(1);
                // It ends by the leader's letting go.
                let _ = timeout(PATIENCE_WITH_OTHERS, flight.changed()).await;
                waited = true;
            }
        }
    };
    fetch(caller, asked, stale, lead, record).await
}

/// The way a request came, without this cache, which has been added to it.
fn request_via(asked: &Asked) -> hyper::HeaderMap {
    let hops: Vec<&HeaderValue> = asked.headers().get_all(hyper::header::VIA).iter().collect();
    hops[..hops.len().saturating_sub(1)].iter().map(|value| (hyper::header::VIA, (*value).clone())).collect()
}

/// Whether others may wait for its answer: what comes is likely to be for all.
fn may_join(asked: &Asked) -> bool {
    let fields = asked.headers();
    let personal = [hyper::header::AUTHORIZATION, hyper::header::COOKIE].iter().any(|name| fields.contains_key(name));
    asked.is_get() && !asked.is_special() && !personal && ["no-store", "no-cache"].iter().all(|name| directive(fields, name).is_none())
}

/// Requests that are counted on their way (RFC 9110 §7.6.2): the answer to one that ends here.
fn last_hop(asked: &mut Asked) -> Result<Option<Response<Body>>, ErrorResponse> {
    let counted = matches!(asked.parts.method, Method::OPTIONS | Method::TRACE);
    let left = asked.headers().get(MAX_FORWARDS).filter(|_| counted).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match left {
        None => Ok(None),
        Some(0) if asked.parts.method == Method::OPTIONS => Ok(Some(Response::new(Body::empty()))),
        Some(0) => Err(ErrorResponse { status: StatusCode::METHOD_NOT_ALLOWED, text: "TRACE is not answered here".into() }),
        Some(left) => {
            asked.parts.headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
            Ok(None)
        }
    }
}

/// What no cache has business with, or what changes things.
async fn pass(caller: &Arc<Caller>, mut asked: Asked, record: &Record) -> Reply {
    let to = asked.destination(caller);
    let bare = asked.body.is_none();
    let (request, waited) = asked.whole(caller).await;
    let again = (bare && asked.parts.method.is_idempotent()).then_some(|| asked.bare(None));
    let (answer, lease) = caller.send(&asked.exchange, &to, request, again, waited).await?;
    let done = answer.status().is_success() || answer.status().is_redirection();
    if done && !fields::is_safe(&asked.parts.method) {
        let named = [LOCATION, CONTENT_LOCATION].into_iter().filter_map(|name| answer.headers().get(name)?.to_str().ok());
        named.filter_map(|location| asked.target.beside(location)).for_each(|target| caller.house.store.invalidate(&target));
        caller.house.store.invalidate(&asked.target);
    }
    fresh(caller, asked, answer, lease, None, record).await
}

/// What is not kept, or has to be asked for again.
async fn fetch(caller: &Arc<Caller>, asked: Asked, stale: Option<Arc<Entry>>, lead: Option<Lead>, record: &Record) -> Reply {
    let (to, house) = (asked.destination(caller), &caller.house);
    let stale = stale.filter(|_| asked.is_get());
    let validation: Option<Vec<_>> = stale.as_ref().map(|entry| entry.validation().collect());
    let begun = Instant::now();
    let again = || asked.bare(validation.as_deref());
    let sent = caller.send(&asked.exchange, &to, again(), Some(again), move || begun.elapsed()).await;
    let now = SystemTime::now();
    let stand_in = stale.as_ref().filter(|entry| entry.may_stand_in(&asked.question, now));
    let (mut answer, lease) = match (sent, stand_in) {
        (Ok((answer, _)), Some(entry)) if answer.status().is_server_error() => return stand(caller, &asked, entry).await,
        (Err(_), Some(entry)) => return stand(caller, &asked, entry).await,
        (sent, _) => sent?,
    };
    let Some(old) = stale.filter(|_| answer.status() == StatusCode::NOT_MODIFIED) else {
        return fresh(caller, asked, answer, lease, lead, record).await;
    };
    fields::strip(answer.headers_mut());
    // Its cookies are for this client, and no part of what is kept.
    let cookies = fields::take_all(answer.headers_mut(), &SET_COOKIE);
    Box::new(lease).give_back();
    let Some(entry) = old.freshened(&asked.question, answer.headers(), now) else {
        // It is about another answer than the one that was asked about.
        house.store.forget(&asked.target, &old);
        let begun = Instant::now();
        let bare = || asked.bare(Some(&[]));
        let (answer, lease) = caller.send(&asked.exchange, &to, bare(), Some(bare), move || begun.elapsed()).await?;
        return fresh(caller, asked, answer, lease, lead, record).await;
    };
    let entry = Arc::new(entry);
    house.store.keep(&asked.target, &asked.question, &entry, now);
    drop(lead);
    let reader = entry.blob.reader();
    let (mut response, from, form) = give(caller, &asked, Given { entry, from: From::Revalidated, reader, beyond: None }).await?;
    if !cookies.is_empty() {
        response.headers_mut().remove(SET_COOKIE);
        response.headers_mut().extend(cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
    }
    Ok((response, from, form))
}

async fn stand(caller: &Arc<Caller>, asked: &Asked, entry: &Arc<Entry>) -> Reply {
    let (entry, reader) = (entry.clone(), entry.blob.reader());
    give(caller, asked, Given { entry, from: From::Stale, reader, beyond: None }).await
}

/// An answer that has just come.
async fn fresh(caller: &Arc<Caller>, asked: Asked, answer: Response<Incoming>, lease: Lease, lead: Option<Lead>, record: &Record) -> Reply {
    let (house, now) = (&caller.house, SystemTime::now());
    let (mut parts, body) = answer.into_parts();
    let said = fields::length(&parts.headers);
    fields::strip(&mut parts.headers);
    if !parts.headers.contains_key(hyper::header::DATE)
        && let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(now))
    {
        parts.headers.insert(hyper::header::DATE, date);
    }
    if asked.is_head() || parts.status == StatusCode::NOT_MODIFIED {
        // Their length is that of what they speak of.
        if parts.status == StatusCode::NOT_MODIFIED {
            crate::response::pass_not_modified(caller, &asked, &mut parts.headers);
        }
        let mut response = Response::from_parts(parts, Body::empty());
        said.into_iter().for_each(|length| drop(response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length))));
        fields::add_via(response.headers_mut(), Version::HTTP_11, &house.name);
        Box::new(lease).give_back();
        return Ok((response, From::Pass, ""));
    }
    let source = Source {
        body,
        lease: Some(Box::new(lease)),
        patience: house.config.patience,
        counters: house.counters.clone(),
        came: Some(record.came.clone()),
        window: asked.exchange.window(),
    };
    let rules = Rules::of(&asked.question, parts.status, &parts.headers, now);
    let whole = !matches!(parts.status, StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE);
    let storable = asked.is_get() && whole && rules.may_be_stored(&parts.headers);
    let worth_it = house.config.keep && rules.is_worth_it(&parts.headers, now);
    // What may not be stored is never on disk, and in memory no longer than it takes to send it on.
    let length = source.length();
    let Some(writer) = storable.then(|| Writer::new(house.room(), length)).flatten() else {
        drop(lead);
        return passing(caller, &asked, parts, source).await;
    };
    let blob = writer.blob().clone();
    let entry = Arc::new(Entry::new(rules, parts.status, parts.headers, blob.clone()));
    let reader = blob.reader();
    // One whose length is known has its room already, so that others may read it while it comes; others wait until another is whole.
    let kept = worth_it && length.is_some() && house.store.keep(&asked.target, &asked.question, &entry, now);
    let keep_later = worth_it && length.is_none();
    let (sender, beyond) = Flow::channel(None);
    let filling = Filling {
        house: house.clone(),
        target: asked.target.clone(),
        question: asked.question.clone(),
        entry: entry.clone(),
        kept,
        keep_later,
        lead: lead.filter(|_| keep_later),
    };
    tokio::spawn(filling.fill(source, writer, sender));
    give(caller, &asked, Given { entry, from: From::Miss, reader, beyond: Some(beyond) }).await
}

/// An answer that goes on as it comes.
async fn passing(caller: &Caller, asked: &Asked, parts: hyper::http::response::Parts, source: Source) -> Reply {
    let body = !source.body.is_end_stream();
    let mut flow = source.flow();
    let mut response = Response::new(());
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    let (mut form, status) = ("", response.status());
    crate::response::say_what_varies(caller, asked, status, response.headers_mut(), false);
    if body && let Some(packing) = crate::response::compression(caller, asked, status, response.headers_mut(), flow.length) {
        form = packing.coding.name();
        flow = flow.compressed(packing, caller.house.counters.clone());
    }
    fields::add_via(response.headers_mut(), Version::HTTP_11, &caller.house.name);
    let body = if body { Body::flow(flow) } else { Body::empty() };
    Ok((response.map(|()| body), From::Pass, form))
}

/// An answer that is being stored.
struct Filling {
    house: Arc<House>,
    target: Target,
    question: Request<()>,
    entry: Arc<Entry>,
    /// It is found by others already.
    kept: bool,
    /// It is to be, when it is whole.
    keep_later: bool,
    /// Those who wait for it to be whole.
    lead: Option<Lead>,
}

impl Filling {
    /// Fetches as fast as it comes, whoever reads it how fast; what does not fit goes to the first reader, as fast as that takes it.
    async fn fill(self, mut source: Source, mut writer: Writer, beyond: Sender) {
        let blob = writer.blob().clone();
        let length = source.length();
        let mut watched = true;
        let outcome: Result<(), Error> = loop {
            let part = tokio::select! {
                part = source.next() => part,
                () = blob.forsaken(), if watched => {
                    let left = length.map(|length| length - blob.length().min(length));
                    if self.kept && left.is_some_and(|left| left <= LITTLE) {
                        watched = false;
                        continue;
                    }
                    // Nobody can find it any more; somebody may have a moment ago.
                    self.house.store.forget(&self.target, &self.entry);
                    if blob.is_idle() {
                        break Err("nobody wants it any more".into());
                    }
                    continue;
                }
            };
            let rest = match part {
                Ok(Part::Bytes(bytes)) => {
                    if writer.push(&bytes).await {
                        continue;
                    }
                    Part::Bytes(bytes)
                }
                Ok(Part::End(trailers)) => match writer.finish(trailers).await {
                    Ok(()) => break Ok(()),
                    Err(trailers) => Part::End(trailers),
                },
                Err(why) => break Err(why),
            };
            tracing::debug!("{} is larger than there is room for: it goes on as it comes", self.target.uri());
            self.house.store.forget(&self.target, &self.entry);
            drop(self.lead);
            return send_rest(&mut source, rest, &beyond).await;
        };
        match outcome {
            Ok(()) if self.keep_later => drop(self.house.store.keep(&self.target, &self.question, &self.entry, SystemTime::now())),
            Ok(()) => {}
            Err(why) => {
                tracing::debug!("{} broke off: {}", self.target.uri(), crate::origin::told(&why));
                self.house.store.forget(&self.target, &self.entry);
            }
        }
    }
}
