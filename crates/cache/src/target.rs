//! The target resource of a request (RFC 9110 §7.1): the primary cache key.

use hyper::{
    Request, Uri, Version,
    header::{HOST, HeaderValue},
    http::uri::Authority,
};
use std::net::SocketAddr;

/// The target URI of a request, and the server address that the client's connection was going to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TargetResource {
    /// None in an explicit proxy. A client chooses `Host` freely: without the address, the response
    /// of one server could be stored as that of another.
    pub(crate) server: Option<SocketAddr>,
    /// Host and port, in lower case; without the port where it is 80.
    pub(crate) authority: String,
    /// Path and query as received.
    pub(crate) path: String,
}

impl TargetResource {
    /// The target of a request that came over a connection to `server`, or, where that is none, to
    /// an explicit proxy.
    ///
    /// # Errors
    /// Why the target cannot be determined, for the client.
    pub(crate) fn of<B>(request: &Request<B>, server: Option<SocketAddr>) -> Result<Self, String> {
        let uri = request.uri();
        if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
            return Err(format!("the scheme of {uri} is not http: use CONNECT to open a tunnel to the server instead"));
        }
        let authority = authority(request, server)?;
        let host = authority.host().to_ascii_lowercase();
        let authority = match authority.port_u16() {
            None | Some(80) => host,
            Some(port) => format!("{host}:{port}"),
        };
        // An empty path is equivalent to "/" (RFC 3986 §6.2.3), with and without a query.
        let path = match uri.path_and_query().map_or("", |path| path.as_str()) {
            path if path.is_empty() || path.starts_with('?') => format!("/{path}"),
            path => path.into(),
        };
        Ok(TargetResource { server, authority, path })
    }

    /// The resource that a `Location` or `Content-Location` of a response for this target names, if
    /// it has the same origin (RFC 9111 §4.4).
    pub(crate) fn same_origin(&self, location: &str) -> Option<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            let path = location.split('#').next().unwrap_or_default().to_string();
            return Some(TargetResource { path, ..self.clone() });
        }
        let uri: Uri = location.parse().ok()?;
        let named = TargetResource::of(&Request::builder().uri(uri).body(()).ok()?, self.server).ok()?;
        (named.authority == self.authority).then_some(named)
    }

    /// The target URI.
    pub(crate) fn uri(&self) -> String {
        format!("http://{}{}", self.authority, if self.path == "*" { "" } else { &self.path })
    }

    /// The request target that a server gets: origin-form, or `*` (RFC 9112 §3.2).
    pub(crate) fn origin_form(&self) -> Option<Uri> {
        self.path.parse().ok()
    }

    /// The value of `Host`.
    pub(crate) fn host(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.authority).ok()
    }
}

/// The authority of a request: that of its URI, or else `Host` (RFC 9112 §3.3).
fn authority<B>(request: &Request<B>, server: Option<SocketAddr>) -> Result<Authority, String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("the request has more than one Host field".into());
    }
    let authority = match (request.uri().authority(), host) {
        (Some(authority), _) => authority.clone(),
        (None, _) if server.is_none() => {
            return Err(
                "this is a proxy: send the whole URI (GET http://host/path), or configure your program to use it as its HTTP proxy".into(),
            );
        }
        (None, Some(host)) => {
            let text = host.to_str().unwrap_or_default();
            text.parse::<Authority>().map_err(|_| invalid_host(&format!("{text:?}")))?
        }
        // HTTP/1.0 has no Host field: the server's address stands for it.
        (None, None) if request.version() == Version::HTTP_10 => {
            server.and_then(|server| server.to_string().parse().ok()).ok_or("the request has no Host field")?
        }
        (None, None) => return Err("the request has no Host field".into()),
    };
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return Err(invalid_host(&authority));
    }
    Ok(authority)
}

fn invalid_host(host: &dyn std::fmt::Display) -> String {
    format!("the host of the request, {host}, is not a host name or address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_from_uri_host_and_address() {
        let server = Some("192.0.2.1:80".parse().unwrap());
        let of = |uri: &str, host: Option<&str>, server| {
            let request = Request::builder().uri(uri);
            let request = host.into_iter().fold(request, |request, host| request.header(HOST, host));
            TargetResource::of(&request.body(()).unwrap(), server).map(|target| target.uri())
        };
        assert_eq!(of("/a?b", Some("Example.ORG:80"), server).unwrap(), "http://example.org/a?b");
        assert_eq!(of("http://b.example:81", Some("a.example"), None).unwrap(), "http://b.example:81/");
        assert_eq!(of("http://b.example?q=1", None, None).unwrap(), "http://b.example/?q=1");
        assert_eq!(of("http://[2001:db8::1]/x", None, None).unwrap(), "http://[2001:db8::1]/x");
        for (uri, host, server, expected) in [
            ("/a", Some("a.example"), None, "this is a proxy"),
            ("/a", None, server, "has no Host"),
            ("/a", Some("a b"), server, "is not a host name"),
            ("/a", Some("me@a.example"), server, "is not a host name"),
            ("https://a.example/", None, None, "is not http"),
        ] {
            let error = of(uri, host, server).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn only_locations_of_the_same_origin_are_returned() {
        let target = TargetResource { server: None, authority: "a.example".into(), path: "/x".into() };
        assert_eq!(target.same_origin("/y#part").unwrap().uri(), "http://a.example/y");
        assert_eq!(target.same_origin("http://A.example:80/z").unwrap().uri(), "http://a.example/z");
        let others = ["http://b.example/z", "//b.example/", "https://a.example/", "\u{7f}"];
        assert!(others.iter().all(|other| target.same_origin(other).is_none()));
    }
}
