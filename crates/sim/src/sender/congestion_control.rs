//! The congestion control of a sender: one of Tandem's controllers, which the kernel has too, one
//! that follows feedback from routers, or one that the caller has brought.

use super::router_assisted::{self, RouterAssistedState};
use crate::{
    external::{ExternalController, ExternalControllerState},
    packet::CongestionHeader,
};
use control::{Controller, Event, EventKind, FlowState, LinkRecord, OwnError, TunedController};
use scenario::{ControllerSetting, Explicit};
use std::sync::Arc;

/// The congestion control of a leg.
#[derive(Debug, Clone)]
pub(crate) enum CongestionControl {
    /// A controller compiled from its C header.
    Native(TunedController),
    /// A controller that follows feedback from routers.
    RouterAssisted(Explicit),
    /// A controller of the simulator's caller.
    External(Arc<dyn ExternalController>),
}

/// The state of a congestion control for one flow.
#[derive(Debug)]
pub(super) enum ControlState {
    Native(control::ControllerState),
    RouterAssisted(RouterAssistedState),
    External(Box<dyn ExternalControllerState>),
    /// The program of an own controller has failed: it decides nothing any more.
    Failed,
}

impl CongestionControl {
    /// The congestion control of a leg, one of `external` if it has the name; none if there is none
    /// of this name. Its scenario has checked the tunables.
    pub(crate) fn of(setting: &ControllerSetting, external: &[Arc<dyn ExternalController>]) -> Option<CongestionControl> {
        if let Some(control) = external.iter().find(|control| control.name() == setting.name) {
            return Some(CongestionControl::External(control.clone()));
        }
        let native = || Controller::named(&setting.name)?.tuned(&setting.pairs()).ok().map(CongestionControl::Native);
        Explicit::named(&setting.name).map(CongestionControl::RouterAssisted).or_else(native)
    }

    /// The native controller, if it is one.
    pub(crate) fn native(&self) -> Option<Controller> {
        match self {
            CongestionControl::Native(tuned) => Some(tuned.controller()),
            CongestionControl::RouterAssisted(_) | CongestionControl::External(_) => None,
        }
    }

    /// Whether it follows feedback from routers.
    pub(crate) fn is_router_assisted(&self) -> bool {
        matches!(self, CongestionControl::RouterAssisted(_))
    }

    /// Whether it divides the capacity of a link and needs to know it.
    pub(crate) fn needs_capacity(&self) -> bool {
        self.native().is_some_and(Controller::needs_capacity)
    }

    /// Whether it is the native controller `name`.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.native().is_some_and(|controller| controller.name() == name)
    }

    /// Whether it alone sets the window, also during recovery.
    pub(super) fn owns_window(&self) -> bool {
        match self {
            CongestionControl::Native(tuned) => tuned.controller().owns_window(),
            CongestionControl::RouterAssisted(explicit) => explicit.ignores_loss,
            CongestionControl::External(control) => control.owns_window(),
        }
    }

    /// Whether it needs events for samples beside those that an owner of the window gets.
    pub(super) fn wants_samples(&self) -> bool {
        let wants = match self {
            CongestionControl::Native(tuned) => tuned.controller().wants_samples(),
            CongestionControl::RouterAssisted(_) => false,
            CongestionControl::External(control) => control.wants_samples(),
        };
        wants && !self.owns_window()
    }

    /// Whether it needs delivery rate samples.
    pub(super) fn wants_rate_samples(&self) -> bool {
        match self {
            CongestionControl::Native(tuned) => tuned.controller().wants_rate_samples(),
            CongestionControl::RouterAssisted(_) => false,
            CongestionControl::External(control) => control.wants_rate_samples() && control.owns_window(),
        }
    }

    /// Whether it sets the pacing rate.
    pub(super) fn paces(&self) -> bool {
        match self {
            CongestionControl::Native(_) | CongestionControl::External(_) => self.owns_window(),
            CongestionControl::RouterAssisted(explicit) => router_assisted::paces(*explicit),
        }
    }

    /// Takes control of a flow at `now_us`.
    ///
    /// # Errors
    /// The program of an own controller fails.
    pub(super) fn begin(&self, flow: &mut FlowState, link: Option<&mut LinkRecord>, now_us: u64) -> Result<ControlState, OwnError> {
        Ok(match self {
            CongestionControl::Native(controller) => ControlState::Native(controller.try_begin(flow, link, now_us)?),
            CongestionControl::RouterAssisted(explicit) => ControlState::RouterAssisted(RouterAssistedState::begin(*explicit, flow)),
            CongestionControl::External(control) => {
                let mut state = control.begin();
                state.step(flow, &Event { now_us, kind: EventKind::Init, ..Event::default() });
                ControlState::External(state)
            }
        })
    }
}

impl ControlState {
    /// Notifies the controller of an event; it writes its decisions into `flow`.
    ///
    /// # Errors
    /// The program of an own controller fails. It is not called again.
    pub(super) fn step(&mut self, flow: &mut FlowState, link: Option<&mut LinkRecord>, event: &Event) -> Result<(), OwnError> {
        match self {
            ControlState::Native(state) => {
                let stepped = state.try_step(flow, link, event);
                if stepped.is_err() {
                    *self = ControlState::Failed;
                }
                return stepped;
            }
            ControlState::RouterAssisted(state) => state.step(flow, event),
            ControlState::External(state) => state.step(flow, event),
            ControlState::Failed => {}
        }
        Ok(())
    }

    /// Passes the router feedback of an acknowledgement, before the event of this acknowledgement.
    pub(super) fn on_feedback(&mut self, feedback: f32) {
        if let ControlState::RouterAssisted(state) = self {
            state.on_feedback(feedback);
        }
    }

    /// The header of the next data packet and the initial value of its feedback field. `wants_more`
    /// tells that the sender would use a larger window.
    pub(super) fn next_header(&mut self, flow: &FlowState, rtt_us: u32, wants_more: bool) -> Option<(CongestionHeader, f32)> {
        match self {
            ControlState::Native(_) | ControlState::External(_) | ControlState::Failed => None,
            ControlState::RouterAssisted(state) => Some(state.next_header(flow, rtt_us, wants_more)),
        }
    }
}
