//! The conditions of a policy's rule as matches of nftables.

use super::family::Family;
use crate::policy::{Interface, Ports, Prefix, Rule};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A rule's conditions on TCP connections in nftables: one text for each family that the rule can
/// match.
pub(super) fn conditions(rule: &Rule) -> Vec<String> {
    conditions_of(rule, "tcp")
}

/// The same for packets of another transport protocol.
pub(super) fn conditions_of(rule: &Rule, protocol: &str) -> Vec<String> {
    let mut common = String::new();
    if !rule.inward.is_empty() {
        common += &format!("iifname {} ", names(&rule.inward));
    }
    if !rule.outward.is_empty() {
        common += &format!("fib daddr oifname {} ", names(&rule.outward));
    }
    if !rule.ports.is_empty() {
        common += &format!("{protocol} dport {} ", ports(&rule.ports));
    }
    if rule.from.is_empty() && rule.to.is_empty() {
        return vec![common];
    }
    let of_family = |family: Family| {
        let mut text = String::new();
        for (end, wanted) in [("saddr", &rule.from), ("daddr", &rule.to)] {
            if !wanted.is_empty() {
                // `None` if no address of this family meets the condition.
                let prefixes = prefixes(wanted, family)?;
                text += &format!("{} {end} {prefixes} ", family.ip());
            }
        }
        Some(text + &common)
    };
    [Family::V4, Family::V6].into_iter().filter_map(of_family).collect()
}

fn names(interfaces: &[Interface]) -> String {
    let names: Vec<String> = interfaces.iter().map(|interface| format!("\"{}\"", interface.0)).collect();
    format!("{{ {} }}", names.join(", "))
}

/// A set of ports. Overlapping ranges are merged, since nftables refuses them.
fn ports(wanted: &[Ports]) -> String {
    let mut sorted = wanted.to_vec();
    sorted.sort();
    let mut merged: Vec<Ports> = Vec::new();
    for ports in sorted {
        match merged.last_mut() {
            Some(last) if u32::from(ports.first) <= u32::from(last.last) + 1 => last.last = last.last.max(ports.last),
            _ => merged.push(ports),
        }
    }
    let texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", texts.join(", "))
}

/// A set of the prefixes of one family, without overlaps. `None` if there are none.
pub(super) fn prefixes(wanted: &[Prefix], family: Family) -> Option<String> {
    let v4: Vec<Ipv4Net> = wanted.iter().filter_map(|prefix| if let IpNet::V4(net) = prefix.0 { Some(net) } else { None }).collect();
    let v6: Vec<Ipv6Net> = wanted.iter().filter_map(|prefix| if let IpNet::V6(net) = prefix.0 { Some(net) } else { None }).collect();
    let texts: Vec<String> = match family {
        Family::V4 => Ipv4Net::aggregate(&v4).iter().map(ToString::to_string).collect(),
        Family::V6 => Ipv6Net::aggregate(&v6).iter().map(ToString::to_string).collect(),
    };
    (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
}
