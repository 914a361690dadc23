//! Rules that are in place: how they change while the proxy runs, and how they go with it.

use super::{DELIVERY, Family, KNOWN_DIRECT, Rules, RulesError, SETTING, TABLE, owner::Owner, prefixes};
use crate::{
    policy::{Prefix, Rule},
    routes::{AddressFamily, Routes},
};
use std::{fs, io, time::Instant};

/// What the firewall has counted, in packets; of `quic` all packets, of the others the first of each connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// Connections handed to the proxy.
    pub split: u64,
    /// Connections that a rule or the list let bypass.
    pub bypassed: u64,
    /// Connections that passed because the proxy was full or ending.
    pub unsplit: u64,
    /// Connections that were answered through this host, but not opened through it.
    pub oneway: u64,
    /// Packets of UDP port 443, which can't be split.
    pub quic_packets: u64,
    /// Their bytes.
    pub quic_bytes: u64,
}

/// Rules that are in place. Dropping takes them away.
#[derive(Debug)]
pub(crate) struct Installed {
    owner: Owner,
    setting: Option<Setting>,
    /// When something last changed in who passes unsplit.
    changed: Option<Instant>,
    rules: Rules,
    open: bool,
}

impl Installed {
    /// Installs the rules in the network namespace of the calling thread. Who owns the table may touch the routes, so that of several
    /// that start at once one comes through, whole.
    pub(crate) fn install(rules: Rules) -> Result<Self, RulesError> {
        let owner = Owner::claim()?;
        let commands = rules.contents();
        let mut installed = Installed { owner, rules, open: true, setting: None, changed: None };
        remove_routes();
        installed.deliver_marked().map_err(|why| RulesError::Routing { cure: routing_cure(&why), why })?;
        installed.owner.tell(&commands)?;
        Ok(installed)
    }

    /// The routing rules and routes that deliver marked packets to this machine.
    fn deliver_marked(&self) -> io::Result<()> {
        let routes = Routes::open()?;
        self.rules.families().iter().try_for_each(|family| routes.install(DELIVERY, family.routing()))
    }

    /// Lets new connections pass unsplit, or takes them again; those the proxy has go on. Whether that changed anything.
    pub(crate) fn set_open(&mut self, open: bool) -> Result<bool, RulesError> {
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
    pub(crate) fn set_policy(&mut self, policy: Vec<Rule>) -> Result<(), RulesError> {
        let rules = Rules { policy, ..self.rules.clone() };
        let mut commands = vec![format!("flush chain inet {TABLE} intercept")];
        commands.extend(rules.intercept());
        self.change(commands)?;
        self.rules = rules;
        Ok(())
    }

    /// Makes the list of prefixes that bypass, whichever end is in them, this one.
    pub(crate) fn set_bypass(&mut self, list: &[Prefix]) -> Result<(), RulesError> {
        let mut commands = Vec::new();
        for family in [Family::V4, Family::V6] {
            let n = family.number();
            commands.push(format!("flush set inet {TABLE} bypass{n}"));
            if let Some(elements) = prefixes(list, family) {
                commands.push(format!("add element inet {TABLE} bypass{n} {elements}"));
            }
        }
        self.change(commands)
    }

    /// Does `commands`, after which connections may pass unsplit that a moment ago would have been split: for as long as the host
    /// remembers those, their packets must be told apart.
    fn change(&mut self, commands: Vec<String>) -> Result<(), RulesError> {
        if self.setting.is_none() {
            self.setting = Setting::change();
        }
        self.owner.tell(&[Self::deliver(true), commands].concat())?;
        self.changed = Some(Instant::now());
        Ok(())
    }

    /// The commands that make the delivery of the proxy's packets careful, or quick.
    fn deliver(careful: bool) -> Vec<String> {
        [vec![format!("flush chain inet {TABLE} ours")], Rules::ours(careful)].concat()
    }

    /// Goes back to what is quick when care has been taken for long enough.
    pub(crate) fn settle(&mut self) {
        if self.open && self.changed.is_some_and(|changed| changed.elapsed() > KNOWN_DIRECT) {
            if let Err(error) = self.owner.tell(&Self::deliver(false)) {
                tracing::error!("cannot change the rules back: {error}");
            }
            (self.setting, self.changed) = (None, None);
        }
    }

    /// What has been counted.
    pub(crate) fn counted(&mut self) -> Result<Counted, RulesError> {
        let said = self.owner.tell(&[format!("list counters table inet {TABLE}")])?;
        let words: Vec<&str> = said.split_whitespace().collect();
        let of = |counter: &str| {
            // counter NAME { packets N bytes N }
            let at = words.windows(2).position(|pair| pair[0] == "counter" && pair[1].trim_matches('"') == counter);
            let number = |offset: usize| at.and_then(|at| words.get(at + offset)).and_then(|word| word.parse().ok()).unwrap_or(0);
            (number(4), number(6))
        };
        let ((quic_packets, quic_bytes), (split, _)) = (of("quic"), of("split"));
        Ok(Counted { split, bypassed: of("bypassed").0, unsplit: of("unsplit").0, oneway: of("oneway").0, quic_packets, quic_bytes })
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

/// Removes the routing rules, those of a proxy that was killed too. For the table's owner only.
fn remove_routes() {
    match Routes::open() {
        Ok(routes) => [AddressFamily::Inet, AddressFamily::Inet6].into_iter().for_each(|family| routes.remove(DELIVERY, family)),
        Err(why) => tracing::debug!("cannot remove the routing rules: {why}"),
    }
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

/// The kernel's setting as it was. Dropping puts it back.
#[derive(Debug)]
struct Setting {
    path: String,
    before: String,
}

impl Setting {
    /// Changes it; none when it was so already, or can't be changed.
    fn change() -> Option<Self> {
        let path = format!("/proc/sys/{}", SETTING.0.replace('.', "/"));
        let before = fs::read_to_string(&path).ok()?;
        if before.trim() == SETTING.1 {
            return None;
        }
        match fs::write(&path, SETTING.1) {
            Ok(()) => Some(Setting { path, before }),
            Err(why) => {
                tracing::warn!(
                    "cannot set {}={}: {why}; connections that pass unsplit may stall now and then: set it yourself",
                    SETTING.0,
                    SETTING.1
                );
                None
            }
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(why) = fs::write(&self.path, &self.before) {
            tracing::warn!("cannot put {} back to {}: {why}", SETTING.0, self.before.trim());
        }
    }
}
