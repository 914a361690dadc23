//! The parameters of controllers, and a controller with values of its own.

use crate::{Controller, ControllerState, Event, EventKind, FlowState, LinkRecord, MOST_TUNABLES, OwnError};
use std::{fmt, ops::RangeInclusive};

/// A parameter of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunable {
    /// Its name, which ends in the unit if it has one.
    pub name: &'static str,
    /// Default value.
    pub default: u32,
    /// The values that it can have.
    pub range: RangeInclusive<u32>,
    /// Description.
    pub text: &'static str,
}

/// A controller with values of its tunables.
#[derive(Debug, Clone, Copy)]
pub struct TunedController {
    controller: Controller,
    values: Values,
}

/// Values of tunables in the order of [`Controller::tunables`]; what follows is not used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values([u32; MOST_TUNABLES]);

/// A setting that a controller does not accept. The message lists its tunables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunableError {
    controller: Controller,
    name: String,
    /// The value, if it is outside of the range; none if there is no such tunable.
    value: Option<u32>,
}

impl TunedController {
    pub(crate) fn untuned(controller: Controller) -> Self {
        let mut values = [0; MOST_TUNABLES];
        for (value, tunable) in values.iter_mut().zip(controller.tunables()) {
            *value = tunable.default;
        }
        TunedController { controller, values: Values(values) }
    }

    pub(crate) fn new<N: AsRef<str>>(controller: Controller, settings: &[(N, u32)]) -> Result<Self, TunableError> {
        let mut tuned = TunedController::untuned(controller);
        for (name, value) in settings {
            let name = name.as_ref();
            let wrong = |value| TunableError { controller, name: name.into(), value };
            let (at, tunable) = controller.tunables().enumerate().find(|(_, tunable)| tunable.name == name).ok_or_else(|| wrong(None))?;
            if !tunable.range.contains(value) {
                return Err(wrong(Some(*value)));
            }
            tuned.values.0[at] = *value;
        }
        Ok(tuned)
    }

    /// The controller.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// The values of its tunables, in the order of [`Controller::tunables`].
    pub fn values(&self) -> &[u32] {
        self.values.of(self.controller)
    }

    /// Starts on a flow at time `now_us` (µs).
    ///
    /// # Panics
    /// As [`ControllerState::step`].
    pub fn begin(&self, flow: &mut FlowState, link: Option<&mut LinkRecord>, now_us: u64) -> ControllerState {
        self.try_begin(flow, link, now_us).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`begin`](Self::begin), for own controllers: their programs may be faulty.
    ///
    /// # Errors
    /// When its program fails.
    pub fn try_begin(&self, flow: &mut FlowState, link: Option<&mut LinkRecord>, now_us: u64) -> Result<ControllerState, OwnError> {
        let mut state =
            ControllerState { controller: self.controller, words: vec![0; self.controller.state_words()].into(), tunables: self.values };
        state.try_step(flow, link, &Event { now_us, kind: EventKind::Init, ..Event::default() })?;
        Ok(state)
    }
}

impl Values {
    pub(crate) fn of(&self, controller: Controller) -> &[u32] {
        &self.0[..controller.tunable_count()]
    }
}

impl fmt::Display for TunableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunableError { controller, name, value } = self;
        match value {
            Some(value) => write!(f, "{name} of {controller:?} cannot be {value}")?,
            None => write!(f, "{controller:?} has no tunable {name:?}")?,
        }
        f.write_str("; its tunables are ")?;
        for (at, tunable) in controller.tunables().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({} to {}, default {})", tunable.name, tunable.range.start(), tunable.range.end(), tunable.default)?;
        }
        Ok(())
    }
}

impl std::error::Error for TunableError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_range() {
        for controller in Controller::all() {
            assert!(controller.tunable_count() <= MOST_TUNABLES, "{controller:?}");
            for tunable in controller.tunables() {
                assert!(tunable.range.contains(&tunable.default), "{controller:?}: {tunable:?}");
                controller.tuned(&[(tunable.name, *tunable.range.end())]).unwrap();
            }
        }
    }

    #[test]
    fn wrong_settings_list_the_tunables_with_ranges_and_defaults() {
        let reno = Controller::named("reno").unwrap();
        let text = |name, value| reno.tuned(&[(name, value)]).unwrap_err().to_string();
        let list = "its tunables are beta_milli (100 to 999, default 500)";
        assert_eq!(text("beta", 500), format!("reno has no tunable \"beta\"; {list}"));
        assert_eq!(text("beta_milli", 1000), format!("beta_milli of reno cannot be 1000; {list}"));
        assert_eq!(reno.tuned(&[("beta_milli", 700)]).unwrap().values(), [700]);
    }
}
