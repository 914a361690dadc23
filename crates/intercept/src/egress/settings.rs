//! Which links profiles configure, and which of them are there.

use super::EgressError;
use crate::{
    capacity::CapacitySource,
    policy::{Interface, NamedProfile},
    routes::{Device, Routes},
};
use std::net::Ipv4Addr;

/// A link as profiles configure it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkSettings {
    pub(super) device: Device,
    pub(super) capacity: CapacitySource,
    pub(super) shape: bool,
}

/// A profile with a capacity, and how its interfaces are determined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkProfile {
    pub(super) leg: String,
    pub(super) capacity: CapacitySource,
    pub(super) shape: bool,
    /// The interface that it names.
    pub(super) link: Option<String>,
    /// The interfaces by which it is chosen, if it names none.
    pub(super) chosen_by: Vec<Interface>,
}

/// The links of profiles.
#[derive(Debug)]
pub(super) struct FoundLinks {
    pub(super) links: Vec<LinkSettings>,
    /// The profiles without an interface, and why.
    pub(super) missing: Vec<(LinkProfile, EgressError)>,
}

impl LinkProfile {
    /// Those of these profiles that have a capacity. One that determines no interface has that of
    /// the present default route.
    ///
    /// # Errors
    /// There is no default route, or the kernel does not list its interfaces.
    pub(super) fn of<'a>(profiles: impl Iterator<Item = NamedProfile<'a>>) -> Result<Vec<Self>, EgressError> {
        let with_capacity = profiles.filter_map(|(leg, profile, chosen_by)| {
            let capacity = profile.capacity.clone()?;
            let shape = profile.shape.unwrap_or(capacity != CapacitySource::Auto);
            Some(LinkProfile { leg, capacity, shape, link: profile.link.clone(), chosen_by: chosen_by.to_vec() })
        });
        with_capacity.map(LinkProfile::with_link).collect()
    }

    fn with_link(self) -> Result<Self, EgressError> {
        if self.link.is_some() || !self.chosen_by.is_empty() {
            return Ok(self);
        }
        // Any address that is not one of this host. No packet is sent to it.
        let anywhere = Ipv4Addr::new(192, 88, 99, 1);
        match self.routes()?.interface_to(anywhere.into()) {
            Some(link) => Ok(LinkProfile { link: Some(link), ..self }),
            None => Err(self.which("the profile names no interface, and there is no default route")),
        }
    }

    /// Whether another profile has its capacity on the same interfaces.
    pub(super) fn is_for_same_links(&self, other: &LinkProfile) -> bool {
        (&self.link, &self.chosen_by) == (&other.link, &other.chosen_by)
    }

    /// Whether its interfaces are given by patterns, so that they may appear later.
    pub(super) fn has_patterns(&self) -> bool {
        self.link.is_none() && self.chosen_by.iter().any(|interface| interface.0.ends_with('*'))
    }

    /// Whether it is for this interface.
    pub(super) fn is_for(&self, device: &Device) -> bool {
        match &self.link {
            Some(link) => device.name == *link,
            None => self.chosen_by.iter().any(|interface| interface.matches(&device.name)),
        }
    }

    /// Those of these interfaces that it is for.
    fn devices_of(&self, there: &[Device]) -> Result<Vec<Device>, EgressError> {
        let devices: Vec<Device> = there.iter().filter(|device| self.is_for(device)).cloned().collect();
        match &self.link {
            _ if !devices.is_empty() => Ok(devices),
            Some(link) => Err(EgressError::NoLink { leg: self.leg.clone(), link: link.clone() }),
            None => Err(self.which("none of the interfaces that the profile is for exists")),
        }
    }

    fn routes(&self) -> Result<Routes, EgressError> {
        Routes::open().map_err(|why| self.which(&format!("the kernel does not list its interfaces: {why}")))
    }

    fn which(&self, why: &str) -> EgressError {
        EgressError::WhichLink { leg: self.leg.clone(), capacity: self.capacity.clone(), why: why.to_owned() }
    }
}

impl FoundLinks {
    /// The links of these profiles that are there now.
    ///
    /// # Errors
    /// Two profiles contradict each other, or the kernel does not list its interfaces.
    pub(super) fn of(profiles: &[LinkProfile]) -> Result<Self, EgressError> {
        let mut found = FoundLinks { links: Vec::new(), missing: Vec::new() };
        let Some(first) = profiles.first() else { return Ok(found) };
        let there = first.routes()?.devices().map_err(|why| first.which(&format!("the kernel does not list its interfaces: {why}")))?;
        for profile in profiles {
            match profile.devices_of(&there) {
                Ok(devices) => devices.into_iter().try_for_each(|device| found.add(profile, device))?,
                Err(why) => found.missing.push((profile.clone(), why)),
            }
        }
        Ok(found)
    }

    fn add(&mut self, profile: &LinkProfile, device: Device) -> Result<(), EgressError> {
        let link = LinkSettings { device, capacity: profile.capacity.clone(), shape: profile.shape };
        match self.links.iter().find(|known| known.device == link.device) {
            None => self.links.push(link),
            Some(known) if *known == link => {}
            Some(_) => return Err(EgressError::Contradiction { leg: profile.leg.clone(), link: link.device.name }),
        }
        Ok(())
    }

    /// These links, if the other profiles may be without an interface now.
    ///
    /// # Errors
    /// A profile that may not.
    pub(super) fn allowing(self, may_be_missing: impl Fn(&LinkProfile) -> bool) -> Result<Vec<LinkSettings>, EgressError> {
        match self.missing.into_iter().find(|(profile, _)| !may_be_missing(profile)) {
            Some((_, why)) => Err(why),
            None => Ok(self.links),
        }
    }
}
