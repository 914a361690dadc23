//! Tries what a start would need of this host, and changes nothing of it: a list of what was tried,
//! on what, and what it came to.
//!
//! What is wrong with a configuration wherever it is used, [`Config::check`] has found before.
//! `interfaces` looks for what is named and how networks are reached, `host` at the settings and
//! limits of the host, `firewall` at the rules of other programs, `listeners` at ports, and each
//! network of a bond is dialled.

mod firewall;
mod host;
mod interfaces;
mod listeners;

use crate::{Config, Listen, bonded, control::Remote};
use std::{
    net::{Ipv6Addr, SocketAddr},
    thread,
    time::Duration,
};

/// How long the networks of a bond may take to connect and to show that they have the key.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Something that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// What was attempted: "find the interface".
    pub attempt: &'static str,
    /// On what: `sat9 (leg[1])`.
    pub subject: String,
    /// What it came to.
    pub result: TrialResult,
}

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialResult {
    /// It works; what was found.
    Works(String),
    /// It works, but likely not as it is meant.
    Doubtful {
        /// What is doubtful.
        why: String,
        /// What to do about it.
        cure: String,
    },
    /// It cannot work.
    Fails {
        /// Why not.
        why: String,
        /// What to do about it.
        cure: String,
    },
}

impl Trial {
    pub(crate) fn new(attempt: &'static str, subject: impl Into<String>, result: TrialResult) -> Self {
        Trial { attempt, subject: subject.into(), result }
    }

    /// Whether what was tried cannot work.
    pub fn fails(&self) -> bool {
        matches!(self.result, TrialResult::Fails { .. })
    }
}

impl TrialResult {
    fn works(found: impl Into<String>) -> Self {
        TrialResult::Works(found.into())
    }

    fn doubtful(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Doubtful { why: why.into(), cure: cure.into() }
    }

    fn fails(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Fails { why: why.into(), cure: cure.into() }
    }
}

/// Tries everything that a proxy with this configuration would need, in the network namespace of the
/// calling thread. `name` is what the proxy is called, if it has a name: one that runs already holds
/// the ports and the firewall's table, and is no fault. `metrics` is where metrics are to be served.
///
/// Takes ten seconds at most where a network of a bond does not answer.
pub fn try_start(config: &Config, name: Option<&str>, metrics: Option<SocketAddr>) -> Vec<Trial> {
    let mut config = config.clone();
    config.without_absent_families();
    let running = name.filter(|name| Remote::named(name).status().is_ok());
    let mut trials = interfaces::try_all(&config);
    trials.extend(host::try_all(&config, running));
    trials.extend(config.rules().map_or(Vec::new(), |rules| firewall::try_all(&rules)));
    trials.extend(listeners::try_all(&config, metrics, running));
    trials.extend(try_networks(&config));
    trials
}

/// What any proxy on this host needs, whatever its configuration: for `tandem doctor`.
pub fn try_host() -> Vec<Trial> {
    let listen = vec![Listen::transparent((Ipv6Addr::UNSPECIFIED, 5000).into())];
    let rules = Config { listen, ..Config::default() }.rules();
    let mut trials = host::try_forwarding(&[host::IPV4, host::IPV6]);
    trials.extend(rules.map_or(Vec::new(), |rules| firewall::try_all(&rules)));
    trials
}

/// Dials each network of a bond, all at once.
fn try_networks(config: &Config) -> Vec<Trial> {
    let Some(bond) = &config.bond else { return Vec::new() };
    thread::scope(|scope| {
        let dials: Vec<_> =
            config.policy.networks.iter().map(|network| scope.spawn(|| bonded::try_network(bond, network, DIAL_LIMIT))).collect();
        let trials = config.policy.networks.iter().zip(dials).map(|(network, dial)| {
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
