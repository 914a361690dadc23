//! The congestion controllers that the profiles name: the kernel's own, or Tandem's, which are
//! loaded into the kernel for as long as the proxy runs.

use crate::{
    capacity::CapacitySource,
    leg::{self, LegProfile},
    policy::NamedProfile,
};
use kernel::{Controller, LoadedController};
use std::{collections::BTreeMap, io};

/// Why a profile's congestion controller cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The controller is in the kernel, but needs a privilege that this process lacks.
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
    /// Neither the kernel nor Tandem has a controller of this name.
    #[error("{leg}: there is no congestion controller {name:?}: the kernel has {available}, and Tandem brings {ours}; choose one of these")]
    NoController {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// The names of the kernel's controllers.
        available: String,
        /// The names of Tandem's controllers.
        ours: String,
    },
    /// There is a file of an own controller of this name, but it cannot be used.
    #[error("{leg}: {why}")]
    OwnController {
        /// Which profile names it.
        leg: String,
        /// The reason.
        why: Box<kernel::OwnError>,
    },
    /// One of Tandem's controllers could not be loaded into the kernel.
    #[error("{leg}: cannot load the congestion controller {name:?} into the kernel: {why}")]
    NotLoaded {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// The reason.
        why: Box<kernel::Error>,
    },
    /// One of Tandem's controllers is not in the kernel, and this process may not load it.
    #[error(
        "{leg}: the congestion controller {name:?} is not in this kernel, and this process may not load it: load it beforehand (as \
         root `tandem control load {controller}`, or by tandem-controllers.service), or run the proxy as root"
    )]
    MayNotLoad {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
        /// Tandem's name for it.
        controller: &'static str,
    },
    /// The controller divides the capacity of a link among flows, and no capacity is configured.
    #[error(
        "{leg}: control = {name:?} divides the capacity of the link, which is not configured: add capacity = \"10Mbit\" with the link's rate"
    )]
    NoCapacity {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
    },
    /// The controller needs to be told the capacity.
    #[error(
        "{leg}: control = {name:?} cannot estimate a capacity: write the link's rate, as in capacity = \"10Mbit\", or set control = \"share\", \
         which estimates it"
    )]
    NoEstimate {
        /// Which profile names it.
        leg: String,
        /// The name.
        name: String,
    },
    /// An estimated capacity cannot be shaped to.
    #[error(
        "{leg}: shape = true does not go with capacity = \"auto\": a shaper needs a rate. Leave shape out, or write the link's rate as the capacity"
    )]
    ShapedEstimate {
        /// Which profile has them.
        leg: String,
    },
    /// A capacity is to be estimated, but nothing does so.
    #[error(
        "{leg}: capacity = \"auto\" has no effect without control = \"share\", which estimates it: set that, or leave the capacity out"
    )]
    NoEstimator {
        /// Which profile has it.
        leg: String,
    },
    /// A weight is configured, but the controller ignores it.
    #[error("{leg}: weight = {weight} has no effect: only control = \"share\" uses weights; set that, or leave the weight out")]
    NoWeights {
        /// Which profile has it.
        leg: String,
        /// The weight.
        weight: u16,
    },
}

/// Tandem's controllers that profiles need. They stay in the kernel at least until it is dropped.
#[derive(Debug, Default)]
pub struct Controllers {
    loaded: BTreeMap<&'static str, LoadedController>,
}

impl Controllers {
    /// Loads those of Tandem's controllers that profiles name, and tries the kernel's own ones.
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

    /// Replaces the names of Tandem's controllers in profiles by the names that the kernel knows.
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
        if profile.capacity == Some(CapacitySource::Auto) {
            if profile.shape == Some(true) {
                return Err(ControllerError::ShapedEstimate { leg });
            }
            if ours.is_none_or(|ours| !ours.needs_capacity()) {
                return Err(ControllerError::NoEstimator { leg });
            }
        }
        let Some(name) = &profile.control else { return Ok(()) };
        if let Some(ours) = ours {
            if ours.needs_capacity() && profile.capacity.is_none() {
                return Err(ControllerError::NoCapacity { leg, name: name.clone() });
            }
            if ours.needs_capacity() && !ours.estimates_capacity() && profile.capacity == Some(CapacitySource::Auto) {
                return Err(ControllerError::NoEstimate { leg, name: name.clone() });
            }
            if !kernel::may_load() && leg::try_controller(&in_kernel(ours)).is_ok() {
                // Another process loaded it. This process cannot keep it loaded: once it is
                // unloaded, later connections cannot use it.
                return Ok(());
            }
            if !self.loaded.contains_key(ours.name()) {
                let loaded = kernel::load(ours.name(), &[]).map_err(|why| match why {
                    kernel::Error::Privilege => ControllerError::MayNotLoad { leg, name: name.clone(), controller: ours.name() },
                    why => ControllerError::NotLoaded { leg, name: name.clone(), why: why.into() },
                })?;
                self.loaded.insert(ours.name(), loaded);
            }
            return Ok(());
        }
        // A path is no name for the kernel.
        let tried = if name.contains('/') { Err(io::ErrorKind::NotFound) } else { leg::try_controller(name).map_err(|why| why.kind()) };
        match tried {
            Err(io::ErrorKind::NotFound) => {
                if let Err(why) = Controller::find(name) {
                    return Err(ControllerError::OwnController { leg, why: why.into() });
                }
                let ours = Controller::available_names().join(", ");
                Err(ControllerError::NoController { leg, name: name.clone(), available: leg::available_controllers().join(", "), ours })
            }
            Err(io::ErrorKind::PermissionDenied) => Err(ControllerError::RestrictedController { leg, name: name.clone() }),
            // Other errors are not about the controller. The first leg reports them.
            _ => Ok(()),
        }
    }
}

/// The name by which the kernel knows one of Tandem's controllers.
fn in_kernel(controller: Controller) -> String {
    format!("td_{}", controller.name())
}
