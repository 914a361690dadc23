//! Tries what a start would need of this host, without changing the host: the needs of interception
//! (`intercept::check`), descriptors, free ports, open listeners, and the networks of a bond, which
//! it dials.

use crate::{
    config::{ListenerConfig, ProxyConfig, Service},
    control::Remote,
};
use intercept::{
    check::{Trial, TrialResult, try_controllers, try_firewall, try_forwarding, try_interfaces, try_port, try_routed},
    leg,
};
use multipath::try_network;
use std::{
    net::{Ipv6Addr, SocketAddr},
    thread,
    time::Duration,
};

/// Time limit for connecting over a network of a bond and for its handshake.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Tries everything that a proxy with this configuration would need, in the network namespace of
/// the calling thread. `name` is the name of the proxy, if it has one: when a proxy of this name
/// runs, ports and firewall tables that it holds count as free. `web` are the addresses of
/// [`Service::web_addresses`](crate::Service::web_addresses).
///
/// Takes up to ten seconds if a network of a bond does not answer.
pub fn try_start(config: &ProxyConfig, name: Option<&str>, web: &[(&'static str, SocketAddr)]) -> Vec<Trial> {
    let mut config = config.clone();
    config.without_absent_families();
    let running = name.filter(|name| Remote::named(name).status().is_ok());
    let (interception, profiles) = (config.interception(), config.profiles().collect::<Vec<_>>());
    let mut trials = try_interfaces(&interception, &profiles);
    trials.extend([try_files(&config), try_controllers(config.profiles())]);
    trials.extend(try_routed(&interception, config.max_flows.map(|flows| flows as u64), running));
    trials.extend(interception.rules().map_or(Vec::new(), |rules| try_firewall(&rules)));
    trials.extend(try_listeners(&config, web, running));
    trials.extend(try_networks(&config));
    trials.extend(try_records(&config));
    trials
}

/// As [`try_start`], of a service. The texts have the names of variables of the environment in
/// place of their values.
pub fn try_service(service: &Service) -> Vec<Trial> {
    let mut trials = try_start(&service.config, Some(&service.name), &service.web_addresses());
    for Trial { subject, result, .. } in &mut trials {
        let texts = match result {
            TrialResult::Works(found) => [Some(found), None],
            TrialResult::Doubtful { why, cure } | TrialResult::Fails { why, cure } => [Some(why), Some(cure)],
        };
        for text in texts.into_iter().flatten().chain([subject]) {
            *text = service.hide(text);
        }
    }
    trials
}

/// Whether flow records could be written. The proxy starts without: a collector may start later.
fn try_records(config: &ProxyConfig) -> Option<Trial> {
    let records = config.flow_records.as_ref()?;
    let result = match records.try_output() {
        Ok(()) => TrialResult::works("records can be written"),
        Err(why) => TrialResult::doubtful(
            format!("{why}; records are dropped until that works"),
            "create the directory for the proxy's user, or start the program that reads records",
        ),
    };
    Some(Trial::new("write flow records to", records.to_string(), result))
}

/// Tries what every proxy on this host needs, for `tandem doctor` without a configuration.
pub fn try_host() -> Vec<Trial> {
    let listen = vec![ListenerConfig::transparent((Ipv6Addr::UNSPECIFIED, 5000).into())];
    let rules = ProxyConfig { listen, ..ProxyConfig::default() }.rules();
    let mut trials = try_forwarding();
    trials.extend(rules.map_or(Vec::new(), |rules| try_firewall(&rules)));
    trials
}

/// Whether ports are free, and whether a listener is open to every host.
fn try_listeners(config: &ProxyConfig, web: &[(&'static str, SocketAddr)], running: Option<&str>) -> Vec<Trial> {
    let listeners = config
        .listen
        .iter()
        .map(ListenerConfig::at)
        .flat_map(|listen| listen.sockets().into_iter().map(move |at| (at, listen.is_transparent(), "listen at")));
    let all = listeners.chain(web.iter().map(|(attempt, at)| (*at, false, *attempt)));
    let mut trials: Vec<Trial> = all.map(|(at, transparent, attempt)| try_port(attempt, at, transparent, running)).collect();
    trials.extend(
        config
            .open_listeners()
            .into_iter()
            .map(|(at, why, cure)| Trial::new("restrict access to", format!("the listener at {at}"), TrialResult::doubtful(why, cure))),
    );
    trials
}

fn try_files(config: &ProxyConfig) -> Trial {
    let most = config.threads.max(1) * config.flows_of_a_worker();
    let files = leg::open_files();
    let result = if files < 4096 && config.max_flows.is_none() {
        TrialResult::doubtful(
            format!("the limit of {files} open files is enough for {most} flows; more pass unsplit"),
            "raise it (ulimit -Hn 65536, LimitNOFILE=)",
        )
    } else {
        let wanted = config.max_flows.map_or(String::new(), |flows| format!(", max_flows asks for {flows}"));
        TrialResult::works(format!("enough for {most} flows{wanted}"))
    };
    Trial::new("find descriptors in", format!("the limit of {files} open files"), result)
}

/// Dials all networks of a bond in parallel.
fn try_networks(config: &ProxyConfig) -> Vec<Trial> {
    let Some(bond) = &config.bond else { return Vec::new() };
    thread::scope(|scope| {
        let dials: Vec<_> = config.networks.iter().map(|network| scope.spawn(|| try_network(bond, network, DIAL_LIMIT))).collect();
        let trials = config.networks.iter().zip(dials).map(|(network, dial)| {
            let verified = if bond.tls { "key and TLS verified" } else { "key verified" };
            let result = match dial.join() {
                Ok(Ok(took)) => TrialResult::works(format!("{verified} after {} ms", took.as_millis())),
                Ok(Err((why, cure))) => TrialResult::fails(why, cure),
                Err(_) => TrialResult::fails("the attempt panicked", "report this as a bug"),
            };
            Trial::new("connect to the other end of the bond", format!("{} at {}", network.name, network.to), result)
        });
        trials.collect()
    })
}
