//! Installed rules: how they change while the proxy runs, how lost ones are installed again, and
//! how they are removed. `handover` passes them to the next proxy.

mod handover;

use super::{
    Carried, DELIVERY, Experiment, ExperimentShare, Firewall, ForwardPolicy, Hook, MARK, Rules, RulesError, SETTING, TABLE,
    conditions::prefixes,
    experiment::random_keys,
    family::Family,
    guard,
    nfnetlink::{Counters, NftablesSocket},
    owner::Owner,
    table::DIRECT_LIFETIME,
    watch::TableWatch,
    zone,
};
pub use handover::RulesHandover;

use crate::{
    kernel_setting::{ChangedSetting, KernelSetting},
    policy::{Prefix, Rule},
    routes::{AddressFamily, Routes},
};
use std::{
    io,
    time::{Duration, Instant},
};

/// How often [`Installed::check`] tries to install lost rules again before it gives up.
const ATTEMPTS: u32 = 3;
/// Time between these attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often the counters are read to find out whether an input chain stops connections.
const STOPPED_INTERVAL: Duration = Duration::from_secs(1);

/// The rules were lost, and attempts to install them again failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install the firewall's rules again after they were lost: {0}")]
pub struct RulesLost(pub RulesError);

/// The counters of the nftables table. Except for QUIC they count the first packet of each
/// connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// Connections handed to the proxy.
    pub split: u64,
    /// Connections that bypassed by a rule or by the bypass list.
    pub bypassed: u64,
    /// Connections that passed unsplit because the proxy was full or ending, or because the other
    /// end of its bond was not reached or has no route to servers of their IP version.
    pub unsplit: u64,
    /// Connections that passed unsplit because the forward chains had not yet accepted one of their
    /// kind.
    #[serde(default)]
    pub not_yet_allowed: u64,
    /// Connections that passed unsplit because an input chain had stopped one of their kind.
    #[serde(default)]
    pub stopped: u64,
    /// Connections that passed unsplit as a group of an experiment.
    #[serde(default)]
    pub experiment: u64,
    /// Connections that were answered through this host, but not opened through it (asymmetric
    /// routing).
    pub oneway: u64,
    /// Packets of UDP port 443 (QUIC), which cannot be split.
    pub quic_packets: u64,
    /// Their bytes.
    pub quic_bytes: u64,
    /// Connections of QUIC that a rule counts or rejects, as far as they could be told apart.
    #[serde(default)]
    pub quic_connections: u64,
    /// First packets of these that were rejected with an ICMP error.
    #[serde(default)]
    pub quic_rejected: u64,
    /// First packets of these that were dropped, because there were too many to reject.
    #[serde(default)]
    pub quic_dropped: u64,
    /// How often the table was lost and installed again; the other counters begin anew then.
    #[serde(default)]
    pub restored: u64,
}

/// Installed rules. Dropping it removes them.
///
/// After [`install`](Self::install) call [`check`](Self::check) several times a second, and
/// [`settle`](Self::settle) from time to time. [`set_open`](Self::set_open),
/// [`set_policy`](Self::set_policy) and [`set_bypass`](Self::set_bypass) change which new
/// connections are split; existing connections are not affected.
#[derive(Debug)]
pub struct Installed {
    owner: Owner,
    setting: Option<ChangedSetting>,
    /// When a change last made connections pass unsplit that would have been split before. `None`:
    /// long enough ago.
    changed: Option<Instant>,
    rules: Rules,
    /// Other programs' rules, as far as they are heeded.
    firewall: Firewall,
    /// When to check next whether an input chain stops connections. `None` once that is known.
    check_stopped_at: Option<Instant>,
    open: bool,
    bypass: Vec<Prefix>,
    watch: TableWatch,
    reinstallation: Option<Reinstallation>,
    /// How often lost rules were installed again.
    restored: u64,
}

/// The rules are lost, and are being installed again.
#[derive(Debug)]
struct Reinstallation {
    /// When the loss was noticed.
    noticed: Instant,
    failed_attempts: u32,
    next_attempt: Instant,
}

impl Installed {
    /// Installs the rules in the network namespace of the calling thread. Only the owner of the
    /// table changes the routes, so that of several proxies that start at once exactly one
    /// succeeds.
    ///
    /// # Errors
    /// Another proxy owns the table, or a rule could not be installed. Nothing stays installed
    /// then.
    pub fn install(rules: Rules) -> Result<Self, RulesError> {
        let owner = Owner::claim()?;
        SETTING.recover();
        let watch = TableWatch::begin();
        let firewall = heeded(&rules, false).unwrap_or_else(|why| {
            tracing::warn!("cannot read the firewall rules of other programs, so that these are not heeded: {why}");
            Firewall::default()
        });
        let commands = rules.contents(&firewall);
        let mut installed = Installed {
            owner,
            rules,
            firewall,
            check_stopped_at: Some(Instant::now()),
            open: true,
            setting: None,
            changed: None,
            bypass: Vec::new(),
            watch,
            reinstallation: None,
            restored: 0,
        };
        installed.fill(&commands)?;
        installed.log_what_is_heeded();
        Ok(installed)
    }

    /// Runs `commands`, of which at least one changes something.
    fn run(&mut self, commands: &[String]) -> Result<(), RulesError> {
        self.owner.run(commands)?;
        self.watch.has_changed();
        Ok(())
    }

    /// Installs the routes, and fills the empty table.
    fn fill(&mut self, commands: &[String]) -> Result<(), RulesError> {
        remove_routes();
        self.deliver_marked().map_err(|why| RulesError::Routing { cure: routing_cure(&why), why })?;
        self.run(commands)
    }

    /// Checks that the rules are still in place. If not, installs them again as they were: open or
    /// shut, with the present policy and bypass list. Returns whether it has. Call it often: it
    /// takes about 20 µs unless something in nftables has changed.
    ///
    /// # Errors
    /// Several attempts to install the rules again have failed.
    pub fn check(&mut self) -> Result<bool, RulesLost> {
        let now = Instant::now();
        if self.reinstallation.is_none()
            && let Some(why) = self.find_loss()
        {
            tracing::warn!("the firewall's rules are lost: {why}; new connections pass unsplit until the rules are installed again");
            self.reinstallation = Some(Reinstallation { noticed: now, failed_attempts: 0, next_attempt: now });
        }
        if self.reinstallation.is_none() {
            self.warn_of_stopped(now);
        }
        let Some(pending) = self.reinstallation.as_ref().filter(|pending| pending.next_attempt <= now) else { return Ok(false) };
        let (noticed, attempt) = (pending.noticed, pending.failed_attempts + 1);
        match self.restore() {
            Ok(()) => {
                tracing::warn!(
                    "the firewall's rules are installed again, {} ms after their loss was noticed",
                    noticed.elapsed().as_millis()
                );
                self.reinstallation = None;
                self.restored += 1;
                Ok(true)
            }
            Err(error) if attempt >= ATTEMPTS => Err(RulesLost(error)),
            Err(error) => {
                tracing::error!("attempt {attempt} of {ATTEMPTS} to install the firewall's rules again failed: {error}");
                let next_attempt = Instant::now() + RETRY_INTERVAL;
                self.reinstallation = Some(Reinstallation { noticed, failed_attempts: attempt, next_attempt });
                Ok(false)
            }
        }
    }

    /// How the rules were lost. `None` if they are in place.
    fn find_loss(&mut self) -> Option<String> {
        if let Some(how) = self.owner.ended() {
            return Some(how);
        }
        match self.watch.check() {
            Ok(Some(change)) if change.rules < self.expected() => Some(format!(
                "the table inet {TABLE} has {} of its {} rules: another program has removed the others",
                change.rules,
                self.expected()
            )),
            Ok(Some(change)) if change.by_others => {
                if let Err(error) = self.heed_change() {
                    tracing::error!("cannot adapt the rules to a change of the firewall: {error}; trying again");
                    self.watch.report_again();
                }
                None
            }
            Ok(_) => None,
            Err(why) => {
                tracing::debug!("cannot read the table inet {TABLE}: {why}");
                None
            }
        }
    }

    /// Adapts the rules after another program has changed its own. What its chains accepted before
    /// may be stopped now, so that the sets are emptied.
    fn heed_change(&mut self) -> Result<(), RulesError> {
        let now = heeded(&self.rules, self.firewall.has_zone()).map_err(RulesError::ReadFirewall)?;
        if now == self.firewall && now == Firewall::default() {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.firewall, now);
        if let Err(error) = self.change([guard::replace(&before, &self.firewall), zone::replace(&before, &self.firewall)].concat()) {
            self.firewall = before;
            return Err(error);
        }
        if before != self.firewall {
            self.log_what_is_heeded();
        }
        self.check_stopped_at = Some(Instant::now());
        Ok(())
    }

    /// Logs which forward chains limit splitting on this host.
    fn log_what_is_heeded(&self) {
        if let Some(chains) = self.firewall.named(Hook::Forward) {
            tracing::info!(
                "{chains} may stop forwarded connections: the first connection from a client to a port of a server passes unsplit, later \
                 ones are split if the chain has accepted the first; to split the first one too, name the clients in a rule (`in` or \
                 `from`), or set forward_policy = \"ignore\""
            );
        }
    }

    /// Warns once if an input chain stops connections that should be split.
    fn warn_of_stopped(&mut self, now: Instant) {
        let Some(chains) = self.firewall.named(Hook::Input) else { return };
        if self.check_stopped_at.is_none_or(|next| now < next) {
            return;
        }
        self.check_stopped_at = Some(now + STOPPED_INTERVAL);
        // A single SYN may be lost by chance, but rarely two of one kind in a row.
        if self.counters().is_ok_and(|counters| counters.of("stopped_again").packets > 0) {
            self.check_stopped_at = None;
            tracing::warn!(
                "an input chain of this host stops connections that are to be split, and they pass unsplit instead ({chains}): add a \
                 rule that accepts packets with the mark {MARK:#x} (nft: meta mark {MARK:#x} accept)"
            );
        }
    }

    /// The number of rules that the table must have.
    fn expected(&self) -> usize {
        let all = self.rules.contents(&self.firewall).iter().filter(|command| command.starts_with("add rule")).count();
        let shut = if self.open { 0 } else { self.rules.open().len() };
        let careful = if self.changed.is_some() { Rules::ours(true).len() - Rules::ours(false).len() } else { 0 };
        all - shut + careful
    }

    /// Installs the rules again, in a new table with a new owner.
    fn restore(&mut self) -> Result<(), RulesError> {
        // Before the claim: the old owner, or its lock, may still hold the table.
        self.owner.release();
        self.owner = Owner::claim()?;
        self.watch = TableWatch::begin();
        // Without rules, connections passed unsplit.
        if self.setting.is_none() {
            self.setting = switch_early_demux_off();
        }
        self.changed = Some(Instant::now());
        self.firewall = heeded(&self.rules, self.firewall.has_zone()).unwrap_or_else(|_| self.firewall.clone());
        let mut commands = [self.rules.contents(&self.firewall), Self::deliver(true), self.list()].concat();
        if !self.open {
            commands.push(format!("flush chain inet {TABLE} open"));
        }
        self.fill(&commands)
    }

    /// Installs the routing rules and routes that deliver marked packets to this host.
    fn deliver_marked(&self) -> io::Result<()> {
        let routes = Routes::open()?;
        self.rules.families().iter().try_for_each(|family| routes.install(DELIVERY, family.routing()))
    }

    /// Splits new connections (`open`), or lets them pass unsplit. Returns whether that is a
    /// change.
    ///
    /// # Errors
    /// The table could not be changed.
    pub fn set_open(&mut self, open: bool) -> Result<bool, RulesError> {
        if open == self.open {
            return Ok(false);
        }
        let mut commands = vec![format!("flush chain inet {TABLE} open")];
        if open {
            commands.extend(self.rules.open());
        }
        self.change(commands)?;
        self.open = open;
        Ok(true)
    }

    /// Lets connections pass unsplit that the carrier cannot carry. Returns whether that is a
    /// change. Without a carrier nothing changes.
    ///
    /// # Errors
    /// The table could not be changed.
    pub fn set_carried(&mut self, carried: Carried) -> Result<bool, RulesError> {
        let Some(before) = self.rules.carried.filter(|before| *before != carried) else { return Ok(false) };
        self.rules.carried = Some(carried);
        let changed = self.change([vec![format!("flush chain inet {TABLE} carry")], self.rules.carry()].concat());
        if changed.is_err() {
            self.rules.carried = Some(before);
        }
        changed.map(|()| true)
    }

    /// Replaces the policy.
    ///
    /// # Errors
    /// The table could not be changed. The previous policy stays then.
    pub fn set_policy(&mut self, policy: Vec<Rule>) -> Result<(), RulesError> {
        let rules = Rules { policy, ..self.rules.clone() };
        let mut commands = vec![format!("flush chain inet {TABLE} intercept")];
        commands.extend(["quic", "quic_reject"].map(|chain| format!("flush chain inet {TABLE} {chain}")));
        commands.extend(rules.intercept());
        commands.extend(rules.quic());
        self.change(commands)?;
        self.rules = rules;
        Ok(())
    }

    /// Replaces the experiment by one with this share, and new keys. Returns whether that is a
    /// change: the same share keeps its keys.
    ///
    /// # Errors
    /// The table could not be changed. The previous experiment stays then.
    pub fn set_experiment(&mut self, share: Option<ExperimentShare>) -> Result<bool, RulesError> {
        if share == self.rules.experiment.map(|experiment| experiment.share) {
            return Ok(false);
        }
        let experiment = share.map(|share| Experiment { share, keys: random_keys() });
        let before = std::mem::replace(&mut self.rules.experiment, experiment);
        let changed = self.refill();
        if changed.is_err() {
            self.rules.experiment = before;
        }
        changed.map(|()| true)
    }

    /// The bypass list: connections with either end in one of these prefixes pass unsplit.
    pub fn bypass(&self) -> &[Prefix] {
        &self.bypass
    }

    /// Replaces the bypass list.
    ///
    /// # Errors
    /// The table could not be changed. The previous list stays then.
    pub fn set_bypass(&mut self, list: Vec<Prefix>) -> Result<(), RulesError> {
        let before = std::mem::replace(&mut self.bypass, list);
        let flush = [Family::V4, Family::V6].map(|family| format!("flush set inet {TABLE} bypass{}", family.number()));
        let changed = self.change([flush.to_vec(), self.list()].concat());
        if changed.is_err() {
            self.bypass = before;
        }
        changed
    }

    /// The commands that fill the empty sets of the bypass list.
    fn list(&self) -> Vec<String> {
        let add = |family: Family| Some((family.number(), prefixes(&self.bypass, family)?));
        let sets = [Family::V4, Family::V6].into_iter().filter_map(add);
        sets.map(|(n, elements)| format!("add element inet {TABLE} bypass{n} {elements}")).collect()
    }

    /// Runs `commands` after which connections may pass unsplit that would have been split before.
    /// As long as this host has sockets of earlier connections with the same addresses and ports,
    /// packets are delivered carefully (see `Rules::ours`).
    fn change(&mut self, commands: Vec<String>) -> Result<(), RulesError> {
        if self.setting.is_none() {
            self.setting = switch_early_demux_off();
        }
        self.run(&[Self::deliver(true), commands].concat())?;
        self.changed = Some(Instant::now());
        Ok(())
    }

    /// The commands that make the delivery of the proxy's packets careful, or fast.
    fn deliver(careful: bool) -> Vec<String> {
        [vec![format!("flush chain inet {TABLE} ours")], Rules::ours(careful)].concat()
    }

    /// Returns to fast delivery once no socket can be left from before the last change.
    pub fn settle(&mut self) {
        let carries = self.rules.carried.is_none_or(|carried| carried.reached);
        if self.open && carries && self.reinstallation.is_none() && self.changed.is_some_and(|changed| changed.elapsed() > DIRECT_LIFETIME)
        {
            if let Err(error) = self.run(&Self::deliver(false)) {
                tracing::error!("cannot return to fast delivery of the proxy's packets: {error}");
            }
            self.setting = None;
            self.changed = None;
        }
    }

    /// Reads the table's counters, again if a change interrupts the dump.
    fn counters(&self) -> io::Result<Counters> {
        loop {
            if let Some(counters) = NftablesSocket::open()?.counters(TABLE)? {
                return Ok(counters);
            }
        }
    }

    /// The table's counters. Read from the kernel directly: `nft` reads all elements of all sets
    /// first, which takes seconds while a flood fills them.
    ///
    /// # Errors
    /// The kernel does not return the counters.
    pub fn counted(&self) -> Result<Counted, RulesError> {
        let counters = self.counters().map_err(RulesError::ReadCounters)?;
        let (packets, quic) = (|name| counters.of(name).packets, counters.of("quic"));
        Ok(Counted {
            split: packets("split"),
            bypassed: packets("bypassed"),
            unsplit: packets("unsplit"),
            not_yet_allowed: packets("not_yet_allowed"),
            stopped: packets("stopped"),
            experiment: packets("experiment"),
            oneway: packets("oneway"),
            quic_packets: quic.packets,
            quic_bytes: quic.bytes,
            quic_connections: packets("quic_connections"),
            quic_rejected: packets("quic_rejected"),
            quic_dropped: packets("quic_dropped"),
            restored: self.restored,
        })
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if !self.owner.is_mine() {
            return;
        }
        // First the nftables rules, which would otherwise mark packets for routes that are gone.
        // The table last: once it is gone, another proxy may start and install the same routes.
        if let Err(error) = self.owner.run(&[format!("flush table inet {TABLE}")]) {
            tracing::debug!("cannot empty the table: {error}");
        }
        remove_routes();
        self.owner.stop();
    }
}

/// Other programs' rules, as far as they are to be heeded. `has_zone`: far legs have a zone
/// already, and keep it.
fn heeded(rules: &Rules, has_zone: bool) -> io::Result<Firewall> {
    let firewall = Firewall::read()?;
    let has_zone = has_zone || firewall.tracks() && zone::are_supported();
    let firewall = firewall.with_zone(has_zone);
    Ok(if rules.forward_policy == ForwardPolicy::Heed { firewall } else { firewall.without(Hook::Forward) })
}

/// Removes the routing rules, including those of a killed proxy. Only for the owner of the table.
fn remove_routes() {
    match Routes::open() {
        Ok(routes) => [AddressFamily::Inet, AddressFamily::Inet6].into_iter().for_each(|family| routes.remove(DELIVERY, family)),
        Err(why) => tracing::debug!("cannot remove the routing rules: {why}"),
    }
}

/// Switches early demux off (see `SETTING`). `None` if it was off already, or cannot be changed:
/// that is logged.
fn switch_early_demux_off() -> Option<ChangedSetting> {
    SETTING.change().unwrap_or_else(|why| {
        let KernelSetting { name, value } = SETTING;
        tracing::warn!("cannot set {name}={value}: {why}; connections that pass unsplit may stall now and then: set it yourself");
        None
    })
}

/// The cure for an error of the routing rules.
fn routing_cure(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or with CAP_NET_ADMIN",
        io::ErrorKind::Unsupported => {
            "the kernel lacks policy routing (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES); listen on 0.0.0.0 where it is IPv6 \
             alone that lacks it"
        }
        _ => "see `tandem doctor`",
    }
}
