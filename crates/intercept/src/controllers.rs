//! Which congestion controllers the profiles mean: the kernel's own, or Tandem's, which are put into the kernel for as long as the
//! proxy runs.

use crate::{
    leg::{self, LegProfile},
    policy::NamedProfile,
};
use kernel::{Controller, LoadedController as Held};
use std::{collections::BTreeMap, io};

/// Why a profile's controller can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A controller is there, but not for everybody.
    #[error(
        "{leg}: the congestion controller {name:?} may be used only with CAP_NET_ADMIN: run as root, or add it to \
         net.ipv4.tcp_allowed_congestion_control"
    )]
    RestrictedController {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
    },
    /// A controller is not in the kernel.
    #[error("{leg}: there is no congestion controller {name:?}: the kernel has {available}, and Tandem brings {ours}")]
    NoController {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// What there is.
        available: String,
        /// What there could be.
        ours: String,
    },
    /// A controller of ours could not be put into the kernel.
    #[error("{leg}: control = {name:?} can't be had: {why}")]
    NotLoaded {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// Why not.
        why: Box<kernel::Error>,
    },
    /// A controller of ours is not in the kernel, and this process may not put it there.
    #[error(
        "{leg}: control = {name:?} is not in this kernel, and this process may not put it there: load it beforehand (as root \
         `tandem control load {controller}`, or by tandem-controllers.service), or run the proxy as root"
    )]
    MayNotLoad {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// What Tandem calls it.
        controller: &'static str,
    },
    /// A controller shares out a capacity that it is not told.
    #[error("{leg}: control = {name:?} shares out what the link carries: say it, capacity = \"10Mbit\"")]
    NoCapacity {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
    },
    /// A weight, and nobody who heeds it.
    #[error("{leg}: weight = {weight} is heeded by control = \"share\" alone: set that, or leave the weight out")]
    NoWeights {
        /// Which profile says so.
        leg: String,
        /// What it says.
        weight: u16,
    },
}

/// Controllers that are needed by name.
#[derive(Debug, Default)]
pub struct Controllers {
    held: BTreeMap<&'static str, Held>,
}

impl Controllers {
    /// Takes hold of all that profiles name, and tries each.
    ///
    /// # Errors
    /// The first controller that cannot be used.
    pub fn of<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Self, ControllerError> {
        let mut all = Controllers::default();
        for (leg, profile, _) in profiles {
            all.need(leg, profile)?;
        }
        Ok(all)
    }

    /// Calls the controllers what the kernel calls them.
    pub fn rename<'a>(profiles: impl Iterator<Item = &'a mut LegProfile>) {
        for profile in profiles {
            if let Some(name) = &mut profile.control
                && let Some(ours) = kernel::resolve(name)
            {
                *name = in_kernel(ours);
            }
        }
    }

    fn need(&mut self, leg: String, profile: &LegProfile) -> Result<(), ControllerError> {
        let ours = profile.control.as_deref().and_then(kernel::resolve);
        if let Some(weight) = profile.weight.filter(|_| ours.is_none_or(|ours| ours.name() != "share")) {
            return Err(ControllerError::NoWeights { leg, weight: weight.get() });
        }
        let Some(name) = &profile.control else { return Ok(()) };
        if let Some(ours) = ours {
            if ours.needs_capacity() && profile.capacity.is_none() {
                return Err(ControllerError::NoCapacity { leg, name: name.clone() });
            }
            if !kernel::may_load() && leg::try_controller(&in_kernel(ours)).is_ok() {
                // Loaded beforehand, by who may. It can't be held from here: whoever unloads it
                // takes it from the connections to come.
                return Ok(());
            }
            if !self.held.contains_key(ours.name()) {
                let held = kernel::load(ours.name(), &[]).map_err(|why| match why {
                    kernel::Error::Privilege => ControllerError::MayNotLoad { leg, name: name.clone(), controller: ours.name() },
                    why => ControllerError::NotLoaded { leg, name: name.clone(), why: why.into() },
                })?;
                self.held.insert(ours.name(), held);
            }
            return Ok(());
        }
        match leg::try_controller(name).map_err(|why| why.kind()) {
            Err(io::ErrorKind::NotFound) => {
                let ours = Controller::all().map(Controller::name).collect::<Vec<_>>().join(", ");
                Err(ControllerError::NoController { leg, name: name.clone(), available: leg::available_controllers().join(", "), ours })
            }
            Err(io::ErrorKind::PermissionDenied) => Err(ControllerError::RestrictedController { leg, name: name.clone() }),
            // Whatever else may be wrong with sockets is not the controller's fault, and will be told when one is needed.
            _ => Ok(()),
        }
    }
}

/// What the kernel calls a controller of ours.
fn in_kernel(controller: Controller) -> String {
    format!("td_{}", controller.name())
}
