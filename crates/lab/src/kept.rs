//! The network of a scenario that is kept up for other programs. It is what a run has, without the
//! scenario's own traffic.

use crate::{
    Host, Lab, LabError, ParallelNetworks, SeriesNetwork, controllers::LegControllers, network::NetworkOptions, rate_changes::RateChanges,
};
use outcome::{Engine as _, EngineError};
use scenario::{Link, Scenario};
use std::{fmt, time::Instant};

/// A network that is kept up for other programs until it is dropped. Call [`build`](Self::build),
/// then [`start_clock`](Self::start_clock), then [`follow`](Self::follow) until it is to end.
pub struct KeptNetwork {
    hosts: KeptHosts,
    scenario: Scenario,
    changes: RateChanges,
    /// When the clock of the links has started.
    began: Option<Instant>,
    /// Whether programs that choose no congestion controller get that of the sender.
    has_default: bool,
    /// Keeps the controllers loaded, with the tunables of the scenario.
    controllers: LegControllers,
}

/// The hosts of a network that is kept up, and what joins them.
#[derive(Debug)]
pub enum KeptHosts {
    /// Links in series.
    Series(SeriesNetwork),
    /// Networks in parallel.
    Parallel(Box<ParallelNetworks>),
}

impl KeptHosts {
    fn all(&self) -> &[Host] {
        match self {
            KeptHosts::Series(network) => network.hosts(),
            KeptHosts::Parallel(networks) => networks.hosts(),
        }
    }
}

impl fmt::Debug for KeptNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptNetwork").field("hosts", &self.hosts).field("began", &self.began).finish_non_exhaustive()
    }
}

impl KeptNetwork {
    /// Builds the network of a scenario, with its proxies or bonds. The hosts have names for `ip
    /// netns exec`. Programs that choose no congestion controller get that of the sender, if the
    /// kernel permits that.
    ///
    /// # Errors
    /// The lab cannot play the scenario, with the key that it lacks; or a host, device or proxy
    /// cannot be made.
    pub fn build(scenario: &Scenario) -> Result<Self, EngineError> {
        Lab::default().can_answer(scenario)?;
        let controllers = LegControllers::load(scenario)?;
        let options = NetworkOptions { published: true, ..NetworkOptions::default() };
        let hosts = match scenario.parallel() {
            Some(_) => KeptHosts::Parallel(Box::new(ParallelNetworks::build(scenario, scenario.seed, &options)?)),
            None => KeptHosts::Series(SeriesNetwork::build(scenario, scenario.seed, &options, |_, _| {})?),
        };
        let setting = [("ipv4/tcp_congestion_control", controllers.sender.clone())];
        let has_default = hosts.all().iter().all(|host| host.sysctl(&setting).is_ok());
        Ok(KeptNetwork { hosts, scenario: scenario.clone(), changes: RateChanges::of(scenario), began: None, has_default, controllers })
    }

    /// The hosts.
    pub fn hosts(&self) -> &KeptHosts {
        &self.hosts
    }

    /// The sender's congestion controller, if programs have to choose it themselves: as the default
    /// of a network namespace the kernel permits only those of
    /// `net.ipv4.tcp_allowed_congestion_control`.
    pub fn control_to_choose(&self) -> Option<&str> {
        (!self.has_default).then_some(self.controllers.sender.as_str())
    }

    /// Starts the clock: the times of changes, traces and outages count from now on.
    pub fn start_clock(&mut self) {
        self.began = Some(Instant::now());
        match &self.hosts {
            KeptHosts::Series(network) => network.start_clock(),
            KeptHosts::Parallel(networks) => networks.start_clock(),
        }
    }

    /// Has the proxies follow the changes of links that are due. The links themselves change
    /// without it. To be called several times a second.
    ///
    /// # Errors
    /// A proxy refuses the capacity of its link.
    pub fn follow(&mut self) -> Result<(), LabError> {
        let (KeptHosts::Series(network), Some(began)) = (&mut self.hosts, self.began) else { return Ok(()) };
        self.changes.apply(network, &self.scenario, began.elapsed())
    }

    /// Whether a link changes with time.
    pub fn changes(&self) -> bool {
        let changes = |link: &Link| !link.changes.is_empty() || link.trace.is_some() || link.outages.is_some();
        self.scenario.links.iter().chain(self.scenario.networks.iter().map(|network| &network.link)).any(changes)
    }

    /// The keys of the scenario's traffic besides `flow`. It is not started.
    pub fn traffic_keys(&self) -> Vec<&'static str> {
        let scenario = &self.scenario;
        let keys = [
            ("cross", !scenario.cross.is_empty()),
            ("cross_flow", !scenario.cross_flows.is_empty()),
            ("page", !scenario.pages.is_empty()),
            ("exchange", !scenario.exchanges.is_empty()),
            ("foreground", scenario.foreground.is_some()),
            ("network.load", scenario.networks.iter().any(|network| network.load > 0.0)),
        ];
        keys.into_iter().filter_map(|(key, is_there)| is_there.then_some(key)).collect()
    }
}
