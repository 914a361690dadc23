//! Who decides on a sender's window: a controller of Tandem's that the kernel has too, or one that routers tell what to do.

use super::explicit;
use crate::packet::Header;
use control::{Controller, Event, FlowState as Flow, LinkRecord as Link};
use scenario::Explicit;

/// Whom a leg is under.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Law {
    Own(Controller),
    Told(Explicit),
}

/// One at work on a flow.
#[derive(Debug)]
pub(super) enum State {
    Own(control::ControllerState),
    Told(explicit::State),
}

impl Law {
    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Law> {
        Explicit::named(name).map(Law::Told).or_else(|| Controller::named(name).map(Law::Own))
    }

    /// The controller that it is, where routers tell nothing.
    pub(crate) fn own(self) -> Option<Controller> {
        match self {
            Law::Own(controller) => Some(controller),
            Law::Told(_) => None,
        }
    }

    /// Whether routers tell it what to do.
    pub(super) fn is_told(self) -> bool {
        matches!(self, Law::Told(_))
    }

    /// Whether it shares out a link's capacity.
    pub(crate) fn needs_capacity(self) -> bool {
        self.own().is_some_and(Controller::needs_capacity)
    }

    /// Whether it is `name`.
    pub(crate) fn is(self, name: &str) -> bool {
        self.own().is_some_and(|controller| controller.name() == name)
    }

    /// Whether it owns the whole window, in recovery as well.
    pub(super) fn is_whole(self) -> bool {
        match self {
            Law::Own(controller) => controller.owns_window(),
            Law::Told(explicit) => explicit.keeps,
        }
    }

    /// Whether it sets the pace.
    pub(super) fn paces(self) -> bool {
        match self {
            Law::Own(controller) => controller.owns_window(),
            Law::Told(explicit) => explicit::paces(explicit),
        }
    }

    /// Takes charge of a flow at a time, µs.
    pub(super) fn begin(self, flow: &mut Flow, link: Option<&mut Link>, now_us: u64) -> State {
        match self {
            Law::Own(controller) => State::Own(controller.begin(flow, link, now_us)),
            Law::Told(explicit) => State::Told(explicit::State::begin(explicit, flow)),
        }
    }
}

impl State {
    /// Tells what happened; what is decided is in the flow afterwards.
    pub(super) fn step(&mut self, flow: &mut Flow, link: Option<&mut Link>, event: &Event) {
        match self {
            State::Own(state) => state.step(flow, link, event),
            State::Told(state) => state.step(flow, event),
        }
    }

    /// An acknowledgement brought this word of the routers.
    pub(super) fn hear(&mut self, word: f32) {
        if let State::Told(state) = self {
            state.hear(word);
        }
    }

    /// What the next data packet is to tell routers, and to ask of them; `wants` says that more would be used.
    pub(super) fn say(&mut self, flow: &Flow, rtt_us: u32, wants: bool) -> Option<(Header, f32)> {
        match self {
            State::Own(_) => None,
            State::Told(state) => Some(state.say(flow, rtt_us, wants)),
        }
    }
}
