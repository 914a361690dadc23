//! What this host has: interfaces, default routes, address translation.

use super::{
    NatPlace,
    nat::{Applies, Nat},
};
use intercept::{
    Interface, Prefix,
    check::{Trial, TrialResult},
};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

/// The suggested address of the metrics.
pub(super) const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9155);

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostInterface {
    pub(super) name: String,
    /// Whether it is up. One that is down is not suggested.
    pub(super) is_up: bool,
    /// Its addresses, each with the length of its prefix; none that is link-local.
    pub(super) addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route leads through it.
    pub(super) is_default: bool,
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
                let is_up = address.flags.contains(InterfaceFlags::IFF_UP);
                interfaces.push(HostInterface { is_default: default.contains(&name), is_up, name, addresses: Vec::new() });
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
        Ok(Detected { interfaces, nat: Nat::of_host() })
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
        let all: Vec<&HostInterface> = self.interfaces.iter().filter(|it| it.is_up).collect();
        let default: Vec<&HostInterface> = self.interfaces.iter().filter(|it| it.is_default).collect();
        match (&default[..], &all[..]) {
            ([one], _) | ([], [one]) => one.name.parse(),
            _ => Err(format!("which interface is the long link cannot be told (--long-link): this host has {}", self.names())),
        }
    }

    /// The networks of the other interfaces.
    pub(super) fn suggested_clients(&self, long_link: &str) -> Vec<Prefix> {
        let others = self.interfaces.iter().filter(|it| it.is_up && it.name != long_link);
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
        if self.nat.on(long_link).0 > Applies::No {
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
    let (applies, rules) = found.on(long_link);
    let rules = format!("by the rule{}: {}", if rules.len() == 1 { "" } else { "s" }, rules.join("; "));
    let result = match (answer, applies) {
        (NatPlace::Here, Applies::Surely) => TrialResult::works(rules),
        (NatPlace::Here, Applies::Perhaps) => {
            TrialResult::doubtful(format!("perhaps {rules}"), "see whether this translates the clients' addresses")
        }
        (NatPlace::Here, Applies::No) => match found {
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
        (_, Applies::Surely) => TrialResult::doubtful(format!("this host does it too, {rules}"), "see whether that is wanted"),
        (_, Applies::Perhaps) => TrialResult::doubtful(format!("this host perhaps does it too, {rules}"), "see whether that is wanted"),
        (_, Applies::No) => return None,
    };
    Some(Trial::new("translate addresses on", long_link.to_owned(), result))
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
            is_up: true,
            addresses: vec![(address.parse().unwrap(), 24)],
            is_default,
        };
        Detected { interfaces: vec![interface("lan0", "192.168.7.1", false), interface("sat0", "192.0.2.7", true)], nat }
    }

    /// A host with this rule.
    fn nat(rule: &str) -> Nat {
        let hook = "type nat hook postrouting priority srcnat;";
        Nat::parse(&format!("table ip nat {{\n\tchain post {{\n\t\t{hook}\n\t\t{rule}\n\t}}\n}}\n"))
    }

    #[test]
    fn suggestions_follow_what_was_found() {
        let found = detected(Nat::None);
        assert_eq!(found.suggested_link().unwrap().0, "sat0");
        assert_eq!(found.suggested_clients("sat0"), ["192.168.7.0/24".parse().unwrap()]);
        assert_eq!((found.suggested_nat("sat0"), found.suggested_nat("lan0")), (NatPlace::None, NatPlace::Elsewhere));
        let nat = |rule: &str| detected(nat(rule)).suggested_nat("sat0");
        assert_eq!(nat("oifname \"sat0\" masquerade"), NatPlace::Here);
        assert_eq!(nat("oifname \"lan0\" masquerade"), NatPlace::None);
        assert_eq!(nat("ip saddr 10.0.0.0/8 masquerade"), NatPlace::Here);
    }

    #[test]
    fn an_interface_that_is_down_is_not_suggested() {
        let mut found = detected(Nat::None);
        (found.interfaces[0].is_up, found.interfaces[1].is_default) = (false, false);
        assert_eq!(found.suggested_link().unwrap().0, "sat0");
        assert!(found.suggested_clients("sat0").is_empty());
        assert_eq!(found.names(), "lan0, sat0", "but it may be chosen");
    }

    #[test]
    fn an_answer_about_nat_that_is_not_so_is_in_the_way() {
        let fails = |answer, found: &Nat| try_nat(answer, "sat0", found).map(|trial| trial.fails());
        let is_doubtful = |answer, rule: &str| match try_nat(answer, "sat0", &nat(rule)).unwrap().result {
            TrialResult::Doubtful { why, .. } => why.contains(rule),
            _ => false,
        };
        assert_eq!(fails(NatPlace::Here, &Nat::None), Some(true));
        assert_eq!(fails(NatPlace::Here, &Nat::Unknown("x".into())), Some(false));
        assert_eq!(fails(NatPlace::Here, &nat("oifname \"lan0\" masquerade")), Some(true));
        for rule in ["oifname \"sat0\" masquerade", "oifname != \"lan0\" masquerade", "oifname \"sat*\" masquerade"] {
            assert_eq!(fails(NatPlace::Here, &nat(rule)), Some(false), "{rule}");
            assert!(!is_doubtful(NatPlace::Here, rule) && is_doubtful(NatPlace::Elsewhere, rule), "{rule}");
        }
        let docker = "ip saddr 172.17.0.0/16 oifname != \"docker0\" masquerade";
        assert!(is_doubtful(NatPlace::Here, docker) && is_doubtful(NatPlace::None, docker));
        assert_eq!(fails(NatPlace::None, &Nat::None), None);
    }
}
