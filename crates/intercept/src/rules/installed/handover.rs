//! Passes installed rules from a proxy to the next one, while connections are split by them.
//!
//! The proxy that has the rules calls [`Installed::hand_over`], and goes on with them. The next one
//! calls [`Installed::take_over`], and [`Installed::keep`] once it is in charge; the first one then
//! calls [`Installed::leave`]. If the next one fails before that, the first calls
//! [`Installed::resume`]. The table never is without rules: what has to change is changed by one
//! transaction of nftables.

use super::{Firewall, Installed, Owner, Rules, RulesError, TABLE, TableWatch, heeded, switch_early_demux_off};
use crate::{policy::Prefix, rules::owner::OwnerParts};
use serde::{Deserialize, Serialize};
use std::{io, os::fd::OwnedFd, path::PathBuf, time::Instant};

/// Rules on their way to another process: their state, and the descriptors beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesHandover {
    /// The commands that filled the table.
    contents: Vec<String>,
    /// Whether new connections are split.
    open: bool,
    /// Whether the delivery of packets is careful (see `Rules::ours`).
    careful: bool,
    bypass: Vec<Prefix>,
    /// Whether far legs have a conntrack zone.
    has_zone: bool,
    /// How often lost rules were installed again.
    restored: u64,
    /// The keys of the experiment's hashes, so that a connection stays in its group. An older
    /// version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    experiment_keys: Option<[u32; 4]>,
    /// The path of the socket of the lock, on kernels without owners of tables.
    lock: Option<PathBuf>,
}

impl RulesHandover {
    /// The number of descriptors that belong to it.
    pub fn descriptors(&self) -> usize {
        if self.lock.is_some() { 5 } else { 3 }
    }

    /// An example, by which tests notice that the type has changed.
    #[doc(hidden)]
    pub fn example() -> Self {
        let bypass = "10.0.0.0/8".parse().into_iter().collect();
        let lock = Some("/run/tandem/root/7.table".into());
        RulesHandover {
            contents: vec!["add".into()],
            open: true,
            careful: false,
            bypass,
            has_zone: true,
            restored: 2,
            experiment_keys: None,
            lock,
        }
    }
}

impl Installed {
    /// The state of the rules, and copies of the descriptors by which another process can use them.
    ///
    /// # Errors
    /// The rules are lost at the moment, or no descriptor is left.
    pub fn hand_over(&self) -> io::Result<(RulesHandover, Vec<OwnedFd>)> {
        if self.reinstallation.is_some() {
            return Err(io::Error::other("the firewall's rules are lost, and being installed again"));
        }
        let OwnerParts { descriptors, lock } = self.owner.hand_over()?;
        let state = RulesHandover {
            contents: self.rules.contents(&self.firewall),
            open: self.open,
            careful: self.changed.is_some(),
            bypass: self.bypass.clone(),
            has_zone: self.firewall.has_zone(),
            restored: self.restored,
            experiment_keys: self.rules.experiment.map(|experiment| experiment.keys),
            lock,
        };
        Ok((state, descriptors))
    }

    /// Takes over the rules of another process in the same network namespace, and changes them as
    /// far as `rules` differs. They belong to the other process until [`keep`](Self::keep).
    ///
    /// # Errors
    /// The owner of the table does not answer, or the rules could not be changed.
    pub fn take_over(mut rules: Rules, state: RulesHandover, descriptors: Vec<OwnedFd>) -> Result<Self, RulesError> {
        let mut owner = Owner::take_over(OwnerParts { descriptors, lock: state.lock })?;
        owner.resume()?;
        if let Some((experiment, keys)) = rules.experiment.as_mut().zip(state.experiment_keys) {
            experiment.keys = keys;
        }
        let watch = TableWatch::begin();
        let firewall = heeded(&rules, state.has_zone).unwrap_or_else(|why| {
            tracing::warn!("cannot read the firewall rules of other programs, so that these are not heeded: {why}");
            Firewall::default().with_zone(state.has_zone)
        });
        let mut installed = Installed {
            owner,
            setting: None,
            changed: state.careful.then(Instant::now),
            rules,
            firewall,
            check_stopped_at: Some(Instant::now()),
            open: state.open,
            bypass: state.bypass,
            restored: state.restored,
            watch,
            reinstallation: None,
        };
        if state.careful {
            installed.setting = switch_early_demux_off();
        }
        if installed.rules.contents(&installed.firewall) != state.contents {
            installed.refill()?;
            installed.log_what_is_heeded();
        }
        Ok(installed)
    }

    /// Makes the rules belong to this process: the one that handed them over has left them.
    pub fn keep(&mut self) {
        self.owner.keep();
    }

    /// Leaves the rules to the process to which they were handed over.
    pub fn leave(mut self) {
        self.owner.leave();
    }

    /// Goes on with rules that another process failed to take over: undoes what it may have
    /// changed.
    ///
    /// # Errors
    /// The owner of the table does not answer, or the rules could not be changed.
    pub fn resume(&mut self) -> Result<(), RulesError> {
        self.owner.resume()?;
        self.refill()?;
        self.watch.report_again();
        Ok(())
    }

    /// Replaces all rules of the table by one transaction. Elements of sets and counts stay, unless
    /// another version of the program has declared the table differently.
    pub(super) fn refill(&mut self) -> Result<(), RulesError> {
        self.deliver_marked().map_err(|why| RulesError::Routing { cure: super::routing_cure(&why), why })?;
        if self.setting.is_none() {
            self.setting = switch_early_demux_off();
        }
        // What was split before may pass unsplit now.
        let mut commands = [self.rules.contents(&self.firewall), Self::deliver(true)].concat();
        if !self.open {
            commands.push(format!("flush chain inet {TABLE} open"));
        }
        let flushed = [vec![format!("flush table inet {TABLE}")], commands.clone()].concat();
        if let Err(error) = self.run(&flushed) {
            tracing::info!("the table inet {TABLE} is made anew, because it differs from this version's: {error}");
            let anew = vec![format!("delete table inet {TABLE}"), format!("create table inet {TABLE} {{ flags owner; }}")];
            self.run(&[anew, commands, self.list()].concat())?;
        }
        self.changed = Some(Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_two_more_descriptors() {
        let with = |lock: Option<&str>| RulesHandover {
            contents: Vec::new(),
            open: true,
            careful: false,
            bypass: Vec::new(),
            has_zone: false,
            restored: 0,
            experiment_keys: None,
            lock: lock.map(PathBuf::from),
        };
        assert_eq!((with(None).descriptors(), with(Some("/run/x")).descriptors()), (3, 5));
    }
}
