//! How fast to send: congestion controllers.
//!
//! Each is one C header in `c/` of pure integer functions over three plain structs, [`Flow`], [`Link`] and [`Event`] (`c/intf.h`
//! has what their fields mean). The kernel gets them as BPF programs (crate `kernel`), the simulator calls them here. No socket,
//! no clock, no randomness: what a controller decides follows from what it is told.
//!
//! ```
//! use control::{Controller, Event, Flow, Kind};
//! let reno = Controller::named("reno").unwrap();
//! let mut flow = Flow { mss: 1448, cwnd: 10, ssthresh: control::INFINITE, ..Flow::default() };
//! let mut state = reno.begin(&mut flow, None, 0);
//! state.step(&mut flow, None, &Event { kind: Kind::Ack, acked: 10, flags: control::LIMITED, ..Event::default() });
//! assert_eq!(flow.cwnd, 20);
//! ```

mod ffi;

pub use ffi::{Event, Flow, Kind, Link, MpcpPart, SharePart, XcpPart};
use std::fmt;

/// A window without bound, as ssthresh is at the start.
pub const INFINITE: u32 = 0x7fff_ffff;
/// [`Event::flags`]: cwnd kept the flow from sending more.
pub const LIMITED: u32 = 1;
/// [`Event::flags`]: the ACK echoes a CE mark.
pub const ECHO: u32 = 2;
/// [`Event::flags`]: no byte will ever follow those that were written.
pub const LAST: u32 = 4;
/// [`Event::flags`]: the receiver may have held the ACK back: it is for one segment, in order.
pub const HELD: u32 = 8;
/// A controller's own state of a flow, in words: what Linux grants one, less the kernel programs' own word.
pub const STATE_WORDS: usize = 12;

/// A congestion controller.
#[derive(Clone, Copy)]
pub struct Controller(&'static ffi::Native);

/// Something that can be set about a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunable {
    /// Its name, with its unit at the end where it has one.
    pub name: &'static str,
    /// What it is unless set.
    pub default: u32,
    /// What it is for.
    pub text: &'static str,
}

/// A controller at work on one flow.
#[derive(Debug, Clone)]
pub struct State {
    controller: Controller,
    words: [u64; STATE_WORDS],
    tunables: Vec<u32>,
}

impl Controller {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Controller> {
        ffi::natives().iter().map(Controller)
    }

    /// The one of this name, with or without the `td_` that it has in the kernel.
    pub fn named(name: &str) -> Option<Controller> {
        let name = name.strip_prefix("td_").unwrap_or(name);
        Controller::all().find(|controller| controller.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// What it is, in a line.
    pub fn text(self) -> &'static str {
        self.0.text()
    }

    /// Whether it owns the whole window: it is called at every ACK, in recovery as well, and TCP changes nothing by itself.
    pub fn whole(self) -> bool {
        self.0.whole()
    }

    /// Whether it shares out a link's capacity, and is NewReno where that is not known.
    pub fn needs_capacity(self) -> bool {
        self.whole()
    }

    /// Whether it wants to hear what each ACK delivered and measured ([`Kind::Sample`]), beside whether the window may grow.
    pub fn wants_samples(self) -> bool {
        const SAMPLE: u32 = 1; // TD_WANTS_SAMPLE
        self.0.wants() & SAMPLE != 0
    }

    /// What can be set about it.
    pub fn tunables(self) -> impl Iterator<Item = Tunable> {
        self.0.tunables().iter().map(|tunable| Tunable { name: tunable.name(), default: tunable.value, text: tunable.text() })
    }

    /// Takes charge of a flow at a time (µs), with the default tunables.
    pub fn begin(self, flow: &mut Flow, link: Option<&mut Link>, now_us: u64) -> State {
        self.begin_tuned(self.tunables().map(|tunable| tunable.default).collect(), flow, link, now_us)
    }

    /// As [`Controller::begin`], with these tunables, in the order of [`Controller::tunables`].
    ///
    /// # Panics
    /// If there are not as many as the controller has.
    pub fn begin_tuned(self, tunables: Vec<u32>, flow: &mut Flow, link: Option<&mut Link>, now_us: u64) -> State {
        assert_eq!(tunables.len(), self.tunables().count(), "tunables of {}", self.name());
        let mut state = State { controller: self, words: [0; STATE_WORDS], tunables };
        state.step(flow, link, &Event { now_us, kind: Kind::Init, ..Event::default() });
        state
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl State {
    /// Tells the controller what happened; what it decides is in the flow afterwards.
    #[inline]
    pub fn step(&mut self, flow: &mut Flow, link: Option<&mut Link>, event: &Event) {
        self.controller.0.step(flow, &mut self.words, link, event, &self.tunables);
    }

    /// Who it is.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// The controller's own words, as they lie in a socket of the kernel too.
    pub fn words(&self) -> &[u64; STATE_WORDS] {
        &self.words
    }
}
