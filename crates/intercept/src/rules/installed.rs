//! Rules that are in place: how they change while the proxy runs, and how they go with it.

use super::{
    DELIVERY, Firewall, ForwardPolicy, Hook, MARK, Rules, RulesError, SETTING, TABLE,
    family::Family,
    guard,
    nfnetlink::{Counters, NftablesSocket},
    owner::Owner,
    table::{KNOWN_DIRECT, prefixes},
    watch::TableWatch,
    zone,
};
use crate::{
    kernel_setting::{ChangedSetting, KernelSetting},
    policy::{Prefix, Rule},
    routes::{AddressFamily, Routes},
};
use std::{
    io,
    time::{Duration, Instant},
};

/// How often [`Installed::check`] tries to install lost rules again before it gives up, and how
/// long it waits between attempts.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is asked whether an input chain stops connections, until one is known to.
const ASK: Duration = Duration::from_secs(1);

/// The rules were lost, and attempts to install them again failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install the firewall's rules again after they were lost: {0}")]
pub struct RulesLost(pub RulesError);

/// What the firewall has counted, in packets; of `quic` all packets, of the others the first of each connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// Connections handed to the proxy.
    pub split: u64,
    /// Connections that a rule or the list let bypass.
    pub bypassed: u64,
    /// Connections that passed because the proxy was full or ending.
    pub unsplit: u64,
    /// Connections that passed unsplit because the forward chain had not let one of their kind pass
    /// before.
    #[serde(default)]
    pub not_yet_allowed: u64,
    /// Connections that passed unsplit because an input chain had stopped one of their kind.
    #[serde(default)]
    pub stopped: u64,
    /// Connections that were answered through this host, but not opened through it.
    pub oneway: u64,
    /// Packets of UDP port 443, which can't be split.
    pub quic_packets: u64,
    /// Their bytes.
    pub quic_bytes: u64,
}

/// Rules that are in place. Dropping takes them away.
#[derive(Debug)]
pub struct Installed {
    owner: Owner,
    setting: Option<ChangedSetting>,
    /// When something last changed in who passes unsplit.
    changed: Option<Instant>,
    rules: Rules,
    /// Other programs' rules, as far as they are heeded.
    firewall: Firewall,
    /// When it is asked next whether an input chain stops connections; none once that is known.
    ask_stopped: Option<Instant>,
    open: bool,
    bypass: Vec<Prefix>,
    watch: TableWatch,
    loss: Option<Reinstallation>,
}

/// The rules are not as they were installed.
#[derive(Debug)]
struct Reinstallation {
    seen: Instant,
    failed_attempts: u32,
    next_attempt: Instant,
}

impl Installed {
    /// Installs the rules in the network namespace of the calling thread. Who owns the table may touch the routes, so that of several
    /// that start at once one comes through, whole.
    pub fn install(rules: Rules) -> Result<Self, RulesError> {
        let owner = Owner::claim()?;
        SETTING.recover();
        let watch = TableWatch::begin();
        let firewall = heeded(&rules, false).unwrap_or_else(|why| {
            tracing::warn!("cannot look at the firewall rules of other programs, which are not heeded therefore: {why}");
            Firewall::default()
        });
        let commands = rules.contents(&firewall);
        let mut installed = Installed {
            owner,
            rules,
            firewall,
            ask_stopped: Some(Instant::now()),
            open: true,
            setting: None,
            changed: None,
            bypass: Vec::new(),
            watch,
            loss: None,
        };
        installed.fill(&commands)?;
        installed.say_what_is_heeded();
        Ok(installed)
    }

    /// Has the owner do `commands`, of which at least one changes something.
    fn tell(&mut self, commands: &[String]) -> Result<(), RulesError> {
        self.owner.tell(commands)?;
        self.watch.has_changed();
        Ok(())
    }

    /// Installs the routes, and the contents of a table that is empty.
    fn fill(&mut self, commands: &[String]) -> Result<(), RulesError> {
        remove_routes();
        self.deliver_marked().map_err(|why| RulesError::Routing { cure: routing_cure(&why), why })?;
        self.tell(commands)
    }

    /// Looks whether the rules are still in place, and installs them again where they are not, as
    /// they were: open or shut, with the present policy and list. To be called often: as long as
    /// nothing has changed in nftables it costs about 20 µs. True: it has installed them again.
    ///
    /// # Errors
    /// When the rules could not be installed again in `ATTEMPTS` attempts.
    pub fn check(&mut self) -> Result<bool, RulesLost> {
        let now = Instant::now();
        if self.loss.is_none()
            && let Some(why) = self.find_loss()
        {
            tracing::warn!("the firewall's rules are lost: {why}; new connections pass unsplit until the rules are installed again");
            self.loss = Some(Reinstallation { seen: now, failed_attempts: 0, next_attempt: now });
        }
        if self.loss.is_none() {
            self.look_for_stopped(now);
        }
        let Some(loss) = self.loss.as_ref().filter(|loss| loss.next_attempt <= now) else { return Ok(false) };
        let (seen, attempt) = (loss.seen, loss.failed_attempts + 1);
        match self.restore() {
            Ok(()) => {
                tracing::warn!("the firewall's rules are installed again, {} ms after their loss was seen", seen.elapsed().as_millis());
                self.loss = None;
                Ok(true)
            }
            Err(error) if attempt >= ATTEMPTS => Err(RulesLost(error)),
            Err(error) => {
                tracing::error!("attempt {attempt} of {ATTEMPTS} to install the firewall's rules again failed: {error}");
                self.loss = Some(Reinstallation { seen, failed_attempts: attempt, next_attempt: Instant::now() + PAUSE });
                Ok(false)
            }
        }
    }

    /// How the rules were lost, where they were.
    fn find_loss(&mut self) -> Option<String> {
        if let Some(how) = self.owner.ended() {
            return Some(how);
        }
        match self.watch.look() {
            Ok(Some(look)) if look.rules < self.expected() => Some(format!(
                "of {} rules in the table inet {TABLE} {} are left: another program has removed the others",
                self.expected(),
                look.rules
            )),
            Ok(Some(look)) if look.by_others => {
                if let Err(error) = self.heed_change() {
                    tracing::error!("cannot heed a change of the firewall, which is tried again: {error}");
                    self.watch.look_again();
                }
                None
            }
            Ok(_) => None,
            Err(why) => {
                tracing::debug!("cannot look at the table inet {TABLE}: {why}");
                None
            }
        }
    }

    /// Another program has changed its rules, so that what was let pass before counts no more.
    fn heed_change(&mut self) -> Result<(), RulesError> {
        let now = heeded(&self.rules, self.firewall.has_zone()).map_err(|why| RulesError::Lost { why: why.to_string() })?;
        if now == self.firewall && now == Firewall::default() {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.firewall, now);
        if let Err(error) = self.change([guard::replace(&before, &self.firewall), zone::replace(&before, &self.firewall)].concat()) {
            self.firewall = before;
            return Err(error);
        }
        if before != self.firewall {
            self.say_what_is_heeded();
        }
        self.ask_stopped = Some(Instant::now());
        Ok(())
    }

    /// Tells the operator what limits splitting here.
    fn say_what_is_heeded(&self) {
        if let Some(chains) = self.firewall.named(Hook::Forward) {
            tracing::info!(
                "{chains} may stop forwarded connections: of those of a client to a port of a server, the first passes unsplit, later ones \
                 are split if it was let pass; to split all at once, name whose (a rule with `in` or `from`), or set forward_policy = \
                 \"ignore\""
            );
        }
    }

    /// Asks whether an input chain stops connections, and tells the operator, once.
    fn look_for_stopped(&mut self, now: Instant) {
        let Some(chains) = self.firewall.named(Hook::Input) else { return };
        if self.ask_stopped.is_none_or(|next| now < next) {
            return;
        }
        self.ask_stopped = Some(now + ASK);
        // One may be lost by chance, hardly the next of its kind too.
        if self.counters().is_ok_and(|counters| counters.of("stopped_again").packets > 0) {
            self.ask_stopped = None;
            tracing::warn!(
                "an input chain of this host stops connections that are to be split, and they pass unsplit instead ({chains}): let it \
                 accept packets with the mark {MARK:#x} (nft: meta mark {MARK:#x} accept)"
            );
        }
    }

    /// How many rules there are to be in the table.
    fn expected(&self) -> usize {
        let all = self.rules.contents(&self.firewall).iter().filter(|command| command.starts_with("add rule")).count();
        let shut = if self.open { 0 } else { self.rules.open().len() };
        let careful = if self.changed.is_some() { Rules::ours(true).len() - Rules::ours(false).len() } else { 0 };
        all - shut + careful
    }

    /// Installs the rules again, in a new table with a new owner.
    fn restore(&mut self) -> Result<(), RulesError> {
        // Before the claim: the old owner, or its lock, may still hold the table.
        self.owner.let_go();
        self.owner = Owner::claim()?;
        self.watch = TableWatch::begin();
        // While there were no rules, connections passed unsplit.
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

    /// The routing rules and routes that deliver marked packets to this machine.
    fn deliver_marked(&self) -> io::Result<()> {
        let routes = Routes::open()?;
        self.rules.families().iter().try_for_each(|family| routes.install(DELIVERY, family.routing()))
    }

    /// Lets new connections pass unsplit, or takes them again; those the proxy has go on. Whether that changed anything.
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

    /// Puts another policy in the place of the present one.
    pub fn set_policy(&mut self, policy: Vec<Rule>) -> Result<(), RulesError> {
        let rules = Rules { policy, ..self.rules.clone() };
        let mut commands = vec![format!("flush chain inet {TABLE} intercept")];
        commands.extend(rules.intercept());
        self.change(commands)?;
        self.rules = rules;
        Ok(())
    }

    /// The prefixes that bypass, whichever end is in them.
    pub fn bypass(&self) -> &[Prefix] {
        &self.bypass
    }

    /// Makes the list of prefixes that bypass this one.
    pub fn set_bypass(&mut self, list: Vec<Prefix>) -> Result<(), RulesError> {
        let before = std::mem::replace(&mut self.bypass, list);
        let flush = [Family::V4, Family::V6].map(|family| format!("flush set inet {TABLE} bypass{}", family.number()));
        let changed = self.change([flush.to_vec(), self.list()].concat());
        if changed.is_err() {
            self.bypass = before;
        }
        changed
    }

    /// The commands that put the list of prefixes that bypass into its empty sets.
    fn list(&self) -> Vec<String> {
        let add = |family: Family| Some((family.number(), prefixes(&self.bypass, family)?));
        let sets = [Family::V4, Family::V6].into_iter().filter_map(add);
        sets.map(|(n, elements)| format!("add element inet {TABLE} bypass{n} {elements}")).collect()
    }

    /// Does `commands`, after which connections may pass unsplit that a moment ago would have been split: for as long as the host
    /// remembers those, their packets must be told apart.
    fn change(&mut self, commands: Vec<String>) -> Result<(), RulesError> {
        if self.setting.is_none() {
            self.setting = switch_early_demux_off();
        }
        self.tell(&[Self::deliver(true), commands].concat())?;
        self.changed = Some(Instant::now());
        Ok(())
    }

    /// The commands that make the delivery of the proxy's packets careful, or quick.
    fn deliver(careful: bool) -> Vec<String> {
        [vec![format!("flush chain inet {TABLE} ours")], Rules::ours(careful)].concat()
    }

    /// Goes back to what is quick when care has been taken for long enough.
    pub fn settle(&mut self) {
        if self.open && self.loss.is_none() && self.changed.is_some_and(|changed| changed.elapsed() > KNOWN_DIRECT) {
            if let Err(error) = self.tell(&Self::deliver(false)) {
                tracing::error!("cannot change the rules back: {error}");
            }
            (self.setting, self.changed) = (None, None);
        }
    }

    /// The table's counters, of which a dump may have been interrupted by a change.
    fn counters(&self) -> io::Result<Counters> {
        loop {
            if let Some(counters) = NftablesSocket::open()?.counters(TABLE)? {
                return Ok(counters);
            }
        }
    }

    /// What has been counted. Asked of the kernel: `nft` reads all elements of all sets first,
    /// which takes seconds while a flood fills them.
    pub fn counted(&self) -> Result<Counted, RulesError> {
        let counters = self.counters().map_err(RulesError::Unread)?;
        let (packets, quic) = (|name| counters.of(name).packets, counters.of("quic"));
        Ok(Counted {
            split: packets("split"),
            bypassed: packets("bypassed"),
            unsplit: packets("unsplit"),
            not_yet_allowed: packets("not_yet_allowed"),
            stopped: packets("stopped"),
            oneway: packets("oneway"),
            quic_packets: quic.packets,
            quic_bytes: quic.bytes,
        })
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // The rules first, which would go on marking packets for routes that are gone; the table last, without which another proxy may
        // come, whose routes these would be.
        if let Err(error) = self.owner.tell(&[format!("flush table inet {TABLE}")]) {
            tracing::debug!("cannot empty the table: {error}");
        }
        remove_routes();
        self.owner.stop();
    }
}

/// Other programs' rules, as far as they are to be heeded; whether far legs already have a zone.
fn heeded(rules: &Rules, has_zone: bool) -> io::Result<Firewall> {
    let firewall = Firewall::look()?;
    let has_zone = has_zone || firewall.tracks() && zone::are_known();
    let firewall = firewall.with_zone(has_zone);
    Ok(if rules.forward_policy == ForwardPolicy::Heed { firewall } else { firewall.without(Hook::Forward) })
}

/// Removes the routing rules, those of a proxy that was killed too. For the table's owner only.
fn remove_routes() {
    match Routes::open() {
        Ok(routes) => [AddressFamily::Inet, AddressFamily::Inet6].into_iter().for_each(|family| routes.remove(DELIVERY, family)),
        Err(why) => tracing::debug!("cannot remove the routing rules: {why}"),
    }
}

/// None when it was off already, or can't be switched.
fn switch_early_demux_off() -> Option<ChangedSetting> {
    SETTING.change().unwrap_or_else(|why| {
        let KernelSetting { name, value } = SETTING;
        tracing::warn!("cannot set {name}={value}: {why}; connections that pass unsplit may stall now and then: set it yourself");
        None
    })
}

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
