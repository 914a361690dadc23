//! What this host has: interfaces, default routes, rules that translate addresses.

use super::NatPlace;
use intercept::{
    Interface, Prefix,
    check::{Trial, TrialResult},
};
use nix::ifaddrs::getifaddrs;
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
};

/// The suggested address of the metrics.
pub(super) const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9155);

/// A network interface that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostInterface {
    pub(super) name: String,
    /// Its addresses, each with the length of its prefix; none that is link-local.
    pub(super) addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route leads through it.
    pub(super) is_default: bool,
}

/// Whether rules translate addresses of connections that leave through an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Nat {
    /// Rules, as nft prints them.
    Rules(Vec<String>),
    /// There is none.
    None,
    /// The firewall cannot be read, for this reason.
    Unknown(String),
}

impl Nat {
    /// The first rule that applies to this interface.
    fn on(&self, interface: &str) -> Option<&str> {
        let Nat::Rules(rules) = self else { return None };
        let applies = |rule: &&String| !rule.contains("oif") || rule.contains(&format!("\"{interface}\""));
        rules.iter().find(applies).map(String::as_str)
    }
}

/// What was found on this host.
#[derive(Debug, Clone)]
pub(super) struct Detected {
    pub(super) interfaces: Vec<HostInterface>,
    pub(super) nat: Nat,
}

impl Detected {
    /// Looks at this host, in the network namespace of this process.
    ///
    /// # Errors
    /// The host has no interface but loopback, or they cannot be listed.
    pub(super) fn of_host() -> Result<Self, String> {
        let mut interfaces: Vec<HostInterface> = Vec::new();
        let default = default_interfaces();
        let found = getifaddrs().map_err(|why| format!("cannot list the network interfaces: {why}"))?;
        for address in found.filter(|it| it.interface_name != "lo") {
            let name = address.interface_name;
            let index = interfaces.iter().position(|known| known.name == name).unwrap_or_else(|| {
                interfaces.push(HostInterface { is_default: default.contains(&name), name, addresses: Vec::new() });
                interfaces.len() - 1
            });
            let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
                let address = address?;
                let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
            };
            if let (Some(own), Some(mask)) = (ip(address.address), ip(address.netmask))
                && !is_link_local(own)
            {
                interfaces[index].addresses.push((own, prefix_length(mask)));
            }
        }
        if interfaces.is_empty() {
            return Err("this host has no network interface besides loopback: set one up first".into());
        }
        Ok(Detected { interfaces, nat: nat_rules() })
    }

    /// The names of all interfaces.
    pub(super) fn names(&self) -> String {
        self.interfaces.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The interface that is suggested as the long link: that of the default route.
    ///
    /// # Errors
    /// Which interface it is cannot be known.
    pub(super) fn suggested_link(&self) -> Result<Interface, String> {
        let all: Vec<&HostInterface> = self.interfaces.iter().collect();
        let default: Vec<&HostInterface> = self.interfaces.iter().filter(|it| it.is_default).collect();
        match (&default[..], &all[..]) {
            ([one], _) | ([], [one]) => one.name.parse(),
            _ => Err(format!("which interface is the long link cannot be told (--long-link): this host has {}", self.names())),
        }
    }

    /// The networks of the other interfaces.
    pub(super) fn suggested_clients(&self, long_link: &str) -> Vec<Prefix> {
        let others = self.interfaces.iter().filter(|it| it.name != long_link);
        let mut prefixes: Vec<Prefix> = Vec::new();
        for (address, length) in others.flat_map(|it| &it.addresses) {
            if let Ok(prefix) = format!("{address}/{length}").parse::<Prefix>()
                && !prefixes.contains(&prefix)
            {
                prefixes.push(prefix);
            }
        }
        prefixes
    }

    /// Where addresses are translated, as far as that can be seen.
    pub(super) fn suggested_nat(&self, long_link: &str) -> NatPlace {
        if self.nat.on(long_link).is_some() {
            return NatPlace::Here;
        }
        // Clients with private addresses, and a long link with such an address, meet a translator
        // later.
        let is_private = |address: &IpAddr| matches!(address, IpAddr::V4(address) if address.is_private());
        let on_link = self.interfaces.iter().filter(|it| it.name == long_link).flat_map(|it| &it.addresses);
        if on_link.clone().any(|(address, _)| is_private(address)) { NatPlace::Elsewhere } else { NatPlace::None }
    }

    /// The addresses of an interface, as text.
    pub(super) fn addresses(&self, name: &str) -> String {
        let of = self.interfaces.iter().filter(|it| it.name == name).flat_map(|it| &it.addresses);
        of.map(|(address, length)| format!("{address}/{length}")).collect::<Vec<_>>().join(", ")
    }
}

/// Whether what was answered about address translation is so.
pub(super) fn try_nat(answer: NatPlace, long_link: &str, found: &Nat) -> Option<Trial> {
    let result = match (answer, found.on(long_link)) {
        (NatPlace::Here, Some(rule)) => TrialResult::works(format!("by the rule: {rule}")),
        (NatPlace::Here, None) => match found {
            Nat::Unknown(why) => {
                TrialResult::doubtful(format!("the firewall cannot be read: {why}"), "see whether it translates addresses")
            }
            _ => TrialResult::fails(
                "no nftables rule translates addresses there",
                format!(
                    "add one (nft add table ip nat; nft 'add chain ip nat postrouting {{ type nat hook postrouting priority srcnat; }}'; \
                     nft 'add rule ip nat postrouting oifname \"{long_link}\" masquerade'), or answer elsewhere or none"
                ),
            ),
        },
        (_, Some(rule)) => TrialResult::doubtful(format!("this host does it too, by the rule: {rule}"), "see whether that is wanted"),
        (_, None) => return None,
    };
    Some(Trial::new("translate addresses on", long_link.to_owned(), result))
}

/// The rules of nftables that translate source addresses.
fn nat_rules() -> Nat {
    let output = match Command::new("nft").args(["list", "ruleset"]).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => return Nat::Unknown(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(why) => return Nat::Unknown(format!("cannot run nft: {why}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let is_nat = |line: &&str| line.split_whitespace().any(|word| word == "masquerade" || word == "snat");
    let rules: Vec<String> = text.lines().map(str::trim).filter(is_nat).map(str::to_owned).collect();
    // Rules of the older interface are not in nftables.
    let has_legacy = fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|names| names.lines().any(|name| name == "nat"));
    match (rules.is_empty(), has_legacy) {
        (false, _) => Nat::Rules(rules),
        (true, true) => Nat::Unknown("it has rules of iptables-legacy".into()),
        (true, false) => Nat::None,
    }
}

/// The interfaces of default routes.
fn default_interfaces() -> Vec<String> {
    let v4 = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let of_v4 = v4.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.len() > 7 && fields[1] == "00000000" && fields[7] == "00000000").then(|| fields[0].to_owned())
    });
    let v6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let of_v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.len() > 9 && fields[0].bytes().all(|digit| digit == b'0') && fields[1] == "00" && fields[9] != "lo";
        is_default.then(|| fields[9].to_owned())
    });
    of_v4.chain(of_v6).collect()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn prefix_length(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    ones as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(nat: Nat) -> Detected {
        let interface = |name: &str, address: &str, is_default| HostInterface {
            name: name.into(),
            addresses: vec![(address.parse().unwrap(), 24)],
            is_default,
        };
        Detected { interfaces: vec![interface("lan0", "192.168.7.1", false), interface("sat0", "192.0.2.7", true)], nat }
    }

    #[test]
    fn suggestions_follow_what_was_found() {
        let found = detected(Nat::None);
        assert_eq!(found.suggested_link().unwrap().0, "sat0");
        assert_eq!(found.suggested_clients("sat0"), ["192.168.7.0/24".parse().unwrap()]);
        assert_eq!((found.suggested_nat("sat0"), found.suggested_nat("lan0")), (NatPlace::None, NatPlace::Elsewhere));
        let rule = |text: &str| Nat::Rules(vec![text.into()]);
        assert_eq!(detected(rule("oifname \"sat0\" masquerade")).suggested_nat("sat0"), NatPlace::Here);
        assert_eq!(detected(rule("oifname \"lan0\" masquerade")).suggested_nat("sat0"), NatPlace::None);
        assert_eq!(detected(rule("ip saddr 10.0.0.0/8 masquerade")).suggested_nat("sat0"), NatPlace::Here);
    }

    #[test]
    fn an_answer_about_nat_that_is_not_so_is_in_the_way() {
        let fails = |answer, found: &Nat| try_nat(answer, "sat0", found).map(|trial| trial.fails());
        assert_eq!(fails(NatPlace::Here, &Nat::None), Some(true));
        assert_eq!(fails(NatPlace::Here, &Nat::Unknown("x".into())), Some(false));
        assert_eq!(fails(NatPlace::Here, &Nat::Rules(vec!["oifname \"sat0\" masquerade".into()])), Some(false));
        assert_eq!(fails(NatPlace::None, &Nat::None), None);
    }
}
