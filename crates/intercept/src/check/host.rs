//! Settings and limits of this host: forwarding, the firewall, conntrack, controllers.

use super::{Trial, TrialResult};
use crate::{Interception, NamedProfile, rules::Rules};
use std::{collections::BTreeSet, fs};

/// A family of addresses, and what the kernel says of it.
#[derive(Debug, Clone, Copy)]
struct AddressFamily {
    name: &'static str,
    /// The setting, as sysctl has it.
    setting: &'static str,
    /// Its routes, of the calling thread's network namespace.
    routes: &'static str,
}

const IPV4: AddressFamily = AddressFamily { name: "IPv4", setting: "net.ipv4.ip_forward", routes: "/proc/thread-self/net/route" };
const IPV6: AddressFamily =
    AddressFamily { name: "IPv6", setting: "net.ipv6.conf.all.forwarding", routes: "/proc/thread-self/net/ipv6_route" };

/// Tries what routed connections need, where a listener takes such. `running` is a proxy of the
/// same name that runs already, `flows` the most connections at once, where that is configured.
pub fn try_routed(interception: &Interception, flows: Option<u64>, running: Option<&str>) -> Vec<Trial> {
    let Some(listen) = interception.listen.iter().find(|listen| listen.is_transparent()) else { return Vec::new() };
    let families = match (listen.at.is_ipv4(), listen.at.ip().is_unspecified()) {
        (true, _) => &[IPV4][..],
        (false, true) => &[IPV4, IPV6],
        (false, false) => &[IPV6],
    };
    let mut trials = families.iter().map(forwards).collect::<Vec<_>>();
    trials.push(try_ways(families));
    trials.extend(interception.rules().map(|rules| try_rules(&rules, running)));
    trials.extend(try_conntrack(flows));
    trials
}

/// Whether packets of either family are forwarded, as those of connections that are not split must
/// be.
pub fn try_forwarding() -> Vec<Trial> {
    [IPV4, IPV6].iter().map(forwards).collect()
}

/// Whether packets are forwarded: those of connections that are not split.
fn forwards(family: &AddressFamily) -> Trial {
    let AddressFamily { name, setting, .. } = family;
    let path = format!("/proc/sys/{}", setting.replace('.', "/"));
    let result = match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("0") if family.ways().is_empty() => TrialResult::works(format!("off; there is no route of {name} either")),
        Ok("0") => TrialResult::fails(
            format!("{setting} is 0: what is not split goes nowhere, and hosts may not send their packets here"),
            format!("sysctl -w {setting}=1, and keep it so in /etc/sysctl.d"),
        ),
        Ok(_) => TrialResult::works("on"),
        Err(_) => TrialResult::works(format!("this kernel has no {name}")),
    };
    Trial::new("forward packets of", *name, result)
}

impl AddressFamily {
    /// Interfaces that routes of this family lead out through; "default" stands for a default route
    /// besides.
    fn ways(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.routes).unwrap_or_default();
        let mut ways = BTreeSet::new();
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
                ways.insert(device.to_owned());
                if default {
                    ways.insert("default".into());
                }
            }
        }
        ways
    }
}

/// Whether routed connections can come from one network and go to another, of the main table.
fn try_ways(families: &[AddressFamily]) -> Trial {
    let found: Vec<(&str, BTreeSet<String>)> =
        families.iter().map(|family| (family.name, family.ways())).filter(|(_, ways)| !ways.is_empty()).collect();
    let text = |(name, ways): &(&str, BTreeSet<String>)| format!("{name} through {}", ways.iter().cloned().collect::<Vec<_>>().join(", "));
    let result = if found.is_empty() {
        TrialResult::fails("there is no route but to this host itself", "give its interfaces addresses and routes (`ip route`)")
    } else if found.iter().all(|(_, ways)| ways.len() < 2) {
        let lone = found.iter().map(text).collect::<Vec<_>>().join(", ");
        TrialResult::doubtful(
            format!("there is only {lone}: connections cannot come from one network and go to another"),
            "add a default route, or the interface that is missing",
        )
    } else {
        TrialResult::works(found.iter().map(text).collect::<Vec<_>>().join("; "))
    };
    Trial::new("find routes both ways for", "routed connections", result)
}

/// Whether the firewall takes the rules.
fn try_rules(rules: &Rules, running: Option<&str>) -> Trial {
    let result = match (running, rules.try_out()) {
        (Some(name), _) => TrialResult::works(format!("those of the proxy {name} that runs are in place")),
        (None, Ok(())) => TrialResult::works("nft takes them"),
        (None, Err(why)) => TrialResult::fails(why.to_string(), "see `tandem doctor` for what this machine can do"),
    };
    Trial::new("check", "the firewall's rules", result)
}

/// Where conntrack looks at connections, as for NAT, it keeps an entry for each leg.
fn try_conntrack(flows: Option<u64>) -> Option<Trial> {
    let number = |name: &str| fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?.trim().parse::<u64>().ok();
    let (most, now) = (number("nf_conntrack_max")?, number("nf_conntrack_count")?);
    let result = match flows.filter(|flows| most > 0 && flows * 2 + now > most) {
        Some(flows) => TrialResult::doubtful(
            format!(
                "{flows} flows (max_flows) take two entries each, and of {most} entries {now} are in use: when the table is full, packets of new connections are dropped"
            ),
            format!("sysctl -w net.netfilter.nf_conntrack_max={}, or lower max_flows", (flows * 2 + now).next_power_of_two()),
        ),
        None => TrialResult::works(format!(
            "{} flows beside the {now} entries in use, where conntrack sees both legs",
            most.saturating_sub(now) / 2
        )),
    };
    Some(Trial::new("find room in", "the table of conntrack (NAT, stateful firewall)", result))
}

/// Names the controllers of profiles; [`Interception::prepare`] has tried each.
pub fn try_controllers<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Trial {
    let named: BTreeSet<&str> = profiles.filter_map(|(_, profile, _)| profile.control.as_deref()).collect();
    let found = if named.is_empty() { "the kernel's default".into() } else { named.into_iter().collect::<Vec<_>>().join(", ") };
    Trial::new("find", "the congestion controllers", TrialResult::works(found))
}
