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
//!
//! A user's own controllers ([`OwnController`]) are headers of the same form. `tandem control
//! build` compiles them to BPF, and an interpreter here runs what the kernel would run.

mod artefact;
mod ffi;
mod interpreter;
mod own;
mod own_error;
mod tunable;

pub use artefact::{ARTEFACT_ENDING, Artefact, INTERFACE, Manifest, ManifestTunable, check_name};
pub use ffi::{CapacityEstimate, Event, EventKind, FlowState, LinkRecord, MpcpPart, SharePart, XcpPart};
pub use own::{OwnController, SYSTEM_DIRECTORY, own_directory};
pub use own_error::OwnError;
use std::{fmt, path::Path};
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
/// [`Event::flags`]: the ACK is for a lone segment that is not full, which the receiver has
/// probably delayed.
pub const LONE_RUNT: u32 = 32;
/// [`Event::flags`]: the ACK has a timestamp ([`Event::return_ms`]).
pub const TIMESTAMP: u32 = 64;
/// The largest size of a controller's state of a flow, in 64-bit words. Most need no more than what
/// Linux grants in a socket (`ICSK_CA_PRIV_SIZE`, 13 words) less one for the BPF hooks.
pub const MOST_STATE_WORDS: usize = 80;
/// The largest number of tunables of a controller.
const MOST_TUNABLES: usize = 16;

/// A controller's name without the prefix that it has in the kernel.
pub fn short_name(name: &str) -> &str {
    name.strip_prefix("td_").unwrap_or(name)
}

/// A congestion controller.
#[derive(Clone, Copy)]
pub struct Controller(Definition);

#[derive(Clone, Copy)]
enum Definition {
    /// One of Tandem's, from the table of `c/native.c`.
    Native(&'static ffi::Native),
    /// One of a user.
    Own(&'static OwnController),
}

/// The state of a controller for one flow.
#[derive(Debug, Clone)]
pub struct ControllerState {
    controller: Controller,
    words: Box<[u64]>,
    tunables: tunable::Values,
}

impl Controller {
    /// All controllers of Tandem.
    pub fn all() -> impl Iterator<Item = Controller> {
        ffi::natives().iter().map(|native| Controller(Definition::Native(native)))
    }

    /// All controllers of Tandem, and the own ones that can be used by name or that this process
    /// has read already.
    pub fn available() -> Vec<Controller> {
        Controller::all().chain(own::survey().0.into_iter().map(|own| Controller(Definition::Own(own)))).collect()
    }

    /// Why own controllers in the directories where names are looked for cannot be used.
    pub fn refused() -> Vec<OwnError> {
        own::survey().1
    }

    /// The names of the [available](Controller::available) controllers, for messages.
    pub fn available_names() -> Vec<&'static str> {
        Controller::available().into_iter().map(Controller::name).collect()
    }

    /// The controller with this name, with or without the prefix `td_` that it has in the kernel,
    /// or the own controller in the file of this path, which has a `/`. `None`: there is none, or
    /// [`find`](Controller::find) has the reason why not.
    pub fn named(name: &str) -> Option<Controller> {
        Controller::find(name).ok().flatten()
    }

    /// As [`named`](Controller::named).
    ///
    /// # Errors
    /// When there is a file of an own controller, but it cannot be used.
    pub fn find(name: &str) -> Result<Option<Controller>, OwnError> {
        if name.contains('/') {
            return own::by_path(Path::new(name)).map(|own| Some(Controller(Definition::Own(own))));
        }
        let name = short_name(name);
        match Controller::native(name) {
            Some(native) => Ok(Some(native)),
            None => Ok(own::by_name(name)?.map(|own| Controller(Definition::Own(own)))),
        }
    }

    /// The controller of an artefact that this process has just built from `file`, to try it.
    /// Neither its name nor a path finds it. It is never freed.
    ///
    /// # Errors
    /// When its program has what controllers cannot use.
    pub fn for_trial(artefact: Artefact, file: &Path) -> Result<Controller, OwnError> {
        own::for_trial(artefact, file).map(|own| Controller(Definition::Own(own)))
    }

    /// The controller of Tandem with this name.
    pub(crate) fn native(name: &str) -> Option<Controller> {
        Controller::all().find(|controller| controller.name() == name)
    }

    /// The own controller that it is, if it is one.
    pub fn own(self) -> Option<&'static OwnController> {
        match self.0 {
            Definition::Native(_) => None,
            Definition::Own(own) => Some(own),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Definition::Native(native) => native.name(),
            Definition::Own(own) => &own.manifest().name,
        }
    }

    /// Description, one line.
    pub fn description(self) -> &'static str {
        match self.0 {
            Definition::Native(native) => native.description(),
            Definition::Own(own) => &own.manifest().text,
        }
    }

    /// Whether it owns the window: it is called at every ACK, in recovery too, and TCP does not
    /// change cwnd itself.
    pub fn owns_window(self) -> bool {
        match self.0 {
            Definition::Native(native) => native.owns_window(),
            Definition::Own(own) => own.manifest().owns_window,
        }
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
        self.wants() & RATE != 0
    }

    /// Size of its state of a flow, in 64-bit words: at most [`MOST_STATE_WORDS`].
    pub fn state_words(self) -> usize {
        match self.0 {
            Definition::Native(native) => native.state_words(),
            Definition::Own(own) => own.manifest().state_bytes.div_ceil(8) as usize,
        }
    }

    /// Whether it needs [`EventKind::Sample`] events.
    pub fn wants_samples(self) -> bool {
        const SAMPLE: u32 = 1; // TD_WANTS_SAMPLE
        self.wants() & SAMPLE != 0
    }

    fn wants(self) -> u32 {
        match self.0 {
            Definition::Native(native) => native.wants(),
            Definition::Own(own) => own.manifest().wants,
        }
    }

    /// Its parameters.
    pub fn tunables(self) -> impl Iterator<Item = Tunable> {
        let (native, own): (&'static [ffi::RawTunable], &'static [Tunable]) = match self.0 {
            Definition::Native(native) => (native.tunables(), &[]),
            Definition::Own(own) => (&[], own.tunables()),
        };
        let native = native.iter().map(|tunable| Tunable {
            name: tunable.name(),
            default: tunable.value,
            range: tunable.low..=tunable.high,
            text: tunable.text(),
        });
        native.chain(own.iter().cloned())
    }

    pub(crate) fn tunable_count(self) -> usize {
        match self.0 {
            Definition::Native(native) => native.tunables().len(),
            Definition::Own(own) => own.tunables().len(),
        }
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
    ///
    /// # Panics
    /// When the program of an own controller fails: it reads a link that there is not, say. The
    /// kernel's verifier refuses such programs, and so `tandem control build` does.
    #[inline]
    pub fn step(&mut self, flow: &mut FlowState, link: Option<&mut LinkRecord>, event: &Event) {
        let tunables = self.tunables.of(self.controller);
        match self.controller.0 {
            Definition::Native(native) => native.step(flow, &mut self.words, link, event, tunables),
            Definition::Own(own) => own.step(flow, &mut self.words, link, event, tunables).unwrap_or_else(|error| panic!("{error}")),
        }
    }

    /// As [`step`](Self::step), for own controllers: their programs may be faulty.
    ///
    /// # Errors
    /// When its program fails. Nothing is changed then.
    pub fn try_step(&mut self, flow: &mut FlowState, link: Option<&mut LinkRecord>, event: &Event) -> Result<(), OwnError> {
        let tunables = self.tunables.of(self.controller);
        match self.controller.0 {
            Definition::Native(native) => {
                native.step(flow, &mut self.words, link, event, tunables);
                Ok(())
            }
            Definition::Own(own) => own.step(flow, &mut self.words, link, event, tunables),
        }
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
