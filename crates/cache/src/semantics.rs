//! The rules of caching (RFC 9111) and of conditional and partial requests (RFC 9110 §13, §14), asked of one stored answer. What may be stored, for
//! how long, and for whom, `http-cache-semantics` says; fields are merged here, since it keeps only one of several of the same name.

use crate::{blob::Blob, fields, negotiate::tokens, pictures::Pictures};
use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{
        AGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, ETAG, HOST, HeaderName, HeaderValue,
        IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, SET_COOKIE, VARY,
    },
    http::request::Parts,
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// A request as the rules are asked about it: for all of what it is for, and unconditionally. HEAD is answered from what GET has brought.
pub(crate) fn question(target: &fields::Target, headers: &HeaderMap) -> Request<()> {
    let mut question = Request::new(());
    *question.method_mut() = Method::GET;
    *question.uri_mut() = target.uri().parse().unwrap_or_default();
    let mut asked = fields::for_rules(headers);
    asked.remove(HOST);
    CONDITIONS.iter().chain(&[RANGE]).for_each(|name| drop(asked.remove(name)));
    *question.headers_mut() = asked;
    question
}

/// Fields that make a request conditional.
pub(crate) const CONDITIONS: [HeaderName; 5] = [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE];

/// A directive of `Cache-Control`: none where it is absent, else its argument, empty where it has none.
pub(crate) fn directive<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let parts = tokens(headers, &CACHE_CONTROL).map(|token| token.split_once('=').unwrap_or((token, "")));
    let mut found = parts.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
    found.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// An answer that is kept, or at least may be.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) status: StatusCode,
    /// Its fields, without those of a connection and without its length.
    pub(crate) headers: HeaderMap,
    policy: CachePolicy,
    pub(crate) blob: Arc<Blob>,
    /// What its picture was made into.
    pub(crate) pictures: Arc<Pictures>,
}

/// What a stored answer is to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fresh,
    /// It has to be asked for whether it still holds.
    Stale,
    /// It answers another request (`Vary`).
    Other,
}

/// The rules about an answer.
#[derive(Debug)]
pub(crate) struct Rules(CachePolicy);

impl Rules {
    pub(crate) fn of(question: &Request<()>, status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let mut answer = Response::new(());
        *answer.status_mut() = status;
        *answer.headers_mut() = fields::for_rules(headers);
        Rules(CachePolicy::new_options(question, &answer, now, CacheOptions::default()))
    }

    /// Whether it may be stored, and by that, worked upon for others too.
    pub(crate) fn may_be_stored(&self, headers: &HeaderMap) -> bool {
        // What can't be read might forbid it.
        let plain = [&CACHE_CONTROL, &VARY].iter().all(|name| fields::is_plain(headers, name));
        plain && self.0.is_storable() && !tokens(headers, &VARY).any(|name| name == "*")
    }

    /// Whether it is of any use once stored. One with a cookie that its origin has not called public is for one client: a 304 to another says nothing of that
    /// cookie, and would give it out again.
    pub(crate) fn is_worth_it(&self, headers: &HeaderMap, now: SystemTime) -> bool {
        !self.0.time_to_live(now).is_zero() || (!headers.contains_key(SET_COOKIE) && validators(headers).next().is_some())
    }
}

impl Entry {
    pub(crate) fn new(rules: Rules, status: StatusCode, headers: HeaderMap, blob: Arc<Blob>) -> Self {
        Entry { status, headers, policy: rules.0, blob, pictures: Arc::default() }
    }

    pub(crate) fn judge(&self, question: &Request<()>, now: SystemTime) -> Verdict {
        match self.policy.before_request(question, now) {
            // A client may put up with a stale one (`max-stale`); an origin that forbids that does it by more directives than are looked at there
            // (§5.2.2.2, §5.2.2.4, §5.2.2.8, §5.2.2.10).
            BeforeRequest::Fresh(_) if !self.policy.is_stale(now) => Verdict::Fresh,
            BeforeRequest::Fresh(_) | BeforeRequest::Stale { matches: true, .. } => Verdict::Stale,
            BeforeRequest::Stale { matches: false, .. } => Verdict::Other,
        }
    }

    /// Seconds since it left its origin.
    pub(crate) fn age(&self, now: SystemTime) -> u64 {
        self.policy.age(now).as_secs()
    }

    /// How long it stays fresh.
    pub(crate) fn time_to_live(&self, now: SystemTime) -> u64 {
        self.policy.time_to_live(now).as_secs()
    }

    /// Whether it may be given out though it is stale, since its origin does not answer (RFC 5861 §4).
    pub(crate) fn may_stand_in(&self, question: &Request<()>, now: SystemTime) -> bool {
        let seconds = |headers| directive(headers, "stale-if-error").and_then(|text| text.parse().ok());
        let forbidden = ["must-revalidate", "proxy-revalidate", "s-maxage", "no-cache"];
        let asked_anew = directive(question.headers(), "no-cache").is_some();
        let stale = self.policy.age(now).saturating_sub(self.lifetime(now));
        let allowed: Option<u64> = seconds(&self.headers).or_else(|| seconds(question.headers()));
        !asked_anew
            && forbidden.iter().all(|name| directive(&self.headers, name).is_none())
            && allowed.is_some_and(|seconds| stale <= Duration::from_secs(seconds))
    }

    /// For how long it is fresh in all: told only of what is fresh still, so that it is asked of the moment it came.
    fn lifetime(&self, now: SystemTime) -> Duration {
        let came = now.checked_sub(self.policy.age(now)).unwrap_or(now);
        self.policy.time_to_live(came)
    }

    /// The fields that ask whether it still holds.
    pub(crate) fn validation(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        validators(&self.headers)
    }

    /// This entry as a 304 has made it anew, or none where that was about another one (RFC 9111 §4.3.4, §3.2).
    pub(crate) fn freshened(&self, question: &Request<()>, answer: &HeaderMap, now: SystemTime) -> Option<Entry> {
        let tag = |headers: &HeaderMap| headers.get(ETAG).map(|tag| opaque(tag.as_bytes()).to_vec());
        if tag(answer).is_some_and(|new| tag(&self.headers) != Some(new)) {
            return None;
        }
        const KEPT: [HeaderName; 4] = [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE];
        let mut headers = self.headers.clone();
        // Its age counts from now, unless the 304 has come through another cache.
        headers.remove(AGE);
        for name in answer.keys().filter(|name| !KEPT.contains(name)) {
            headers.remove(name);
            answer.get_all(name).iter().for_each(|value| {
                headers.append(name, value.clone());
            });
        }
        let rules = Rules::of(question, self.status, &headers, now);
        let pictures = self.pictures.clone();
        Some(Entry { pictures, ..Entry::new(rules, self.status, headers, self.blob.clone()) })
    }
}

fn validators(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let of = |from: HeaderName, to: HeaderName| headers.get(from).map(|value| (to, value.clone()));
    of(ETAG, IF_NONE_MATCH).into_iter().chain(of(LAST_MODIFIED, IF_MODIFIED_SINCE))
}

/// A tag without the mark of a weak one.
fn opaque(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// Whether the client has already what it asks for (RFC 9110 §13.2.2).
pub(crate) fn is_there_already(request: &HeaderMap, answer: &HeaderMap) -> bool {
    if request.contains_key(IF_NONE_MATCH) {
        let tag = answer.get(ETAG).map(|tag| opaque(tag.as_bytes()));
        return tokens(request, &IF_NONE_MATCH).any(|asked| asked == "*" || Some(opaque(asked.as_bytes())) == tag);
    }
    let (Some(since), Some(modified)) = (date(request, &IF_MODIFIED_SINCE), date(answer, &LAST_MODIFIED)) else { return false };
    modified <= since
}

/// Whether a request has conditions that only its origin can judge.
pub(crate) fn is_for_the_origin(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH) || headers.contains_key(IF_UNMODIFIED_SINCE)
}

/// What of a body of known length is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// From here to there, both in it.
    Range(u64, u64),
    /// Nothing that there is.
    Beyond,
}

/// What part of an answer is asked for. Of several ranges none is given but the whole, as is allowed.
pub(crate) fn part(request: &Parts, answer: &HeaderMap, length: u64) -> Part {
    let ranges: Vec<&HeaderValue> = request.headers.get_all(RANGE).iter().collect();
    let [range] = ranges[..] else { return Part::Whole };
    if request.method != Method::GET || !holds_still(&request.headers, answer) {
        return Part::Whole;
    }
    let Some((first, last)) = range.to_str().ok().and_then(|text| text.trim().strip_prefix("bytes=")).and_then(|text| text.split_once('-'))
    else {
        return Part::Whole;
    };
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().unwrap_or(u64::MAX));
    match (first.trim(), last.trim()) {
        ("", "") => Part::Whole,
        ("", suffix) => match number(suffix) {
            None => Part::Whole,
            Some(0) => Part::Beyond,
            Some(_) if length == 0 => Part::Beyond,
            Some(suffix) => Part::Range(length.saturating_sub(suffix), length - 1),
        },
        (first, last) => match (number(first), if last.is_empty() { Some(u64::MAX) } else { number(last) }) {
            (Some(first), Some(last)) if first > last => Part::Whole,
            (Some(first), Some(_)) if first >= length => Part::Beyond,
            (Some(first), Some(last)) => Part::Range(first, last.min(length - 1)),
            _ => Part::Whole,
        },
    }
}

/// Whether the client has a part of just this answer, byte for byte: it names its strong tag (`If-Range`).
pub(crate) fn has_this(request: &HeaderMap, answer: &HeaderMap) -> bool {
    let Some(condition) = request.get(IF_RANGE).map(|value| value.as_bytes().trim_ascii()) else { return false };
    condition.starts_with(b"\"") && answer.get(ETAG).is_some_and(|tag| tag.as_bytes().trim_ascii() == condition)
}

/// Whether what the client has a part of is what there is (`If-Range`, a strong comparison).
fn holds_still(request: &HeaderMap, answer: &HeaderMap) -> bool {
    let Some(condition) = request.get(IF_RANGE).map(|value| value.as_bytes().trim_ascii()) else { return true };
    if condition.starts_with(b"\"") || condition.starts_with(b"W/") {
        return has_this(request, answer);
    }
    // A date is strong only where nothing can have changed twice within its second.
    let distinct =
        date(answer, &DATE).zip(date(answer, &LAST_MODIFIED)).is_some_and(|(sent, modified)| sent > modified + Duration::from_secs(60));
    distinct && date(request, &IF_RANGE).is_some_and(|asked| date(answer, &LAST_MODIFIED) == Some(asked))
}

#[cfg(test)]
#[path = "semantics_tests.rs"]
mod tests;
