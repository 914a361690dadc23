//! The names under which clients may ask for metrics and pages.
//!
//! A foreign web page can make its own name resolve to this host (DNS rebinding). The browser then
//! takes answers of this host for that page's own, and lets it read them; only the Host header
//! tells the two apart. Addresses are no names that others can have, and neither is `localhost`.

use hyper::{HeaderMap, header};
use std::net::{IpAddr, SocketAddr};

/// Host names, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostNames(Vec<String>);

impl HostNames {
    pub(crate) fn new(names: &[String]) -> Self {
        HostNames(names.iter().map(|name| normal(name)).collect())
    }

    /// These, and the name of this host, with and without its domain: that is how a scraper of the
    /// same network asks for it, and a foreign page cannot have it.
    pub(crate) fn with_own_name(&self) -> Self {
        let own = normal(&rustix::system::uname().nodename().to_string_lossy());
        let short = own.split('.').next().unwrap_or_default().to_owned();
        let own = [own, short].into_iter().filter(|name| !name.is_empty() && name != "(none)");
        HostNames(self.0.iter().cloned().chain(own).collect())
    }

    /// Whether each Host header has an address, `localhost` or one of the names, with or without a
    /// port. True without such a header, which every browser sends.
    pub(crate) fn permit(&self, headers: &HeaderMap) -> bool {
        headers.get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(|host| self.permits(host)))
    }

    fn permits(&self, host: &str) -> bool {
        let name = normal(host.rsplit_once(':').map_or(host, |(name, _)| name));
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || host.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }
}

/// A name in lower case, without the dot that may end it.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Parses the name of a host, as a configuration has it.
///
/// # Errors
/// The text is no such name; the message says what to write.
pub fn parse_host_name(text: &str) -> Result<String, String> {
    let is_label =
        |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(name.to_ascii_lowercase());
    }
    Err(format!("{text:?} is not the name of a host: write a name without a port, such as gateway.lan"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn permits(names: &HostNames, hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        names.permit(&headers)
    }

    #[test]
    fn addresses_and_configured_names_are_permitted() {
        let names = HostNames::new(&["Gateway.lan".into()]);
        for host in ["127.0.0.1", "192.0.2.1:9155", "[2001:db8::1]:9155", "[::1]", "LOCALHOST:80", "gateway.lan", "GATEWAY.LAN.:9155"] {
            assert!(permits(&names, &[host]), "{host}");
        }
        for host in ["", "rebound.example:9155", "gateway.lan.example", "127.0.0.1.example", "localhost.example", "x.gateway.lan"] {
            assert!(!permits(&names, &[host]), "{host}");
        }
        assert!(permits(&names, &[]), "HTTP/1.0");
        assert!(!permits(&names, &["127.0.0.1", "rebound.example"]), "each header counts");
    }

    #[test]
    fn the_name_of_this_host_is_permitted_where_that_is_wanted() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (without, with) = (HostNames::default(), HostNames::default().with_own_name());
        // A host may be called localhost, or have no name.
        if parse_host_name(&name).is_ok_and(|name| name != "localhost") {
            assert!(!permits(&without, &[&name]) && permits(&with, &[&format!("{name}:9155")]));
            assert!(permits(&with, &[name.split('.').next().unwrap()]));
        }
        assert!(!permits(&with, &["rebound.example"]));
    }

    #[test]
    fn names_of_hosts_are_parsed() {
        for (text, name) in [("gateway", "gateway"), ("Gate-way_1.lan.", "gate-way_1.lan")] {
            assert_eq!(parse_host_name(text).unwrap(), name);
        }
        for text in ["", ".", "a..b", "gateway:9155", "http://gateway", "*.lan", "a b", &"x".repeat(64)] {
            assert!(parse_host_name(text).unwrap_err().contains("write a name without a port"), "{text}");
        }
    }
}
