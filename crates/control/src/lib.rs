//! Congestion controllers: how fast to send.
//!
//! Each controller is one C header in `c/`, of pure integer functions over three plain structs:
//! [`FlowState`], [`LinkRecord`] and [`Event`] (`c/intf.h` defines their fields). The kernel runs
//! the same header as a BPF program (crate `kernel`); the simulator calls the native build here. A
//! controller knows no socket, clock or randomness: its decisions depend on its inputs only.
//!
//! The caller fills in the flow as TCP sees it, calls [`Controller::begin`], and then
//! [`ControllerState::step`] for each event. After each call it takes `cwnd`, `ssthresh` and
//! `pacing_rate` from the flow. The last event is [`EventKind::Close`]; in the kernel only controllers
//! that own the window get it.
//!
//! ```
//! use control::{Controller, Event, EventKind, FlowState};
//! let reno = Controller::named("reno").unwrap();
//! let mut flow = FlowState { mss: 1448, cwnd: 10, ssthresh: control::INFINITE, ..FlowState::default() };
//! let mut state = reno.begin(&mut flow, None, 0);
//! state.step(&mut flow, None, &Event { kind: EventKind::Ack, acked: 10, flags: control::CWND_LIMITED, ..Event::default() });
//! assert_eq!(flow.cwnd, 20);
//! ```

mod ffi;
mod tunable;

pub use ffi::{CapacityEstimate, Event, EventKind, FlowState, LinkRecord, MpcpPart, SharePart, XcpPart};
use std::fmt;
pub use tunable::{Tunable, TunableError, TunedController};

/// An unbounded window, segments: the initial ssthresh.
pub const INFINITE: u32 = 0x7fff_ffff;
/// [`Event::flags`]: cwnd limited what the flow sent.
pub const CWND_LIMITED: u32 = 1;
/// [`Event::flags`]: the ACK echoes a CE mark.
pub const ECN_ECHO: u32 = 2;
/// [`Event::flags`]: the application has closed its sending side.
pub const NO_MORE_DATA: u32 = 4;
/// [`Event::flags`]: the receiver may have delayed the ACK (RFC 1122 §4.2.3.2): it is for one
/// segment, in order.
pub const DELAYED_ACK: u32 = 8;
/// [`Event::flags`]: the rate sample is limited by the application.
pub const APP_LIMITED: u32 = 16;
/// [`Event::flags`]: the ACK is for a lone segment that is not full, which the receiver has probably
/// delayed.
pub const LONE_RUNT: u32 = 32;
/// The largest size of a controller's state of a flow, in 64-bit words. Most need no more than what
/// Linux grants in a socket (`ICSK_CA_PRIV_SIZE`, 13 words) less one for the BPF hooks.
pub const MOST_STATE_WORDS: usize = 80;

/// A congestion controller.
#[derive(Clone, Copy)]
pub struct Controller(&'static ffi::Native);

/// The state of a controller for one flow.
#[derive(Debug, Clone)]
pub struct ControllerState {
    controller: Controller,
    words: Box<[u64]>,
    tunables: tunable::Values,
}

impl Controller {
    /// All controllers.
    pub fn all() -> impl Iterator<Item = Controller> {
        ffi::natives().iter().map(Controller)
    }

    /// The controller with this name, with or without the prefix `td_` that it has in the kernel.
    pub fn named(name: &str) -> Option<Controller> {
        let name = name.strip_prefix("td_").unwrap_or(name);
        Controller::all().find(|controller| controller.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Description, one line.
    pub fn description(self) -> &'static str {
        self.0.description()
    }

    /// Whether it owns the window: it is called at every ACK, in recovery too, and TCP does not
    /// change cwnd itself.
    pub fn owns_window(self) -> bool {
        self.0.owns_window()
    }

    /// Whether it allocates the configured capacity of a link. While that is unknown it is NewReno.
    pub fn needs_capacity(self) -> bool {
        self.owns_window() && !self.wants_rate_samples()
    }

    /// Whether it can estimate a link's capacity. It does so if the link's record has
    /// [`CapacityEstimate::enabled`].
    pub fn estimates_capacity(self) -> bool {
        self.name() == "share"
    }

    /// Whether it needs delivery rate samples, TCP's congestion state, timeouts and undone losses;
    /// it then owns the window without knowing the link.
    pub fn wants_rate_samples(self) -> bool {
        const RATE: u32 = 32; // TD_WANTS_RATE
        self.0.wants() & RATE != 0
    }

    /// Size of its state of a flow, in 64-bit words: at most [`MOST_STATE_WORDS`].
    pub fn state_words(self) -> usize {
        self.0.state_words()
    }

    /// Whether it needs [`EventKind::Sample`] events.
    pub fn wants_samples(self) -> bool {
        const SAMPLE: u32 = 1; // TD_WANTS_SAMPLE
        self.0.wants() & SAMPLE != 0
    }

    /// Its parameters.
    pub fn tunables(self) -> impl Iterator<Item = Tunable> {
        self.0.tunables().iter().map(|tunable| Tunable {
            name: tunable.name(),
            default: tunable.value,
            range: tunable.low..=tunable.high,
            text: tunable.text(),
        })
    }

    pub(crate) fn tunable_count(self) -> usize {
        self.0.tunables().len()
    }

    /// With the default values of its tunables.
    pub fn untuned(self) -> TunedController {
        TunedController::untuned(self)
    }

    /// With these values of tunables, by name; the others have their defaults.
    ///
    /// # Errors
    /// It has no such tunable, or the value is outside of its range.
    pub fn tuned<N: AsRef<str>>(self, settings: &[(N, u32)]) -> Result<TunedController, TunableError> {
        TunedController::new(self, settings)
    }

    /// Starts on a flow at time `now_us` (µs), with the default tunables.
    pub fn begin(self, flow: &mut FlowState, link: Option<&mut LinkRecord>, now_us: u64) -> ControllerState {
        self.untuned().begin(flow, link, now_us)
    }
}

impl PartialEq for Controller {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Controller {}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ControllerState {
    /// Passes an event to the controller, which writes its decisions to the flow. `link` is the
    /// record of the flow's egress link, if there is one.
    #[inline]
    pub fn step(&mut self, flow: &mut FlowState, link: Option<&mut LinkRecord>, event: &Event) {
        self.controller.0.step(flow, &mut self.words, link, event, self.tunables.of(self.controller));
    }

    /// The controller.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// The controller's own state, as it is stored in a kernel socket too.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
