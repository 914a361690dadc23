//! Congestion controllers that are Python objects, for the simulator.
//!
//! Each event of a flow is a call of a method. It takes the GIL for as long as it lasts. The first
//! exception ends the run: the controllers are not called any more, the run is cancelled, and the
//! caller gets the exception.

use control::{EventKind, FlowState, INFINITE};
use pyo3::{intern, prelude::*, types::PyString};
use sim::{ExternalController, ExternalControllerState};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// A connection as its congestion controller sees it. It sets ``cwnd``, ``ssthresh`` and
/// ``pacing_rate``; all numbers are whole and have 32 bits, the pacing rate 64.
#[pyclass(module = "tandem")]
pub(crate) struct Flow {
    /// Payload of a full segment, bytes.
    #[pyo3(get)]
    mss: u32,
    /// Smoothed round-trip time, µs; 0: not measured yet.
    #[pyo3(get)]
    srtt_us: u32,
    /// TCP's windowed minimum of the round-trip time, µs; 0: not measured yet.
    #[pyo3(get)]
    min_rtt_us: u32,
    /// Segments that were sent and are neither acknowledged, SACKed nor marked lost.
    #[pyo3(get)]
    in_flight: u32,
    /// First unacknowledged sequence number, modulo 2³².
    #[pyo3(get)]
    una: u32,
    /// Next sequence number to send, modulo 2³².
    #[pyo3(get)]
    nxt: u32,
    /// Bytes that wait and were never sent.
    #[pyo3(get)]
    unsent: u32,
    /// The receiver's window, bytes.
    #[pyo3(get)]
    snd_wnd: u32,
    /// The congestion window before the last reduction, segments.
    #[pyo3(get)]
    prior_cwnd: u32,
    /// TCP's congestion state as in Linux: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss. With
    /// ``wants_rate_samples``, as the next two.
    #[pyo3(get)]
    ca_state: u32,
    /// Segments delivered so far, modulo 2³².
    #[pyo3(get)]
    delivered: u32,
    /// Segments marked lost so far, modulo 2³².
    #[pyo3(get)]
    lost: u32,
    /// The congestion window, segments. Can be set.
    #[pyo3(get, set)]
    cwnd: u32,
    /// The slow start threshold, segments. Can be set.
    #[pyo3(get, set)]
    ssthresh: u32,
    /// Pacing rate, bytes/s of payload; 0: TCP's own pacing. Can be set by a controller that owns
    /// the window.
    #[pyo3(get, set)]
    pacing_rate: u64,
}

impl Flow {
    fn of(flow: &FlowState) -> Self {
        let &FlowState { mss, srtt_us, min_rtt_us, in_flight, una, nxt, unsent, snd_wnd, prior_cwnd, ca_state, delivered, lost, .. } = flow;
        let &FlowState { cwnd, ssthresh, pacing_rate, .. } = flow;
        Flow {
            mss,
            srtt_us,
            min_rtt_us,
            in_flight,
            una,
            nxt,
            unsent,
            snd_wnd,
            prior_cwnd,
            ca_state,
            delivered,
            lost,
            cwnd,
            ssthresh,
            pacing_rate,
        }
    }
}

/// An event of a connection, for its congestion controller.
#[pyclass(frozen, module = "tandem")]
pub(crate) struct Event {
    /// A monotonic time, µs.
    #[pyo3(get)]
    now_us: u64,
    /// Segments newly acknowledged or SACKed.
    #[pyo3(get)]
    acked: u32,
    /// Of those, segments with a CE mark, if the receiver reports it.
    #[pyo3(get)]
    marked: u32,
    /// Sample of the round-trip time, µs; 0: none.
    #[pyo3(get)]
    rtt_us: u32,
    /// Segments newly marked lost.
    #[pyo3(get)]
    lost: u32,
    /// Time over which the delivery rate was measured, µs; 0: no sample. With
    /// ``wants_rate_samples``, as the next four.
    #[pyo3(get)]
    interval_us: u32,
    /// Segments delivered since the segment of the sample was sent; 0: none.
    #[pyo3(get)]
    sampled: u32,
    /// ``delivered`` of the flow when that segment was sent.
    #[pyo3(get)]
    prior_delivered: u32,
    /// Segments in flight before the acknowledgement.
    #[pyo3(get)]
    prior_in_flight: u32,
    /// A random number of 32 bits, new at each event.
    #[pyo3(get)]
    random: u32,
    /// Whether the congestion window limits what the flow sends.
    #[pyo3(get)]
    cwnd_limited: bool,
    /// Whether the acknowledgement echoes a CE mark.
    #[pyo3(get)]
    ecn_echo: bool,
    /// Whether the application has closed its sending side, and all is sent. For controllers that
    /// own the window.
    #[pyo3(get)]
    no_more_data: bool,
    /// Whether the receiver may have delayed the acknowledgement (RFC 1122 §4.2.3.2).
    #[pyo3(get)]
    delayed_ack: bool,
    /// Whether the rate sample is limited by the application.
    #[pyo3(get)]
    app_limited: bool,
}

impl Event {
    fn of(event: &control::Event) -> Self {
        let has = |flag: u32| event.flags & flag != 0;
        Event {
            now_us: event.now_us,
            acked: event.acked,
            marked: event.marked,
            rtt_us: event.rtt_us,
            lost: event.lost,
            interval_us: event.interval_us,
            sampled: event.sampled,
            prior_delivered: event.prior_delivered,
            prior_in_flight: event.prior_in_flight,
            random: event.random,
            cwnd_limited: has(control::CWND_LIMITED),
            ecn_echo: has(control::ECN_ECHO),
            no_more_data: has(control::NO_MORE_DATA),
            delayed_ack: has(control::DELAYED_ACK),
            app_limited: has(control::APP_LIMITED),
        }
    }
}

/// The first exception of the controllers of a run.
#[derive(Debug)]
pub(crate) struct Failure {
    raised: Mutex<Option<PyErr>>,
    cancelled: Arc<AtomicBool>,
}

impl Failure {
    /// None so far, of a run that `cancelled` ends.
    pub(crate) fn of_run(cancelled: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Failure { raised: Mutex::new(None), cancelled: cancelled.clone() })
    }

    fn raise(&self, exception: PyErr) {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(exception);
        self.cancelled.store(true, Relaxed);
    }

    /// The exception, once.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A controller by its name: a callable that makes one for each flow, and which events it wants
/// (`owns_window`, `wants_samples`, `wants_rate_samples`).
pub(crate) type ControllerArgument = (String, Py<PyAny>, (bool, bool, bool));

/// The controllers of a run.
pub(crate) fn external(controllers: Vec<ControllerArgument>, failure: &Arc<Failure>) -> Vec<Arc<dyn ExternalController>> {
    let of = |(name, make, (owns_window, wants_samples, wants_rate_samples))| -> Arc<dyn ExternalController> {
        let failure = failure.clone();
        Arc::new(PythonController { name, make: Arc::new(make), owns_window, wants_samples, wants_rate_samples, failure })
    };
    controllers.into_iter().map(of).collect()
}

/// A controller that is written in Python.
#[derive(Debug)]
struct PythonController {
    name: String,
    make: Arc<Py<PyAny>>,
    owns_window: bool,
    wants_samples: bool,
    wants_rate_samples: bool,
    failure: Arc<Failure>,
}

impl ExternalController for PythonController {
    fn name(&self) -> &str {
        &self.name
    }

    fn owns_window(&self) -> bool {
        self.owns_window
    }

    fn wants_samples(&self) -> bool {
        self.wants_samples
    }

    fn wants_rate_samples(&self) -> bool {
        self.wants_rate_samples
    }

    fn begin(&self) -> Box<dyn ExternalControllerState> {
        Box::new(PythonControllerState { make: self.make.clone(), object: None, failure: self.failure.clone() })
    }
}

/// The object of a flow.
#[derive(Debug)]
struct PythonControllerState {
    make: Arc<Py<PyAny>>,
    /// From the first event on.
    object: Option<Py<PyAny>>,
    failure: Arc<Failure>,
}

impl ExternalControllerState for PythonControllerState {
    fn step(&mut self, flow: &mut FlowState, event: &control::Event) {
        // After an exception, or Ctrl-C, the rest of the run is of no interest.
        if self.failure.cancelled.load(Relaxed) {
            return;
        }
        if let Err(exception) = Python::attach(|py| self.call(py, flow, event)) {
            self.failure.raise(exception);
        }
    }
}

impl PythonControllerState {
    fn call(&mut self, py: Python<'_>, flow: &mut FlowState, event: &control::Event) -> PyResult<()> {
        let object = match &self.object {
            Some(object) => object.bind(py).clone(),
            None => {
                let object = self.make.bind(py).call0()?;
                self.object = Some(object.clone().unbind());
                object
            }
        };
        let seen = Bound::new(py, Flow::of(flow))?;
        object.call_method1(method(py, event.kind), (&seen, Event::of(event)))?;
        let decided = seen.borrow();
        flow.cwnd = decided.cwnd.min(INFINITE);
        flow.ssthresh = decided.ssthresh.min(INFINITE);
        flow.pacing_rate = decided.pacing_rate;
        Ok(())
    }
}

/// The method that handles an event.
fn method<'py>(py: Python<'py>, kind: EventKind) -> &'py Bound<'py, PyString> {
    match kind {
        EventKind::Init => intern!(py, "on_init"),
        EventKind::Sample => intern!(py, "on_sample"),
        EventKind::Ack => intern!(py, "on_ack"),
        EventKind::Loss => intern!(py, "on_loss"),
        EventKind::Timeout => intern!(py, "on_timeout"),
        EventKind::Recovered => intern!(py, "on_recovered"),
        EventKind::Undo => intern!(py, "on_undo"),
        EventKind::Restart => intern!(py, "on_restart"),
        EventKind::Close => intern!(py, "on_close"),
    }
}
