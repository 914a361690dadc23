//! What this host has: interfaces, default routes, address translation.

use super::{
    ClientSide, NatPlace,
    nat::{Applies, Nat},
};
use crate::host_interfaces::{self, HostInterface};
use intercept::{
    Interface, Prefix,
    check::{Trial, TrialResult},
};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

/// The suggested address of the metrics.
pub(super) const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9155);

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
        Ok(Detected { interfaces: host_interfaces::of_host()?, nat: Nat::of_host() })
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

    /// The other interfaces that could be the long link, if this host forwards packets.
    pub(super) fn others(&self, long_link: &str) -> Vec<String> {
        let forwards = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];
        let is_router =
            forwards.iter().any(|name| fs::read_to_string(format!("/proc/sys/net/{name}")).is_ok_and(|value| value.trim() != "0"));
        let others = self.interfaces.iter().filter(|it| is_router && it.is_up && it.name != long_link);
        others.map(|it| it.name.clone()).collect()
    }

    /// Where the clients probably are: behind the long link if the servers are reached through
    /// another interface.
    pub(super) fn suggested_side(&self, long_link: &str) -> ClientSide {
        let mut default = self.interfaces.iter().filter(|it| it.is_default).peekable();
        if default.peek().is_some() && default.all(|it| it.name != long_link) { ClientSide::Behind } else { ClientSide::Here }
    }

    /// The interface through which connections of the clients leave towards the servers, if it is
    /// known.
    pub(super) fn to_servers(&self, long_link: &str, side: ClientSide) -> Option<String> {
        match side {
            ClientSide::Here => Some(long_link.to_owned()),
            ClientSide::Behind => self.interfaces.iter().find(|it| it.is_default && it.name != long_link).map(|it| it.name.clone()),
        }
    }

    /// The networks of the clients: those of the other interfaces, or those behind the long link.
    pub(super) fn suggested_clients(&self, long_link: &str, side: ClientSide) -> Vec<Prefix> {
        let is_theirs = |it: &&HostInterface| it.is_up && (it.name == long_link) == (side == ClientSide::Behind);
        host_interfaces::networks(self.interfaces.iter().filter(is_theirs))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(nat: Nat) -> Detected {
        let interface = |name: &str, address: &str, is_default| HostInterface {
            name: name.into(),
            is_up: true,
            addresses: vec![(address.parse().unwrap(), 24)],
            routed: Vec::new(),
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
        assert_eq!(found.suggested_side("sat0"), ClientSide::Here);
        assert_eq!(found.suggested_clients("sat0", ClientSide::Here), ["192.168.7.0/24".parse().unwrap()]);
        assert_eq!(found.to_servers("sat0", ClientSide::Here).as_deref(), Some("sat0"));
        assert_eq!((found.suggested_nat("sat0"), found.suggested_nat("lan0")), (NatPlace::None, NatPlace::Elsewhere));
        let nat = |rule: &str| detected(nat(rule)).suggested_nat("sat0");
        assert_eq!(nat("oifname \"sat0\" masquerade"), NatPlace::Here);
        assert_eq!(nat("oifname \"lan0\" masquerade"), NatPlace::None);
        assert_eq!(nat("ip saddr 10.0.0.0/8 masquerade"), NatPlace::Here);
    }

    #[test]
    fn on_a_gateway_the_clients_are_behind_the_long_link() {
        let mut found = detected(Nat::None);
        found.interfaces[0].is_default = true;
        found.interfaces[1].is_default = false;
        found.interfaces[1].routed = vec![("100.64.0.0".parse().unwrap(), 10)];
        assert_eq!(found.suggested_side("sat0"), ClientSide::Behind);
        assert_eq!(found.to_servers("sat0", ClientSide::Behind).as_deref(), Some("lan0"));
        let clients = ["192.0.2.0/24", "100.64.0.0/10"].map(|prefix| prefix.parse().unwrap());
        assert_eq!(found.suggested_clients("sat0", ClientSide::Behind), clients);
    }

    #[test]
    fn an_interface_that_is_down_is_not_suggested() {
        let mut found = detected(Nat::None);
        (found.interfaces[0].is_up, found.interfaces[1].is_default) = (false, false);
        assert_eq!(found.suggested_link().unwrap().0, "sat0");
        assert!(found.suggested_clients("sat0", ClientSide::Here).is_empty());
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
