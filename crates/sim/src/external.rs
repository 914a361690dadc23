//! Controllers that are not Tandem's: the simulator's caller brings them.

use control::{Event, FlowState};
use std::fmt::Debug;

/// A congestion controller of the simulator's caller. Scenarios select it by its name
/// ([`Sim::controllers`](crate::Sim::controllers)), on links in series.
///
/// The simulator remains a function of scenario and seed only if the controller is one of its
/// events. Its connections exist in the simulator alone: the lab knows controllers that the kernel
/// has, or that are [written in C](control).
pub trait ExternalController: Debug + Send + Sync {
    /// Its name. Tandem's controllers of the same name are hidden by it.
    fn name(&self) -> &str;

    /// Whether it owns the window: it is called at every acknowledgement, in recovery too, and TCP
    /// does not change `cwnd` itself. It can then set `pacing_rate` as well.
    fn owns_window(&self) -> bool;

    /// Whether it needs [`EventKind::Sample`](control::EventKind::Sample) events. One that owns the
    /// window gets every acknowledgement anyway.
    fn wants_samples(&self) -> bool;

    /// Whether it needs delivery rate samples, TCP's congestion state, timeouts and undone losses.
    /// It must own the window then.
    fn wants_rate_samples(&self) -> bool;

    /// The state for a new flow. Its first event is [`EventKind::Init`](control::EventKind::Init).
    fn begin(&self) -> Box<dyn ExternalControllerState>;
}

/// An external controller for one flow.
pub trait ExternalControllerState: Debug + Send {
    /// Handles an event. The decisions go into `cwnd`, `ssthresh` and `pacing_rate` of the flow, as
    /// those of [`ControllerState::step`](control::ControllerState::step) do.
    fn step(&mut self, flow: &mut FlowState, event: &Event);
}
