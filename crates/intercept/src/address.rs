//! Addresses with a port, as they are written in options and files.

use schemars::JsonSchema;
use serde::{Deserializer, de};
use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
};

/// Parses an address with a port, such as `192.0.2.1:5000`. Host names are not resolved: rules,
/// routes and checks need the address, and a name may resolve to another address later.
///
/// # Errors
/// What is missing from the text, and how to write it.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Err(format!("{text:?} has no port: write {}", SocketAddr::new(address, 5000)));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let number = port.parse::<u16>();
    let host_is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    Err(match (host, number) {
        ("" | "*", Ok(port)) => {
            format!("{text:?} has no address: write [::]:{port} for all addresses of this host, or 127.0.0.1:{port} for this host alone")
        }
        ("localhost", Ok(port)) => format!("{text:?} is a name: write its address, 127.0.0.1:{port} or [::1]:{port}"),
        _ if text.contains("://") => format!("{text:?} is a URL: write an address with a port, such as 192.0.2.1:5000"),
        (_, Ok(port)) if !host_is_address && is_host_name(host) => {
            format!(
                "{text:?} is a name, and names are not looked up here: write an address of it (getent ahosts {host}), such as 192.0.2.1:{port}"
            )
        }
        (_, Err(_)) if host_is_address => format!("{text:?} has a wrong port: {port:?} is not a number from 0 to 65535"),
        _ => format!("{text:?} is not an address with a port: write 192.0.2.1:5000 or [2001:db8::1]:5000"),
    })
}

fn is_host_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// Deserializes an optional address with a port, with the errors of [`parse_address`].
///
/// # Errors
/// The text is not an address with a port.
pub fn optional_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    struct Address;
    impl de::Visitor<'_> for Address {
        type Value = SocketAddr;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address with a port such as \"192.0.2.1:5000\"")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<SocketAddr, E> {
            parse_address(text).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, port: i64) -> Result<SocketAddr, E> {
            self.visit_str(&port.to_string())
        }
    }
    deserializer.deserialize_any(Address).map(Some)
}

/// The JSON Schema of an address with a port.
#[derive(Debug)]
pub enum AddressSchema {}

impl JsonSchema for AddressSchema {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "title": "an address with a port", "examples": ["192.0.2.1:5000"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_addresses_say_how_to_write_them() {
        assert_eq!(parse_address("[::]:5000"), Ok("[::]:5000".parse().unwrap()));
        let wrong = |text: &str| parse_address(text).unwrap_err();
        insta::assert_snapshot!(wrong("5000"), @r#""5000" has no address: write [::]:5000 for all addresses of this host, or 127.0.0.1:5000 for this host alone"#);
        insta::assert_snapshot!(wrong(":5000"), @r#"":5000" has no address: write [::]:5000 for all addresses of this host, or 127.0.0.1:5000 for this host alone"#);
        insta::assert_snapshot!(wrong("*:5000"), @r#""*:5000" has no address: write [::]:5000 for all addresses of this host, or 127.0.0.1:5000 for this host alone"#);
        insta::assert_snapshot!(wrong("localhost:1080"), @r#""localhost:1080" is a name: write its address, 127.0.0.1:1080 or [::1]:1080"#);
        insta::assert_snapshot!(wrong("example.com:80"), @r#""example.com:80" is a name, and names are not looked up here: write an address of it (getent ahosts example.com), such as 192.0.2.1:80"#);
        insta::assert_snapshot!(wrong("http://192.0.2.1:80"), @r#""http://192.0.2.1:80" is a URL: write an address with a port, such as 192.0.2.1:5000"#);
        insta::assert_snapshot!(wrong("192.0.2.1"), @r#""192.0.2.1" has no port: write 192.0.2.1:5000"#);
        insta::assert_snapshot!(wrong("2001:db8::1"), @r#""2001:db8::1" has no port: write [2001:db8::1]:5000"#);
        insta::assert_snapshot!(wrong("192.0.2.1:70000"), @r#""192.0.2.1:70000" has a wrong port: "70000" is not a number from 0 to 65535"#);
        insta::assert_snapshot!(wrong("here"), @r#""here" is not an address with a port: write 192.0.2.1:5000 or [2001:db8::1]:5000"#);
    }
}
