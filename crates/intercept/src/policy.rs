//! Which connections are split, and with which profiles: ordered rules and leg profiles.
//!
//! Nothing here touches a socket. The firewall enforces the actions of transparent connections
//! (`rules` translates them to nftables); the proxy asks here for the profiles of the connections
//! it has accepted.

use crate::leg::LegProfile;
use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IntoDeserializer as _},
};
use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The connection is split, and its far leg is a TCP connection
    #[default]
    Split,
    /// The connection passes unsplit
    Bypass,
    /// The connection is split, and a carrier takes its far leg: a part of the program that this
    /// crate does not know. The default where there is a carrier.
    #[serde(rename = "bond")]
    #[schemars(description = "The connection is split, and its far leg is the bond: the default if networks are configured for one")]
    Carry,
    /// The connection is reset, or refused in the protocol in which the client names its
    /// destination
    Refuse,
}

/// What becomes of a new connection of QUIC, which cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QuicAction {
    /// It passes, and is counted
    Count,
    /// Its client gets an ICMP error (port unreachable), so that a browser falls back to TCP
    Reject,
}

/// Deserializes a list. A single element may be written without brackets.
///
/// # Errors
/// An element cannot be parsed.
pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for List<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text, or a list of them")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![T::deserialize(text.into_deserializer())?])
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
            Ok(vec![T::deserialize(number.into_deserializer())?])
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                all.push(item);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(List(PhantomData))
}

/// The JSON Schema of what [`list`] deserializes.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
pub enum OneOrList<T> {
    /// A single element.
    One(T),
    /// A list, which may be empty.
    List(Vec<T>),
}

/// A rule. It matches a connection that meets all of its conditions; an absent condition is met by
/// every connection. Each condition is one value or a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The client is in one of these prefixes.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    pub from: Vec<Prefix>,
    /// The server is in one of these prefixes.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    pub to: Vec<Prefix>,
    /// The server's port is one of these.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Ports>")]
    pub ports: Vec<Ports>,
    /// The connection comes in through one of these interfaces.
    #[serde(rename = "in", deserialize_with = "list")]
    #[schemars(with = "OneOrList<Interface>")]
    pub inward: Vec<Interface>,
    /// The server is reached through one of these interfaces.
    #[serde(rename = "out", deserialize_with = "list")]
    #[schemars(with = "OneOrList<Interface>")]
    pub outward: Vec<Interface>,
    /// What becomes of the connection.
    #[schemars(extend("default" = "split"))]
    pub action: Action,
    /// Name of the `[[leg]]` that is the near leg's profile. Absent: the first that matches the
    /// leg.
    pub near: Option<String>,
    /// Name of the `[[leg]]` that is the far leg's profile. Absent: the first that matches the leg.
    pub far: Option<String>,
    /// What becomes of QUIC, new connections to UDP port 443 that are routed through this host and
    /// meet the conditions. Absent: it passes, as it does where no rule matches.
    pub quic: Option<QuicAction>,
}

/// A profile, and the legs that get it: those that leave through one of the interfaces and lead to
/// one of the prefixes, regardless of which end opened the connection. Without both it is only for
/// rules that refer to its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegRule {
    /// The name by which rules refer to it.
    pub name: Option<String>,
    /// Interfaces through which the leg leaves. Empty: any.
    pub interface: Vec<Interface>,
    /// Prefixes of the leg's peer. Empty: any.
    pub to: Vec<Prefix>,
    /// How the leg is tuned.
    pub profile: LegProfile,
}

/// The keys of a `[[leg]]` that are not keys of a profile.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct LegConditions {
    /// Name that rules refer to.
    name: Option<String>,
    /// Interfaces that the leg leaves through, one or a list; a name that ends in `*` matches every
    /// name that begins so.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Interface>")]
    interface: Vec<Interface>,
    /// Prefixes of the leg's peer, one or a list.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    to: Vec<Prefix>,
}

/// The JSON Schema of a table with the keys of `K` and those of a profile.
pub fn with_profile_keys<K: JsonSchema>(about: &str, generator: &mut SchemaGenerator) -> Schema {
    let mut schema = K::json_schema(generator);
    let profile = LegProfile::json_schema(generator);
    let keys = profile.get("properties").and_then(|keys| keys.as_object()).cloned().unwrap_or_default();
    if let Some(properties) = schema.get_mut("properties").and_then(|keys| keys.as_object_mut()) {
        properties.extend(keys);
    }
    schema.insert("description".into(), about.into());
    schema.insert("additionalProperties".into(), false.into());
    schema
}

impl JsonSchema for LegRule {
    fn schema_name() -> Cow<'static, str> {
        "Leg".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        with_profile_keys::<LegConditions>(
            "Which legs have a profile, and the profile. A leg matches if it leaves through one of the interfaces and its peer is in \
             one of the prefixes; an absent condition always holds. A `[[leg]]` with only a name is for the rules that refer to it.",
            generator,
        )
    }
}

impl<'de> Deserialize<'de> for LegRule {
    /// The keys of the profile and those of the conditions are in one table.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        let own: toml::Table = ["name", "interface", "to"].iter().filter_map(|key| table.remove_entry(*key)).collect();
        let conditions: LegConditions = toml_file::nested(own.into())?;
        let profile = toml_file::nested(table.into())?;
        Ok(LegRule { name: conditions.name, interface: conditions.interface, to: conditions.to, profile })
    }
}

/// An address prefix: `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(pub IpNet);

impl Prefix {
    /// Whether the prefix contains `address`.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    fn contains_all(&self, other: &Prefix) -> bool {
        self.0.contains(&other.0)
    }
}

impl FromStr for Prefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<IpNet>()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
            .map(|net| Prefix(net.trunc()))
            .map_err(|_| format!("cannot parse address prefix {text:?}: write 10.0.0.0/8, 2001:db8::/32 or one address"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

impl serde::Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A port, or a range of them: `443`, `"8000-8999"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port, inclusive.
    pub last: u16,
}

impl FromStr for Ports {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
            _ => Err(format!("cannot parse port {text:?}: write a number from 1 to 65535, or a range such as \"8000-8999\"")),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// The name of a network interface. A name that ends in `*` matches every name that begins so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface(pub String);

impl Interface {
    /// Whether it is this name, or a pattern that matches the name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.strip_suffix('*').map_or(self.0 == name, |start| name.starts_with(start))
    }

    /// Whether it matches all names that another one matches.
    fn matches_all(&self, other: &Interface) -> bool {
        // A `*` that ends the other one matches any rest, as any rest of a name does.
        self.0 == other.0 || (self.0.ends_with('*') && self.matches(other.0.strip_suffix('*').unwrap_or(&other.0)))
    }
}

impl FromStr for Interface {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let stem = text.strip_suffix('*').unwrap_or(text);
        // Names are inserted into firewall commands, so that only harmless characters are allowed.
        let fine = !stem.is_empty() && text.len() < 16 && stem.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@:".contains(c));
        if fine {
            Ok(Interface(text.into()))
        } else {
            Err(format!("cannot parse interface name {text:?}: write a name that `ip link` shows, or a pattern such as ppp*"))
        }
    }
}

/// Deserializes types from a text or a number, by their `FromStr`.
macro_rules! from_text {
    ($($name:ident: $what:literal, $example:literal);*) => {$(
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({ "title": $what, "examples": [$example] })
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!($what, " such as \"", $example, "\""))
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    )*};
}
from_text!(Prefix: "an address prefix", "10.0.0.0/8"; Ports: "a port or a range of ports", "8000-8999"; Interface: "an interface", "eth0");

/// The rules and profiles of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The first that matches a connection decides.
    pub rules: Vec<Rule>,
    /// The first that matches a leg is its profile, unless a rule names another one.
    pub legs: Vec<LegRule>,
    /// The profile of near legs that no entry of `legs` matches.
    pub near: LegProfile,
    /// The profile of far legs that no entry of `legs` matches.
    pub far: LegProfile,
}

/// A profile, with its name for messages and the interfaces by which it is chosen.
pub type NamedProfile<'a> = (String, &'a LegProfile, &'a [Interface]);

impl Policy {
    /// Whether the carrier takes the far leg of a connection, where there is a carrier. `server` is
    /// `None` while only the server's name is known: rules with a condition on the server do not
    /// match then.
    pub fn is_carried(&self, client: SocketAddr, server: Option<SocketAddr>, mut route: impl FnMut(IpAddr) -> Option<String>) -> bool {
        let asks = self.rules.iter().any(|rule| !rule.inward.is_empty() || !rule.outward.is_empty());
        let mut through = |address: Option<IpAddr>| address.filter(|_| asks).and_then(&mut route);
        let (inward, outward) = (through(Some(client.ip())), through(server.map(|server| server.ip())));
        let rule = self.rules.iter().find(|rule| rule.matches(client, server, inward.as_deref(), outward.as_deref()));
        rule.is_none_or(|rule| rule.action == Action::Carry)
    }

    /// Whether a rule refuses a connection. `route` returns the interface through which an address
    /// is reached; it is called only if a condition needs it.
    pub fn is_refused(&self, client: SocketAddr, server: SocketAddr, mut route: impl FnMut(IpAddr) -> Option<String>) -> bool {
        // Fast path: most configurations have no such rule.
        if self.rules.iter().all(|rule| rule.action != Action::Refuse) {
            return false;
        }
        let asks = self.rules.iter().any(|rule| !rule.inward.is_empty() || !rule.outward.is_empty());
        let mut through = |address| if asks { route(address) } else { None };
        let (inward, outward) = (through(client.ip()), through(server.ip()));
        let rule = self.rules.iter().find(|rule| rule.matches(client, Some(server), inward.as_deref(), outward.as_deref()));
        rule.is_some_and(|rule| rule.action == Action::Refuse)
    }

    /// Rules that decide nothing, and an earlier one for each that matches all of its connections,
    /// as indices of `rules`.
    pub fn shadowed_rules(&self) -> impl Iterator<Item = (usize, usize)> {
        let earlier = |index: usize| self.rules[..index].iter().position(|rule| rule.covers(&self.rules[index]));
        (1..self.rules.len()).filter_map(move |index| Some((index, earlier(index)?)))
    }

    /// Entries of `legs` that match no leg, as [`shadowed_rules`](Self::shadowed_rules). Those that
    /// a rule may name are left out.
    pub fn shadowed_legs(&self) -> impl Iterator<Item = (usize, usize)> {
        let earlier = |index: usize| self.legs[..index].iter().position(|leg| leg.covers(&self.legs[index]));
        (1..self.legs.len()).filter(|index| self.legs[*index].name.is_none()).filter_map(move |index| Some((index, earlier(index)?)))
    }

    /// The profiles of a connection's near and far leg. `route` returns the interface through which
    /// an address is reached; it is called only if a condition needs it.
    pub fn legs_of(
        &self,
        client: SocketAddr,
        server: SocketAddr,
        route: impl FnMut(IpAddr) -> Option<String>,
    ) -> (&LegProfile, &LegProfile) {
        let [near, far] = self.chosen_legs(client, server, route);
        (self.profile(near), self.profile(far))
    }

    /// The same as indices of [`profiles`](Self::profiles).
    pub fn chosen_legs(&self, client: SocketAddr, server: SocketAddr, mut route: impl FnMut(IpAddr) -> Option<String>) -> [usize; 2] {
        if self.rules.is_empty() && self.legs.is_empty() {
            return [Self::NEAR, Self::FAR];
        }
        let asks = self.legs.iter().any(|leg| !leg.interface.is_empty())
            || self.rules.iter().any(|rule| !rule.inward.is_empty() || !rule.outward.is_empty());
        let mut through = |address| if asks { route(address) } else { None };
        let (inward, outward) = (through(client.ip()), through(server.ip()));
        let rule = self.rules.iter().find(|rule| rule.matches(client, Some(server), inward.as_deref(), outward.as_deref()));
        let choose = |named: Option<&String>, peer: IpAddr, through: Option<&str>| {
            self.legs.iter().position(|leg| match named {
                Some(name) => leg.name.as_ref() == Some(name),
                None => leg.matches(peer, through),
            })
        };
        let near = choose(rule.and_then(|rule| rule.near.as_ref()), client.ip(), inward.as_deref());
        let far = choose(rule.and_then(|rule| rule.far.as_ref()), server.ip(), outward.as_deref());
        [near.map_or(Self::NEAR, |leg| Self::FIRST_LEG + leg), far.map_or(Self::FAR, |leg| Self::FIRST_LEG + leg)]
    }

    // Indices of `profiles`.
    const NEAR: usize = 0;
    const FAR: usize = 1;
    const FIRST_LEG: usize = 2;

    /// The profile with this index of [`profiles`](Self::profiles).
    ///
    /// # Panics
    /// There is no such index.
    pub fn profile(&self, index: usize) -> &LegProfile {
        match index {
            Self::NEAR => &self.near,
            Self::FAR => &self.far,
            leg => &self.legs[leg - Self::FIRST_LEG].profile,
        }
    }

    /// All profiles, with their names for messages and the interfaces by which they are chosen.
    pub fn profiles(&self) -> impl Iterator<Item = NamedProfile<'_>> {
        let named = self.legs.iter().enumerate().map(|(index, leg)| {
            let name = leg.name.clone().unwrap_or_else(|| format!("leg[{}]", index + 1));
            (name, &leg.profile, &leg.interface[..])
        });
        let both = [("near leg".to_string(), &self.near, &[][..]), ("far leg".to_string(), &self.far, &[][..])];
        both.into_iter().chain(named)
    }

    /// All profiles, mutable.
    pub fn profiles_mut(&mut self) -> impl Iterator<Item = &mut LegProfile> {
        let legs = self.legs.iter_mut().map(|leg| &mut leg.profile);
        [&mut self.near, &mut self.far].into_iter().chain(legs)
    }
}

/// Whether a condition holds: one of `wanted` matches `given`. An absent (empty) condition always
/// holds; any other does not hold for an unknown (`None`) value.
fn holds<T, U: ?Sized>(wanted: &[T], given: Option<&U>, matches: impl Fn(&T, &U) -> bool) -> bool {
    wanted.is_empty() || given.is_some_and(|given| wanted.iter().any(|one| matches(one, given)))
}

/// Whether a condition holds whenever another one does.
fn covers<T>(wider: &[T], narrower: &[T], contains: impl Fn(&T, &T) -> bool) -> bool {
    let is_within = |one: &T| wider.iter().any(|of| contains(of, one));
    wider.is_empty() || (!narrower.is_empty() && narrower.iter().all(is_within))
}

impl Rule {
    /// Whether it matches every connection that another one matches.
    pub fn covers(&self, other: &Rule) -> bool {
        covers(&self.from, &other.from, Prefix::contains_all)
            && covers(&self.to, &other.to, Prefix::contains_all)
            && covers(&self.ports, &other.ports, |of, one| of.first <= one.first && one.last <= of.last)
            && covers(&self.inward, &other.inward, Interface::matches_all)
            && covers(&self.outward, &other.outward, Interface::matches_all)
    }

    /// Whether it has a condition on the client: its prefix or its interface.
    pub fn names_clients(&self) -> bool {
        !self.inward.is_empty() || !self.from.is_empty()
    }

    fn matches(&self, client: SocketAddr, server: Option<SocketAddr>, inward: Option<&str>, outward: Option<&str>) -> bool {
        holds(&self.from, Some(&client.ip()), |prefix, address| prefix.contains(*address))
            && holds(&self.to, server.map(|server| server.ip()).as_ref(), |prefix, address| prefix.contains(*address))
            && holds(&self.ports, server.map(|server| server.port()).as_ref(), |ports, port| (ports.first..=ports.last).contains(port))
            && holds(&self.inward, inward, Interface::matches)
            && holds(&self.outward, outward, Interface::matches)
    }
}

impl LegRule {
    /// Whether it matches every leg that another one matches.
    fn covers(&self, other: &LegRule) -> bool {
        let is_matched = |leg: &LegRule| !leg.to.is_empty() || !leg.interface.is_empty();
        is_matched(self)
            && is_matched(other)
            && covers(&self.to, &other.to, Prefix::contains_all)
            && covers(&self.interface, &other.interface, Interface::matches_all)
    }

    fn matches(&self, peer: IpAddr, through: Option<&str>) -> bool {
        // An entry without conditions is only for rules that refer to it.
        (!self.to.is_empty() || !self.interface.is_empty())
            && holds(&self.to, Some(&peer), |prefix, address| prefix.contains(*address))
            && holds(&self.interface, through, Interface::matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct File {
            rule: Vec<Rule>,
            leg: Vec<LegRule>,
        }
        let file: File = toml::from_str(text).unwrap();
        let default = |name: &str| LegProfile { control: Some(name.into()), ..LegProfile::default() };
        Policy { rules: file.rule, legs: file.leg, near: default("near"), far: default("far") }
    }

    fn chosen(policy: &Policy, client: &str, server: &str) -> [String; 2] {
        let route =
            |address: IpAddr| Some(if address.is_ipv6() || address.to_string().starts_with("10.") { "sat0" } else { "eth0" }.into());
        let (near, far) = policy.legs_of(client.parse().unwrap(), server.parse().unwrap(), route);
        [near, far].map(|profile| profile.control.clone().unwrap())
    }

    #[test]
    fn a_leg_has_the_profile_of_its_peer_whichever_end_opened_it() {
        let policy =
            policy("[[leg]]\ninterface = [\"sat*\"]\ncontrol = \"hybla\"\n[[leg]]\nto = [\"192.0.2.0/24\"]\ncontrol = \"vegas\"\n");
        assert_eq!(chosen(&policy, "10.0.0.1:1000", "198.51.100.1:80"), ["hybla", "far"]);
        assert_eq!(chosen(&policy, "192.0.2.1:1000", "10.0.0.1:80"), ["vegas", "hybla"]);
        assert_eq!(chosen(&policy, "[2001:db8::1]:1000", "192.0.2.7:80"), ["hybla", "vegas"]);
    }

    #[test]
    fn the_first_rule_that_matches_names_the_legs() {
        let policy = policy(
            "[[leg]]\nname = \"gentle\"\ncontrol = \"gentle\"\n[[rule]]\nports = [443, \"8000-8999\"]\nto = [\"10.0.0.0/8\"]\nfar = \"gentle\"\n\
             [[rule]]\nin = [\"eth0\"]\nnear = \"gentle\"\n",
        );
        assert_eq!(chosen(&policy, "198.51.100.1:5", "10.0.0.1:8080"), ["near", "gentle"]);
        assert_eq!(chosen(&policy, "198.51.100.1:5", "10.0.0.1:80"), ["gentle", "far"]);
        assert_eq!(chosen(&policy, "10.0.0.1:5", "198.51.100.1:443"), ["near", "far"]);
    }

    #[test]
    fn rules_and_legs_behind_wider_ones_decide_nothing() {
        let shadowed = |text: &str| {
            let policy = policy(text);
            [policy.shadowed_rules().collect::<Vec<_>>(), policy.shadowed_legs().collect()]
        };
        let rules = |lines: &[&str]| shadowed(&lines.iter().map(|line| format!("[[rule]]\n{line}\n")).collect::<String>())[0].clone();
        assert_eq!(rules(&["ports = 22", "", "from = \"10.0.0.0/8\"", "ports = 22"]), [(2, 1), (3, 0)]);
        assert_eq!(rules(&["to = \"10.0.0.0/8\"", "to = \"10.1.0.0/16\"", "to = \"11.0.0.0/8\"", "to = \"0.0.0.0/0\""]), [(1, 0)]);
        assert_eq!(rules(&["ports = \"80-90\"", "ports = [80, 443]", "ports = [85, \"86-90\"]"]), [(2, 0)]);
        assert_eq!(rules(&["in = \"ppp*\"", "in = \"ppp1*\"", "in = \"ppp0\"", "in = \"pp*\"", "out = \"ppp0\""]), [(1, 0), (2, 0)]);
        assert_eq!(rules(&["in = \"a\"\nports = 80", "in = \"a\"", "ports = 80"]), []);
        let legs = |lines: &[&str]| shadowed(&lines.iter().map(|line| format!("[[leg]]\n{line}\n")).collect::<String>())[1].clone();
        assert_eq!(legs(&["interface = \"a\"", "interface = \"a\"\nto = \"10.0.0.0/8\"", "name = \"x\"\ninterface = \"a\""]), [(1, 0)]);
        assert_eq!(legs(&["name = \"x\"", "interface = \"a\""]), [], "one without conditions matches nothing by itself");
    }

    #[test]
    fn malformed_ports_prefixes_and_interfaces_are_refused() {
        for wrong in ["0", "70000", "9-8", "http"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
        assert!("10.0.0.0/33".parse::<Prefix>().is_err());
        assert_eq!("10.1.2.3/8".parse::<Prefix>().unwrap().to_string(), "10.0.0.0/8");
        for wrong in ["", "*", "a b", "x\"; drop", "a-name-too-long-for-one"] {
            assert!(wrong.parse::<Interface>().is_err(), "{wrong}");
        }
    }
}
