//! Controllers that the caller of the simulator brings.

use crate::common::scenario;
use control::{Controller, ControllerState, Event, EventKind, FlowState};
use outcome::{Engine as _, EngineError, Outcome};
use sim::{ExternalController, ExternalControllerState, Sim};
use std::sync::Arc;

/// One of Tandem's controllers behind the interface of external ones, called `mine`.
#[derive(Debug)]
struct Wrapped(Controller);

#[derive(Debug)]
struct WrappedState {
    controller: Controller,
    state: Option<ControllerState>,
}

impl ExternalController for Wrapped {
    fn name(&self) -> &str {
        "mine"
    }

    fn owns_window(&self) -> bool {
        self.0.owns_window()
    }

    fn wants_samples(&self) -> bool {
        self.0.wants_samples()
    }

    fn wants_rate_samples(&self) -> bool {
        self.0.wants_rate_samples()
    }

    fn begin(&self) -> Box<dyn ExternalControllerState> {
        Box::new(WrappedState { controller: self.0, state: None })
    }
}

impl ExternalControllerState for WrappedState {
    fn step(&mut self, flow: &mut FlowState, event: &Event) {
        match &mut self.state {
            Some(state) => state.step(flow, None, event),
            None => {
                assert_eq!(event.kind, EventKind::Init);
                self.state = Some(self.controller.begin(flow, None, event.now_us));
            }
        }
    }
}

fn with(controller: &str) -> Sim {
    Sim { controllers: vec![Arc::new(Wrapped(Controller::named(controller).unwrap()))], ..Sim::default() }
}

/// A split path with losses and marks. All its senders have this controller.
fn path(control: &str) -> String {
    format!(
        "[control]\nsender = \"{control}\"\nproxy = \"{control}\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n\
         [[link]]\nrate = \"10Mbit\"\ndelay = \"30ms\"\nloss = {{ per_packet = 0.005 }}\nqueue = {{ kind = \"codel\", ecn = true }}\n\
         [[split]]\nafter = 1\n[[flow]]\ncount = 2\nbytes = \"2MB\"\n"
    )
}

/// An outcome of `mine` as that of the controller it wraps.
fn renamed(mut outcome: Outcome, control: &str) -> Outcome {
    for leg in outcome.flows.iter_mut().flat_map(|flow| &mut flow.legs) {
        assert_eq!(leg.control, "mine");
        leg.control = control.into();
    }
    outcome
}

#[test]
fn a_wrapped_controller_plays_as_the_one_inside() {
    // A window that TCP reduces, one with samples, and one that owns the window, with rate samples.
    for control in ["reno", "vegas", "bbr"] {
        let native = Sim::default().run(&scenario(&path(control)), 3, &()).unwrap();
        let external = with(control).run(&scenario(&path("mine")), 3, &()).unwrap();
        assert!(native.retransmits() > 0, "the path loses packets");
        assert_eq!(renamed(external, control), native, "{control}");
    }
}

#[test]
fn unknown_names_are_refused_with_a_list_that_has_it() {
    let error = with("reno").can_answer(&scenario(&path("yours"))).unwrap_err().to_string();
    assert!(error.contains("there is no controller \"yours\"") && error.contains(", mine"), "{error}");
}

#[test]
fn parallel_networks_refuse_it() {
    let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"2ms\"\n";
    let text = format!("[control]\nsender = \"mine\"\n{network}{network}[[flow]]\nbytes = \"1MB\"\n[bond]\nscheduler = \"score\"\n");
    let error = with("reno").can_answer(&scenario(&text)).unwrap_err();
    assert!(matches!(&error, EngineError::CannotAnswer { key, .. } if key == "control"), "{error}");
}
