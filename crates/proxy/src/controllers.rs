//! Which congestion controllers the profiles mean: the kernel's own, or Tandem's, which are put into the kernel for as long as the
//! proxy runs.

use crate::{
    config::ConfigError,
    leg::{self, LegProfile},
    policy::Policy,
};
use kernel::{Controller, Held};
use std::{collections::BTreeMap, io};

/// Controllers that are needed by name.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    held: BTreeMap<&'static str, Held>,
}

impl Controllers {
    /// Takes hold of all that a policy names, and tries each.
    pub(crate) fn of(policy: &Policy) -> Result<Self, ConfigError> {
        let mut all = Controllers::default();
        for (leg, profile, _) in policy.profiles() {
            all.need(leg, profile)?;
        }
        Ok(all)
    }

    /// Calls the controllers what the kernel calls them.
    pub(crate) fn rename(policy: &mut Policy) {
        for profile in policy.profiles_mut() {
            if let Some(name) = &mut profile.control
                && let Some(ours) = kernel::meant(name)
            {
                *name = format!("td_{}", ours.name());
            }
        }
    }

    fn need(&mut self, leg: String, profile: &LegProfile) -> Result<(), ConfigError> {
        let Some(name) = &profile.control else { return Ok(()) };
        if let Some(ours) = kernel::meant(name) {
            if ours.needs_capacity() && profile.capacity.is_none() {
                return Err(ConfigError::NoCapacity { leg, name: name.clone() });
            }
            if !self.held.contains_key(ours.name()) {
                let held =
                    kernel::load(ours.name(), &[]).map_err(|why| ConfigError::NotLoaded { leg, name: name.clone(), why: why.into() })?;
                self.held.insert(ours.name(), held);
            }
            return Ok(());
        }
        match leg::try_controller(name).map_err(|why| why.kind()) {
            Err(io::ErrorKind::NotFound) => {
                let ours = Controller::all().map(Controller::name).collect::<Vec<_>>().join(", ");
                Err(ConfigError::NoController { leg, name: name.clone(), available: leg::available_controllers().join(", "), ours })
            }
            Err(io::ErrorKind::PermissionDenied) => Err(ConfigError::RestrictedController { leg, name: name.clone() }),
            // Whatever else may be wrong with sockets is not the controller's fault, and will be told when one is needed.
            _ => Ok(()),
        }
    }
}
