//! Checks of the interfaces, link capacities and destinations that a configuration names.

use super::{Trial, TrialResult};
use crate::{
    Interception, NamedProfile,
    egress::{Egress, EgressError},
    listen::Destination,
    policy::{Action, Interface, Policy, Prefix},
    routes::{Device, Routes},
};
use std::{io, net::IpAddr};

/// Checks the interfaces, links and routes of a configuration; `profiles` are all of its profiles.
pub fn try_interfaces(interception: &Interception, profiles: &[NamedProfile<'_>]) -> Vec<Trial> {
    let routes = match Routes::open().and_then(|routes| routes.devices().map(|devices| (routes, devices))) {
        Ok(found) => found,
        Err(why) => {
            let cure = "allow this process netlink sockets (RestrictAddressFamilies=AF_NETLINK)";
            return vec![Trial::new("list", "the interfaces of this host", TrialResult::fails(why.to_string(), cure))];
        }
    };
    let (routes, devices) = routes;
    let mut trials: Vec<Trial> =
        named(&interception.policy, profiles).iter().map(|(interface, by)| find(interface, by, &devices)).collect();
    if profiles.iter().any(|(_, profile, _)| profile.capacity.is_some()) {
        trials.extend(try_links(profiles));
    }
    trials.extend(try_order(&interception.policy));
    trials.extend(try_routes(interception, &routes));
    trials
}

/// Names the rules and legs that never apply, since earlier ones match all that they match.
fn try_order(policy: &Policy) -> Vec<Trial> {
    let never = |key: &str, what: &str, (later, earlier): (usize, usize)| {
        let (later, earlier) = (later + 1, earlier + 1);
        let why = format!("{key}[{earlier}] before it matches every {what} that it matches: it never applies");
        let cure = format!("put it before {key}[{earlier}], or delete it");
        Trial::new("reach", format!("{key}[{later}]"), TrialResult::Doubtful { why, cure })
    };
    let rules = policy.shadowed_rules().map(|pair| never("rule", "connection", pair));
    rules.chain(policy.shadowed_legs().map(|pair| never("leg", "leg", pair))).collect()
}

/// Every interface that the configuration names, and the keys that name it.
fn named(policy: &Policy, profiles: &[NamedProfile<'_>]) -> Vec<(Interface, String)> {
    let mut all: Vec<(Interface, Vec<String>)> = Vec::new();
    let mut add = |interface: &Interface, by: String| match all.iter_mut().find(|(known, _)| known == interface) {
        Some((_, places)) => places.push(by),
        None => all.push((interface.clone(), vec![by])),
    };
    for (name, profile, chosen_by) in profiles {
        chosen_by.iter().for_each(|interface| add(interface, name.clone()));
        if let Some(link) = &profile.link {
            add(&Interface(link.clone()), format!("link of {name}"));
        }
    }
    for (index, rule) in policy.rules.iter().enumerate() {
        rule.inward.iter().for_each(|interface| add(interface, format!("in of rule[{}]", index + 1)));
        rule.outward.iter().for_each(|interface| add(interface, format!("out of rule[{}]", index + 1)));
    }
    all.into_iter().map(|(interface, places)| (interface, places.join(", "))).collect()
}

fn find(interface: &Interface, by: &str, devices: &[Device]) -> Trial {
    let matching: Vec<&str> = devices.iter().map(|device| device.name.as_str()).filter(|name| interface.matches(name)).collect();
    let result = if !matching.is_empty() {
        TrialResult::works(matching.join(", "))
    } else if interface.0.ends_with('*') {
        TrialResult::works("none now; it will match interfaces that appear later")
    } else {
        let there: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        TrialResult::fails(
            format!("there is no such interface in this network namespace; there are {}", there.join(", ")),
            "correct the name (`ip link`), create the interface first, or use a pattern for one that appears later (ppp*)",
        )
    };
    Trial::new("find the interface", format!("{} ({by})", interface.0), result)
}

/// Checks that each configured capacity belongs to a known link, and that the links can be
/// monitored.
fn try_links(profiles: &[NamedProfile<'_>]) -> Vec<Trial> {
    let result = match Egress::try_out(profiles.iter().cloned()) {
        Ok(links) => TrialResult::works(links),
        // `find` has already reported the missing interface.
        Err(EgressError::NoLink { .. }) => return Vec::new(),
        Err(why) => TrialResult::fails(why.to_string(), "see `tandem doctor` for what this machine can do"),
    };
    vec![Trial::new("monitor", "links whose capacity is configured", result)]
}

/// Checks that there are routes to the servers and clients that listeners, rules and legs name.
fn try_routes(interception: &Interception, routes: &Routes) -> Vec<Trial> {
    let mut trials = Vec::new();
    for listen in &interception.listen {
        if let Destination::Fixed(to) = listen.to {
            trials.push(try_route(routes, to.ip(), format!("{to} (where the listener at {} forwards to)", listen.at)));
        }
    }
    let rules = interception.policy.rules.iter().enumerate().filter(|(_, rule)| matches!(rule.action, Action::Split | Action::Carry));
    for (index, rule) in rules {
        for (key, prefixes) in [("from", &rule.from), ("to", &rule.to)] {
            trials.extend(prefixes.iter().filter_map(|prefix| try_prefix(routes, *prefix, &format!("{key} of rule[{}]", index + 1))));
        }
    }
    for (index, leg) in interception.policy.legs.iter().enumerate() {
        trials.extend(leg.to.iter().filter_map(|prefix| try_prefix(routes, *prefix, &format!("to of leg[{}]", index + 1))));
    }
    trials
}

/// Checks the route to a prefix, by its first host that is not this one. `None` for a prefix of all
/// addresses.
fn try_prefix(routes: &Routes, prefix: Prefix, by: &str) -> Option<Trial> {
    let hosts = || prefix.0.hosts().take(2).filter(|_| prefix.0.prefix_len() > 0);
    let is_here = |host: &IpAddr| matches!(routes.try_interface_to(*host), Ok(Some(device)) if device == "lo");
    let host = hosts().find(|host| !is_here(host)).or_else(|| hosts().next())?;
    Some(try_route(routes, host, format!("{prefix} ({by})")))
}

fn try_route(routes: &Routes, to: IpAddr, subject: String) -> Trial {
    let result = match routes.try_interface_to(to) {
        Ok(Some(device)) => TrialResult::works(format!("through {device}")),
        Ok(None) => TrialResult::works("by a route without an interface"),
        Err(why) => {
            let what = if why.kind() == io::ErrorKind::NetworkUnreachable { "there is no route to it".into() } else { why.to_string() };
            TrialResult::fails(what, format!("add a route (`ip route get {to}` tries it), or correct the address"))
        }
    };
    Trial::new("find a route to", subject, result)
}
