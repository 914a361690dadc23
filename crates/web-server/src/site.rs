//! What a server answers: metrics, and pages for a browser.
//!
//! Pages are protected in two ways. With a token, a browser must have a cookie that stands for it,
//! which a form sets, or send the token as `Authorization: Bearer`. Without one, and for metrics,
//! the Host header must be an address, `localhost` or a configured name: a name that a foreign web
//! page has made resolve to this host (DNS rebinding) gets nothing. Every page forbids the browser
//! to load anything from elsewhere. Pages of other sites may link to this one, but load nothing
//! from it.

use crate::{EventStream, Token, host_names::HostNames};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body, Bytes},
    header::{self, HeaderName, HeaderValue},
};
use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The media type of the text format that Prometheus reads.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest body of the form with the token, bytes.
const LONGEST_FORM: usize = 1024;
/// Delay of the answer to a wrong token.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The body of a response.
pub(crate) type ResponseBody = Either<Full<Bytes>, EventStream>;

/// Answers the requests of browsers, on the server's thread, which it must not block.
pub trait Pages: Send + Sync + 'static {
    /// The answer to a GET request for `path` with this query; none: there is no such page.
    fn answer(&self, path: &str, query: &str) -> Option<PageAnswer>;
}

/// What a browser gets.
#[derive(Debug)]
pub enum PageAnswer {
    /// A file that is part of the program.
    File {
        /// Its media type.
        media_type: &'static str,
        /// Its content.
        content: &'static str,
    },
    /// A stream of events.
    Events(EventStream),
}

/// What a server answers.
#[derive(Default)]
pub struct Site {
    metrics: Option<Metrics>,
    pages: Option<Box<dyn Pages>>,
    token: Option<Token>,
    /// The names under which pages without a token are served.
    names: HostNames,
}

/// The metrics and their latest rendering.
struct Metrics {
    render: Box<dyn Fn() -> Option<String> + Send + Sync>,
    last: Mutex<Option<(Instant, Bytes)>>,
    /// The names under which they are served.
    names: HostNames,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("metrics", &self.metrics.is_some()).field("pages", &self.pages.is_some()).finish_non_exhaustive()
    }
}

impl Site {
    /// A site without anything, which is served under these names of hosts, and under addresses and
    /// `localhost`.
    pub fn named(names: &[String]) -> Self {
        Site { names: HostNames::new(names), ..Site::default() }
    }

    /// Adds metrics, at `/metrics`: `render` returns them, or `None` while the program ends (status
    /// 503). It is called on the server's thread, one call at a time. They are served under this
    /// host's own name too.
    #[must_use]
    pub fn with_metrics(self, render: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        let names = self.names.with_own_name();
        Site { metrics: Some(Metrics { render: Box::new(render), last: Mutex::default(), names }), ..self }
    }

    /// Adds pages for browsers, which need `token` if there is one.
    #[must_use]
    pub fn with_pages(self, pages: impl Pages, token: Option<Token>) -> Self {
        Site { pages: Some(Box::new(pages)), token, ..self }
    }

    /// Answers a request. Metrics that are younger than `fresh` are not rendered again.
    pub(crate) async fn respond<B>(&self, request: Request<B>, fresh: Duration) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes>,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        match (request.uri().path(), &self.metrics, &self.pages) {
            ("/metrics", Some(metrics), _) if !metrics.names.permit(request.headers()) => plain(
                StatusCode::MISDIRECTED_REQUEST,
                "metrics are not served under this name: ask for them by an address of this host, or configure the name (host_names, \
                 --host-name)\n",
            ),
            ("/metrics", Some(metrics), _) => metrics.respond(request.method(), fresh),
            (_, _, Some(pages)) => protect(self.page(&**pages, request).await),
            (_, Some(_), None) => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
            (_, None, None) => plain(StatusCode::NOT_FOUND, "there is nothing here\n"),
        }
    }

    async fn page<B>(&self, pages: &dyn Pages, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes>,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if is_loaded_by_another_site(&request) {
            return plain(StatusCode::FORBIDDEN, "pages of other sites may link to this one, but load nothing from it\n");
        }
        match &self.token {
            None if !self.names.permit(request.headers()) => {
                return plain(
                    StatusCode::MISDIRECTED_REQUEST,
                    "the page is not served under this name: open it by an address of this host, configure the name (host_names, \
                     --host-name), or set a token ([page] token_file)\n",
                );
            }
            Some(token) if request.uri().path() == "/token" => return log_in(token, request).await,
            Some(token) if !has_token(token, request.headers()) => return form(StatusCode::UNAUTHORIZED, ""),
            _ => {}
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return only("GET, HEAD", "pages are read with GET\n");
        }
        match pages.answer(request.uri().path(), request.uri().query().unwrap_or_default()) {
            None => plain(StatusCode::NOT_FOUND, "there is no such page\n"),
            Some(PageAnswer::File { media_type, content }) => typed(media_type, Either::Left(Full::from(content))),
            Some(PageAnswer::Events(events)) => typed("text/event-stream", Either::Right(events)),
        }
    }
}

impl Metrics {
    fn respond(&self, method: &Method, fresh: Duration) -> Response<ResponseBody> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return only("GET, HEAD", "metrics are read with GET\n");
        }
        let Some(text) = self.text(fresh) else { return plain(StatusCode::SERVICE_UNAVAILABLE, "the program is ending\n") };
        typed(OPEN_METRICS, Either::Left(Full::new(text)))
    }

    fn text(&self, fresh: Duration) -> Option<Bytes> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, text)) = &*last
            && when.elapsed() < fresh
        {
            return Some(text.clone());
        }
        let text = Bytes::from((self.render)()?);
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

/// Checks the token that the form has sent, and sets its cookie.
async fn log_in<B>(token: &Token, request: Request<B>) -> Response<ResponseBody>
where
    B: Body<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    if *request.method() != Method::POST {
        return only("POST", "a token is sent with POST\n");
    }
    let body = Limited::new(request.into_body(), LONGEST_FORM).collect().await;
    let Ok(body) = body.map(http_body_util::Collected::to_bytes) else { return plain(StatusCode::BAD_REQUEST, "cannot read the form\n") };
    // A token has no character that a form encodes.
    let said = body.split(|byte| *byte == b'&').find_map(|field| field.strip_prefix(b"token=")).unwrap_or_default();
    let cookie = token.is(said).then(|| format!("{}; Path=/; HttpOnly; SameSite=Strict", token.cookie()));
    let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) else {
        sleep(WRONG_TOKEN_DELAY).await;
        return form(StatusCode::FORBIDDEN, "<p role=\"alert\">This is not the token.</p>");
    };
    let mut response = plain(StatusCode::SEE_OTHER, "");
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
    response
}

/// Whether a request has the token's cookie, or the token as a bearer.
fn has_token(token: &Token, headers: &HeaderMap) -> bool {
    let mut bearers = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let mut pairs = headers.get_all(header::COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    bearers.any(|said| token.is(said)) || pairs.any(|pair| token.is_cookie(pair.trim_ascii()))
}

/// Whether a page of another site has the browser send this request, other than by a link to the
/// first page (Fetch Metadata; browsers tell it to the loopback and over HTTPS). Such a page cannot
/// read the answer, but each stream of events costs the proxy, and displaces another browser's.
fn is_loaded_by_another_site<B>(request: &Request<B>) -> bool {
    let is = |name: &str, value: &str| request.headers().get(name).is_some_and(|found| found.as_bytes() == value.as_bytes());
    let is_link = || request.uri().path() == "/" && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
    is("sec-fetch-site", "cross-site") && !is_link()
}

/// The form that asks for the token.
fn form(status: StatusCode, remark: &str) -> Response<ResponseBody> {
    let text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/><title>Tandem</title></head><body><h1>Tandem</h1>{remark}\
         <form method=\"post\" action=\"/token\"><label>Token <input name=\"token\" type=\"password\" autofocus=\"\" \
         autocomplete=\"current-password\"/></label> <button>Open</button></form></body></html>\n"
    );
    let mut response = typed("text/html; charset=utf-8", Either::Left(Full::from(text)));
    *response.status_mut() = status;
    response
}

/// Adds what a browser has to know of every page.
fn protect(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let headers: [(HeaderName, &'static str); 4] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn typed(media_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response = typed("text/plain; charset=utf-8", Either::Left(Full::from(text)));
    *response.status_mut() = status;
    response
}

fn only(methods: &'static str, text: &'static str) -> Response<ResponseBody> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}
