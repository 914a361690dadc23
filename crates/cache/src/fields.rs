//! Header fields on their way through a proxy (RFC 9110 §7.6), and where a request wants to go.

use crate::negotiate::tokens;
use hyper::{
    HeaderMap, Method, Request, Uri, Version,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION,
        SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE, VIA,
    },
    http::uri::Authority,
};
use std::net::SocketAddr;

/// Fields of one connection, whatever `Connection` says.
const OF_A_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];
/// Fields that are meant for all, so that `Connection` has no business with them.
const OF_ALL: [HeaderName; 7] = [AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, SET_COOKIE, VIA];

/// Removes what is between the two ends of one connection. The length goes too: whoever sends the body knows it.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().filter(|name| !OF_ALL.contains(name)).chain(&OF_A_CONNECTION).chain(&[CONTENT_LENGTH]) {
        headers.remove(name);
    }
}

/// The length that a message says it has.
pub(crate) fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Adds where a message came through.
pub(crate) fn add_via(headers: &mut HeaderMap, version: Version, name: &str) {
    let version = match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{version} {name}")) {
        headers.append(VIA, value);
    }
}

/// Whether all that is said under a name can be read. Rules see nothing of what can't.
pub(crate) fn is_plain(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().all(|value| value.to_str().is_ok())
}

/// Takes all fields of a name out.
pub(crate) fn take_all(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let all = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    all
}

/// Whether a request has been here already.
pub(crate) fn has_been_here(headers: &HeaderMap, name: &str) -> bool {
    tokens(headers, &VIA).any(|hop| hop.split_whitespace().nth(1) == Some(name))
}

/// Fields as the rules of caching are asked about them: each name once, its values joined; directives in lower case, whose names have none;
/// an age that no arithmetic can overflow with.
pub(crate) fn for_rules(headers: &HeaderMap) -> HeaderMap {
    const AGE_LIMIT: u64 = 1 << 31;
    let mut joined = HeaderMap::with_capacity(headers.keys_len());
    for name in headers.keys() {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let mut value = values.next().unwrap_or_default().to_vec();
        for more in values {
            value.extend_from_slice(b", ");
            value.extend_from_slice(more);
        }
        if *name == CACHE_CONTROL {
            value.make_ascii_lowercase();
        }
        if *name == AGE {
            let age = std::str::from_utf8(&value).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(AGE_LIMIT);
            value = age.min(AGE_LIMIT).to_string().into_bytes();
        }
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            joined.insert(name, value);
        }
    }
    joined
}

/// What a request is for: the effective URI, and the address that the connection was going to, where that is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Target {
    /// What a client says in `Host` does not say where its connection goes: an answer from one server must not be another's.
    pub(crate) server: Option<SocketAddr>,
    /// Host and port, in lower case; the port absent where it is 80.
    pub(crate) authority: String,
    /// Path and query as they came.
    pub(crate) path: String,
}

impl Target {
    /// Of a request that came through a connection to `server`, or to an explicit proxy, where that is none.
    pub(crate) fn of<B>(request: &Request<B>, server: Option<SocketAddr>) -> Result<Self, String> {
        let uri = request.uri();
        if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
            return Err(format!("the scheme of {uri} is not http: ask for a tunnel to the server instead (CONNECT)"));
        }
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err("the request names more than one host".into());
        }
        let authority = match (uri.authority(), host) {
            (Some(authority), _) => authority.clone(),
            (None, _) if server.is_none() => {
                return Err(
                    "this is a proxy: ask it for a whole URI (GET http://host/path), or have your program know it as its proxy".into()
                );
            }
            (None, Some(host)) => {
                let text = host.to_str().unwrap_or_default();
                text.parse::<Authority>().map_err(|_| format!("the request's host {text:?} is no host"))?
            }
            // HTTP/1.0 knows no hosts: the server's address stands for one.
            (None, None) if request.version() == Version::HTTP_10 => {
                server.and_then(|server| server.to_string().parse().ok()).ok_or("the request names no host")?
            }
            (None, None) => return Err("the request names no host".into()),
        };
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(format!("the request's host {authority} is no host"));
        }
        let host = authority.host().to_ascii_lowercase();
        let authority = match authority.port_u16() {
            None | Some(80) => host,
            Some(port) => format!("{host}:{port}"),
        };
        // An empty path is the same as "/" (RFC 3986 §6.2.3), with a query as without one.
        let path = match uri.path_and_query().map_or("", |path| path.as_str()) {
            path if path.is_empty() || path.starts_with('?') => format!("/{path}"),
            path => path.into(),
        };
        Ok(Target { server, authority, path })
    }

    /// Another resource that an answer to a request for this one names, where that is of the same origin.
    pub(crate) fn beside(&self, location: &str) -> Option<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            let path = location.split('#').next().unwrap_or_default().to_string();
            return Some(Target { path, ..self.clone() });
        }
        let uri: Uri = location.parse().ok()?;
        let same = Target::of(&Request::builder().uri(uri).body(()).ok()?, self.server).ok()?;
        (same.authority == self.authority).then_some(same)
    }

    /// The whole URI.
    pub(crate) fn uri(&self) -> String {
        format!("http://{}{}", self.authority, if self.path == "*" { "" } else { &self.path })
    }

    /// What a server is asked for.
    pub(crate) fn origin_form(&self) -> Option<Uri> {
        self.path.parse().ok()
    }

    /// What `Host` says.
    pub(crate) fn host(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.authority).ok()
    }
}

/// Whether a method leaves things as they are (RFC 9110 §9.2.1).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_is_of_a_connection_goes_and_nothing_else() {
        let mut fields = headers(&[
            ("connection", "close, X-Private, cache-control"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("cache-control", "private"),
            ("x-public", "2"),
        ]);
        strip(&mut fields);
        let left: Vec<&str> = fields.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["cache-control", "x-public"]);
    }

    #[test]
    fn the_rules_see_each_field_once() {
        let mut fields = headers(&[("cache-control", "No-Store"), ("age", "99999999999999999999")]);
        fields.append("cache-control", "MAX-AGE=5".parse().unwrap());
        let joined = for_rules(&fields);
        assert_eq!(joined["cache-control"], "no-store, max-age=5");
        assert_eq!(joined["age"], "2147483648");
    }

    #[test]
    fn where_a_request_goes() {
        let server = Some("192.0.2.1:80".parse().unwrap());
        let of = |uri: &str, host: Option<&str>, server| {
            let request = Request::builder().uri(uri);
            let request = host.into_iter().fold(request, |request, host| request.header(HOST, host));
            Target::of(&request.body(()).unwrap(), server).map(|target| target.uri())
        };
        assert_eq!(of("/a?b", Some("Example.ORG:80"), server).unwrap(), "http://example.org/a?b");
        assert_eq!(of("http://b.example:81", Some("a.example"), None).unwrap(), "http://b.example:81/");
        assert_eq!(of("http://b.example?q=1", None, None).unwrap(), "http://b.example/?q=1");
        assert_eq!(of("http://[2001:db8::1]/x", None, None).unwrap(), "http://[2001:db8::1]/x");
        for (uri, host, server, said) in [
            ("/a", Some("a.example"), None, "this is a proxy"),
            ("/a", None, server, "names no host"),
            ("/a", Some("a b"), server, "is no host"),
            ("/a", Some("me@a.example"), server, "is no host"),
            ("https://a.example/", None, None, "is not http"),
        ] {
            let error = of(uri, host, server).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn only_its_own_origin_is_beside_it() {
        let here = Target { server: None, authority: "a.example".into(), path: "/x".into() };
        assert_eq!(here.beside("/y#part").unwrap().uri(), "http://a.example/y");
        assert_eq!(here.beside("http://A.example:80/z").unwrap().uri(), "http://a.example/z");
        assert!(["http://b.example/z", "//b.example/", "https://a.example/", "\u{7f}"].iter().all(|other| here.beside(other).is_none()));
    }

    proptest! {
        #[test]
        fn no_fields_are_too_strange(fields in prop::collection::vec(("[a-z-]{1,12}|connection|age|cache-control|via", "[ -~]{0,40}"), 0..12)) {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
            }
            let joined = for_rules(&headers);
            prop_assert_eq!(joined.len(), headers.keys_len());
            has_been_here(&headers, "x");
            strip(&mut headers);
            prop_assert!(!headers.contains_key(CONNECTION));
        }
    }
}
