//! Checks of settings and limits of this host: forwarding, routes, the nftables rules, conntrack,
//! congestion controllers.

use super::{Trial, TrialResult};
use crate::{Interception, NamedProfile, rules::Rules};
use std::{collections::BTreeSet, fs};

/// An address family, and where the kernel publishes its forwarding setting and routes.
#[derive(Debug, Clone, Copy)]
struct ForwardedFamily {
    name: &'static str,
    /// The forwarding setting, by its sysctl name.
    setting: &'static str,
    /// The file with its routes in the calling thread's network namespace.
    routes: &'static str,
}

const IPV4: ForwardedFamily = ForwardedFamily { name: "IPv4", setting: "net.ipv4.ip_forward", routes: "/proc/thread-self/net/route" };
const IPV6: ForwardedFamily =
    ForwardedFamily { name: "IPv6", setting: "net.ipv6.conf.all.forwarding", routes: "/proc/thread-self/net/ipv6_route" };

/// Checks what routed connections need, if a listener is transparent; otherwise the list is empty.
/// `flows` is the configured maximum of connections at once. `running` names a proxy of the same
/// name that already runs.
pub fn try_routed(interception: &Interception, flows: Option<u64>, running: Option<&str>) -> Vec<Trial> {
    let families = routed_families(interception);
    if families.is_empty() {
        return Vec::new();
    }
    let mut trials = families.iter().map(forwards).collect::<Vec<_>>();
    trials.push(try_outgoing(families));
    trials.extend(interception.rules().map(|rules| try_rules(&rules, running)));
    trials.extend(try_conntrack(flows));
    trials
}

/// Checks IP forwarding for each address family that the transparent listener accepts.
pub fn try_forwarding_of_routed(interception: &Interception) -> Vec<Trial> {
    routed_families(interception).iter().map(forwards).collect()
}

/// The address families, IPv4 and IPv6, that the transparent listener accepts.
fn routed_families(interception: &Interception) -> &'static [ForwardedFamily] {
    match interception.listen.iter().find(|listen| listen.is_transparent()).map(|listen| listen.at) {
        None => &[],
        Some(at) if at.is_ipv4() => &[IPV4],
        Some(at) if at.ip().is_unspecified() => &[IPV4, IPV6],
        Some(_) => &[IPV6],
    }
}

/// Checks that this host forwards packets of both families: connections that are not split need it.
pub fn try_forwarding() -> Vec<Trial> {
    [IPV4, IPV6].iter().map(forwards).collect()
}

/// Checks that this host forwards packets of one family.
fn forwards(family: &ForwardedFamily) -> Trial {
    let ForwardedFamily { name, setting, .. } = family;
    let path = format!("/proc/sys/{}", setting.replace('.', "/"));
    let result = match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("0") if family.outgoing().is_empty() => TrialResult::works(format!("off; there is no {name} route")),
        Ok("0") => TrialResult::fails(
            format!("{setting} is 0: this host drops the packets of connections that it does not split"),
            format!("sysctl -w {setting}=1, and make it permanent in /etc/sysctl.d"),
        ),
        Ok(_) => TrialResult::works("on"),
        Err(_) => TrialResult::works(format!("this kernel has no {name}")),
    };
    Trial::new("forward packets of", *name, result)
}

impl ForwardedFamily {
    /// Interfaces through which routes of this family leave this host, and "default" if there is a
    /// default route.
    fn outgoing(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.routes).unwrap_or_default();
        let mut interfaces = BTreeSet::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            // IPv4: interface, destination, gateway, flags, …, mask at 7. IPv6: destination, its
            // length in hexadecimal, …, flags at 8, interface at 9.
            let (device, default, flags) = match words[..] {
                [device, to, _, flags, _, _, _, mask, ..] if device != "Iface" && words.len() == 11 => {
                    (device, to == "00000000" && mask == "00000000", flags)
                }
                [to, length, _, _, _, _, _, _, flags, device] if !to.starts_with("fe8") && !to.starts_with("ff") => {
                    (device, length == "00", flags)
                }
                _ => continue,
            };
            // RTF_UP without RTF_REJECT.
            if device != "lo" && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 0x201 == 1) {
                interfaces.insert(device.to_owned());
                if default {
                    interfaces.insert("default".into());
                }
            }
        }
        interfaces
    }
}

/// Checks that the main routing table has at least two networks, between which connections can be
/// routed.
fn try_outgoing(families: &[ForwardedFamily]) -> Trial {
    let found: Vec<(&str, BTreeSet<String>)> =
        families.iter().map(|family| (family.name, family.outgoing())).filter(|(_, interfaces)| !interfaces.is_empty()).collect();
    let text = |(name, interfaces): &(&str, BTreeSet<String>)| {
        format!("{name} through {}", interfaces.iter().cloned().collect::<Vec<_>>().join(", "))
    };
    let result = if found.is_empty() {
        TrialResult::fails("there is no route except to this host itself", "give its interfaces addresses and routes (`ip route`)")
    } else if found.iter().all(|(_, interfaces)| interfaces.len() < 2) {
        let only = found.iter().map(text).collect::<Vec<_>>().join(", ");
        TrialResult::doubtful(
            format!("there is only {only}: connections cannot come from one network and go to another"),
            "add a default route, or the interface that is missing",
        )
    } else {
        TrialResult::works(found.iter().map(text).collect::<Vec<_>>().join("; "))
    };
    Trial::new("find routes both ways for", "routed connections", result)
}

/// Checks that nft accepts the rules.
fn try_rules(rules: &Rules, running: Option<&str>) -> Trial {
    let result = match (running, rules.try_out()) {
        (Some(name), _) => TrialResult::works(format!("the running proxy {name} has installed its rules")),
        (None, Ok(())) => TrialResult::works("nft accepts them"),
        (None, Err(why)) => TrialResult::fails(why.to_string(), "see `tandem doctor` for what this machine can do"),
    };
    Trial::new("check", "the firewall's rules", result)
}

/// Checks that the conntrack table has room for `flows`: where conntrack is in use, as for NAT,
/// each leg has an entry.
fn try_conntrack(flows: Option<u64>) -> Option<Trial> {
    let number = |name: &str| fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?.trim().parse::<u64>().ok();
    let (most, now) = (number("nf_conntrack_max")?, number("nf_conntrack_count")?);
    let result = match flows.filter(|flows| most > 0 && flows * 2 + now > most) {
        Some(flows) => TrialResult::doubtful(
            format!(
                "{flows} flows (max_flows) need two entries each, and {now} of {most} entries are in use: when the table is full, packets of \
                 new connections are dropped"
            ),
            format!("sysctl -w net.netfilter.nf_conntrack_max={}, or lower max_flows", (flows * 2 + now).next_power_of_two()),
        ),
        None => TrialResult::works(format!(
            "room for {} flows with two entries each, besides the {now} entries in use",
            most.saturating_sub(now) / 2
        )),
    };
    Some(Trial::new("find room in", "the table of conntrack (NAT, stateful firewall)", result))
}

/// Lists the congestion controllers of profiles, which [`Interception::prepare`] has tried.
pub fn try_controllers<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Trial {
    let named: BTreeSet<&str> = profiles.filter_map(|(_, profile, _)| profile.control.as_deref()).collect();
    let found = if named.is_empty() { "the kernel's default".into() } else { named.into_iter().collect::<Vec<_>>().join(", ") };
    Trial::new("find", "the congestion controllers", TrialResult::works(found))
}
