//! Where the other end of a bond listens: an address, or a name that is looked up.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::{
    borrow::Cow,
    fmt, io,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Instant,
};

/// Where the other end of a bond listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FarEnd {
    /// At this address.
    Address(SocketAddr),
    /// At an address of this name, which is looked up at the start and after failures, and this
    /// port.
    Name(String, u16),
}

impl From<SocketAddr> for FarEnd {
    fn from(address: SocketAddr) -> Self {
        FarEnd::Address(address)
    }
}

impl fmt::Display for FarEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FarEnd::Address(address) => address.fmt(f),
            FarEnd::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for FarEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, port)) = text.rsplit_once(':')
            && let (true, Ok(port)) = (is_name(name), port.parse())
        {
            return Ok(FarEnd::Name(name.into(), port));
        }
        if is_name(text) {
            return Err(format!("{text:?} has no port: write {text}:7000"));
        }
        intercept::parse_address(text).map(FarEnd::Address)
    }
}

/// Whether this is a host name (RFC 1123 §2.1) and no address.
fn is_name(text: &str) -> bool {
    let fine = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let labels = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && labels.split('.').all(fine) && labels.rsplit('.').next().is_none_or(|last| last.parse::<u32>().is_err())
}

impl<'de> Deserialize<'de> for FarEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = FarEnd;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address or a name with a port such as \"192.0.2.1:7000\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<FarEnd, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, port: i64) -> Result<FarEnd, E> {
                self.visit_str(&port.to_string())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for FarEnd {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FarEnd".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "title": "an address or a name with a port", "examples": ["192.0.2.1:7000"] })
    }
}

/// What to do to connect to the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextAddress {
    Dial(SocketAddr),
    /// Look this name up, with this port. [`FarEndAddresses::resolved`] takes the result.
    LookUp(String, u16),
}

/// The addresses of the other end, and which of them is dialled next.
#[derive(Debug)]
pub(crate) struct FarEndAddresses {
    to: FarEnd,
    source: Option<IpAddr>,
    known: Vec<SocketAddr>,
    /// How many have been dialled since one was last reached.
    dialled: usize,
    looked_up_since: Option<Instant>,
}

impl FarEndAddresses {
    /// For connections with this source address, if they have one of their own.
    pub(crate) fn new(to: FarEnd, source: Option<IpAddr>) -> Self {
        let known = if let FarEnd::Address(address) = to { vec![address] } else { Vec::new() };
        FarEndAddresses { to, source, known, dialled: 0, looked_up_since: None }
    }

    /// What to do next. `works`: the address that was reached last still is.
    pub(crate) fn next(&mut self, works: bool, now: Instant) -> NextAddress {
        match &self.to {
            FarEnd::Name(name, port) if self.known.is_empty() => {
                self.looked_up_since = Some(now);
                NextAddress::LookUp(name.clone(), *port)
            }
            FarEnd::Address(address) => NextAddress::Dial(*address),
            FarEnd::Name(..) if works => NextAddress::Dial(self.known[0]),
            FarEnd::Name(..) => {
                self.dialled += 1;
                NextAddress::Dial(self.known[(self.dialled - 1) % self.known.len()])
            }
        }
    }

    /// Since when its name is being looked up.
    pub(crate) fn looked_up_since(&self) -> Option<Instant> {
        self.looked_up_since
    }

    /// Whether an address has not been dialled since one was last reached.
    pub(crate) fn has_another(&self) -> bool {
        self.dialled < self.known.len() && matches!(self.to, FarEnd::Name(..))
    }

    /// Takes the result of a lookup.
    ///
    /// # Errors
    /// The name has no address that connections with this source can be made to.
    pub(crate) fn resolved(&mut self, addresses: io::Result<Vec<SocketAddr>>) -> io::Result<()> {
        self.looked_up_since = None;
        let fits = |address: &SocketAddr| self.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
        (self.known, self.dialled) = (addresses?.into_iter().filter(fits).collect(), 0);
        if self.known.is_empty() { Err(io::Error::other("it has no address of the IP version of the source address")) } else { Ok(()) }
    }

    /// Notes that this address was reached.
    pub(crate) fn reached(&mut self, address: SocketAddr) {
        if let Some(place) = self.known.iter().position(|known| *known == address) {
            self.known[..=place].rotate_right(1);
        }
        self.dialled = 0;
    }

    /// Notes that a connection failed; returns whether another address of the name is left. If not,
    /// the name is looked up again.
    pub(crate) fn failed(&mut self) -> bool {
        let has_another = self.has_another() && self.dialled > 0;
        if !has_another && matches!(self.to, FarEnd::Name(..)) {
            (self.known, self.dialled) = (Vec::new(), 0);
        }
        has_another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_told_apart() {
        let read = |text: &str| text.parse::<FarEnd>();
        assert_eq!(read("192.0.2.1:7000"), Ok(FarEnd::Address("192.0.2.1:7000".parse().unwrap())));
        assert_eq!(read("[2001:db8::1]:7000"), Ok(FarEnd::Address("[2001:db8::1]:7000".parse().unwrap())));
        for name in ["vps.example.org", "localhost", "home-1.example.org."] {
            assert_eq!(read(&format!("{name}:7000")), Ok(FarEnd::Name(name.into(), 7000)));
        }
        assert_eq!(read("vps.example.org:7000").unwrap().to_string(), "vps.example.org:7000");
        for wrong in
            ["7000", "192.0.2.1", "192.0.2:7000", "vps.example.org", "vps..org:7000", "a b:7000", "vps.example.org:70000", "http://a:7000"]
        {
            read(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn all_addresses_of_a_name_are_dialled_before_it_is_looked_up_again() {
        let (to, now) = ("vps.example.org:7000".parse().unwrap(), Instant::now());
        let [v6, v4]: [SocketAddr; 2] = ["[2001:db8::1]:7000", "192.0.2.1:7000"].map(|text| text.parse().unwrap());
        let mut addresses = FarEndAddresses::new(to, None);
        assert_eq!(addresses.next(false, now), NextAddress::LookUp("vps.example.org".into(), 7000));
        assert_eq!(addresses.looked_up_since(), Some(now));
        addresses.resolved(Ok(vec![v6, v4])).unwrap();
        assert_eq!((addresses.next(false, now), addresses.failed()), (NextAddress::Dial(v6), true));
        assert_eq!(addresses.next(false, now), NextAddress::Dial(v4));
        addresses.reached(v4);
        assert_eq!((addresses.next(true, now), addresses.next(true, now)), (NextAddress::Dial(v4), NextAddress::Dial(v4)));
        // Later it fails: the other one is left, then the name.
        assert_eq!((addresses.next(false, now), addresses.failed()), (NextAddress::Dial(v4), true));
        assert_eq!((addresses.next(false, now), addresses.failed()), (NextAddress::Dial(v6), false));
        assert!(matches!(addresses.next(false, now), NextAddress::LookUp(..)));
    }

    #[test]
    fn addresses_have_the_ip_version_of_the_source() {
        let mut addresses = FarEndAddresses::new("vps.example.org:7000".parse().unwrap(), Some("192.0.2.7".parse().unwrap()));
        addresses.resolved(Ok(vec!["[2001:db8::1]:7000".parse().unwrap()])).unwrap_err();
        addresses.resolved(Err(io::ErrorKind::NotFound.into())).unwrap_err();
        addresses.resolved(Ok(vec!["[2001:db8::1]:7000".parse().unwrap(), "192.0.2.1:7000".parse().unwrap()])).unwrap();
        assert_eq!(addresses.next(false, Instant::now()), NextAddress::Dial("192.0.2.1:7000".parse().unwrap()));
    }
}
