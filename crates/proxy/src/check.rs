//! Tries what a start would need of this host, and changes nothing of it: what interception needs
//! (`intercept::check`), descriptors, open listeners, and the networks of a bond, which are
//! dialled.

use crate::{
    config::{Config, Listen},
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

/// How long the networks of a bond may take to connect and to show that they have the key.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Tries everything that a proxy with this configuration would need, in the network namespace of
/// the calling thread. `name` is what the proxy is called, if it has a name: one that runs already
/// holds the ports and the firewall's table, and is no fault. `metrics` is where metrics are to be
/// served.
///
/// Takes ten seconds at most where a network of a bond does not answer.
pub fn try_start(config: &Config, name: Option<&str>, metrics: Option<SocketAddr>) -> Vec<Trial> {
    let mut config = config.clone();
    config.without_absent_families();
    let running = name.filter(|name| Remote::named(name).status().is_ok());
    let (interception, profiles) = (config.interception(), config.profiles().collect::<Vec<_>>());
    let mut trials = try_interfaces(&interception, &profiles);
    trials.extend([try_files(&config), try_controllers(config.profiles())]);
    trials.extend(try_routed(&interception, config.max_flows.map(|flows| flows as u64), running));
    trials.extend(interception.rules().map_or(Vec::new(), |rules| try_firewall(&rules)));
    trials.extend(try_listeners(&config, metrics, running));
    trials.extend(try_networks(&config));
    trials
}

/// What any proxy on this host needs, whatever its configuration: for `tandem doctor`.
pub fn try_host() -> Vec<Trial> {
    let listen = vec![Listen::transparent((Ipv6Addr::UNSPECIFIED, 5000).into())];
    let rules = Config { listen, ..Config::default() }.rules();
    let mut trials = try_forwarding();
    trials.extend(rules.map_or(Vec::new(), |rules| try_firewall(&rules)));
    trials
}

/// Whether ports are free, and whether strangers reach what is open to them.
fn try_listeners(config: &Config, metrics: Option<SocketAddr>, running: Option<&str>) -> Vec<Trial> {
    let listeners = config
        .listen
        .iter()
        .map(Listen::at)
        .flat_map(|listen| listen.sockets().into_iter().map(move |at| (at, listen.is_transparent(), "listen at")));
    let all = listeners.chain(metrics.map(|at| (at, false, "serve metrics at")));
    let mut trials: Vec<Trial> = all.map(|(at, transparent, attempt)| try_port(attempt, at, transparent, running)).collect();
    trials.extend(
        config
            .open_listeners()
            .into_iter()
            .map(|(at, why, cure)| Trial::new("keep strangers from", format!("the listener at {at}"), TrialResult::doubtful(why, cure))),
    );
    trials
}

fn try_files(config: &Config) -> Trial {
    let most = config.threads.max(1) * config.flows_of_a_worker();
    let files = leg::open_files();
    let result = if files < 4096 && config.max_flows.is_none() {
        TrialResult::doubtful(
            format!("the limit of {files} open files is enough for {most} flows; more pass unsplit"),
            "raise it (ulimit -Hn 65536, LimitNOFILE=)",
        )
    } else {
        let wanted = config.max_flows.map_or(String::new(), |flows| format!(", of which {flows} are wanted (max_flows)"));
        TrialResult::works(format!("enough for {most} flows{wanted}"))
    };
    Trial::new("find descriptors in", format!("the limit of {files} open files"), result)
}

/// Dials each network of a bond, all at once.
fn try_networks(config: &Config) -> Vec<Trial> {
    let Some(bond) = &config.bond else { return Vec::new() };
    thread::scope(|scope| {
        let dials: Vec<_> = config.networks.iter().map(|network| scope.spawn(|| try_network(bond, network, DIAL_LIMIT))).collect();
        let trials = config.networks.iter().zip(dials).map(|(network, dial)| {
            let proven = if bond.tls { "key and TLS are" } else { "the key is" };
            let result = match dial.join() {
                Ok(Ok(took)) => TrialResult::works(format!("{proven} proven, after {} ms", took.as_millis())),
                Ok(Err((why, cure))) => TrialResult::fails(why, cure),
                Err(_) => TrialResult::fails("the attempt panicked", "report it"),
            };
            Trial::new("connect to the other end of the bond", format!("{} at {}", network.name, network.to), result)
        });
        trials.collect()
    })
}
