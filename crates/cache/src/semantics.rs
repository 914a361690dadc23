//! HTTP caching (RFC 9111): which responses may be stored, for how long they are fresh, and which
//! requests they answer. `http-cache-semantics` decides. It reads only one line of each field, so
//! that fields are joined before it gets them.

use crate::{
    blob::Blob,
    conditions::{PRECONDITIONS, opaque_tag, validation_fields},
    fields,
    negotiate::list_elements,
    pictures::PictureVariants,
    target::TargetResource,
};
use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    ext::ReasonPhrase,
    header::{
        AGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HOST, HeaderName, HeaderValue, RANGE,
        SET_COOKIE, VARY,
    },
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The request that is presented to the caching rules: an unconditional GET for the whole resource.
/// HEAD requests and ranges are answered from the response to that.
pub(crate) fn presented_request(target: &TargetResource, headers: &HeaderMap) -> Request<()> {
    let mut presented = Request::new(());
    *presented.method_mut() = Method::GET;
    *presented.uri_mut() = target.uri().parse().unwrap_or_default();
    let mut fields = fields::normalize_for_caching(headers);
    fields.remove(HOST);
    PRECONDITIONS.iter().chain(&[RANGE]).for_each(|name| drop(fields.remove(name)));
    *presented.headers_mut() = fields;
    presented
}

/// A directive of `Cache-Control`: its argument, empty where it has none. None where it is absent.
pub(crate) fn cache_directive<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let directives = list_elements(headers, &CACHE_CONTROL).map(|element| element.split_once('=').unwrap_or((element, "")));
    let mut found = directives.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
    found.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// A response with its body, in the store or on its way there.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    pub(crate) status: StatusCode,
    /// Its reason phrase, where it is not that of the standard.
    pub(crate) phrase: Option<ReasonPhrase>,
    /// Its fields, without hop-by-hop fields and `Content-Length`.
    pub(crate) headers: HeaderMap,
    policy: CachePolicy,
    pub(crate) blob: Arc<Blob>,
    /// Smaller versions of it, where it is a picture.
    pub(crate) pictures: Arc<PictureVariants>,
}

/// Whether a stored response can answer a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// It must be validated first.
    Stale,
    /// It answers other requests (`Vary`).
    NotSelected,
}

/// The caching rules of one response.
#[derive(Debug)]
pub(crate) struct CachingRules(CachePolicy);

impl CachingRules {
    /// Of a response with these fields to `presented`, received at `now`.
    pub(crate) fn new(presented: &Request<()>, status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = fields::normalize_for_caching(headers);
        CachingRules(CachePolicy::new_options(presented, &response, now, CacheOptions::default()))
    }

    /// Whether the response may be stored (RFC 9111 §3), and therefore be transformed for others
    /// too.
    pub(crate) fn is_storable(&self, headers: &HeaderMap) -> bool {
        // A directive that cannot be read may forbid it.
        let readable = [&CACHE_CONTROL, &VARY].iter().all(|name| fields::is_readable(headers, name));
        readable && self.0.is_storable() && !list_elements(headers, &VARY).any(|name| name == "*")
    }

    /// Whether the stored response could answer a later request: it is fresh, or can be validated.
    /// One with a cookie that is not marked public is for one client: a 304 to another client would
    /// not cover that cookie, and would hand it out again.
    pub(crate) fn is_reusable(&self, headers: &HeaderMap, now: SystemTime) -> bool {
        !self.0.time_to_live(now).is_zero() || (!headers.contains_key(SET_COOKIE) && validation_fields(headers).next().is_some())
    }
}

impl StoredResponse {
    pub(crate) fn new(
        rules: CachingRules,
        (status, phrase): (StatusCode, Option<ReasonPhrase>),
        headers: HeaderMap,
        blob: Arc<Blob>,
    ) -> Self {
        StoredResponse { status, phrase, headers, policy: rules.0, blob, pictures: Arc::default() }
    }

    /// Whether it can answer `presented` (RFC 9111 §4).
    pub(crate) fn freshness(&self, presented: &Request<()>, now: SystemTime) -> Freshness {
        match self.policy.before_request(presented, now) {
            // `max-stale` is ignored. A client may accept stale responses, but more directives of
            // the response forbid that than the library looks at (§5.2.2.2, §5.2.2.4, §5.2.2.8,
            // §5.2.2.10).
            BeforeRequest::Fresh(_) if !self.policy.is_stale(now) => Freshness::Fresh,
            BeforeRequest::Fresh(_) | BeforeRequest::Stale { matches: true, .. } => Freshness::Stale,
            BeforeRequest::Stale { matches: false, .. } => Freshness::NotSelected,
        }
    }

    /// Its age (RFC 9111 §4.2.3), seconds.
    pub(crate) fn age(&self, now: SystemTime) -> u64 {
        self.policy.age(now).as_secs()
    }

    /// How long it stays fresh, seconds.
    pub(crate) fn time_to_live(&self, now: SystemTime) -> u64 {
        self.policy.time_to_live(now).as_secs()
    }

    /// Whether it may be served although stale, when its origin server fails (RFC 5861 §4).
    pub(crate) fn may_serve_on_error(&self, presented: &Request<()>, now: SystemTime) -> bool {
        const FORBIDDING: [&str; 4] = ["must-revalidate", "proxy-revalidate", "s-maxage", "no-cache"];
        let limit = |headers| cache_directive(headers, "stale-if-error").and_then(|text| text.parse().ok());
        let limit: Option<u64> = limit(&self.headers).or_else(|| limit(presented.headers()));
        let staleness = self.policy.age(now).saturating_sub(self.freshness_lifetime(now));
        cache_directive(presented.headers(), "no-cache").is_none()
            && FORBIDDING.iter().all(|name| cache_directive(&self.headers, name).is_none())
            && limit.is_some_and(|seconds| staleness <= Duration::from_secs(seconds))
    }

    /// The freshness lifetime (RFC 9111 §4.2.1). The library tells only what is left of it, so that
    /// the response is looked at as of age 0.
    fn freshness_lifetime(&self, now: SystemTime) -> Duration {
        let generated = now.checked_sub(self.policy.age(now)).unwrap_or(now);
        self.policy.time_to_live(generated)
    }

    /// The fields that validate it with its origin server. Empty when it has no validator.
    pub(crate) fn validation_fields(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        validation_fields(&self.headers)
    }

    /// It, freshened by the fields of a 304 (RFC 9111 §4.3.4, §3.2). None where the 304 is about a
    /// different response.
    pub(crate) fn freshened(&self, presented: &Request<()>, not_modified: &HeaderMap, now: SystemTime) -> Option<StoredResponse> {
        // Fields that describe the stored bytes.
        const KEPT: [HeaderName; 4] = [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE];
        let tag = |headers: &HeaderMap| headers.get(ETAG).map(|etag| opaque_tag(etag.as_bytes()).to_vec());
        if tag(not_modified).is_some_and(|new| tag(&self.headers) != Some(new)) {
            return None;
        }
        let mut headers = self.headers.clone();
        // Its age counts from now, unless the 304 has an age itself.
        headers.remove(AGE);
        for name in not_modified.keys().filter(|name| !KEPT.contains(name)) {
            headers.remove(name);
            not_modified.get_all(name).iter().for_each(|value| {
                headers.append(name, value.clone());
            });
        }
        let rules = CachingRules::new(presented, self.status, &headers, now);
        let pictures = self.pictures.clone();
        Some(StoredResponse { pictures, ..StoredResponse::new(rules, (self.status, self.phrase.clone()), headers, self.blob.clone()) })
    }
}

#[cfg(test)]
#[path = "semantics_tests.rs"]
mod tests;
